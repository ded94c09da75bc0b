"""/api/v1: models and their availability, the rules, the feed for calendars."""

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.requests import Request

from carrel.bookings.api.errors import accepted, malformed, problem_of
from carrel.bookings.api.models import (
    DayOut,
    Days,
    FeedOut,
    GpuCount,
    ModelOut,
    ModelsOut,
    NextFreeOut,
    RuleOut,
    RulesOut,
    Word,
)
from carrel.bookings.icalendar import booking_event, calendar
from carrel.bookings.people import Scope
from carrel.bookings.records import Availability, BookingRecord, BookingRefusal, RefusalReason
from carrel.bookings.rules import FIRST_YEAR, HOUR, LAST_YEAR, RULES, Booking, Rule
from carrel.bookings.service import CurrentService, OnlyWithBookings, PersonsService
from carrel.bookings.sign_in.authenticator import CurrentPerson, require_scope
from carrel.configuration.fields import key_of
from carrel.configuration.reading import plain
from carrel.configuration.schema import BookingRules
from carrel.ids import NO_BOOKING
from carrel.parsing.time import words

router = APIRouter(tags=["calendar"])


@router.get(
    "/models",
    dependencies=[OnlyWithBookings],
    summary="Each model: how many GPUs, how many can be booked now, how many no pod holds, when the next is free",
)
async def models(service: PersonsService, person: CurrentPerson) -> ModelsOut:
    found = await service.queries.availability(service.queries.today(), 0)
    return ModelsOut(zone=str(service.queries.zone), items=[_model_out(each) for each in found])


@router.get(
    "/availability",
    dependencies=[OnlyWithBookings],
    summary="How many GPUs are free all day, for each day in your zone",
)
async def availability(
    service: PersonsService,
    person: CurrentPerson,
    start: Annotated[date | None, Query(description="First day; today, if not given.")] = None,
    days: Annotated[int, Query(ge=1, le=366)] = 14,
    model: Annotated[list[Word] | None, Query(description="Several may be given.")] = None,
) -> ModelsOut:
    first = start or service.queries.today()
    if not FIRST_YEAR <= first.year <= LAST_YEAR:
        raise malformed(("start", f"a year between {FIRST_YEAR} and {LAST_YEAR} is expected"))
    named = [service.queries.model(word) for word in model or ()]
    unknown = [str(each) for each in named if not isinstance(each, str)]
    if unknown:
        raise problem_of(BookingRefusal(RefusalReason.NOT_FOUND, " ".join(unknown), hint="carrel free"))
    found = await service.queries.availability(first, days, [str(each) for each in named])
    return ModelsOut(zone=str(service.queries.zone), items=[_model_out(each) for each in found])


@router.get(
    "/next-free",
    dependencies=[OnlyWithBookings],
    summary="The first start that the rules and the calendar allow you",
)
async def next_free(
    service: PersonsService,
    person: CurrentPerson,
    model: Annotated[Word, Query(min_length=1)],
    days: Days = 1,
    gpus: Annotated[GpuCount, Query(strict=False, description="How many GPUs.")] = 1,
    share: bool = False,
    group: Annotated[Word, Query(description="For a booking of this group.")] = "",
) -> NextFreeOut:
    now = service.queries.now()
    wanted = Booking(NO_BOOKING, person.email, model, now, now + timedelta(days=days), gpus, share=share, group=group)
    found = accepted(await service.queries.next_free(wanted))
    named = service.queries.model(model)
    return NextFreeOut(model=str(named), earliest_start=found)


@router.get("/rules", summary="The rules of this lab")
async def rules(service: PersonsService, person: CurrentPerson) -> RulesOut:
    rules = service.queries.rules
    return RulesOut(
        min_hours=rules.min_duration / HOUR,
        max_hours=rules.max_duration / HOUR,
        cooldown_hours=rules.cooldown / HOUR,
        planned=rules.planned,
        shares_per_gpu=rules.shares_per_gpu,
        zone=str(service.queries.zone),
        rules=[_rule_out(row, rules) for row in RULES],
    )


@router.post(
    "/feed",
    dependencies=[OnlyWithBookings],
    status_code=201,
    summary="Make a secret address of your bookings, for calendars; the last one stops working",
)
async def make_feed(service: PersonsService, person: CurrentPerson, request: Request) -> FeedOut:
    require_scope(person, Scope.BOOK)
    secret = await service.commands.make_feed(person)
    base = service.authenticator.options.url_for(request)
    return FeedOut(url=f"{base}/api/v1/feeds/{secret}.ics")


@router.delete(
    "/feed", dependencies=[OnlyWithBookings], status_code=204, summary="Revoke the secret address of your bookings"
)
async def revoke_feed(service: PersonsService, person: CurrentPerson) -> Response:
    require_scope(person, Scope.BOOK)
    await service.commands.revoke_feed(person)
    return Response(status_code=204)


@router.get(
    "/feeds/{secret}.ics",
    dependencies=[OnlyWithBookings],
    summary="The bookings of the person who made this address (RFC 5545)",
    response_class=Response,
    responses={200: {"content": {"text/calendar": {"schema": {"type": "string"}}}}},
)
async def feed(service: CurrentService, secret: str) -> Response:
    found = await service.queries.feed(secret) if secret.isascii() else None
    if found is None:
        raise problem_of(BookingRefusal(RefusalReason.NOT_FOUND, "There is no such feed, or it was revoked."))
    text = calendar([_event(record, service.queries.now()) for record in found], "GPU bookings")
    return Response(text, media_type="text/calendar; charset=utf-8")


def _rule_out(row: Rule, rules: BookingRules) -> RuleOut:
    return RuleOut(
        code=row.name,
        title=row.title,
        words=row.label(rules, 1) if row.label else "",
        field=f"bookings.rules.{key_of(row.limit)}" if row.limit else None,
        value=str(plain(getattr(rules, row.limit))) if row.limit else None,
    )


def _model_out(found: Availability) -> ModelOut:
    return ModelOut(
        model=found.stock.model,
        gpus=found.stock.gpus,
        set_aside=found.stock.set_aside,
        out_of_use=len(found.stock.out_of_use),
        why_set_aside=found.stock.why_set_aside,
        memory_mib=int(found.stock.memory),
        bookable_now=found.now.bookable,
        free_now=max(0, found.now.unbooked),
        free_until=found.now.until,
        free_until_why=found.now.why,
        unheld_now=found.unheld_now,
        next_free=found.now.next_start,
        overbooked=found.overbooked,
        shares_per_gpu=found.shares_per_gpu,
        days=[
            DayOut(day=d.date, free=max(0, d.free), shares=max(0, d.shares), overbooked=d.overbooked)
            for d in found.days
        ],
    )


def _event(record: BookingRecord, now: datetime) -> Iterable[str]:
    booking = record.booking
    end = booking.ends if booking.counts else booking.end
    description = " · ".join(filter(None, (words(end - booking.start), record.note)))
    return booking_event(booking, record.version, description, now)
