"""Carrel books, shares and schedules the GPUs of a Kubernetes cluster, on one ledger.

A folder is a part of the product, named after what it is for. Reading order:

    ids                               PURE: what pods, GPUs, nodes, bookings and people are known by, each a type
    ledger/ dialects/ parsing/        PURE: who holds which GPU; how pods ask for GPUs; reading what others wrote
    configuration/                    what the cluster's admins decide, in one typed file
    kubernetes/ cluster/ http/        shared: the client and its watches; what is known of the cluster; HTTP
    resource_claims/ manifests/       ResourceClaims; what is installed in a cluster
    admission/ scheduling/            components: the webhook, the extender,
    lifecycle/ node/ bookings/        the controller, the agent, the booking service
    jupyterhub/                       for the image of a JupyterHub: its spawner and its spawn page
    simulation/                       PURE: what would happen, by traces and policies
    cli/ demo/ cluster_file           commands for people; everything on one machine; a simulated cluster from a file
    option_fields settings caller_settings     how a setting is declared; those that several components share
    live_screen                       what draws on a whole terminal, and gives it back
    process log_lines command_errors  a component as a process: its signals, its log, how it fails
    __main__                          the command `carrel`

`ARCHITECTURE.md` has the drawing, and `tests/architecture/test_components.py` the rules about imports.
"""

__version__ = "0.1.0"
