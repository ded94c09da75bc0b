"""PURE. Who holds which GPU, who may get one, and why not. No I/O, no clock, standard library only.

Reading order:

    gpus requests shares     what a GPU is, what a pod asks for, what a pod holds
    ledger node_room         who holds what; how much room a node has, as a summary
    placement                where a request goes on a node, and which GPUs are taken
    filtering scoring        which nodes have room, and which is best
    demand fragmentation     what is usually asked and what is there; what is of no use for it
    machines                 how much CPU and memory is free
    coverage coverage_index  which pods a booking covers; kept up to date
    gangs precedence tiers   all pods or none; what opportunistic pods leave to booked pods; the two tiers
    victim_prices victims    who loses a GPU to a booked pod
    slots                    nodes where the kubelet chooses the GPU
    refusals never           how a decision says no, and why a pod can never start
"""
