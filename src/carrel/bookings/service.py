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
from carrel.bookings.pages import ClusterView
from carrel.bookings.queries import BookingContext, BookingQueries
from carrel.bookings.sign_in import Authenticator
from carrel.bookings.sign_in.request_guard import RequestLimits

DEFAULT_LIMITS = RequestLimits()


@dataclass(frozen=True, slots=True)
class ServiceContext:
    context: BookingContext
    authenticator: Authenticator
    outbox: Outbox
    maia_token: str = field(default="", repr=False)
    """Empty: MAIA's clients are not served."""
    zone_name: str = "UTC"
    cluster_view: ClusterView | None = None
    """None: no cluster; cards come from a file."""
    limits: RequestLimits = DEFAULT_LIMITS
    monotonic: Callable[[], float] = time.monotonic
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
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
