"""The controller: frees GPUs, ends pods, revokes GPUs, and writes statuses and Events. One replica leads; the others
can take over.

Reading order:

    reconciler tier_reconciler      what the leader does when something changes
    freeing/                        frees the GPUs of pods that are gone, and ends pods whose time is up
    tier_options                    what the admin decides about the tiers
    revoking/                       takes GPUs back for booked pods
    handing_over/                   creates a pod again without a GPU, and tells its person
    reservations/                   pods that hold a GPU for others, where the kubelet chooses
    reporting/                      writes statuses and Events, and counts for Prometheus

    configuring                     decides which configuration is in force
    booking_enquiries               writes what a booking service elsewhere says into the cluster
    metrics assembly run settings entry_point        one process
"""
