"""The Kubernetes client, watches, and the objects that Carrel reads.

Reading order:

    objects/                                     PURE: what is read of each kind
    cluster                                      what Carrel asks of an API server; which error an answer means
    config credentials                           where the API server is, and our credentials
    transport http_transport                     one call and its answer
    client decoding api_calls                    each verb as a call; JSON to objects; counts, and the server's warnings
    server_clock                                 the time by the API server
    store reflector                              copies of objects, kept up to date by watches
    timing work_queue isolation                  when to try again; each object by itself
    leader_election                              at most one process leads, also during a long decision
    event_recorder                               Events about pods
"""
