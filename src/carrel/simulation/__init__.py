"""What would happen: pods of a trace are placed on a cluster by several policies, on the same ledger and scoring.

Reading order:

    workload              what is simulated: nodes, pods, bookings
    rows openb trace      how it is read: the Alibaba GPU trace 2023, and Carrel's own form
    snapshot              the state of a real cluster, in a file; snapshot_form has its fields and their limits
    arrivals              one order of arrival for each seed
    cluster               the state of one run: GPUs in the ledger, CPU and memory beside it
    policies fgd          who chooses the node
    engine                one run
    over_time wishes      one run with a clock: pods that wait and end, and bookings
    results charts        tables, CSV, SVG

All of it is pure. `carrel simulate` reads the files and runs it on several cores.
"""
