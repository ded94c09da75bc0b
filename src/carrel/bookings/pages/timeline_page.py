"""The timeline page: show it, check the form while it is filled in, book."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from carrel.bookings import wording
from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.maintenance import Closing, Maintenance, closings
from carrel.bookings.pages import forms, timeline
from carrel.bookings.pages.forms import (
    FormFeedback,
    InvalidForm,
    feedback_on,
    idempotency_of,
    read_booking_form,
    why_earliest,
)
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.pages.timeline import Bar, BarKind, ModelRow, Viewer
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
from carrel.bookings.rules import Booking
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.parsing.time import at

DAYS = 42
"""Six weeks: an active booking, its cooldown and the next booking fit on one page."""
STEP = timedelta(days=28)
STATUS = {
    RefusalReason.FORBIDDEN: 403,
    RefusalReason.NOT_FOUND: 404,
    RefusalReason.CHANGED: 409,
    RefusalReason.KEY_REUSED: 409,
    RefusalReason.NOT_READY: 503,
}
"""Broken rules are 422."""


EMPTY_FORM = dict.fromkeys(("model", "share", "start", "end", "suggested", "why", "user", "reason", "group"), "") | {
    "gpus": "1"
}
NO_TIMES = dict.fromkeys(("start", "end", "suggested"), "")


@dataclass(frozen=True, slots=True)
class ShownBooking:
    """A booking, with what the cluster knows of it."""

    booking: Booking
    people: frozenset[str] = frozenset()
    """Who may use it; empty: only its person."""
    use: str = ""
    """`1 of 2 in use: lab/train-7`; empty: it does not run, or there is no cluster."""
    base_path: str = ""

    def is_of(self, person: Person) -> bool:
        return person.email == self.booking.user or person.email in self.people

    def link(self, person: Person) -> str:
        """Empty: it is not for this person to change."""
        may_open = self.booking.user == person.email or person.is_lab_admin
        return f"{self.base_path}/bookings/{self.booking.id}" if may_open else ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A booking or a maintenance window, in the table."""

    model: str
    who: str
    gpus: int
    start: datetime
    end: datetime
    use: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class FormState:
    """The fields of the form, the bookings, and the feedback on the form."""

    asked: dict[str, str]
    seen: Overview
    feedback: FormFeedback


