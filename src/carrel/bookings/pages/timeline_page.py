"""The timeline's routes: look, try a wish, book it."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from carrel.bookings.pages import form_fields, timeline, wording
from carrel.bookings.pages.booking_form import Judgement, judge, once_of, read_wish, reason_for, times_of
from carrel.bookings.pages.form_fields import Unreadable
from carrel.bookings.pages.layout import Shell
from carrel.bookings.pages.timeline import Bar, Kind, Reader, Row
from carrel.bookings.people import Person
from carrel.bookings.records import (
    Availability,
    BookingRefusal,
    BookingRequest,
    Overview,
    Preview,
    Query,
    RefusalReason,
)
from carrel.bookings.records import MaintenanceWindow as KeptMaintenance
from carrel.bookings.rules import Booking
from carrel.bookings.sign_in.identity import CurrentPerson

DAYS = 42
"""Six weeks: a running booking, its cooldown and the next one are on one page."""
STEP = timedelta(days=28)
STATUS = {
    RefusalReason.FORBIDDEN: 403,
    RefusalReason.NOT_FOUND: 404,
    RefusalReason.CHANGED: 409,
    RefusalReason.KEY_REUSED: 409,
    RefusalReason.NOT_READY: 503,
}
"""Broken rules are 422."""


BLANK = dict.fromkeys(("model", "share", "start", "end", "offered", "why", "user", "reason"), "") | {"cards": "1"}


@dataclass(frozen=True, slots=True)
class Draft:
    """The form as it is shown, and what is said about it."""

    asked: dict[str, str]
    seen: Overview
    judgement: Judgement


class TimelinePage:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._desk = shell.desk

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/timeline", self.show, methods=["GET"], response_model=None)
        router.add_api_route("/timeline/table", self.table, methods=["GET"], response_model=None)
        router.add_api_route("/timeline/verdict", self.verdict, methods=["GET"], response_model=None)
        router.add_api_route("/timeline", self.book, methods=["POST"], response_model=None)

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        asked = form_fields.texts(request.query_params)
        seen = await self._overview(asked)
        judgement = await self._suggested(asked, seen.models, person)
        return await self._page(request, person, Draft(asked, seen, judgement))

    async def table(self, request: Request, person: CurrentPerson) -> Response:
        """The same as the picture: as a part of the page when somebody opens it there, or as a page of its own."""
        window = self._window(form_fields.texts(request.query_params))
        now = self._desk.now()
        records = await self._desk.looking.within(window.start, window.end)
        kept = await self._desk.looking.maintenance(window.start, window.end)
        context: dict[str, Any] = {
            "records": [record for record in records if record.booking.ends > now],
            "maintenance": [each for each in kept if each.maintenance.end > now],
        }
        if "hx-request" in request.headers:
            return HTMLResponse(self._shell.fragment("timeline_rows.html", person=person, **context))
        return self._shell.page(request, person, "timeline_table.html", window=window, **context)

    async def verdict(self, request: Request, person: CurrentPerson) -> Response:
        """What would come of the form as it is now: only the part of the page that says so."""
        asked = form_fields.texts(request.query_params)
        judgement = await self._judge(asked, person)
        return HTMLResponse(self._shell.fragment("verdict.html", **self._verdict(judgement, self._window(asked))))

    async def book(self, request: Request, person: CurrentPerson) -> Response:
        asked = form_fields.texts(await request.form())
        try:
            wish = read_wish(asked, self._desk.zone, self._desk.now())
        except Unreadable as unreadable:
            draft = Draft(asked, await self._overview(asked), Judgement((), unreadable.problems))
            return await self._page(request, person, draft, status=422)
        answer = await self._desk.booking.create(wish, person, once_of(asked))
        if isinstance(answer, BookingRefusal):
            draft = Draft(asked, await self._overview(asked), judge(answer, wish, self._desk.rules))
            return await self._page(request, person, draft, status=STATUS.get(answer.reason, 422))
        return RedirectResponse(f"/bookings/{answer.booking.id}?done=booked", 303)

    # --- what is wished ----------------------------------------------------------------------------------------------

    async def _suggested(self, asked: dict[str, str], models: Sequence[Availability], person: Person) -> Judgement:
        """Fills in what was not asked: the model that is free first, the first legal start, a usual length."""
        desk = self._desk
        if not models:
            return Judgement((), ())
        asked.setdefault("cards", "1")
        if asked.get("model") not in {each.stock.model for each in models}:
            asked["model"] = free_first(models, desk.now(), desk.usual_length)
        model = asked["model"]
        if asked.get("start") and asked.get("end"):
            return await self._judge(asked, person)
        now_wish = BookingRequest(model, desk.usual_length, user=asked.get("user", ""), reason=asked.get("reason", ""))
        at_once = await desk.booking.preview(now_wish, person)
        start = (at_once.earliest_start if isinstance(at_once, Preview) else None) or desk.now()
        chosen = as_field_can_say(start, desk.now(), desk.zone)
        since = f"The first start is {wording.at(chosen, desk.zone)}. " if start > desk.now() else ""
        asked["why"] = since + reason_for(at_once)
        asked["offered"] = self._shell.field(chosen)
        day = form_fields.day(asked.get("day", ""))
        if day is not None and day != start.astimezone(desk.zone).date():
            chosen = datetime.combine(day, time(), desk.zone).astimezone(UTC)
            asked["why"] = ""
        asked["start"], asked["end"] = self._shell.field(chosen), self._shell.field(chosen + desk.usual_length)
        return await self._judge(asked, person)

    async def _judge(self, asked: Mapping[str, str], person: Person) -> Judgement:
        try:
            wish = read_wish(asked, self._desk.zone, self._desk.now())
        except Unreadable as unreadable:
            return Judgement((), unreadable.problems)
        return judge(await self._desk.booking.preview(wish, person), wish, self._desk.rules)

    # --- the page ----------------------------------------------------------------------------------------------------

    async def _overview(self, asked: Mapping[str, str]) -> Overview:
        window = self._window(asked)
        return await self._desk.looking.overview(window.first, window.days)

    async def _page(self, request: Request, person: Person, draft: Draft, *, status: int = 200) -> Response:
        desk, window = self._desk, self._window(draft.asked)
        since = window.start - desk.rules.cooldown
        query = Query(user=person.email, start=since, end=window.end, limit=1000)
        own = [record.booking for record in (await desk.looking.find(query)).records]
        reader = Reader(
            now=desk.now(),
            cooldown=timeline.merged((b.ends, b.ends + desk.rules.cooldown) for b in own if b.counts),
            wish=self._drawn(draft.judgement),
        )
        pictures = [timeline.draw(row, window, reader) for row in rows_of(draft.seen, window, person)]
        return self._shell.page(
            request,
            person,
            "timeline.html",
            status=status,
            **self._verdict(draft.judgement, window),
            models=list(zip(draft.seen.models, pictures, strict=True)),
            asked=BLANK | draft.asked,
            key=draft.asked.get("key") or secrets.token_urlsafe(12),
            window=window,
            earlier=(window.first - STEP).isoformat(),
            later=(window.first + STEP).isoformat(),
            cooldown=desk.rules.cooldown,
        )

    def _verdict(self, judgement: Judgement, window: timeline.Window) -> dict[str, Any]:
        drawn = self._drawn(judgement)
        left, width = timeline.wish_place(drawn, window) if drawn else ("0", "0")
        return {"judgement": judgement, "drawn": drawn, "left": left, "width": width, "rules": self._desk.rules}

    def _drawn(self, judgement: Judgement) -> timeline.Wish | None:
        if judgement.wish is None:
            return None
        return timeline.Wish(judgement.wish.model, *times_of(judgement.wish, self._desk.now()))

    def _window(self, asked: Mapping[str, str]) -> timeline.Window:
        """From the Monday of the week that was asked for, or of this one."""
        first = form_fields.day(asked.get("from", "")) or self._today()
        return timeline.Window(first - timedelta(days=first.weekday()), DAYS, self._desk.zone)

    def _today(self) -> date:
        return self._desk.now().astimezone(self._desk.zone).date()


def free_first(models: Sequence[Availability], now: datetime, length: timedelta) -> str:
    """The model that is free soonest for so long, by whole days; of several, the one of which most is free now."""
    needed = max(round(length / timedelta(days=1)), 1)

    def wait(model: Availability) -> tuple[int, int, str]:
        free = [day.free > 0 for day in model.days if day.end > now]
        first = next((day for day in range(len(free)) if all(free[day : day + needed])), len(free))
        return first, -model.free_now, model.stock.model

    return min(models, key=wait).stock.model


def as_field_can_say(start: datetime, now: datetime, zone: tzinfo) -> datetime:
    """Forms know minutes. What has begun is shown as the minute it is; a start to come is never shown too early.

    Of an hour that the clock shows twice a form means the first: the second is passed over.
    """
    whole = start.replace(second=0, microsecond=0)
    if whole < start and start > now:
        whole += timedelta(minutes=1)
    if whole.astimezone(zone).fold and whole > now:
        whole = (whole + timedelta(hours=1)).replace(minute=0)
    return whole


def rows_of(seen: Overview, window: timeline.Window, person: Person) -> list[Row]:
    bars: dict[str, list[Bar]] = {each.stock.model: [] for each in seen.models}
    is_admin = person.is_lab_admin
    for record in seen.records:
        booking = record.booking
        if booking.start < window.end and booking.ends > window.start:
            bars[booking.model].append(_bar(booking, booking.user == person.email, is_admin))
    for kept in seen.windows:
        # Of a model that is neither there nor booked, nothing is shown.
        if kept.maintenance.model in bars:
            bars[kept.maintenance.model].append(_closed(kept))
    return [
        Row(
            model=each.stock.model,
            cards=each.stock.cards,
            bars=bars[each.stock.model],
            free=[day.free for day in each.days],
            shares=each.shares_per_card,
        )
        for each in seen.models
    ]


def _bar(booking: Booking, is_mine: bool, is_admin: bool) -> Bar:
    name = "You" if is_mine else wording.who(booking.user)
    amount = "a share" if booking.share else wording.count(booking.cards, "card")
    length = wording.span(booking.ends - booking.start)
    return Bar(
        kind=Kind.MINE if is_mine else Kind.OTHER,
        start=booking.start,
        end=booking.ends,
        cards=booking.cards,
        label=name if booking.cards == 1 else f"{name} · {booking.cards}",
        title=f"{'You' if is_mine else booking.user}: {amount} of {wording.model(booking.model)}, {length}",
        link=f"/bookings/{booking.id}" if is_mine or is_admin else "",
        is_share=booking.share,
    )


def _closed(window: KeptMaintenance) -> Bar:
    closed = window.maintenance
    amount = wording.count(closed.cards, "card")
    title = f"Maintenance of {amount}: {window.why}" if window.why else f"Maintenance of {amount}"
    return Bar(Kind.MAINTENANCE, closed.start, closed.end, closed.cards, "Maintenance", title)
