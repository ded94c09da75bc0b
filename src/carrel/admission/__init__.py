"""The webhook: decides about GPU pods before they are created, and changes nothing but the review that it answers; and
about allocations of ResourceClaims before they are stored, for which it takes the Leases of their GPUs.

Reading order:

    options pod_owner hub_reports          whose pod it is; which hubs and users an admin should look at
    asked_gpus wanted_booking pod_tier     what it asks for, for which booking, and which tier it gets
    pod_size hand_overs pod_changes admission   what is changed on a pod: tier, gate, environment, protected keys
    review review_decoding handlers app metrics   kube-apiserver's calls over HTTP
    certificates certificate_renewal served_certificate   its TLS certificates
    assembly run settings entry_point          one process
"""
