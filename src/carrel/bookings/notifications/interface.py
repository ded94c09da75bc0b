"""The outbox: what people are to be told, kept until it was told, and the ways by which it is.

Every letter is told at least once by every way, or given up when it is of no use any more. Booking never waits for it,
and never fails with it: letters are made afterwards from the log, which is written together with what it tells about.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from carrel.bookings.notifications.messages import Notification
from carrel.bookings.records import LogEntry


@dataclass(frozen=True, slots=True)
class Delivery:
    """One letter by one way."""

    letter: Notification
    way: str
    tries: int
    """With this one."""


class Undelivered(Exception):
    """It did not arrive, or nobody can know. `is_final`: trying again would not help."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        self.is_final = is_final
        super().__init__(why)


class Channel(Protocol):
    """A way to tell people, such as mail."""

    async def send(self, letter: Notification) -> None:
        """Raises `Undelivered`."""
        ...


class Outbox(Protocol):
    async def collect(self, notification_of: Callable[[LogEntry], Notification | None], ways: Sequence[str]) -> int:
        """Reads on in the log, and keeps a letter for each way; says how many entries were read. None is told twice."""
        ...

    async def add(self, letters: Sequence[Notification], ways: Sequence[str], now: datetime) -> None:
        """Those that are kept already, told or not, are left as they are."""
        ...

    async def note(self, key: str, entry: LogEntry) -> bool:
        """Writes into the log what did not come through us; the same key once, and says whether it was new."""
        ...

    async def take(self, now: datetime, until: datetime, limit: int) -> Sequence[Delivery]:
        """What is due now. Nobody else is given it before `until`: so long whoever takes it has to send it."""
        ...

    async def told(self, delivery: Delivery, now: datetime) -> None: ...

    async def failed(self, delivery: Delivery, why: str, again: datetime | None) -> None:
        """None: it is given up."""
        ...

    async def forget(self, before: datetime) -> int:
        """Letters that were told or given up before; says how many."""
        ...
