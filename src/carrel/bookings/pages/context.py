"""What the pages need of the rest of Carrel, as one value."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.commands import BookingCommands
from carrel.bookings.group_commands import GroupCommands
from carrel.bookings.pages.cluster_view import ClusterView
from carrel.bookings.queries import BookingQueries
from carrel.bookings.rules import BookingRules


@dataclass(frozen=True, slots=True)
class PagesContext:
    queries: BookingQueries
    commands: BookingCommands
    rules: BookingRules
    zone: tzinfo
    now: Callable[[], datetime]
    cluster: ClusterView | None = None
    """None: there is no cluster. The GPUs come from a file, and there is no map."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process stops: live streams end then. Otherwise the process would wait for them."""
    base_path: str = ""
    """Before the path of every link."""

    @property
    def group_commands(self) -> GroupCommands:
        return GroupCommands(self.commands.context)

    @property
    def usual_length(self) -> timedelta:
        """A week, as far as the rules allow."""
        return max(self.rules.min_duration, min(timedelta(days=7), self.rules.max_duration))
