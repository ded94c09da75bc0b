"""Frees the GPUs of pods that are gone, and ends pods whose time is up.

Reading order:

    collection                 frees the GPUs of pods that are gone
    adoption_loop              records pods that have GPUs without a Lease
    renumbered_gpus            moves Leases of GPUs whose index has changed
    expiry                     ends pods with their booking
    slow_endings               how long a pod may take to end
    left_shadows               deletes what is left where ResourceClaims are not counted any more
    terminator terminator_api  MAIA's pod terminator
"""
