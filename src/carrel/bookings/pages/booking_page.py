"""The page of one booking: show it, change its end, cancel it. It says what will follow before anything happens."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from carrel.bookings.pages import forms
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

    async def change(self, request: Request, person: CurrentPerson, id: str) -> Response:
        record, asked = await self._found(id), forms.texts(await request.form())
        try:
            changes = Changes(end=self._end(asked), reason=asked.get("reason", ""))
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
            changes = Changes(end=self._end(asked), reason=asked.get("reason") or "preview")
        except InvalidForm as invalid:
            return FormFeedback((), invalid.problems)
        answer = await self._service.commands.preview_change(record.booking.id, changes, person)
        if isinstance(answer, BookingRefusal):
            return FormFeedback((), [answer.message])
        booking = record.booking
        is_group = bool(booking.group)
        checks = judged(self._queries.rules, answer.problems, booking.gpus, is_change=True, is_group=is_group)
        problems = [problem.message for problem in answer.problems]
        return FormFeedback(checks, problems, hint=answer.hint, is_allowed=answer.is_allowed)

    def _end(self, asked: Mapping[str, str]) -> datetime:
        return forms.local_instant(asked.get("end", ""), self._queries.zone)

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
        booking = record.booking
        return self._renderer.page(
            request,
            person,
            "booking.html",
            status=status,
            record=record,
            booking=booking,
            state=state,
            is_mine=reader.is_theirs(booking),
            needs_reason=not booking.group and booking.user != person.email,
            may_see=reader.may_see(record),
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
