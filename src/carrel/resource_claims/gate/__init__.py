"""What the webhook decides about ResourceClaims.

allocation_retries    PURE: whether to go on saying yes to an allocation that is never stored
claim_gate            whether an allocation may be stored; it takes the Leases of the GPUs
"""
