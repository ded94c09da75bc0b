"""/api/v1/startable: what may this person start now? For people, and for the hub that starts their notebooks. And
/api/v1/pods: your own pods, for people who may not read the cluster: in a notebook, `carrel why` asks here.

A hub asks about its users with the token of its own ServiceAccount, which `--spawners` names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request

from carrel.bookings import wording
from carrel.bookings.api.errors import malformed, problem_of
from carrel.bookings.api.models import A_START, AN_END, Moment, ResponseModel, Word
from carrel.bookings.cluster_view import ClusterView, PodRow, pod_rows
from carrel.bookings.mirror import entitlement_of
from carrel.bookings.notifications.messages import reminder
from carrel.bookings.notifications.overbooked_watch import short_bookings
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord, BookingRefusal, RefusalReason, State
from carrel.bookings.records import Query as Search
from carrel.bookings.service import CurrentService, ServiceParts
from carrel.bookings.sign_in.authenticator import CurrentPerson, CurrentPersonOrHub, forbidden
from carrel.cluster.coverage.coverage_words import Beyond, BeyondReason, BookingInUse, CoverageWords
from carrel.cluster.pod_progress import holder_of
from carrel.dialects.carrel import NOTICE
from carrel.http.problems import Problem
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.time_words import at

router = APIRouter(tags=["status"])

SOON = timedelta(days=1)
"""A booking that starts within this time is told already."""
MOST_BOOKINGS = 100
MOST_PODS = 100


class UsableBookingOut(ResponseModel):
    id: str
    model: str
    gpus: Annotated[int, Field(description="How many GPUs; 1 if it is a share.")]
    used: Annotated[int, Field(description="How many of its GPUs its pods hold now.")]
    group: Annotated[str, Field(description="The group that shares it; empty: the person's own.")]
    start: Annotated[Moment, Field(examples=[A_START])]
    end: Annotated[Moment, Field(examples=[AN_END])]
    runs: Annotated[bool, Field(description="False: it starts within a day.")]
    share: Annotated[bool, Field(description="A share of one GPU's memory, not whole GPUs.")]
    namespace: Annotated[str, Field(description="Only pods there are covered; empty: anywhere.")]
    why_short: Annotated[str, Field(description="Why its GPUs may have to be waited for; empty: they need not.")]


class FreeOut(ResponseModel):
    model: str
    gpus: Annotated[int, Field(description="How many a pod without a booking can get now; it may lose them.")]
    next_free: Annotated[Moment | None, Field(description="If there are none: when one is. Null: now, or not known.")]


class StartableOut(ResponseModel):
    user: Annotated[str, Field(description="The name under which the person books.", examples=["ada@lab.org"])]
    matches: Annotated[bool, Field(description="False: the hub's user is no person who can book.")]
    bookings: Annotated[list[UsableBookingOut], Field(description="That run, or start within a day.")]
    free: list[FreeOut]
    book_url: Annotated[str, Field(description="Where the person books.", examples=["https://gpus.lab.org/timeline"])]
    notices: Annotated[list[str], Field(description="Sentences for the person.")]


class PodOut(ResponseModel):
    pod: Annotated[str, Field(description="As namespace/name.", examples=["lab/train-7"])]
    waits: Annotated[bool, Field(description="For a GPU.")]
    why: Annotated[str, Field(description="What it waits for, or what it holds.")]
    booking: Annotated[str, Field(description="Which booking covers it, or what it means that none does.")]
    held_by: Annotated[list[str], Field(description="Of a pod that waits: who holds what would do, and until when.")]


class PodsOut(ResponseModel):
    items: list[PodOut]


@router.get("/startable", summary="What you, or a user of your hub, may start now")
async def startable(
    service: CurrentService,
    person: CurrentPersonOrHub,
    request: Request,
    user: Annotated[Word, Query(description="For a hub: its user, by name or address.")] = "",
) -> StartableOut:
    email = _subject(service, person, user)
    if not service.queries.inventory.is_known:
        raise problem_of(
            BookingRefusal(RefusalReason.NOT_READY, "The cluster has not been read yet.", hint="try again")
        )
    queries, cluster, url = service.queries, service.cluster_view, service.authenticator.options.url_for(request)
    usable, matches = await usable_bookings(queries, cluster, email), is_address(email)
    notices = [notice for each in usable for notice in each.notices(queries, url)]
    unmatched = f"{email} is no e-mail address, so it has no bookings: an admin sets --username-domain or --hub-users"
    return StartableOut.model_validate(
        {
            "user": email,
            "matches": matches,
            "bookings": [each.out(queries.now()) for each in usable],
            "free": await queries.free_gpus(),
            "book_url": f"{url}/timeline",
            "notices": [*notices, *notices_on_pods(cluster, email), *([] if matches else [unmatched])],
        }
    )


def _subject(service: ServiceParts, person: Person, user: str) -> str:
    """Return the person whom the question is about. Raises `Problem` if it is not for this caller to ask."""
    if person.is_hub:
        if not user:
            raise malformed(("user", "the name of a user of the hub is expected"))
        return service.hub_people.person_of(user)
    if user and normal(user) != person.email and service.hub_people.person_of(user) != person.email:
        why = "About others, only the ServiceAccount of a hub may ask, which --spawners names."
        raise forbidden("You may ask about yourself only", why)
    return person.email


@dataclass(frozen=True, slots=True)
class UsableBooking:
    """A booking of a person, or of a group of theirs, that runs or starts soon."""

    record: BookingRecord
    may_change: bool
    use: BookingInUse | None = None
    """None: it does not run, or there is no cluster."""
    why_short: str = ""
    """Why its GPUs may have to be waited for; empty: they need not."""

    @property
    def used(self) -> int:
        return self.use.used if self.use else 0

    def out(self, now: datetime) -> UsableBookingOut:
        booking = self.record.booking
        return UsableBookingOut(
            id=booking.id,
            model=booking.model,
            gpus=booking.gpus,
            used=self.used,
            group=booking.group,
            start=booking.start,
            end=booking.ends,
            runs=booking.is_active(now),
            share=booking.share,
            namespace=self.record.namespace,
            why_short=self.why_short,
        )

    def notices(self, queries: BookingQueries, url: str) -> Iterator[str]:
        """What its person should know, in sentences. `url` is the address of the booking pages."""
        booking, now, zone = self.record.booking, queries.now(), queries.zone
        words, entitlement = words_with_zone(zone), entitlement_of(booking, queries.rules.shares_per_gpu)
        name = words.booking(entitlement)
        if not booking.is_active(now):
            yield f"{name} starts {moment_of(booking.start, zone)}"
            return
        if reminder(booking, now):
            extend = f"; extend it at {url}/bookings/{booking.id}" if self.may_change else ""
            yield f"{name} ends {moment_of(booking.ends, zone)}{extend}"
        if self.use and self.used >= booking.gpus:
            beyond = Beyond(entitlement, BeyondReason.IN_USE, self.use.pods)
            yield f"{words.why_beyond(beyond)}; what you start now runs on what is free"


async def usable_bookings(queries: BookingQueries, cluster: ClusterView | None, email: str) -> Sequence[UsableBooking]:
    """Return the bookings that run, then those that start soon. Two reads of the database, however many bookings and
    groups there are; three if GPUs are out of use."""
    now, stock = queries.now(), queries.inventory.stock()
    async with queries.store.reading() as reading:
        groups = await reading.groups_of(email)
        search = Search(
            user=email,
            groups=frozenset(groups),
            states=frozenset({State.ACTIVE, State.PLANNED}),
            end=now + SOON,
            limit=MOST_BOOKINGS,
        )
        found = await reading.search(search, now)
        is_out = any(model.out_of_use for model in stock.values())
        near = [record.booking for record in await reading.within(now, now + SOON)] if is_out else []
    short = short_bookings(near, stock, queries.rules.shares_per_gpu, now)
    usable = []
    for record in found:
        booking = record.booking
        there = stock.get(booking.model) if booking.id in short else None
        may_change = groups.get(booking.group, False) if booking.group else True
        use = cluster.coverage.use_of(booking.id) if cluster else None
        usable.append(UsableBooking(record, may_change, use, there.why_set_aside if there else ""))
    return sorted(usable, key=lambda each: (not each.record.booking.is_active(now), each.record.booking.start))


def notices_on_pods(cluster: ClusterView | None, email: str) -> Iterator[str]:
    """What is written on the person's pods for whoever works in them."""
    for pod in cluster.pods_of(email)[:MOST_PODS] if cluster else ():
        if notice := pod.metadata.annotations.get(NOTICE):
            yield f"{holder_of(pod).full_name}: {notice}"


