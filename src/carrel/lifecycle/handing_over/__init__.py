"""Creates a pod again without a GPU, one step at a time, so that a crash between two steps loses nothing.

Reading order:

    hand_over          the steps
    successors         what comes after the pod: its manifest until then, what it owned, pods that controllers replace
    notices            what people are told
    cpu_after_wait     hands over pods that have waited too long for a GPU
"""
