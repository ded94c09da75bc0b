"""What the routes of the booking service need: every route is given this."""

import asyncio
import hmac
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.commands import BookingCommands
from carrel.bookings.group_commands import GroupCommands
from carrel.bookings.queries import BookingQueries
from carrel.bookings.sign_in.authenticator import Authenticator
from carrel.bookings.store.outbox import SqlOutbox
from carrel.dialects.jupyter import HubPeople


@dataclass(frozen=True, slots=True)
class ServiceParts:
    queries: BookingQueries
    authenticator: Authenticator
    outbox: SqlOutbox
    maia_token: str = field(default="", repr=False)
    """Shared with MAIA's clients and with our webhook and controller. Empty: they are refused."""
    cluster_view: ClusterView | None = None
    """None: there is no cluster; the GPUs are those of a file."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process ends: live streams end then. Otherwise the process would wait for them."""
    hub_people: HubPeople = field(default_factory=HubPeople)
    """Which people the users of a hub are."""

    def knows_token(self, given: str) -> bool:
        """Compares in constant time. If no token is set, every one is refused."""
        return bool(self.maia_token) and hmac.compare_digest(given.encode(errors="replace"), self.maia_token.encode())

    @property
    def commands(self) -> BookingCommands:
        return BookingCommands(self.queries)

    @property
    def group_commands(self) -> GroupCommands:
        return GroupCommands(self.queries)


def _service(request: Request) -> ServiceParts:
    service: ServiceParts = request.app.state.service
    return service


CurrentService = Annotated[ServiceParts, Depends(_service)]
