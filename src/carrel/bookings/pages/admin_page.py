"""The admin page: hubs that are not believed, maintenance, people, roles and groups, which bookings other rules would
break, and the audit log."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta, tzinfo

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.calendar import Maintenance
from carrel.bookings.groups import GroupRole
from carrel.bookings.pages import forms
from carrel.bookings.pages.forms import InvalidForm
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.people import Grant, Person, Role
from carrel.bookings.records import BookingRecord, BookingRefusal, Query, State
from carrel.bookings.rules import BookingRules, Broken, broken_rules, rule_input
from carrel.bookings.sign_in.authenticator import CurrentPerson, forbidden
from carrel.dialects.carrel import UNLISTED_SPAWNER, USER
from carrel.dialects.jupyter import is_of_a_hub
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing.addresses import is_address, normal

MOST = 20
"""How many of each kind are shown: anybody who may create pods can make up names."""


@dataclass(frozen=True, slots=True)
class HubFindings:
    accounts: tuple[tuple[str, int], ...] = ()
    """Those that are in no `--spawners`, as they must be written there, and how many GPU pods they created."""
    users: tuple[tuple[str, int], ...] = ()
    """Users of whom no address is known, and how many GPU pods they have."""


def hub_findings(pods: Iterable[Pod]) -> HubFindings:
    accounts, users = Counter[str](), Counter[str]()
    for pod in pods:
        notes = pod.metadata.annotations
        if account := notes.get(UNLISTED_SPAWNER, ""):
            accounts[account] += 1
        elif (user := notes.get(USER, "")) and "@" not in user and is_of_a_hub(pod):
            users[user] += 1
    return HubFindings(_most_pods_first(accounts), _most_pods_first(users))


def _most_pods_first(counted: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counted.items(), key=lambda each: (-each[1], each[0]))[:MOST])


@dataclass(frozen=True, slots=True)
class RuleConflict:
    record: BookingRecord
    broken: tuple[Broken, ...]


def conflicts(records: Iterable[BookingRecord], rules: BookingRules, zone: tzinfo = UTC) -> list[RuleConflict]:
    """Checks each booking at the time it was made, together with the bookings that the same person or group
    had made before.

    Messages have times in `zone`.
    """
    by_age = sorted(records, key=lambda record: (record.created_at, record.booking.id))
    limited = {row.name for row in rules.rows if row.limit}  # the other rules depend on the current time
    found = []
    for position, record in enumerate(by_age):
        earlier = [other.booking for other in by_age[:position]]
        given = rule_input(record.booking, earlier, record.created_at, rules, zone)
        broken = tuple(rule for rule in broken_rules(given) if rule.rule in limited)
        if broken:
            found.append(RuleConflict(record, broken))
    return found


AHEAD = timedelta(days=366)
MAX_LIMIT = 100_000
"""The largest number to try, if its limit has none itself."""
ROLES = (Role.MEMBER, Role.LAB_ADMIN, Role.PLATFORM_ADMIN)
NOT_LISTED = "not listed"
DONE = {
    "maintenance": "The maintenance window is set. Existing bookings stay; new ones are refused.",
    "removed": "The maintenance window was removed.",
    "role": "The role was granted.",
    "group": "The group was changed.",
}


class AdminPage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /admin": self.show,
            "POST /admin/maintenance": self.add_maintenance,
            "POST /admin/maintenance/{id}": self.remove_maintenance,
            "POST /admin/roles": self.give_role,
            "POST /admin/groups": self.change_group,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return await self._page(request, person)

    async def add_maintenance(self, request: Request, person: CurrentPerson) -> Response:
        _check_admin(person)
        asked = forms.texts(await request.form())
        try:
            start = forms.local_instant(asked.get("start", ""), self._queries.zone)
            end = forms.local_instant(asked.get("end", ""), self._queries.zone)
            wanted = Maintenance(asked.get("model", ""), start, end, forms.gpu_count(asked), asked.get("why", ""))
        except InvalidForm as invalid:
            return await self._page(request, person, problems=invalid.problems, status=422)
        answer = await self._service.commands.add_maintenance(wanted, person)
        return await self._answered(request, person, answer, "maintenance")

    async def remove_maintenance(self, request: Request, person: CurrentPerson, id: str) -> Response:
        _check_admin(person)
        return await self._answered(
            request, person, await self._service.commands.remove_maintenance(id, person), "removed"
        )

    async def give_role(self, request: Request, person: CurrentPerson) -> Response:
        if not person.is_platform_admin:
            raise forbidden("You may not grant roles", "This needs the role platform-admin.")
        asked = forms.texts(await request.form())
        email, role, why = normal(asked.get("email", "")), asked.get("role", ""), asked.get("why", "")
        problems = []
        if not is_address(email):
            problems.append(f"“{email}” is not an e-mail address.")
        if role not in {each.value for each in ROLES}:
            problems.append("Choose a role.")
        if not why:
            problems.append("Give a reason: it is written to the audit log.")
        if problems:
            return await self._page(request, person, problems=problems, status=422)
        granted = None if role == Role.MEMBER.value else Role(role)
        await self._service.authenticator.people.grant(Grant(email, granted, person.email, why, self._queries.now()))
        return RedirectResponse("/admin?done=role", 303)

    async def change_group(self, request: Request, person: CurrentPerson) -> Response:
        _check_admin(person)
        asked = forms.texts(await request.form())
        group, email, why = asked.get("group", ""), asked.get("email", ""), asked.get("why", "")
        commands, role = self._service.group_commands, asked.get("role", "")
        if role == NOT_LISTED:
            answer = await commands.remove_person(group, email, person, why)
        elif role in {each.value for each in GroupRole}:
            is_manager = role == GroupRole.MANAGER.value
            answer = await commands.list_person(group, email, person, is_manager=is_manager, reason=why)
        else:
            return await self._page(request, person, problems=["Choose member, manager or not listed."], status=422)
        return await self._answered(request, person, answer, "group")

    async def _answered(self, request: Request, person: Person, answer: object, done: str) -> Response:
        if isinstance(answer, BookingRefusal):
            return await self._page(request, person, problems=answer.messages, status=422)
        return RedirectResponse(f"/admin?done={done}", 303)

    async def _page(
        self, request: Request, person: Person, *, problems: Sequence[str] = (), status: int = 200
    ) -> Response:
        _check_admin(person)
        queries, authenticator = self._queries, self._service.authenticator
        asked = forms.texts(request.query_params)
        tried, wrong = tried_rules(asked, queries.rules)
        now, cluster = queries.now(), self._service.cluster_view
        return self._renderer.page(
            request,
            person,
            "admin.html",
            status=status,
            done=DONE.get(asked.get("done", ""), ""),
            problems=[*problems, *wrong],
            rules=queries.rules,
            max_limit=MAX_LIMIT,
            tried=tried,
            conflicts=await self._conflicts(tried) if tried else [],
            models=await queries.availability(queries.today(), 1),
            maintenance=await queries.maintenance(now, now + AHEAD),
            people=[
                (known, sorted(role.value for role in authenticator.roles.by_email(known.email, known.granted)))
                for known in await authenticator.people.known()
            ],
            hubs=hub_findings(cluster.pods()) if cluster else HubFindings(),
            roles=ROLES,
            groups=await queries.groups(),
            group_roles=[*(role.value for role in GroupRole), NOT_LISTED],
            log=await queries.log(person, limit=50),
        )

    async def _conflicts(self, tried: BookingRules) -> list[RuleConflict]:
        query = Query(states=frozenset({State.ACTIVE, State.PLANNED}), limit=1000)
        return conflicts((await self._queries.find(query)).records, tried, self._queries.zone)


def tried_rules(asked: Mapping[str, str], rules: BookingRules) -> tuple[BookingRules | None, list[str]]:
    """The rules that the admin wants to try, or what is wrong with them. None if the form is empty."""
    given = {limit: asked[limit.option] for limit in rules.limits if asked.get(limit.option)}
    wrong = []
    tried = rules
    for limit, text in given.items():
        most = limit.most or MAX_LIMIT
        number = _number(text)
        is_count = limit.unit is None
        if limit.least <= number <= most and (number.is_integer() or not is_count):
            tried = tried.with_limit(limit, number)
        else:
            kind = "whole number" if is_count else "number"
            wrong.append(f"{limit.name}: “{text}” is not a {kind} from {limit.least:g} to {most:g}.")
    return (None, wrong) if wrong or not given else (tried, [])


def _number(text: str) -> float:
    """Not a number (`nan`, which lies in no range) if the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _check_admin(person: Person) -> None:
    if not person.is_lab_admin:
        raise forbidden("This page is for lab admins", "You are signed in as a member.")
