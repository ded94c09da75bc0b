"""The controller: frees GPUs, ends pods, revokes GPUs, and writes statuses and Events. One replica leads; the others
can take over.

Reading order:

    collection claim_ends           frees the GPUs of pods that are gone, and of claims that are not allocated any more
    claim_status pod_events         writes the status of claims, and why pods wait
    coverage_correction             makes pods, Leases and bookings say which booking covers which pod
    expiry                          ends pods with their booking
    tier_options                    what the admin decides about the tiers
    opportunistic_pods revocation   revokes GPUs for booked pods
    kept_gpus unplaced_pods         whether what is kept for booked pods is still needed; when it is given up
    claim_allocator                 allocates the claims of booked pods
    booking_enquiries               writes what a booking service elsewhere says into the cluster
    revocation_grace                how long a pod may stay after it was told
    end_limits slow_endings         how long it may take to end then
    pod_controllers                 whether the controller that a pod names exists
    hand_over_notes hand_over       creates a pod again without a GPU, and tells its person
    cpu_after_wait                  does so with pods that have waited too long for a GPU
    successor_store owned_services replacements   its manifest until then; what it owned; pods that controllers replace
    notices                         what the person in a pod should know now
    terminator terminator_api       MAIA's pod terminator
    reservation_pods kai_metadata     pods that hold a GPU for others, where the kubelet chooses
    adoption_loop unrecorded_claims   records pods and claims that have GPUs without a Lease
    renumbered_gpus                 moves Leases of GPUs whose index has changed
    shadow_plan shadow_claims       shows to schedulers, by claims, what pods hold
    reconciler tier_reconciler slot_reconciler   what the leader does when something changes
    invariant_check gpu_counts waiting_pods      what is counted for Prometheus
    metrics assembly run settings entry_point        one process
"""