def words_with_zone(zone: tzinfo) -> CoverageWords:
    """For answers that are read outside of our pages."""
    return CoverageWords(lambda instant: moment_of(instant, zone), wording.model)


def moment_of(instant: datetime, zone: tzinfo) -> str:
    """With the name of the zone: whoever reads it need not be in the lab's."""
    return f"{at(instant, zone)} {instant.astimezone(zone):%Z}"


@router.get("/pods", summary="Your pods: why they wait, and which booking covers them")
async def pods(service: CurrentService, person: CurrentPerson) -> PodsOut:
    if service.cluster_view is None:
        why = "Its GPUs are those of a file, so it knows no pods."
        raise Problem(404, "no-cluster", "This booking service has no cluster", why, "carrel list")
    rows = pod_rows(service.cluster_view, person.email, words_with_zone(service.queries.zone))
    return PodsOut(items=[_pod_out(row) for row in rows])


def _pod_out(row: PodRow) -> PodOut:
    holds = f"{row.name} does not wait: it has {row.gpus}" if row.gpus else f"{row.name} does not wait for a GPU"
    more = [f"and {row.more_holders} more"] if row.more_holders else []
    return PodOut(
        pod=row.name,
        waits=bool(row.why_waits),
        why=row.why_waits or holds,
        booking=row.coverage,
        held_by=[*row.holders, *more],
    )
