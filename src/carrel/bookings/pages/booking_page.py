"""The page of one booking: show it, change its end, cancel it. It says what will follow before anything happens."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from carrel.bookings.icalendar import booking_event, calendar
from carrel.bookings.pages import forms
from carrel.bookings.pages.after_booking import what_now
from carrel.bookings.pages.forms import FormFeedback, InvalidForm, judged
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.pages.timeline_page import STATUS
from carrel.bookings.people import Person
from carrel.bookings.records import BookingRecord, BookingRefusal, Changes, State
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.http.problems import Problem

DONE = {
    "booked": "Booked. Your pods are in the booked tier while the booking is active.",
    "changed": "Changed.",
    "cancelled": "Cancelled.",
}


class BookingPage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /bookings/{id}": self.show,
            "GET /bookings/{id}/verdict": self.verdict,
            "GET /bookings/{id}/booking.ics": self.calendar_entry,
            "POST /bookings/{id}/change": self.change,
            "POST /bookings/{id}/cancel": self.cancel,
        }

    async def show(self, request: Request, person: CurrentPerson, id: str) -> Response:
        record = await self._found(id)
        done = DONE.get(request.query_params.get("done", ""), "")
        return await self._page(request, person, record, done=done)

    async def verdict(self, request: Request, person: CurrentPerson, id: str) -> Response:
        record = await self._found(id)
        feedback = await self._feedback(record, forms.texts(request.query_params), person)
        return HTMLResponse(self._renderer.fragment("change_verdict.html", feedback=feedback))

    async def calendar_entry(self, request: Request, person: CurrentPerson, id: str) -> Response:
        record = await self._found(id)
        page = f"{self._service.authenticator.options.url_for(request)}/bookings/{id}"
        event = booking_event(record.booking, record.version, page, self._queries.now())
        name = 'attachment; filename="booking.ics"'
        return Response(calendar([event]), headers={"content-disposition": name}, media_type="text/calendar")

    async def change(self, request: Request, person: CurrentPerson, id: str) -> Response:
        record, asked = await self._found(id), forms.texts(await request.form())
        try:
            changes = self._changes(record, asked, asked.get("reason", ""))
        except InvalidForm as invalid:
            return await self._page(request, person, record, problems=invalid.problems, status=422)
        answer = await self._service.commands.change(id, changes, person, _version(asked))
        return await self._answered(request, person, record, answer, "changed")

    async def cancel(self, request: Request, person: CurrentPerson, id: str) -> Response:
        record, asked = await self._found(id), forms.texts(await request.form())
        answer = await self._service.commands.cancel(id, person, asked.get("reason", ""), _version(asked))
        return await self._answered(request, person, record, answer, "cancelled")

    async def _answered(
        self, request: Request, person: Person, record: BookingRecord, answer: BookingRecord | BookingRefusal, done: str
    ) -> Response:
        if isinstance(answer, BookingRefusal):
            problems = [*answer.messages, *([f"Try: {answer.hint}"] if answer.hint else [])]
            return await self._page(request, person, record, problems=problems, status=STATUS.get(answer.reason, 422))
        return RedirectResponse(f"/bookings/{answer.booking.id}?done={done}", 303)

    async def _feedback(self, record: BookingRecord, asked: Mapping[str, str], person: Person) -> FormFeedback:
        try:
            # A preview changes nothing, so it needs no reason.
            changes = self._changes(record, asked, asked.get("reason") or "preview")
        except InvalidForm as invalid:
            return FormFeedback((), invalid.problems)
        answer = await self._service.commands.preview_change(record.booking.id, changes, person)
        if isinstance(answer, BookingRefusal):
            return FormFeedback((), [answer.message])
        booking = record.booking
        is_group = bool(booking.group)
        gpus = answer.booking.gpus
        checks = judged(self._queries.rules, answer.problems, gpus, is_change=True, is_group=is_group)
        problems = [problem.message for problem in answer.problems]
        return FormFeedback(checks, problems, hint=answer.hint, is_allowed=answer.is_allowed)

    def _changes(self, record: BookingRecord, asked: Mapping[str, str], reason: str) -> Changes:
        """What the form asks for. Only a booking that has not begun has fields for its start, model and GPUs. Fields
        have whole minutes: one that was left as it was changes nothing, not even the seconds."""
        forms.check_zone(asked, self._queries.zone)
        instants: dict[str, datetime] = {}
        problems: list[str] = []
        was = {"start": record.booking.start, "end": record.booking.end}
        for name, title in (("start", "From"), ("end", "Until")):
            if (name in asked or name == "end") and asked.get(name) != self._renderer.field(was[name]):
                try:
                    instants[name] = forms.local_instant(asked.get(name, ""), self._queries.zone)
                except InvalidForm as invalid:
                    problems += [f"{title}: {problem}" for problem in invalid.problems]
        gpus = None
        try:
            gpus = forms.gpu_count(asked) if "gpus" in asked else None
        except InvalidForm as invalid:
            problems += invalid.problems
        if problems:
            raise InvalidForm(*problems)
        return Changes(instants.get("start"), instants.get("end"), gpus, asked.get("model"), reason=reason)

    async def _found(self, id: str) -> BookingRecord:
        record = await self._queries.get(id)
        if record is None:
            raise Problem(404, "not-found", "No such booking", "There is no booking with this id.", "open /timeline")
        return record

    async def _page(
        self,
        request: Request,
        person: Person,
        record: BookingRecord,
        *,
        done: str = "",
        problems: Sequence[str] = (),
        status: int = 200,
    ) -> Response:
        state = record.state(self._queries.now())
        reader = await self._queries.reader(person)
        booking, view = record.booking, self._service.cluster_view
        return self._renderer.page(
            request,
            person,
            "booking.html",
            status=status,
            record=record,
            booking=booking,
            state=state,
            is_mine=reader.is_theirs(booking),
            use=view.booking_use(booking.id, person, self._renderer.zone) if view is not None else None,
            now_what=what_now(self._service, record, person.email) if reader.is_theirs(booking) else None,
            needs_reason=not booking.group and booking.user != person.email,
            may_see=reader.may_see(record),
            is_planned=state is State.PLANNED,
            models=sorted({booking.model, *self._queries.inventory.stock()}),
            may_change=state in (State.PLANNED, State.ACTIVE) and reader.may_change(record),
            consequence=self._service.commands.after_cancelling(record),
            done=done,
            problems=problems,
            cooldown_until=booking.ends + self._queries.rules.cooldown,
            rules=self._queries.rules,
        )


def _version(asked: Mapping[str, str]) -> int | None:
    """The version that the person saw: a change that somebody made meanwhile is not overwritten."""
    text = asked.get("version", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
