"""What an agent does for ResourceClaims: it advertises the node's GPUs to them, and hands them over.

device_slice slice_publisher     which GPUs claims may have
claim_files claim_preparation    the files for the container runtime, and the last gate
claim_plugin claim_health        what the kubelet asks
node_claims                      puts them together
grpc_stubs/                      generated from the kubelet's .proto files
"""
