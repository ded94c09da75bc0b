"""The ledger's record in the cluster: watch it, take GPUs by writing Leases, give them back.

Reading order:

    known_lease own_writes     Leases as they are known, and while they are being written
    cluster_ledger             keeps the ledger equal to what the cluster says, and to what is just being written
    gpu_nodes silent_agents    which node a GPU belongs to; whether its agent has reported lately
    unrecorded_pods node_offers   pods that have GPUs without a Lease, and what kubelets have to give
    adoption           records such pods
    confirmed_ends     whether a pod that is gone has really ended on its node
    gone_holders       whose the GPUs are until then
    release            frees GPUs by the word of an admin
    lease_writer       takes GPUs and gives them back: the only writer of shares
    slot_gpus reservation_wait   which GPU is behind a slot, where the kubelet chooses; waits until it has one
    pod_progress gang_members  how far a pod is; which pods are members of a gang
    gang_sizes                 how many pods a gang has, where neither pods nor claim say it
    device_claims claim_users  ResourceClaims, and which GPU a device is; which pods use them, and whose they are
    closed_nodes       which nodes are closed to pods in general: cordoned, not ready, tainted
    eligible_nodes     where a pod may run by everything that is not about GPUs
    coverage_changes coverage_context covered_pods   which pods a booking covers now
    coverage_words coverage_reader   what people are told about it
    free_again starts_soon    when a GPU will be free; whether a booking that can cover a pod starts soon
    waiting_booked            booked pods that wait and could use GPUs: others make room for these
    waiting_reason            why a pod waits for its GPUs
    wake nominations   makes kube-scheduler try a pod again, and on which node first
    booking_writer     writes the object of a booking, while others may write it too
    shown_cards        GPUs and their holders by the numbers that people know
    runtime_class      which RuntimeClass GPU pods get
    invariants         what must always hold, counted again from the objects alone
    cluster_state      puts all of it together for one process
    placement_rules    by which settings the extender does it, as it reports them for everybody who reads the cluster
"""
