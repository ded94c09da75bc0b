"""What the booking door is made of, once it is wired: every route is given this."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from carrel.bookings.commands import BookingCommands
from carrel.bookings.notifications.interface import Outbox
from carrel.bookings.pages import ClusterSight
from carrel.bookings.queries import BookingContext, BookingQueries
from carrel.bookings.sign_in import Identity
from carrel.bookings.sign_in.gate import Limits

DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class ServiceContext:
    context: BookingContext
    identity: Identity
    outbox: Outbox
    maia_token: str = field(default="", repr=False)
    """Empty: MAIA's clients are not served."""
    zone_name: str = "UTC"
    sight: ClusterSight | None = None
    """None: no cluster; cards come from a file."""
    limits: Limits = DEFAULT_LIMITS
    monotonic: Callable[[], float] = time.monotonic
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process ends."""

    @property
    def commands(self) -> BookingCommands:
        return BookingCommands(self.context)

    @property
    def queries(self) -> BookingQueries:
        return BookingQueries(self.context)


def _service(request: Request) -> ServiceContext:
    service: ServiceContext = request.app.state.service
    return service


CurrentService = Annotated[ServiceContext, Depends(_service)]
