"""The webhook: decides about GPU pods before they are created. It changes nothing but the review that it answers.

Reading order:

    pod_owner                              whose pod it is
    admission                              what is changed on a pod: tier, environment, protected keys
    review review_decoding handlers app metrics   kube-apiserver's calls over HTTP
    certificates certificate_renewal served_certificate   its TLS certificates
    assembly run settings entry_point          one process
"""