class TimelinePage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /timeline": self.show,
            "GET /timeline/table": self.table,
            "GET /timeline/verdict": self.verdict,
            "POST /timeline": self.book,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        asked = forms.texts(request.query_params)
        seen = await self._overview(asked)
        feedback = await self._suggested(asked, seen.models, person)
        return await self._page(request, person, FormState(asked, seen, feedback))

    async def table(self, request: Request, person: CurrentPerson) -> Response:
        """Shows the bookings as a table: a part of the page for htmx, or a page of its own."""
        window = self._window(forms.texts(request.query_params))
        now = self._queries.now()
        records = await self._queries.within(window.start, window.end)
        kept = await self._queries.maintenance(window.start, window.end)
        stock = self._queries.inventory.stock().values()
        values: dict[str, Any] = {
            "months": rows_by_month(
                [
                    *(self._booking_row(record.booking, person) for record in records if record.booking.ends > now),
                    *(row for each in kept if each.end > now for row in maintenance_rows(each, stock)),
                ],
                self._queries.zone,
            )
        }
        if "hx-request" in request.headers:
            return HTMLResponse(self._renderer.fragment("timeline_rows.html", **values))
        return self._renderer.page(request, person, "timeline_table.html", window=window, **values)

    async def verdict(self, request: Request, person: CurrentPerson) -> Response:
        """The feedback on the form as it is now: only that part of the page."""
        asked = forms.texts(request.query_params)
        feedback = await self._feedback(asked, person)
        return HTMLResponse(
            self._renderer.fragment("verdict.html", **self._feedback_values(feedback, self._window(asked)))
        )

    async def book(self, request: Request, person: CurrentPerson) -> Response:
        asked = forms.texts(await request.form())
        try:
            wanted = read_booking_form(asked, self._queries.zone, self._queries.now())
        except InvalidForm as invalid:
            form = FormState(asked, await self._overview(asked), FormFeedback((), invalid.problems))
            return await self._page(request, person, form, status=422)
        answer = await self._service.commands.create(wanted, person, idempotency_of(asked))
        if isinstance(answer, BookingRefusal):
            form = FormState(asked, await self._overview(asked), feedback_on(answer, wanted, self._queries.rules))
            return await self._page(request, person, form, status=STATUS.get(answer.reason, 422))
        return RedirectResponse(f"/bookings/{answer.booking.id}?done=booked", 303)

    # --- the form ----------------------------------------------------------------------------------------------------

    async def _suggested(self, asked: dict[str, str], models: Sequence[Availability], person: Person) -> FormFeedback:
        """Fills empty fields: the model that is free first, the first start that the rules allow, a usual length."""
        queries = self._queries
        if not models:
            return FormFeedback((), ())
        asked.setdefault("gpus", "1")
        if asked.get("model") not in {each.stock.model for each in models}:
            asked["model"] = earliest_model(models, queries.now(), queries.rules.usual_length)
        model = asked["model"]
        if asked.get("start") and asked.get("end"):
            return await self._feedback(asked, person)
        user, reason, group = (asked.get(name, "") for name in ("user", "reason", "group"))
        now_request = BookingRequest(model, queries.rules.usual_length, user=user, reason=reason, group=group)
        from_now = await self._service.commands.preview(now_request, person)
        start = (from_now.earliest_start if isinstance(from_now, Preview) else None) or queries.now()
        chosen = whole_minute(start, queries.now(), queries.zone)
        since = f"The first possible start is {at(chosen, queries.zone)}. " if start > queries.now() else ""
        asked["why"] = since + why_earliest(from_now)
        asked["suggested"] = self._renderer.field(chosen)
        day = forms.day(asked.get("day", ""))
        if day is not None and day != start.astimezone(queries.zone).date():
            chosen = datetime.combine(day, time(), queries.zone).astimezone(UTC)
            asked["why"] = ""
        asked["start"], asked["end"] = (
            self._renderer.field(chosen),
            self._renderer.field(chosen + queries.rules.usual_length),
        )
        return await self._feedback(asked, person)

    async def _feedback(self, asked: Mapping[str, str], person: Person) -> FormFeedback:
        try:
            wanted = read_booking_form(asked, self._queries.zone, self._queries.now())
        except InvalidForm as invalid:
            return FormFeedback((), invalid.problems)
        return feedback_on(await self._service.commands.preview(wanted, person), wanted, self._queries.rules)

    # --- the page ----------------------------------------------------------------------------------------------------

    async def _overview(self, asked: Mapping[str, str]) -> Overview:
        window = self._window(asked)
        return await self._queries.overview(window.first, window.days)

    async def _page(self, request: Request, person: Person, form: FormState, *, status: int = 200) -> Response:
        queries, window = self._queries, self._window(form.asked)
        since = window.start - queries.rules.cooldown
        query = Query(user=person.email, start=since, end=window.end, limit=1000)
        own = [record.booking for record in (await queries.find(query)).records]
        viewer = Viewer(
            now=queries.now(),
            cooldown=timeline.merge_intervals((b.ends, b.ends + queries.rules.cooldown) for b in own if b.counts),
            selection=self._selection(form.feedback),
            group=form.asked.get("group", ""),
        )
        rows = rows_of(form.seen, window, person, self._shown)
        pictures = [timeline.draw(row, window, viewer) for row in rows]
        return self._renderer.page(
            request,
            person,
            "timeline.html",
            status=status,
            **self._feedback_values(form.feedback, window),
            models=list(zip(form.seen.models, pictures, strict=True)),
            asked=EMPTY_FORM | form.asked | ({} if forms.is_in_zone(form.asked, queries.zone) else NO_TIMES),
            key=form.asked.get("key") or secrets.token_urlsafe(12),
            window=window,
            earlier=(window.first - STEP).isoformat(),
            later=(window.first + STEP).isoformat(),
            cooldown=queries.rules.cooldown,
            windows=[each for each in form.seen.windows if each.start < window.end and each.end > window.start],
            groups=await queries.groups_to_book_for(person),
        )

    def _shown(self, booking: Booking) -> ShownBooking:
        """With what the cluster knows of it."""
        cluster, base_path = self._service.cluster_view, self._service.authenticator.options.base_path
        if cluster is None:
            return ShownBooking(booking, base_path=base_path)
        right, use = cluster.state.covered_pods.booking(booking.id), cluster.coverage.use_of(booking.id)
        return ShownBooking(booking, right.people if right else frozenset(), str(use) if use else "", base_path)

    def _booking_row(self, booking: Booking, person: Person) -> TableRow:
        shown = self._shown(booking)
        who = f"{booking.group}, booked by {booking.user}" if booking.group else booking.user
        return TableRow(booking.model, who, booking.gpus, booking.start, booking.ends, shown.use, shown.link(person))

    def _feedback_values(self, feedback: FormFeedback, window: timeline.DateRange) -> dict[str, Any]:
        drawn = self._selection(feedback)
        left, width = timeline.selection_position(drawn, window) if drawn else ("0", "0")
        values = {"feedback": feedback, "drawn": drawn, "left": left, "width": width, "rules": self._queries.rules}
        return {**values, "possible": self._possible(feedback)}

    def _possible(self, feedback: FormFeedback) -> str:
        """The form with the first possible start and as much of the rest as the rules allow, as a query string."""
        wanted, queries = feedback.wanted, self._queries
        if wanted is None or feedback.earliest is None:
            return ""
        asked_start, asked_end = wanted.times(queries.now())
        rules, start = queries.rules, whole_minute(feedback.earliest, queries.now(), queries.zone)
        length = max(rules.min_duration, min(asked_end - asked_start, rules.max_duration))
        fields = {
            "model": wanted.model,
            "gpus": min(wanted.gpus, rules.most_gpus(bool(wanted.group)) or wanted.gpus),
            "share": "1" if wanted.share else "",
            "start": self._renderer.field(start),
            "end": self._renderer.field(start + length),
            "suggested": self._renderer.field(start),
            "group": wanted.group,
            "user": wanted.user,
        }
        return urlencode({name: value for name, value in fields.items() if value})

    def _selection(self, feedback: FormFeedback) -> timeline.SelectedSpan | None:
        if feedback.wanted is None:
            return None
        return timeline.SelectedSpan(feedback.wanted.model, *feedback.wanted.times(self._queries.now()))

    def _window(self, asked: Mapping[str, str]) -> timeline.DateRange:
        """Six weeks from the Monday of the requested week, or of this week."""
        first = forms.day(asked.get("from", "")) or self._queries.today()
        return timeline.DateRange(first - timedelta(days=first.weekday()), DAYS, self._queries.zone)


