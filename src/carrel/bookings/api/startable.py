"""/api/v1/startable: what may this person start now? For people, and for the hub that starts their notebooks. And
/api/v1/pods: your own pods, for people who may not read the cluster: in a notebook, `carrel why` asks here. And
/api/v1/booking-status: has a person an active booking now?

A hub asks about its users with the token of its own ServiceAccount, which `hubs.accounts` names. The webhook and the
controller ask for the status with the token that they share with this service, as MAIA's clients do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import ConfigDict, Field
from starlette.requests import Request

from carrel.bookings import wording
from carrel.bookings.api.errors import malformed, problem_of
from carrel.bookings.api.gpus import ActivityOut, activity_out
from carrel.bookings.api.models import A_START, AN_END, Moment, RequestModel, ResponseModel, Word
from carrel.bookings.client import BookingStatus, write_status
from carrel.bookings.cluster_view import ClusterView, PodRow, pod_rows
from carrel.bookings.mirror import entitlement_of
from carrel.bookings.notifications.messages import ends_soon
from carrel.bookings.notifications.watches import short_bookings
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord, BookingRefusal, RefusalReason, State
from carrel.bookings.records import Query as Search
from carrel.bookings.service import CurrentService, OnlyWithBookings, PersonsService, ServiceParts
from carrel.bookings.sign_in.authenticator import CurrentPerson, CurrentPersonOrHub, forbidden
from carrel.cluster.coverage.coverage_words import Beyond, BeyondReason, BookingInUse, CoverageWords
from carrel.cluster.pod_progress import holder_of
from carrel.dialects.carrel import NOTICE
from carrel.dialects.options import WhenFull
from carrel.dialects.tier import said_when_full
from carrel.http.problems import Problem
from carrel.ledger.tiers import Tier
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.time import local

router = APIRouter(tags=["status"])

SOON = timedelta(days=1)
"""A booking that starts within this time is told already."""
MOST_BOOKINGS = 100
MOST_PODS = 100


class StatusQuestion(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "ada@lab.org", "namespace": "lab"}]})

    user: Annotated[Word, Field(min_length=1, description="Whose bookings.")]
    namespace: Annotated[Word, Field(description="A booking for another namespace does not count.")] = ""


class StatusOut(ResponseModel):
    tier: Tier
    ends: Annotated[str | None, Field(description="When the active booking ends; null: there is none.")]
    model: str
    gpus: Annotated[int, Field(description="How many GPUs are booked.")]
    id: Annotated[str, Field(description="Of the active booking; empty: there is none.")] = ""


@router.post(
    "/booking-status",
    dependencies=[OnlyWithBookings],
    summary="Has this person an active booking? For Carrel's own components",
    response_model=StatusOut,
)
async def booking_status(
    service: CurrentService,
    question: StatusQuestion,
    authorization: Annotated[str, Header(description="Bearer and the shared token.")] = "",
) -> Any:
    if not service.knows_token(authorization.removeprefix("Bearer ")):
        raise Problem(403, "forbidden", "Not allowed", "This needs the token that is set by CARREL_MAIA_TOKEN.")
    booking = await service.queries.active_booking(question.user, question.namespace)
    if booking is None:
        return write_status(BookingStatus())
    return write_status(BookingStatus(booking.ends, booking.model, booking.gpus, booking.id))


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
    waits_when_full: Annotated[bool, Field(description="A notebook for which no GPU is free waits; else: on CPU.")]
    zone: Annotated[str, Field(description="In which the person reads times.", examples=["Europe/Stockholm"])]


class PodOut(ResponseModel):
    pod: Annotated[str, Field(description="As namespace/name.", examples=["lab/train-7"])]
    waits: Annotated[bool, Field(description="For a GPU.")]
    is_without_gpu: Annotated[bool, Field(description="It runs without the GPU that it asked for.")]
    why: Annotated[str, Field(description="What it waits for, why it has no GPU, or what it holds.")]
    booking: Annotated[str, Field(description="Which booking covers it, or what it means that none does.")]
    held_by: Annotated[
        list[str],
        Field(description="Of a pod that waits: who holds what would do, until when, and if it is idle."),
    ]
    use: Annotated[str, Field(description="What it uses its GPUs for, in words; empty: it holds none.")]
    activity: Annotated[ActivityOut | None, Field(description="The same for programs, of all its GPUs together.")]


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
    asked_about = service.in_zone((await service.authenticator.people.person(email)).zone)
    queries, cluster, url = asked_about.queries, service.cluster_view, service.authenticator.options.url_for(request)
    usable, matches = await usable_bookings(queries, cluster, email), is_address(email)
    notices = [notice for each in usable for notice in each.notices(queries, url)]
    unmatched = f"{email} is no e-mail address, so it has no bookings: an admin sets hubs.usernameDomain or hubs.users"
    return StartableOut.model_validate(
        {
            "user": email,
            "matches": matches,
            "bookings": [each.out(queries.now()) for each in usable],
            "free": await queries.free_gpus(),
            "book_url": service.elsewhere or f"{url}/timeline",
            "notices": [*notices, *notices_on_pods(cluster, email), *([] if matches else [unmatched])],
            "waits_when_full": _waits_when_full(service, person),
            "zone": str(queries.zone),
        }
    )


def _waits_when_full(service: ServiceParts, person: Person) -> bool:
    """Whether a notebook waits where no GPU is free: in the hub's own namespace, which may differ from others."""
    namespace = person.email.split(":")[2] if person.is_hub and person.email.count(":") == 3 else ""
    known = service.cluster_view.state.namespaces.store.get(namespace) if service.cluster_view else None
    return said_when_full(known, service.configuration.current.value.tiers.when_full) is WhenFull.WAIT


