"""Carrel books, shares and schedules the GPUs of a Kubernetes cluster, on one ledger.

A folder is a part of the product, named after what it is for:

    ledger dialects parsing        PURE: who holds which GPU; how pods ask for GPUs; reading what others wrote
    kubernetes leases http         shared: the client and its watches; the ledger's record in the cluster; serving HTTP
    admission scheduling           components: the webhook, the extender,
    lifecycle node bookings        the controller, the agent, the booking service
    jupyterhub                     for the image of a JupyterHub: its spawner and its spawn page
    cli demo manifests             commands for people; everything on one machine; what is installed in a cluster

`ARCHITECTURE.md` has the drawing, and `tests/architecture/test_components.py` the rules about imports.
"""

__version__ = "0.1.0"
