"""The booking desk: what the webhook asks about bookings, and the service behind it.

The desk never raises: a service that is down is an answer too. Its answers may be some seconds old; each says how old.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from carrel.dialects.maia import Verdict

T_co = TypeVar("T_co", covariant=True)


# No slots: on Python 3.11 a frozen slotted generic cannot be made as `Heard[Shape](…)`.
@dataclass(frozen=True)
class Heard(Generic[T_co]):
    """What the booking service last said."""

    said: T_co | None
    """None: nothing that is recent enough to count."""
    age_s: float = 0.0
    silence: str = ""
    """Why it was not asked anew, or did not answer; empty if it did."""


class BookingDesk(Protocol):
    async def verdict(self, user: str, namespace: str) -> Heard[Verdict]:
        """Has this person a booking now?"""
        ...

    async def free(self) -> Heard[Mapping[str, int]]:
        """How many cards of each model nobody uses."""
        ...


class NoAnswer(Exception):
    """The booking service is down, slow, or says something else than was asked. The message is a sentence."""


class Declined(NoAnswer):
    """It did answer, only not what was asked: the next question may be answered."""


class BookingService(Protocol):
    """Asked anew each time. Raises `NoAnswer` and nothing else."""

    async def verdict(self, user: str, namespace: str) -> Verdict: ...

    async def free(self) -> Mapping[str, int]: ...
