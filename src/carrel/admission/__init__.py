"""The webhook: decides about GPU pods before they exist. It changes nothing but the review that it answers.

Reading order:

    pod_owner                             whose pod it is
    admission                             what becomes of the pod: tier, environment, protected keys
    review requests handlers app metrics  kube-apiserver's calls over HTTP
    certificates x509 certificate_renewal its TLS certificates
    assembly run settings command         one process
"""
