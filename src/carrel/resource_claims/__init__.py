"""ResourceClaims (Dynamic Resource Allocation): everything that Carrel does about them.

A claim holds GPUs as a pod does: Leases name it. `holders` takes the place of `cluster.holders`, and everything else
asks there; here *claim* means ResourceClaim. Reading order, with a folder for each component that has a part in it:

    objects          PURE: the kinds of `resource.k8s.io`
    dra              PURE: what claims ask for, and what they got; which selectors are understood
    device_claims    what a process knows of claims, templates, classes and slices
    holders          whose the GPUs of a claim are, and what pods ask for by claims: the seam

    gate/          the webhook: which allocations may be stored
    allocation/    the controller: who has which GPUs
    shadows/       the controller: shows to schedulers what pods hold
    node/          the agent: advertises GPUs to claims, and hands them over
"""
