"""The commands that people type. One module per command: its options, its help text, and what it does.

Reading order:

    commands                the table of all commands; `__main__` adds them to `carrel`
    book list_bookings show_booking extend cancel free usage login    ask the booking service over HTTP
    why explain inspect     read the cluster once, rebuild the ledger, and answer; they change nothing
    doctor checks/          looks at each hop of an installation; changes nothing unless it may start two pods
    adopt                   records pods that have GPUs without a Lease
    release                 frees the GPUs of a node that does not answer
    purge purge_plan        delete what is left after Carrel was uninstalled
    helm_release            the helm release that installed Carrel, for hints
    simulate                what if: places the pods of a trace, on several cores
    simulation_files added_gpus simulation_runs simulation_output   what it reads, runs and writes
    snapshot cluster_snapshot snapshot_holdings   prints the cluster's state, for simulate; collects it; finds out which
                            GPUs each pod holds
    scheduler_config        prints the configuration of kube-scheduler
    options                 options that several commands share
    booking_client          the HTTP client of the booking service
    saved_login browser_login     the login that the client uses, and how `login` gets it
    booking_text dates output     how bookings, dates and tables are written
    cluster_reader own_pods     reads the cluster; asks the booking service about one's own pods instead

To add a command: write its module and add a line to `commands`. A command imports its libraries when it runs, so that
`carrel --help` stays fast.
"""
