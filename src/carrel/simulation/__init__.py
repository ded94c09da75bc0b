"""What would happen: pods of a trace are placed on a cluster by several policies, on the same ledger and scoring.

Reading order:

    workload              what is simulated: nodes, pods, bookings
    trace openb           how it is read: Carrel's own form, and the Alibaba GPU trace 2023
    snapshot              the state of a real cluster, in a file; its fields and their limits
    cluster               the state of one run: GPUs in the ledger, CPU and memory beside it
    policies fgd          who chooses the node
    engine                one run, with one order of arrival for each seed
    wishes                when people get the bookings that they wish for
    waiting_pods          who waits, and why
    booked_pods           whom bookings cover, by the product's own index; from whom a booked pod gets its GPUs
    idle_pods             when pods are idle, if people go on as in the last four weeks
    over_time             one run with a clock, of all these
    results charts        tables, CSV, SVG

All of it is pure. `carrel simulate` reads the files and runs it on several cores.
"""
