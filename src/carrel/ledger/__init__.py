"""PURE. Who holds which GPU, who may get one, and why not. No I/O, no clock, standard library only.

Reading order:

    gpus requests shares     what a GPU is, what a pod asks for, what a pod holds
    gpu_usage gpu_activity   what a GPU is used for: sums of samples, and whether it is active or idle
    ledger node_room         who holds what; how much room a node has, as a summary
    placement                where a request goes on a node, and which GPUs are taken
    filtering scoring        which nodes have room, and which is best
    demand                   what is usually asked, and what is there
    machines                 how much CPU and memory is free
    coverage coverage_index  which pods a booking covers; kept up to date
    gangs precedence tiers   all pods or none; what opportunistic pods leave to booked pods; the two tiers
    victims                  who loses a GPU to a booked pod
    slots                    nodes where the kubelet chooses the GPU
    refusals never           how a decision says no, and why a pod can never start
"""
