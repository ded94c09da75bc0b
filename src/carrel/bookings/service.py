"""What the routes of the booking service need: every route is given this."""

import asyncio
import hmac
from dataclasses import dataclass, field, replace
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import Depends
from starlette.requests import Request

from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.commands import BookingCommands
from carrel.bookings.group_commands import GroupCommands
from carrel.bookings.imports import BookingImport
from carrel.bookings.lab_configuration import LabConfiguration
from carrel.bookings.maintenance_commands import MaintenanceCommands
from carrel.bookings.notifications.channels import Channels
from carrel.bookings.notifications.own_choices import OwnChoices
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.removal import PersonRemoval
from carrel.bookings.sign_in.authenticator import Authenticator, CurrentPerson
from carrel.bookings.store.outbox import SqlOutbox
from carrel.bookings.store.usage import SqlUsage
from carrel.dialects.jupyter import HubPeople
from carrel.http.problems import Problem


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
    configuration: LabConfiguration = field(default_factory=LabConfiguration)
    elsewhere: str = ""
    """The address at which people book, if not here. Then this service shows who holds and uses GPUs, and no more."""
    usage: SqlUsage | None = None
    """What was held and used. None: there is no cluster."""
    channels: Channels = field(default_factory=lambda: Channels(ZoneInfo("UTC")))
    """By which people can be told things."""

    @property
    def lab_zone(self) -> ZoneInfo:
        """In which days of usage are counted, whoever looks."""
        return self.configuration.current.value.lab.zone

    def knows_token(self, given: str) -> bool:
        """Compares in constant time. If no token is set, every one is refused."""
        return bool(self.maia_token) and hmac.compare_digest(given.encode(errors="replace"), self.maia_token.encode())

    def for_person(self, person: Person) -> "ServiceParts":
        """Return the service with days and times in the zone that the person chose."""
        return self.in_zone(person.zone)

    def in_zone(self, zone: ZoneInfo | None) -> "ServiceParts":
        """None: the lab's."""
        return self if zone is None else replace(self, queries=replace(self.queries, zone=zone))

    @property
    def commands(self) -> BookingCommands:
        return BookingCommands(self.queries)

    @property
    def imports(self) -> BookingImport:
        return BookingImport(self.queries)

    @property
    def maintenance_commands(self) -> MaintenanceCommands:
        return MaintenanceCommands(self.queries)

    @property
    def removal(self) -> PersonRemoval:
        return PersonRemoval(self.queries, self.commands, self.authenticator.roles)

    @property
    def own_choices(self) -> OwnChoices:
        return OwnChoices(self.channels, self.authenticator.people)

    @property
    def group_commands(self) -> GroupCommands:
        return GroupCommands(self.queries)


def _service(request: Request) -> ServiceParts:
    service: ServiceParts = request.app.state.service
    return service


CurrentService = Annotated[ServiceParts, Depends(_service)]


async def _booking_here(service: CurrentService) -> None:
    if service.elsewhere:
        why = f"This lab books at {service.elsewhere}. Here you see who holds GPUs, and what they are used for."
        raise Problem(404, "booked-elsewhere", "Bookings are made elsewhere", why, f"open {service.elsewhere}")


OnlyWithBookings = Depends(_booking_here)
"""Of a route that is there only where people book with this service."""


async def _service_for_person(service: CurrentService, person: CurrentPerson) -> ServiceParts:
    return service.for_person(person)


PersonsService = Annotated[ServiceParts, Depends(_service_for_person)]
"""For a route that writes times: in the zone of the person who asks."""
