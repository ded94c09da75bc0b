"""Pods that wait: why, for whom others make room, and how kube-scheduler is asked to try again.

Reading order:

    waiting_booked     booked pods that wait and could use GPUs: others make room for these
    person_limit       how many GPUs one person may hold without a booking
    waiting_reason     why a pod waits for its GPUs
    free_again starts_soon    when a GPU will be free; whether a booking that can cover a pod starts soon
    wake               asks kube-scheduler to retry a pod, and on which node first
"""
