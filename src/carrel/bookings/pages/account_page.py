"""The page about oneself: who one is here, in which zone one sees times, and by which channels one is told what."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from itertools import groupby
from zoneinfo import available_timezones

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.notifications.choices import MAIL, TOPICS, shown_address
from carrel.bookings.notifications.own_choices import TITLES, ChoicesChange
from carrel.bookings.pages import forms
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.people import Person
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.parsing.time import zone_named

DONE = {
    "zone": "Saved. You see times in {zone} now, here, in your messages and in the terminal.",
    "messages": "Saved. Send yourself a test to see that it arrives.",
    "test": "The test was sent. Look whether it has arrived.",
}
FAILURES_OF = timedelta(days=7)
HELP = {
    "slack": "Slack: the address of an incoming webhook",
    "teams": "Teams: the address of a workflow that posts what it is sent",
    "matrix": "Matrix: the id of a room to which you have invited the lab’s user",
    "webhook": "Another webhook",
}


class AccountPage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /account": self.show,
            "POST /account": self.choose_zone,
            "POST /account/messages": self.choose_messages,
            "POST /account/messages/test": self.test,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return await self._page(request, person)

    async def choose_zone(self, request: Request, person: CurrentPerson) -> Response:
        name = forms.texts(await request.form()).get("zone", "")
        zone = zone_named(name)
        if name and zone is None:
            return await self._page(request, person, [f"“{name}” is no time zone. Choose one of the list."])
        await self._service.authenticator.people.choose_zone(person.email, zone)
        return RedirectResponse("/account?done=zone", 303)

    async def choose_messages(self, request: Request, person: CurrentPerson) -> Response:
        own, asked = self._service.own_choices, await request.form()
        given = {name: str(asked.get(name, "")).strip() for name in HELP}
        addresses = {name: given[name] for name in HELP if given[name] or f"without-{name}" in asked}
        muted = frozenset(name for name in TOPICS if f"topic-{name}" not in asked)
        by_mail = "mail" in asked if MAIL in own.available else None
        if problems := await own.change(ChoicesChange(by_mail, addresses, muted), person):
            return await self._page(request, person, problems)
        return RedirectResponse("/account?done=messages", 303)

    async def test(self, request: Request, person: CurrentPerson) -> Response:
        channel = forms.texts(await request.form()).get("channel", "")
        if why := await self._service.own_choices.test(channel, person, self._queries.now()):
            return await self._page(request, person, [f"The test did not arrive: {why}"])
        return RedirectResponse("/account?done=test", 303)

    async def _page(self, request: Request, person: Person, problems: Sequence[str] = ()) -> Response:
        service, now = self._service, self._queries.now()
        choices = (await service.authenticator.people.person(person.email)).messages
        done = DONE.get(request.query_params.get("done", ""), "")
        return self._renderer.page(
            request,
            person,
            "account.html",
            status=422 if problems else 200,
            problems=problems,
            done=done.format(zone=self._renderer.zone),
            roles=sorted(role.value for role in person.roles),
            lab_zone=service.configuration.current.value.lab.timezone,
            chosen=person.zone.key if person.zone else "",
            zones_by_region=zones_by_region(),
            choices=choices,
            available=service.own_choices.available,
            help=HELP,
            titles=TITLES,
            topics={name: words for name, (words, _) in TOPICS.items()},
            shown={name: shown_address(name, given) for name, given in choices.addresses.items()},
            failures=await service.outbox.failures(now - FAILURES_OF, 5, person.email),
        )


@cache
def zones_by_region() -> Mapping[str, list[str]]:
    """The zones that people may choose, such as `Europe/Stockholm`, by the word before the slash."""
    named = sorted(each for each in available_timezones() if "/" in each and not each.startswith(("Etc/", "SystemV/")))
    return {region: list(names) for region, names in groupby(named, lambda name: name.partition("/")[0])} | {
        "UTC": ["UTC"]
    }
