"""The ledger's record in the cluster: who holds which GPU is written on one Lease per GPU.

Reading order:

    cluster_ledger     keeps the ledger equal to what the cluster says, and to what is just being written
    known_lease        Leases as they are known, and while they are being written
    lease_writer       takes GPUs and gives them back: the only writer of shares
    release            frees GPUs by the word of an admin

    gpu_nodes silent_agents    which node a GPU belongs to; whether its agent has reported lately
    divided_gpus               GPUs that were divided anew while somebody held a part
    unrecorded_pods adoption   pods with GPUs and without a Lease; what kubelets have; records them
    slot_gpus          which GPU is behind a slot, where the kubelet chooses; waits until it has one
    shown_gpus         GPUs and their holders by the numbers that people know
"""
