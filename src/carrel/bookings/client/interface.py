"""What components ask about bookings, and of whom.

`BookingService` asks anew each time and may fail. `BookingLookup` never raises: when the service is down, it answers
with what is still known, and with the reason. Its answers may be some seconds old; each says how old.
"""

from dataclasses import dataclass
from typing import Protocol

from carrel.bookings.client.status import BookingStatus


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """What the booking service last answered."""

    value: BookingStatus | None
    """None: there is no answer that is recent enough to be used."""
    age_s: float = 0.0
    failure: str = ""
    """Why there is no newer answer; empty if the answer is up to date."""
    was_answered: bool = False
    """Whether the failure was an answer that cannot be used, and no silence."""


class BookingLookup(Protocol):
    async def status(self, user: str, namespace: str) -> CachedAnswer:
        """Has this person an active booking now?"""
        ...


class NoAnswer(Exception):
    """The booking service is down, slow, or answers something else than was asked. The message is a sentence."""

    was_answered = False
    """Whether something came, which cannot be used."""


class Declined(NoAnswer):
    """It answered, but not this question: the next question may be answered."""

    was_answered = True


class UnknownForm(NoAnswer):
    """It answered something else than the booking service does, as a proxy's page for signing in."""

    was_answered = True


class BookingService(Protocol):
    """Asks anew each time. Raises `NoAnswer` and nothing else."""

    async def status(self, user: str, namespace: str) -> BookingStatus: ...
