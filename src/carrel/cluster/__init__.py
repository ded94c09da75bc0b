"""What a process knows of the cluster: the objects that it watches, who holds which GPU, and what pods ask for.

Reading order:

    state options      puts all of it together for one process, and says who hears of which change
    watches            the kinds that are watched, and what is found in them by an index

    record/            who holds which GPU, as Leases say it: reads them, takes GPUs by writing them, gives them back

    pod_facts          what is known of a pod at the moment of a question: request, tier, coverage, keeper, holder
    pod_progress       how far a pod is
    pod_requests       what it asks for, as it is written and as it was admitted
    gangs/             how many pods a gang has, and which
    holders            who holds GPUs: pods; the seam that ResourceClaims extend
    eligible_nodes     which nodes are closed; where a pod may run by everything that is not about GPUs

    coverage/          which pods a booking covers now, and what people are told about it
    waiting/           why a pod waits, for whom others make room, and how kube-scheduler is asked to try again

    configuration_record configuration_changes    the configuration in the cluster: what is in force, what people change
    runtime_class      which RuntimeClass GPU pods get
    invariants         what must always hold, counted again from the objects alone
    installation       that the cluster has no other Carrel
    gpu_usages gpu_activities activity_words    what GPUs are used for, in processes that show it, and its words
    placement_rules    by which settings the extender does it, as it reports them for everybody who reads the cluster
"""
