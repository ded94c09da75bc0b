"""Reservation pods: where the kubelet chooses, a pod that holds a GPU for others says which one it is.

Reading order:

    slot_reconciler      what the leader does when a slot's Lease or its reservation pod changes
    reservation_pods     creates, reads and deletes them
    kai_metadata         what KAI's own programs expect to find on them
"""
