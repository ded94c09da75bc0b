"""The ledger's record in the cluster: watch it, take GPUs by writing Leases, give them back.

Reading order:

    cluster_ledger     keeps the ledger equal to what the cluster says
    lease_writer       takes GPUs and gives them back: the only writer of shares
    reservation_wait   waits until a slot has its GPU, on nodes where the kubelet chooses
    eligible_nodes     where a pod may run by everything that is not about GPUs
    wake               makes kube-scheduler look at a pod again
    assembly           puts all of it together for one process
"""
