"""Creates a pod again without a GPU, one step at a time, so that a crash between two steps loses nothing.

Reading order:

    hand_over hand_over_notes        the steps; what they write on the record
    successor_store owned_services replacements   its manifest until then; what it owned; pods that controllers replace
    pod_controllers                  whether the controller that a pod names exists
    cpu_after_wait                   hands over pods that have waited too long for a GPU
    notices                          what the person in a pod should know now
"""
