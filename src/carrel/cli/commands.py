"""The table of the commands: name, options, and the function that runs it. Its docstring is the help text."""

from collections.abc import Callable
from typing import Any

from carrel.cli.booking_lists import FreeSettings, ListSettings, UsageSettings, free, list_bookings, usage
from carrel.cli.bookings import BookSettings, CancelSettings, ExtendSettings, ShowSettings, book, cancel, extend, show
from carrel.cli.doctor import DoctorSettings, doctor
from carrel.cli.explain import ExplainSettings, explain
from carrel.cli.inspect import InspectSettings, inspect
from carrel.cli.login import LoginSettings, login
from carrel.cli.purge import PurgeSettings, purge
from carrel.cli.records import AdoptSettings, ReleaseSettings, adopt, release
from carrel.cli.scheduler_config import SchedulerConfigSettings, scheduler_config
from carrel.cli.simulate import SimulateSettings, simulate
from carrel.cli.snapshot import SnapshotSettings, snapshot
from carrel.cli.why import WhySettings, why

COMMANDS: tuple[tuple[str, type[Any], Callable[[Any], None]], ...] = (
    ("login", LoginSettings, login),
    ("free", FreeSettings, free),
    ("book", BookSettings, book),
    ("list", ListSettings, list_bookings),
    ("show", ShowSettings, show),
    ("extend", ExtendSettings, extend),
    ("cancel", CancelSettings, cancel),
    ("usage", UsageSettings, usage),
    ("why", WhySettings, why),
    ("explain", ExplainSettings, explain),
    ("inspect", InspectSettings, inspect),
    ("doctor", DoctorSettings, doctor),
    ("adopt", AdoptSettings, adopt),
    ("release", ReleaseSettings, release),
    ("purge", PurgeSettings, purge),
    ("simulate", SimulateSettings, simulate),
    ("snapshot", SnapshotSettings, snapshot),
    ("scheduler-config", SchedulerConfigSettings, scheduler_config),
)
"""In the order of `carrel --help`."""
