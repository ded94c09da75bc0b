"""The admin page: hubs that are not believed, messages that do not arrive, maintenance, people, roles and groups, and
the audit log."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.api.errors import accepted
from carrel.bookings.groups import GroupRole
from carrel.bookings.pages import forms
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.people import Grant, Person, Role
from carrel.bookings.records import BookingRefusal, LogQuery
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
    """Those that are in no `hubs.accounts`, as they must be written there, and how many GPU pods they created."""
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


AHEAD = timedelta(days=366)
FAILURES_OF = timedelta(days=7)
"""Messages that were given up before are of no use to anybody."""
ROLES = (Role.MEMBER, Role.LAB_ADMIN, Role.PLATFORM_ADMIN)
NOT_LISTED = "not listed"
STAYS_MANAGER = "{} is a manager and stays one. To change that, choose “not listed” first, then member."
DONE = {
    "maintenance": "The maintenance is set, and whom it hits is told. Bookings stay; new ones find fewer GPUs.",
    "maintenance-removed": "The maintenance was removed, and whom it would have hit is told.",
    "maintenance-gone": "That maintenance was removed already.",
    "role": "The role was granted.",
    "group": "The group was changed.",
    "person": "The person was removed, with everything that was shown.",
}


class AdminPage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /admin": self.show,
            "POST /admin/roles": self.give_role,
            "POST /admin/groups": self.change_group,
            "GET /admin/people/{email}": self.remove_form,
            "POST /admin/people/{email}": self.remove_person,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return await self._page(request, person)

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
        role = asked.get("role", "")
        if role not in {*(each.value for each in GroupRole), NOT_LISTED}:
            return await self._page(request, person, problems=["Choose member, manager or not listed."], status=422)
        lines = str((await request.form()).get("people", "")).splitlines()
        wanted = None if role == NOT_LISTED else GroupRole(role)
        commands = self._service.group_commands
        answer = await commands.list_people(asked.get("group", ""), lines, person, wanted, asked.get("why", ""))
        if isinstance(answer, BookingRefusal):
            filled = {**asked, "people": "\n".join(lines)}
            return await self._page(request, person, problems=answer.messages, status=422, filled=filled)
        if answer.stay_managers:
            stay = [STAYS_MANAGER.format(email) for email in answer.stay_managers]
            return await self._page(request, person, problems=[*stay, _counted(len(answer.changed), answer.unchanged)])
        counts = {"changed": len(answer.changed), "same": answer.unchanged}
        told = urlencode({"done": "group", **counts, "group": asked.get("group", "")})
        return RedirectResponse(f"/admin?{told}", 303)

    async def remove_form(self, request: Request, person: CurrentPerson, email: str) -> Response:
        """What removing this person would end."""
        return await self._removal(request, person, email)

    async def remove_person(self, request: Request, person: CurrentPerson, email: str) -> Response:
        reason = forms.texts(await request.form()).get("why", "")
        answer = await self._service.removal.remove(email, person, reason)
        if isinstance(answer, BookingRefusal):
            return await self._removal(request, person, email, answer.messages)
        return RedirectResponse("/admin?done=person", 303)

    async def _removal(self, request: Request, person: Person, email: str, problems: Sequence[str] = ()) -> Response:
        has = accepted(await self._service.removal.preview(email, person))
        status = 422 if problems else 200
        return self._renderer.page(request, person, "removal.html", status=status, has=has, problems=problems)

    async def _page(
        self,
        request: Request,
        person: Person,
        *,
        problems: Sequence[str] = (),
        status: int = 200,
        filled: Mapping[str, str] | None = None,
    ) -> Response:
        _check_admin(person)
        queries, authenticator = self._queries, self._service.authenticator
        asked = forms.texts(request.query_params)
        now, cluster, groups = queries.now(), self._service.cluster_view, await queries.groups()
        last = asked.get("group", "")
        return self._renderer.page(
            request,
            person,
            "admin.html",
            status=status,
            done=_done(asked),
            filled={
                # The next list is often for the same group. Of the address only a group that there is is taken.
                "group": last if any(last == each.name for each in groups) else "",
                **dict.fromkeys(("people", "role", "why"), ""),
                **(filled or {}),
            },
            problems=problems,
            maintenance=await queries.maintenance(now, now + AHEAD),
            people=[
                (known, sorted(role.value for role in authenticator.roles.by_email(known.email, known.granted)))
                for known in await authenticator.people.known()
            ],
            failures=await self._service.outbox.failures(now - FAILURES_OF, MOST),
            hubs=hub_findings(cluster.state.pods.store) if cluster else HubFindings(),
            roles=ROLES,
            groups=groups,
            group_roles=[*(role.value for role in GroupRole), NOT_LISTED],
            log=await queries.log(person, LogQuery(limit=20)),
        )


def _done(asked: Mapping[str, str]) -> str:
    """What was done. Only numbers are taken from the address, so that no link can make the page say something else."""
    counts = [asked.get(name, "") for name in ("changed", "same")]
    is_counted = all(count.isascii() and count.isdigit() and len(count) < 6 for count in counts)
    more = f" {_counted(*counts)}" if is_counted else ""
    return DONE.get(asked.get("done", ""), "") + more


def _counted(changed: object, same: object) -> str:
    return f"{changed} changed, {same} were as they should be already."


def _check_admin(person: Person) -> None:
    if not person.is_lab_admin:
        raise forbidden("This page is for lab admins", "You are signed in as a member.")
