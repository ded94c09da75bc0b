"""The outbox, which keeps each notification until it is delivered, and the channels by which notifications are sent.

Every notification is delivered at least once by every channel, or given up when it is of no use any more. Booking never
waits for a notification and never fails with one: notifications are made afterwards from the log, which is written in
the same transaction as the booking.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from carrel.bookings.notifications.messages import Notification
from carrel.bookings.records import LogEntry


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notification by one channel."""

    notification: Notification
    channel: str
    tries: int
    """This one included."""


class Undelivered(Exception):
    """It did not arrive, or that is not known. `is_final`: another try would not help."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        self.is_final = is_final
        super().__init__(why)


class Channel(Protocol):
    """Sends notifications, for example by mail."""

    async def send(self, notification: Notification) -> None:
        """Raises `Undelivered`."""
        ...


class Outbox(Protocol):
    async def collect(self, notification_of: Callable[[LogEntry], Notification | None], channels: Sequence[str]) -> int:
        """Reads the log from where it stopped, and keeps one notification for each entry and channel. Returns how many
        entries it read."""
        ...

    async def add(self, notifications: Sequence[Notification], channels: Sequence[str], now: datetime) -> None:
        """Those that are kept already, delivered or not, stay as they are."""
        ...

    async def note(self, key: str, entry: LogEntry) -> bool:
        """Writes into the log what another component reports; the same key once. Returns whether it was new."""
        ...

    async def marks(self, prefix: str) -> frozenset[str]:
        """The names of the marks that are set and begin so."""
        ...

    async def set_mark(self, name: str, is_set: bool, entry: LogEntry | None = None) -> bool:
        """Sets or removes a mark and, if that changes it, writes into the log. Returns whether it did."""
        ...

    async def take(self, now: datetime, until: datetime, limit: int) -> Sequence[Delivery]:
        """What is due now. No other caller gets it before `until`: the caller has that long to send it."""
        ...

    async def delivered(self, delivery: Delivery, now: datetime) -> None: ...

    async def failed(self, delivery: Delivery, why: str, again: datetime | None) -> None:
        """`again` is None: it is given up."""
        ...

    async def forget(self, before: datetime) -> int:
        """Deletes notifications that were delivered or given up before then. Returns how many."""
        ...
