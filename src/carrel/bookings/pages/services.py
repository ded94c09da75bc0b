"""What the pages ask of the rest of Carrel. `bookings.queries` and `bookings.commands` answer; the door joins them."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from typing import Protocol

from carrel.bookings.calendar import Maintenance
from carrel.bookings.pages.cluster_map import PodSeen
from carrel.bookings.pages.usage_counter import Tally
from carrel.bookings.people import Person, normal
from carrel.bookings.records import (
    Availability,
    BookingRecord,
    BookingRefusal,
    BookingRequest,
    BookingSearchResult,
    Changes,
    IdempotencyKey,
    LogEntry,
    MaintenanceWindow,
    Overview,
    PersonUsage,
    Preview,
    Query,
)
from carrel.bookings.rules import BookingRules
from carrel.bookings.tiers import PersonTier
from carrel.dialects import carrel, maia
from carrel.kubernetes.objects.shapes import Pod
from carrel.ledger.ledger import Ledger
from carrel.ledger.tiers import Tier
from carrel.parsing.malformed import Malformed


class Looking(Protocol):
    async def get(self, id: str) -> BookingRecord | None: ...
    async def find(self, query: Query) -> BookingSearchResult: ...
    async def within(self, start: datetime, end: datetime) -> Sequence[BookingRecord]: ...
    async def person_tier(self, user: str) -> PersonTier: ...
    async def availability(self, first: date, count: int, models: Collection[str] = ()) -> tuple[Availability, ...]: ...
    async def overview(self, first: date, count: int) -> Overview: ...
    async def maintenance(self, start: datetime, end: datetime) -> Sequence[MaintenanceWindow]: ...
    async def log(self, person: Person, before: int = 0, limit: int = 100) -> Sequence[LogEntry]: ...
    async def usage(self, start: datetime, end: datetime) -> tuple[PersonUsage, ...]: ...


class Booking(Protocol):
    async def preview(self, wish: BookingRequest, by: Person) -> Preview | BookingRefusal: ...
    async def create(
        self, wish: BookingRequest, by: Person, once: IdempotencyKey | None = None
    ) -> BookingRecord | BookingRefusal: ...
    async def preview_change(self, id: str, changes: Changes, by: Person) -> Preview | BookingRefusal: ...
    async def change(
        self, id: str, changes: Changes, by: Person, version: int | None = None
    ) -> BookingRecord | BookingRefusal: ...
    async def cancel(
        self, id: str, by: Person, reason: str = "", version: int | None = None
    ) -> BookingRecord | BookingRefusal: ...
    def after_cancelling(self, record: BookingRecord) -> str: ...
    async def add_maintenance(self, asked: Maintenance, why: str, by: Person) -> MaintenanceWindow | BookingRefusal: ...
    async def remove_maintenance(self, id: str, by: Person) -> MaintenanceWindow | BookingRefusal: ...
    async def make_feed(self, by: Person) -> str: ...
    async def revoke_feed(self, by: Person) -> None: ...


@dataclass(frozen=True, slots=True)
class ClusterSight:
    """A look at the cluster. It is only read, and what is held is counted."""

    ledger: Ledger
    pod: Callable[[str], Pod | None]
    """By uid."""
    pods: Callable[[], Iterable[Pod]]
    why_waits: Callable[[Pod], str]
    """Empty if it does not."""
    is_synced: Callable[[], bool]
    tally: Tally = field(default_factory=Tally)

    def look(self, now: datetime) -> None:
        """To be called every few seconds, so that the usage page knows what was held."""
        self.tally.look(self.ledger, lambda uid: self.seen(uid).user, now)

    def seen(self, uid: str) -> PodSeen:
        pod = self.pod(uid)
        return PodSeen(tier_of(pod), pod.metadata.annotations.get(carrel.USER, "")) if pod else PodSeen(None)

    def pods_of(self, email: str) -> list[Pod]:
        """Those that ask for cards, by name."""
        mine = (pod for pod in self.pods() if normal(pod.metadata.annotations.get(carrel.USER, "")) == email)
        return sorted(mine, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


def tier_of(pod: Pod) -> Tier | None:
    """What the webhook wrote on it; a pod of MAIA's own webhook has only its mark."""
    word = pod.metadata.annotations.get(carrel.TIER, "")
    if word in (carrel.BOOKED, carrel.OPPORTUNISTIC):
        return Tier(word)
    try:
        when = maia.read_terminate_at(pod)
    except Malformed:
        return None
    return Tier.OPPORTUNISTIC if isinstance(when, maia.Revocable) else None


@dataclass(frozen=True, slots=True)
class PagesDesk:
    looking: Looking
    booking: Booking
    rules: BookingRules
    zone: tzinfo
    now: Callable[[], datetime]
    sight: ClusterSight | None = None
    """None: no cluster; cards come from a file, and there is no map."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process ends: live streams end then, which else would be waited for."""

    @property
    def usual_length(self) -> timedelta:
        """A week, as far as the rules allow."""
        return max(self.rules.min_duration, min(timedelta(days=7), self.rules.max_duration))
