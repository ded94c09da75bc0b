"""The webhook: decides about GPU pods before they are created, and changes nothing but the review that it answers; and
about allocations of ResourceClaims before they are stored, for which it takes the Leases of their GPUs.

Reading order:

    review                                 what kube-apiserver asks, and how it is answered
    options                                what an admin decides
    new_pod                                whose pod it is, what it asks for, for which booking, and its tier
    pod_changes admission                  what is changed on a pod: tier, gate, environment, protected keys
    metrics handlers                       kube-apiserver's calls over HTTP
    certificates certificate_renewal served_certificate   its TLS certificates
    asked_rules                            from when the API server depends on it
    assembly run settings entry_point          one process
"""
