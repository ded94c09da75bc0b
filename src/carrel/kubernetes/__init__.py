"""The Kubernetes client, watches, and the objects that Carrel reads.

Reading order:

    objects/                                     PURE: what is read of each kind
    cluster                                      what Carrel asks of an API server, and its errors
    config credentials tls                       where the API server is, and who we are
    calls http_transport responses client        one call, over sockets
    store reflector informers                    copies of objects, kept up to date by watches
    backoff work_queue                           when to try again
    leader_election                              at most one process leads
"""
