"""The commands that people type. A command has its options, its help text, and what it does in one module.

Reading order:

    commands frame          the table of all commands; help, errors and options, alike for all of them
    bookings booking_lists maintenance people login    ask the booking service over HTTP
    why pod_answers explain gpus inspect    read the cluster once, rebuild the ledger, and answer; they change nothing
    configuration configuration_change configuration_text   `carrel config`: shows and checks the configuration; changes
                            it; how it is written for people
    top top_screen top_view top_gpus recent_minutes    `carrel top`: follows the cluster; what is on the screen, what a
                            person has chosen by keys, what is known of each GPU, and of its last ten minutes
    doctor checks/          looks at each hop of an installation; changes nothing unless it may start two pods
    records                 `adopt` and `release`: what an admin changes of the record
    purge purge_plan        delete what is left after Carrel was uninstalled
    helm_release            the helm release that installed Carrel, for hints
    simulate simulation_comparison    what if: places the pods of a trace, on several cores
    simulation_files simulation_runs simulation_output    what it reads, runs and writes
    snapshot cluster_snapshot past_use    prints the cluster's state, for simulate; collects it; asks who used what
    scheduler_config        prints the configuration of kube-scheduler
    options complete        options that several commands share; what the shell completes
    booking_client dates    the HTTP client of the booking service; how dates are read
    booking_text output     how bookings and tables are written
    cluster_reader no_answer    reads the cluster; what is said when it does not answer
    booking_import          `carrel import`: takes over MAIA's bookings

To add a command: write its module and add a line to `commands`. A module is imported when its command is named, and its
libraries when the command runs, so that `--help` is quick.
"""
