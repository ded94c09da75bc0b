"""The configuration for admins: every field with its reason and its source; rules and tiers can be changed here.

What other rules would break is shown before they are saved. Bookings that exist stay as they are.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.lab_configuration import SEEN, NotSaved, shown
from carrel.bookings.pages import forms
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.people import Person
from carrel.bookings.records import BookingRecord, LogEntry, Query, State
from carrel.bookings.rules import RULES, Booking, Broken, broken_rules, rule_input
from carrel.bookings.sign_in.authenticator import CurrentPerson, forbidden
from carrel.configuration.reading import Leaf, Unusable, may_people_change
from carrel.configuration.reasons import reasons
from carrel.configuration.schema import BookingRules
from carrel.kubernetes.cluster import ClusterError


@dataclass(frozen=True, slots=True)
class RuleConflict:
    record: BookingRecord
    broken: tuple[Broken, ...]


def conflicts(records: Iterable[BookingRecord], rules: BookingRules, zone: tzinfo = UTC) -> list[RuleConflict]:
    """Check each booking at the time it was made, together with the bookings that the same person or group had made
    before.

    Messages have times in `zone`.
    """
    by_age = sorted(records, key=lambda record: (record.created_at, record.booking.id))
    limited = {row.name for row in RULES if row.limit}  # the other rules depend on the current time
    found, earlier = [], defaultdict[tuple[str, str], list[Booking]](list)
    for record in by_age:
        group = record.booking.group
        of_the_same = earlier[group, "" if group else record.booking.user]
        given = rule_input(record.booking, of_the_same, record.created_at, rules, zone)
        of_the_same.append(record.booking)
        broken = tuple(rule for rule in broken_rules(given) if rule.rule in limited)
        if broken:
            found.append(RuleConflict(record, broken))
    return found


class ConfigurationPage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /admin/configuration": self.show, "POST /admin/configuration": self.save}

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return await self._page(request, person, forms.texts(request.query_params))

    async def save(self, request: Request, person: CurrentPerson) -> Response:
        _check_admin(person)
        asked = forms.texts(await request.form())
        why = asked.get("why", "").strip()
        if asked.get("step") == "check":
            return await self._page(request, person, asked)
        if not why:
            problems = ["Give a reason: it is written to the audit log, and shown with the value."]
            return await self._page(request, person, asked, problems=problems, status=422)
        try:
            changed = await self._service.configuration.save(asked, person.email, why)
        except NotSaved as error:
            return await self._page(request, person, asked, problems=error.mistakes, status=422)
        entry = LogEntry(
            self._queries.now(), person.email, "configuration", why=why, details={"changed": "; ".join(changed)}
        )
        async with self._queries.store.writing() as writing:
            await writing.write_log(entry)
        return RedirectResponse("/admin/configuration?done=saved", 303)

    async def _page(
        self,
        request: Request,
        person: Person,
        asked: Mapping[str, str],
        problems: Sequence[str] = (),
        status: int = 200,
    ) -> Response:
        _check_admin(person)
        configuration, tried = self._service.configuration, None
        try:
            tried = configuration.tried(asked)
        except Unusable as unusable:
            problems = problems or unusable.mistakes
        try:
            sources, refused = await configuration.sources()
        except ClusterError as error:
            sources, refused = {}, [f"The cluster does not say where the values come from: {error}"]
        fields = configuration.fields()
        return self._renderer.page(
            request,
            person,
            "configuration.html",
            status=status,
            done=asked.get("done") == "saved",
            problems=problems,
            refused=refused,
            sections=_sections(fields),
            reasons=reasons(),
            sources=sources,
            shown=shown,
            changeable=[each for each in fields if may_people_change(each.path)],
            asked=configuration.shown_in_form(asked),
            seen=SEEN,
            why=asked.get("why", ""),
            can_save=configuration.cluster is not None,
            tried=tried,
            conflicts=await self._conflicts(tried.bookings.rules) if tried else [],
        )

    async def _conflicts(self, tried: BookingRules) -> list[RuleConflict]:
        found, after = list[BookingRecord](), None
        while True:
            query = Query(states=frozenset({State.ACTIVE, State.PLANNED}), after=after, limit=1000)
            page = await self._queries.find(query)
            found += page.records
            if (after := page.next) is None:
                return conflicts(found, tried, self._queries.zone)


def _sections(fields: Iterable[Leaf]) -> dict[str, list[Leaf]]:
    found: dict[str, list[Leaf]] = {}
    for leaf in fields:
        found.setdefault(leaf.path.rpartition(".")[0], []).append(leaf)
    return found


def _check_admin(person: Person) -> None:
    if not person.is_lab_admin:
        raise forbidden("This page is for lab admins", "You are signed in as a member.")
