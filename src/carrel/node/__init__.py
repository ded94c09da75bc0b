"""The agent, one on each node: finds the node's GPUs, reports them, and allocates them to containers for the kubelet.

If it is down, running pods continue, and new pods are not placed on the node once its last report is old. Also here:
`carrel withdraw`, which removes from the Nodes what agents wrote, and the program in a reservation pod.

Reading order:

    interfaces                           what the agent needs of the machine and of the kubelet
    nvidia/                              the machine's GPUs, from NVML
    simulated_machine                    the same from a file
    simulated_activity                   what programs do on simulated GPUs
    shared_memory                        how much memory of a GPU pods may share
    memory_limits                        whether the driver can limit the memory of containers
    device_names kubelet/                the names of devices; the device plugin, and what else is asked of the kubelet
    slice_plugins                        device plugins for MIG slices
    lease_check                          whether Leases confirm what a pod's annotation says
    allocation                           which container gets which devices
    pod_cgroups                          which pods have processes on the machine
    comparison                           what the kubelet allocated, compared with what the Leases say
    limit_check                          whether it does
    memory_mode_decision                 how memory is advertised to the kubelet
    advertised_memory                    what follows from that on the Node and in the agent's report
    claim_driver                         what an agent does for ResourceClaims: nothing, unless it is their driver
    nvidia_socket                        whether NVIDIA's own plugin serves the node
    gpu_usage_counter                    what the GPUs are used for
    report                               writes the node's GPUs to the API server
    agent                                the loop that does all of this
    metrics                              for Prometheus and probes
    settings entry_point run             one process, one agent per node
    withdrawal                           for uninstalling
    reservation                          the program in a reservation pod
"""
