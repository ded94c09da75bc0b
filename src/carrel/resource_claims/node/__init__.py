"""What an agent does for ResourceClaims: it advertises the node's GPUs to them, and hands them over.

device_slice         which GPUs claims may have
claim_preparation    the last gate, and the files for the container runtime
claim_plugin         what the kubelet asks
node_claims          puts them together
grpc_stubs/          generated from the kubelet's .proto files
"""
