"""Carrel books, shares and schedules the GPUs of a Kubernetes cluster, on one ledger.

    ledger          PURE: who holds which GPU, who may get one, and why not
    dialects        PURE: how pods ask for GPUs, and what Carrel writes on them
    parsing         PURE: reading what others wrote
    kubernetes      the Kubernetes client, watches, and the objects that Carrel reads
    leases          the ledger's record in the cluster
    http manifests cluster_file settings process command_errors   what components share
    bookings admission scheduling lifecycle node                  the components, one process each
    cli demo        commands for people; Carrel without a cluster

Components do not import each other. `tests/architecture/test_components.py` has the rules.
"""

__version__ = "0.1.0"
