"""The agent: finds a node's GPUs, reports them, and hands them over to the kubelet. And the reservation program.

Reading order:

    interfaces                     what the agent needs of the machine and of the kubelet
    nvidia/ simulated_machine      the machine's GPUs: by NVML, or from a file
    kubelet/ device_names          the kubelet's calls
    report comparison              what the node reports; what the kubelet did, against what was promised
    allocation_order allocation    which container gets which device
    memory_offer memory_resource   how memory is offered to the kubelet
    withdrawal                     takes off the Nodes what agents wrote there
    agent run settings command     one process
    reservation/                   the program in a reservation pod
"""
