"""What the routes of the booking service need: every route is given this."""

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from carrel.bookings.commands import BookingCommands
from carrel.bookings.group_commands import GroupCommands
from carrel.bookings.mirror import BookingMirror
from carrel.bookings.notifications.interface import Outbox
from carrel.bookings.pages import ClusterView
from carrel.bookings.queries import BookingContext, BookingQueries
from carrel.bookings.sign_in import Authenticator
from carrel.bookings.sign_in.request_guard import RequestLimits
from carrel.dialects.hub_people import HubPeople
from carrel.kubernetes.api_calls import ApiCalls

DEFAULT_LIMITS = RequestLimits()


@dataclass(frozen=True, slots=True)
class ServiceContext:
    context: BookingContext
    authenticator: Authenticator
    outbox: Outbox
    maia_token: str = field(default="", repr=False)
    """Shared with MAIA's clients and with our webhook and controller. Empty: they are refused."""
    zone_name: str = "UTC"
    cluster_view: ClusterView | None = None
    """None: there is no cluster; the GPUs are those of a file."""
    limits: RequestLimits = DEFAULT_LIMITS
    monotonic: Callable[[], float] = time.monotonic
    mirror: BookingMirror | None = None
    """None: there is no cluster to write bookings into."""
    api_calls: ApiCalls = field(default_factory=ApiCalls)
    """To the API server of the cluster, if there is one."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process ends."""
    hub_people: HubPeople = field(default_factory=HubPeople)
    """Which people the users of a hub are."""
    migration: str = ""
    """The level of the tables, as they were at the start."""

    def knows_token(self, given: str) -> bool:
        """Compares in constant time. If no token is set, every one is refused."""
        return bool(self.maia_token) and hmac.compare_digest(given.encode(errors="replace"), self.maia_token.encode())

    @property
    def commands(self) -> BookingCommands:
        return BookingCommands(self.context)

    @property
    def group_commands(self) -> GroupCommands:
        return GroupCommands(self.context)

    @property
    def queries(self) -> BookingQueries:
        return BookingQueries(self.context)


def _service(request: Request) -> ServiceContext:
    service: ServiceContext = request.app.state.service
    return service


CurrentService = Annotated[ServiceContext, Depends(_service)]
