"""The controller: what has to happen although nobody asks for it. One replica leads; the others are ready.

Reading order:

    collection                      frees the GPUs of pods that are gone
    claim_status pod_events         writes how far claims are, and why pods wait
    expiry victims revocation       ends pods with their booking; takes GPUs back for booked pods
    hand_over                       lets a pod's work go on without a GPU
    terminator terminator_api       MAIA's pod terminator
    reservation_pods kai_copies     pods that hold a GPU for others, where the kubelet chooses
    reconciler tier_reconciler slot_reconciler   what the leader does when something changes
    run settings command            one process
"""
