"""The commands that people type. A command has its options, its help text, and what it does in one module.

Reading order:

    commands                the table of all commands; `__main__` adds them to `carrel`
    bookings booking_lists login    ask the booking service over HTTP
    why explain inspect     read the cluster once, rebuild the ledger, and answer; they change nothing
    doctor checks/          looks at each hop of an installation; changes nothing unless it may start two pods
    records                 `adopt` and `release`: what an admin changes of the record
    purge purge_plan        delete what is left after Carrel was uninstalled
    helm_release            the helm release that installed Carrel, for hints
    simulate                what if: places the pods of a trace, on several cores
    simulation_files added_gpus simulation_runs simulation_output   what it reads, runs and writes
    snapshot cluster_snapshot snapshot_holdings   prints the cluster's state, for simulate; collects it; finds out which
                            GPUs each pod holds
    scheduler_config        prints the configuration of kube-scheduler
    options                 options that several commands share
    booking_client browser_login    the HTTP client of the booking service; how `login` gets the login that it uses
    booking_text output     how bookings, dates and tables are written
    cluster_reader own_pods     reads the cluster; asks the booking service about one's own pods instead

To add a command: write its module and add a line to `commands`. A command imports its libraries when it runs, so that
`carrel --help` stays fast.
"""
