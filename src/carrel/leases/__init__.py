"""The ledger's record in the cluster: watch it, take GPUs by writing Leases, give them back.

Reading order:

    cluster_state cluster_options   puts all of it together for one process, and says who hears of which change
    watches            the kinds that are watched, and what is found in them by an index

    cluster_ledger     keeps the ledger equal to what the cluster says, and to what is just being written
    known_lease        Leases as they are known, and while they are being written
    gpu_nodes silent_agents    which node a GPU belongs to; whether its agent has reported lately
    unrecorded_pods node_offers adoption   pods that have GPUs without a Lease; what kubelets offer; records them
    confirmed_ends     whether a pod that is gone has really ended on its node
    release            frees GPUs by the word of an admin
    lease_writer       takes GPUs and gives them back: the only writer of shares
    slot_gpus          which GPU is behind a slot, where the kubelet chooses; waits until it has one
    shown_cards        GPUs and their holders by the numbers that people know

    pod_facts          what is known of a pod at the moment of a question: request, tier, coverage, keeper, holder
    pod_progress       how far a pod is
    pod_requests       what it asks for, as it is written and as it was admitted
    gang_sizes gang_members    how many pods a gang has, and which
    device_claims claim_users  ResourceClaims, and which GPU a device is; which pods use them, and whose they are
    closed_nodes eligible_nodes    which nodes are closed; where a pod may run by everything that is not about GPUs
    coverage_changes covered_pods  which pods a booking covers now
    coverage_words coverage_reader   what people are told about it
    person_limit       how many GPUs one person may hold without a booking

    waiting_booked     booked pods that wait and could use GPUs: others make room for these
    waiting_reason     why a pod waits for its GPUs
    free_again starts_soon    when a GPU will be free; whether a booking that can cover a pod starts soon
    wake               asks kube-scheduler to retry a pod, and on which node first

    booking_writer     writes the object of a booking, while others may write it too
    runtime_class      which RuntimeClass GPU pods get
    invariants         what must always hold, counted again from the objects alone
    placement_rules    by which settings the extender does it, as it reports them for everybody who reads the cluster
"""
