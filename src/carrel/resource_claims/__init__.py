"""ResourceClaims (Dynamic Resource Allocation): everything that Carrel does about them, for clusters with `--dra`.

A claim holds GPUs as a pod does: Leases name it. A folder for each component that has a part in it:

    gate/          the webhook: which allocations may be stored
    allocation/    the controller: who has which GPUs
    shadows/       the controller: shows to schedulers what pods hold
    node/          the agent: advertises GPUs to claims, and hands them over
"""
