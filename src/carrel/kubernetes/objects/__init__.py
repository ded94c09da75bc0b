"""PURE. What Carrel reads and writes of Kubernetes' objects.

Reading order:

    kinds resources           what is read of each kind, and where it is in the API
    pods quantity affinity    what several components read of a pod
    events                    Events, named after what they say
    release                      what API servers say about themselves
"""