def earliest_model(models: Sequence[Availability], now: datetime, length: timedelta) -> str:
    """The model that is first free for the whole length, in whole days; then the one with most GPUs to book now."""
    needed = max(round(length / timedelta(days=1)), 1)

    def wait(model: Availability) -> tuple[int, int, str]:
        free = [day.free > 0 for day in model.days if day.end > now]
        first = next((day for day in range(len(free)) if all(free[day : day + needed])), len(free))
        return first, -model.now.bookable, model.stock.model

    return min(models, key=wait).stock.model


def whole_minute(start: datetime, now: datetime, zone: tzinfo) -> datetime:
    """Forms have whole minutes: now is rounded down, a future start up, so that it is never too early.

    If the clock shows an hour twice, a form means the first; a start in the second moves to the next hour.
    """
    whole = start.replace(second=0, microsecond=0)
    if whole < start and start > now:
        whole += timedelta(minutes=1)
    if whole.astimezone(zone).fold and whole > now:
        whole = (whole + timedelta(hours=1)).replace(minute=0)
    return whole


def rows_by_month(rows: Iterable[TableRow], zone: tzinfo) -> list[tuple[str, list[TableRow]]]:
    """Group rows by the month in which they start: `November 2026`."""
    in_order = sorted(rows, key=lambda row: (row.start, row.model, row.who))
    months = groupby(in_order, key=lambda row: wording.month(row.start.astimezone(zone).date()))
    return [(month, list(those)) for month, those in months]


def maintenance_rows(window: Maintenance, models: Iterable[ModelCapacity]) -> Iterator[TableRow]:
    """One for each model of which it closes GPUs that can be booked."""
    what = f" of {', '.join(window.places)}" if window.places else ""
    who = f"Maintenance{what}{f': {window.why}' if window.why else ''}"
    for stock in models:
        if gpus := window.gpus_of(stock):
            yield TableRow(stock.model, who, gpus, window.start, window.end)


def rows_of(
    seen: Overview,
    window: timeline.DateRange,
    person: Person,
    shown: Callable[[Booking], ShownBooking] = ShownBooking,
) -> list[ModelRow]:
    bars: dict[str, list[Bar]] = {each.stock.model: [] for each in seen.models}
    for record in seen.records:
        booking = record.booking
        if booking.start < window.end and booking.ends > window.start:
            bars[booking.model].append(_bar(shown(booking), person))
    for each in seen.models:
        closed = closings(seen.windows, each.stock)
        shown_now = (one for one in closed if one.start < window.end and one.end > window.start)
        bars[each.stock.model] += (_maintenance_bar(one, window.zone) for one in shown_now)
    return [
        ModelRow(
            model=each.stock.model,
            gpus=each.stock.gpus,
            bars=bars[each.stock.model],
            free=[day.free for day in each.days],
            shares=each.shares_per_gpu,
        )
        for each in seen.models
    ]


def _bar(shown: ShownBooking, person: Person) -> Bar:
    booking, is_mine = shown.booking, shown.is_of(person)
    is_own = booking.user == person.email
    name = booking.group or ("You" if is_own else wording.short_name(booking.user))
    who = f"booked by {booking.user}, " if booking.group else "" if is_own else f"{booking.user}, "
    amount = "a share" if booking.share else wording.count(booking.gpus, "GPU")
    length = wording.span(booking.ends - booking.start)
    label = name if booking.gpus == 1 else f"{name} · {booking.gpus}"
    label = f"{label} · {shown.use}" if shown.use else label
    return Bar(
        kind=BarKind.MINE if is_mine else BarKind.OTHER,
        start=booking.start,
        end=booking.ends,
        gpus=booking.gpus,
        label=label,
        # It begins with what is seen: people who speak to the page say that.
        title=f"{label}: {who}{amount} of {wording.model(booking.model)}, {length}",
        link=shown.link(person),
        is_share=booking.share,
    )


def _maintenance_bar(closed: Closing, zone: tzinfo) -> Bar:
    places = ", ".join(dict.fromkeys(place for each in closed.windows for place in each.places))
    what = f"Maintenance of {places}" if places else "Maintenance"
    why = "; ".join(dict.fromkeys(each.why for each in closed.windows if each.why))
    title = f"{what}: {wording.count(closed.gpus, 'GPU')} until {at(closed.end, zone)}{f', {why}' if why else ''}"
    return Bar(BarKind.MAINTENANCE, closed.start, closed.end, closed.gpus, what, title)
