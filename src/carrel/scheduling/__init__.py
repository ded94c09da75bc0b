"""The extender: answers kube-scheduler's filter, prioritize and bind from the ledger.

Reading order:

    scheduler                             filter, prioritize, bind
    offers                                which node is named to a pod, and when kube-scheduler chooses
    machine_room                          CPU and memory of the nodes
    gangs gang_nodes                      how the pods of a gang are bound together, also in a large cluster
    extender_calls                        what kube-scheduler sends and reads
    bind_check                            which pod is bound, and whether it may be
    handlers metrics                      its calls over HTTP
    scheduler_config                      the configuration of kube-scheduler
    assembly run settings entry_point     one process
"""
