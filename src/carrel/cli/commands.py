"""The table of all commands: each with a line for `carrel --help`, and the function that runs it."""

from collections.abc import Mapping

from carrel.cli.frame import Entry

CONFIG: Mapping[str, Entry] = {
    "show": Entry("Show what is in force, and who decided it", "carrel.cli.configuration:show_configuration"),
    "check": Entry("Say everything that is wrong in a file", "carrel.cli.configuration:check_configuration"),
    "diff": Entry("Say what a file would change", "carrel.cli.configuration:diff_configuration"),
    "set": Entry("Change a booking rule or a field of the tiers", "carrel.cli.configuration_change:set_field"),
    "reset": Entry("Take back what was changed by set", "carrel.cli.configuration_change:reset_field"),
    "history": Entry("Say what was changed, when, by whom and why", "carrel.cli.configuration:configuration_history"),
}

MAINTENANCE: Mapping[str, Entry] = {
    "list": Entry("List what goes on and what is planned", "carrel.cli.maintenance:list_maintenance"),
    "add": Entry("Show whom it would hit, then set it", "carrel.cli.maintenance:add_maintenance"),
    "remove": Entry("Call it off, or end it now", "carrel.cli.maintenance:remove_maintenance"),
}

GROUP: Mapping[str, Entry] = {
    "list": Entry("List who is in your groups", "carrel.cli.people:list_groups"),
    "add": Entry("Put people into a group, from a list or a file", "carrel.cli.people:add_people"),
    "remove": Entry("Take people off the list of a group", "carrel.cli.people:remove_people"),
}

PERSON: Mapping[str, Entry] = {
    "remove": Entry("End all that a person has here, after showing it", "carrel.cli.people:remove_person"),
}

COMMANDS: Mapping[str, Mapping[str, Entry]] = {
    "Book": {
        "login": Entry("Log in to the booking service", "carrel.cli.login:login"),
        "free": Entry("Show which GPUs can be booked, and from when", "carrel.cli.booking_lists:free"),
        "book": Entry("Book GPUs of a model", "carrel.cli.bookings:book"),
        "list": Entry("List your bookings, or those of all people", "carrel.cli.booking_lists:list_bookings"),
        "show": Entry("Show one booking", "carrel.cli.bookings:show"),
        "extend": Entry("Change the end of a booking: later or earlier", "carrel.cli.bookings:extend"),
        "change": Entry("Change the start, model or GPUs of a booking", "carrel.cli.bookings:change"),
        "cancel": Entry("Cancel a booking", "carrel.cli.bookings:cancel"),
        "usage": Entry("Show GPU hours: booked, held, active and idle", "carrel.cli.booking_lists:usage"),
    },
    "Ask": {
        "why": Entry("Say why a pod waits, or runs without a GPU", "carrel.cli.why:why"),
        "explain": Entry("Show for each GPU whether a pod fits there", "carrel.cli.explain:explain"),
        "gpus": Entry("Show who holds what, GPU by GPU", "carrel.cli.gpus:gpus"),
        "top": Entry("Show what all GPUs do, live", "carrel.cli.top:top"),
        "inspect": Entry("Show how much of each GPU is held, as gpushare does", "carrel.cli.inspect:inspect"),
        "simulate": Entry("Compare what would happen with more GPUs or other rules", "carrel.cli.simulate:simulate"),
        "snapshot": Entry("Print the state of the cluster, for simulate", "carrel.cli.snapshot:snapshot"),
    },
    "Admin": {
        "doctor": Entry("Look at each hop of the installation: what to do", "carrel.cli.doctor:doctor"),
        "config": Entry("Show, check and change the configuration of the cluster", commands=CONFIG),
        "import": Entry("Take over the bookings of MAIA's dashboard", "carrel.cli.booking_import:import_bookings"),
        "group": Entry("Say who is in a group", commands=GROUP),
        "person": Entry("Remove a person who leaves the lab", commands=PERSON),
        "log": Entry("Show who did what, when and why", "carrel.cli.people:log"),
        "maintenance": Entry("Close nodes and GPUs for a while", commands=MAINTENANCE),
        "adopt": Entry("Record pods that had GPUs before Carrel", "carrel.cli.records:adopt"),
        "release": Entry("Free the GPUs of a node that is lost", "carrel.cli.records:release"),
        "scheduler-config": Entry(
            "Print the configuration of kube-scheduler",
            "carrel.cli.scheduler_config:scheduler_config",
            had_options=True,
        ),
        "withdraw": Entry("Before uninstalling: clear what agents wrote on Nodes", "carrel.node.entry_point:withdraw"),
        "purge": Entry("After uninstalling: delete what was left", "carrel.cli.purge:purge"),
    },
    "Run": {
        "demo": Entry("Try Carrel on this machine, without a cluster", "carrel.demo:demo"),
        "booking": Entry("Run the booking service", "carrel.bookings.entry_point:booking", had_options=True),
        "extender": Entry("Answer kube-scheduler", "carrel.scheduling.entry_point:extender", had_options=True),
        "controller": Entry(
            "Free and revoke GPUs, end pods", "carrel.lifecycle.entry_point:controller", had_options=True
        ),
        "webhook": Entry("Answer kube-apiserver", "carrel.admission.entry_point:webhook", had_options=True),
        "agent": Entry(
            "Report the GPUs of a node, and hand them out", "carrel.node.entry_point:agent", had_options=True
        ),
        "reservation": Entry("In a reservation pod: hold its GPU", "carrel.node.entry_point:reservation"),
        "visible-gpus": Entry("In a pod of doctor: print which GPUs it sees", "carrel.node.entry_point:visible_gpus"),
        "api": Entry("Serve a Kubernetes API from memory", "carrel.demo:api"),
        "version": Entry("Print the version", "carrel.cli.frame:version"),
    },
}
"""By the headings of `carrel --help`, in its order."""
