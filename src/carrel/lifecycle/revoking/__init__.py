"""Takes GPUs back for booked pods. Who loses one is decided in `ledger/victims.py`.

Reading order:

    opportunistic_pods         which pods may lose their GPUs
    revocation                 decides for all booked pods that wait, and starts hand-overs
    kept_gpus unplaced_pods    whether what is kept for booked pods is still needed; when it is given up
"""
