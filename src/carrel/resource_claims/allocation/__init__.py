"""What the controller does so that claims have the GPUs that Leases say, and no others.

allocation_words     PURE: the allocation that Carrel itself writes into a claim
claim_allocator      allocates the claims of booked pods
claim_ends           whether a claim that holds a GPU has given it back
unrecorded_claims    records claims that have a GPU without a Lease
"""
