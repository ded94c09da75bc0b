"""Admin: maintenance, people and roles, what a change of the rules would break, and who did what."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.calendar import Maintenance
from carrel.bookings.pages import form_fields
from carrel.bookings.pages.form_fields import Unreadable
from carrel.bookings.pages.layout import Shell
from carrel.bookings.pages.rule_changes import Conflict, conflicts
from carrel.bookings.people import Grant, Person, Role, is_address, normal
from carrel.bookings.records import BookingRefusal, Query, State
from carrel.bookings.rules import BookingRules
from carrel.bookings.sign_in.identity import CurrentPerson, Identity, forbidden

AHEAD = timedelta(days=366)
MOST_DAYS = 3650
ROLES = (Role.MEMBER, Role.LAB_ADMIN, Role.PLATFORM_ADMIN)
DONE = {
    "maintenance": "The maintenance window is set. Bookings in it stay; new ones are refused.",
    "removed": "The maintenance window is removed.",
    "role": "The role is given.",
}


class AdminPage:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._desk = shell.desk

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/admin", self.show, methods=["GET"], response_model=None)
        router.add_api_route("/admin/maintenance", self.add_maintenance, methods=["POST"], response_model=None)
        router.add_api_route("/admin/maintenance/{id}", self.remove_maintenance, methods=["POST"], response_model=None)
        router.add_api_route("/admin/roles", self.give_role, methods=["POST"], response_model=None)

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return await self._page(request, person)

    async def add_maintenance(self, request: Request, person: CurrentPerson) -> Response:
        _check_admin(person)
        asked = form_fields.texts(await request.form())
        try:
            start = form_fields.local_instant(asked.get("start", ""), self._desk.zone)
            end = form_fields.local_instant(asked.get("end", ""), self._desk.zone)
            wanted = Maintenance(asked.get("model", ""), start, end, form_fields.cards(asked))
        except Unreadable as unreadable:
            return await self._page(request, person, problems=unreadable.problems, status=422)
        answer = await self._desk.booking.add_maintenance(wanted, asked.get("why", ""), person)
        return await self._answered(request, person, answer, "maintenance")

    async def remove_maintenance(self, request: Request, person: CurrentPerson, id: str) -> Response:
        _check_admin(person)
        return await self._answered(request, person, await self._desk.booking.remove_maintenance(id, person), "removed")

    async def give_role(self, request: Request, person: CurrentPerson) -> Response:
        if not person.is_platform_admin:
            raise forbidden("You may not give roles", "This needs the role platform-admin.")
        asked = form_fields.texts(await request.form())
        email, role, why = normal(asked.get("email", "")), asked.get("role", ""), asked.get("why", "")
        problems = []
        if not is_address(email):
            problems.append("A role is given to an address.")
        if role not in {each.value for each in ROLES}:
            problems.append("Which role?")
        if not why:
            problems.append("Say why: it is written into the log.")
        if problems:
            return await self._page(request, person, problems=problems, status=422)
        identity: Identity = request.app.state.identity
        granted = None if role == Role.MEMBER.value else Role(role)
        await identity.people.grant(Grant(email, granted, person.email, why, self._desk.now()))
        return RedirectResponse("/admin?done=role", 303)

    async def _answered(self, request: Request, person: Person, answer: object, done: str) -> Response:
        if isinstance(answer, BookingRefusal):
            problems = [problem.message for problem in answer.problems] or [answer.message]
            return await self._page(request, person, problems=problems, status=422)
        return RedirectResponse(f"/admin?done={done}", 303)

    async def _page(
        self, request: Request, person: Person, *, problems: Sequence[str] = (), status: int = 200
    ) -> Response:
        _check_admin(person)
        desk, identity = self._desk, request.app.state.identity
        asked = form_fields.texts(request.query_params)
        tried, wrong = tried_rules(asked, desk.rules)
        now = desk.now()
        return self._shell.page(
            request,
            person,
            "admin.html",
            status=status,
            done=DONE.get(asked.get("done", ""), ""),
            problems=[*problems, *wrong],
            rules=desk.rules,
            tried=tried,
            conflicts=await self._conflicts(tried) if tried else [],
            models=await desk.looking.availability(now.astimezone(desk.zone).date(), 1),
            maintenance=await desk.looking.maintenance(now, now + AHEAD),
            people=[
                (known, sorted(role.value for role in identity.roles.by_name(known.email, known.granted)))
                for known in await identity.people.known()
            ],
            roles=ROLES,
            log=await desk.looking.log(person, limit=50),
        )

    async def _conflicts(self, tried: BookingRules) -> list[Conflict]:
        query = Query(states=frozenset({State.ACTIVE, State.PLANNED}), limit=1000)
        return conflicts((await self._desk.looking.find(query)).records, tried)


def tried_rules(asked: Mapping[str, str], rules: BookingRules) -> tuple[BookingRules | None, list[str]]:
    """The rules that somebody wants to try, or what is wrong with them; nothing if nobody does."""
    names = {"min": "min_duration", "max": "max_duration", "cooldown": "cooldown", "planned": "planned"}
    if not any(asked.get(name) for name in names):
        return None, []
    changes: dict[str, timedelta | int] = {}
    wrong = []
    for name, rule in names.items():
        text = asked.get(name, "")
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and int(text) <= MOST_DAYS):
            wrong.append(f"“{text}” is not a number from 0 to {MOST_DAYS}.")
        else:
            changes[rule] = int(text) if name == "planned" else timedelta(days=int(text))
    return (None, wrong) if wrong else (replace(rules, **changes), [])  # type: ignore[arg-type] # each name has its type


def _check_admin(person: Person) -> None:
    if not person.is_lab_admin:
        raise forbidden("This page is for lab admins", "You are signed in as a member.")