def _subject(service: ServiceParts, person: Person, user: str) -> str:
    """Return the person whom the question is about. Raises `Problem` if it is not for this caller to ask."""
    if person.is_hub:
        if not user:
            raise malformed(("user", "the name of a user of the hub is expected"))
        return service.hub_people.person_of(user)
    if user and normal(user) != person.email and service.hub_people.person_of(user) != person.email:
        why = "About others, only the ServiceAccount of a hub may ask, which hubs.accounts names."
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
        same = {name: getattr(booking, name) for name in ("id", "model", "gpus", "group", "start", "share")}
        return UsableBookingOut(
            **same,
            used=self.used,
            end=booking.ends,
            runs=booking.is_active(now),
            namespace=self.record.namespace,
            why_short=self.why_short,
        )

    def notices(self, queries: BookingQueries, url: str) -> Iterator[str]:
        """What its person should know, in sentences. `url` is the address of the booking pages."""
        booking, now, zone = self.record.booking, queries.now(), queries.zone
        words, entitlement = CoverageWords(zone, wording.model), entitlement_of(booking, queries.rules.shares_per_gpu)
        name = words.booking(entitlement)
        if not booking.is_active(now):
            yield f"{name} starts {local(booking.start, zone)}"
            return
        if ends_soon(booking.start, booking.ends, now):
            extend = f"; extend it at {url}/bookings/{booking.id}" if self.may_change else ""
            yield f"{name} ends {local(booking.ends, zone)}{extend}"
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


@router.get("/pods", summary="Your pods: why they wait, and which booking covers them")
async def pods(service: PersonsService, person: CurrentPerson) -> PodsOut:
    if service.cluster_view is None:
        why = "Its GPUs are those of a file, so it knows no pods."
        raise Problem(404, "no-cluster", "This booking service has no cluster", why, "carrel list")
    rows = pod_rows(service.cluster_view, person.email, CoverageWords(service.queries.zone, wording.model))
    return PodsOut(items=[_pod_out(row) for row in rows])


def _pod_out(row: PodRow) -> PodOut:
    holds = f"{row.name} does not wait: it has {row.gpus}" if row.gpus else f"{row.name} does not wait for a GPU"
    more = [f"and {row.more_holders} more"] if row.more_holders else []
    return PodOut(
        pod=row.name,
        waits=bool(row.why_waits),
        is_without_gpu=bool(row.without_gpu),
        why=row.why_waits or row.without_gpu or holds,
        booking=row.coverage,
        held_by=[*row.holders, *more],
        use=row.use,
        activity=activity_out(row.activity) if row.activity is not None else None,
    )
