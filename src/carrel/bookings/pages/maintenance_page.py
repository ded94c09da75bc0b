"""The page on which an admin closes a node, single GPUs or GPUs of a model for a while: whom it hits, then set it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from carrel.bookings.maintenance_commands import MaintenancePreview, MaintenanceRequest
from carrel.bookings.pages import forms
from carrel.bookings.pages.forms import InvalidForm
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.people import Person
from carrel.bookings.records import BookingRefusal
from carrel.bookings.sign_in.authenticator import CurrentPerson, forbidden
from carrel.ids import NodeName
from carrel.ledger.gpus import Gpu

NODE, MODEL = "node:", "model:"
"""How the values of the field `what` begin."""
USUAL = timedelta(hours=4)


@dataclass(frozen=True, slots=True)
class MaintenanceForm:
    """What was asked, and what it leads to."""

    asked: Mapping[str, str]
    chosen: Sequence[str] = ()
    """Of a node: the UUIDs of single GPUs; empty: all."""
    seen: MaintenancePreview | None = None
    problems: Sequence[str] = ()


class MaintenancePage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /admin/maintenance": self.show,
            "GET /admin/maintenance/hit": self.hit,
            "POST /admin/maintenance": self.add,
            "POST /admin/maintenance/{id}": self.remove,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        _check_admin(person)
        form = await self._previewed(request.query_params, person)
        return self._page(request, person, form)

    async def hit(self, request: Request, person: CurrentPerson) -> Response:
        """Whom it would hit, as the form is now: only that part of the page."""
        _check_admin(person)
        form = await self._previewed(request.query_params, person)
        return HTMLResponse(self._renderer.fragment("hit.html", is_part=True, **self._values(form)))

    async def add(self, request: Request, person: CurrentPerson) -> Response:
        _check_admin(person)
        given = await request.form()
        if "preview" in given:
            return self._page(request, person, await self._previewed(given, person))
        asked, ticked = self._asked(given), _ticked(given)
        chosen = self._of_node(ticked, asked)
        try:
            if len(chosen) != len(ticked):
                name = asked["what"].removeprefix(NODE).removeprefix(MODEL)
                raise InvalidForm(f"A GPU that you ticked is not of {name}: choose again what is closed.")
            wanted = self._request(asked, chosen)
        except InvalidForm as invalid:
            return self._page(request, person, MaintenanceForm(asked, chosen, problems=invalid.problems), 422)
        answer = await self._service.maintenance_commands.add(wanted, person)
        if isinstance(answer, BookingRefusal):
            return self._page(request, person, MaintenanceForm(asked, chosen, problems=answer.messages), 422)
        return RedirectResponse("/admin?done=maintenance", 303)

    async def remove(self, request: Request, person: CurrentPerson, id: str) -> Response:
        _check_admin(person)
        answer = await self._service.maintenance_commands.remove(id if id.isalnum() else "", person)
        gone = "maintenance-gone" if isinstance(answer, BookingRefusal) else "maintenance-removed"
        return RedirectResponse(f"/admin?done={gone}", 303)

    async def _previewed(self, given: FormData | QueryParams, person: Person) -> MaintenanceForm:
        asked = self._asked(given)
        chosen = self._of_node(_ticked(given), asked)
        try:
            wanted = self._request({**asked, "why": asked["why"] or "preview"}, chosen)
        except InvalidForm as invalid:
            return MaintenanceForm(asked, chosen, problems=invalid.problems)
        answer = await self._service.maintenance_commands.preview(wanted, person)
        if isinstance(answer, BookingRefusal):
            return MaintenanceForm(asked, chosen, problems=answer.messages)
        return MaintenanceForm(asked, chosen, answer)

    def _asked(self, given: FormData | QueryParams) -> dict[str, str]:
        """Empty fields are filled: the first node, from the next full hour for some hours."""
        asked = dict.fromkeys(("what", "start", "end", "why"), "") | {"gpus": "1"} | forms.texts(given)
        if not forms.is_in_zone(asked, self._queries.zone):
            asked["start"] = asked["end"] = ""
        hour = self._queries.now().replace(minute=0, second=0) + timedelta(hours=1)
        asked["start"] = asked["start"] or self._renderer.field(hour)
        asked["end"] = asked["end"] or self._renderer.field(hour + USUAL)
        first = [NODE + node for node in self._nodes()] + [MODEL + model for model in self._queries.inventory.stock()]
        asked["what"] = asked["what"] or next(iter(first), "")
        return asked

    def _request(self, asked: Mapping[str, str], chosen: Sequence[str]) -> MaintenanceRequest:
        forms.check_zone(asked, self._queries.zone)
        problems: list[str] = []
        start = end = self._queries.now()
        gpus = 0
        try:
            start = forms.local_instant(asked["start"], self._queries.zone)
        except InvalidForm as invalid:
            problems += [f"From: {problem}" for problem in invalid.problems]
        try:
            end = forms.local_instant(asked["end"], self._queries.zone)
        except InvalidForm as invalid:
            problems += [f"Until: {problem}" for problem in invalid.problems]
        what = asked["what"]
        if what.startswith(MODEL):
            try:
                gpus = forms.gpu_count(asked)
            except InvalidForm as invalid:
                problems += invalid.problems
        elif not what.startswith(NODE):
            problems.append("Choose a node or a model.")
        if not asked["why"]:
            problems.append("Give a reason: everybody whom it hits reads it.")
        if problems:
            raise InvalidForm(*problems)
        if gpus:
            return MaintenanceRequest(start, end, model=what.removeprefix(MODEL), gpus=gpus, why=asked["why"])
        places = tuple(chosen) or (what.removeprefix(NODE),)
        return MaintenanceRequest(start, end, places, why=asked["why"])

    def _nodes(self) -> list[NodeName]:
        return sorted(self._queries.inventory.nodes())

    def _gpus(self, what: str) -> Sequence[Gpu]:
        """The GPUs of the node that the form has chosen."""
        node = NodeName(what.removeprefix(NODE)) if what.startswith(NODE) else NodeName("")
        return self._queries.inventory.gpus_of(node) if node in self._queries.inventory.nodes() else ()

    def _of_node(self, ticked: Sequence[str], asked: Mapping[str, str]) -> list[str]:
        """Those of the node that is chosen now: the form may have shown the GPUs of another."""
        there = {gpu.uuid for gpu in self._gpus(asked["what"])}
        return [uuid for uuid in ticked if uuid in there]

    def _values(self, form: MaintenanceForm) -> dict[str, Any]:
        what = form.asked["what"]
        return {"form": form, "gpus": self._gpus(what), "is_model": what.startswith(MODEL)}

    def _page(self, request: Request, person: Person, form: MaintenanceForm, status: int = 200) -> Response:
        return self._renderer.page(
            request,
            person,
            "maintenance.html",
            status=status,
            is_part=False,
            is_refused=status != 200,
            nodes=[(NODE + node, node) for node in self._nodes()],
            models=[(MODEL + model, model) for model in self._queries.inventory.stock()],
            **self._values(form),
        )


def _ticked(given: FormData | QueryParams) -> list[str]:
    return [uuid for uuid in given.getlist("gpu") if isinstance(uuid, str)]


def _check_admin(person: Person) -> None:
    if not person.may_set_maintenance:
        raise forbidden("This page is for lab admins", "You are signed in as a member.")
