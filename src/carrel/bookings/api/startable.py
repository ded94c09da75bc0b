"""/api/v1/startable: what may this person start now? For people, and for the hub that starts their notebooks.

A hub asks about its users with the token of its own ServiceAccount, which `--spawners` names.
"""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from carrel.bookings.api.errors import malformed, problem_of
from carrel.bookings.api.models import A_START, AN_END, Word
from carrel.bookings.people import Person
from carrel.bookings.records import BookingRefusal, FreeGpus, RefusalReason
from carrel.bookings.service import CurrentService, ServiceParts
from carrel.bookings.sign_in.authenticator import CurrentPersonOrHub, forbidden
from carrel.bookings.startable import StartableQuery, UsableBooking
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.time import seconds

router = APIRouter(prefix="/startable", tags=["status"])


class UsableBookingOut(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str
    model: str
    gpus: Annotated[int, Field(description="How many GPUs; 1 if it is a share.")]
    used: Annotated[int, Field(description="How many of its GPUs its pods hold now.")]
    group: Annotated[str, Field(description="The group that shares it; empty: the person's own.")]
    start: Annotated[str, Field(examples=[A_START])]
    end: Annotated[str, Field(examples=[AN_END])]
    runs: Annotated[bool, Field(description="False: it starts within a day.")]
    share: Annotated[bool, Field(description="A share of one GPU's memory, not whole GPUs.")]
    namespace: Annotated[str, Field(description="Only pods there are covered; empty: anywhere.")]
    why_short: Annotated[str, Field(description="Why its GPUs may have to be waited for; empty: they need not.")]


class FreeOut(BaseModel):
    model_config = ConfigDict(frozen=True)

    model: str
    gpus: Annotated[int, Field(description="How many a pod without a booking can get now; it may lose them.")]
    next_free: Annotated[str | None, Field(description="If there are none: when one is. Null: now, or not known.")]


class StartableOut(BaseModel):
    model_config = ConfigDict(frozen=True)

    user: Annotated[str, Field(description="The name under which the person books.", examples=["ada@lab.org"])]
    matches: Annotated[bool, Field(description="False: the hub's user is no person who can book.")]
    bookings: Annotated[list[UsableBookingOut], Field(description="That run, or start within a day.")]
    free: list[FreeOut]
    book_url: Annotated[str, Field(description="Where the person books.", examples=["https://gpus.lab.org/timeline"])]
    notices: Annotated[list[str], Field(description="Sentences for the person.")]


@router.get("", summary="What you, or a user of your hub, may start now")
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
    url = service.authenticator.options.url_for(request)
    found = await StartableQuery(service.queries, service.cluster_view, url).of(email)
    matches = is_address(email)
    unmatched = f"{email} is no e-mail address, so it has no bookings: an admin sets --username-domain or --hub-users"
    return StartableOut(
        user=email,
        matches=matches,
        bookings=[_booking_out(each) for each in found.bookings],
        free=[_free_out(each) for each in found.free],
        book_url=f"{url}/timeline",
        notices=[*found.notices, *([] if matches else [unmatched])],
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


def _booking_out(each: UsableBooking) -> UsableBookingOut:
    booking = each.booking
    return UsableBookingOut(
        id=booking.id,
        model=booking.model,
        gpus=booking.gpus,
        used=each.used,
        group=booking.group,
        start=seconds(booking.start),
        end=seconds(booking.ends),
        runs=each.runs,
        share=booking.share,
        namespace=each.record.namespace,
        why_short=each.why_short,
    )


def _free_out(each: FreeGpus) -> FreeOut:
    return FreeOut(model=each.model, gpus=each.gpus, next_free=seconds(each.next_free) if each.next_free else None)
