"""The page about oneself: who one is here, and in which zone one sees times."""

from collections.abc import Mapping
from functools import cache
from itertools import groupby
from zoneinfo import available_timezones

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.pages import forms
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.parsing.time import zone_named


class AccountPage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /account": self.show, "POST /account": self.choose_zone}

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return self._page(request, person)

    async def choose_zone(self, request: Request, person: CurrentPerson) -> Response:
        name = forms.texts(await request.form()).get("zone", "")
        zone = zone_named(name)
        if name and zone is None:
            return self._page(request, person, problem=f"“{name}” is no time zone. Choose one of the list.")
        await self._service.authenticator.people.choose_zone(person.email, zone)
        return RedirectResponse("/account?done=zone", 303)

    def _page(self, request: Request, person: CurrentPerson, problem: str = "") -> Response:
        return self._renderer.page(
            request,
            person,
            "account.html",
            status=422 if problem else 200,
            problems=[problem] if problem else [],
            done=request.query_params.get("done") == "zone",
            roles=sorted(role.value for role in person.roles),
            lab_zone=self._service.configuration.current.value.lab.timezone,
            chosen=person.zone.key if person.zone else "",
            zones_by_region=zones_by_region(),
        )


@cache
def zones_by_region() -> Mapping[str, list[str]]:
    """The zones that people may choose, such as `Europe/Stockholm`, by the word before the slash."""
    named = sorted(each for each in available_timezones() if "/" in each and not each.startswith(("Etc/", "SystemV/")))
    return {region: list(names) for region, names in groupby(named, lambda name: name.partition("/")[0])} | {
        "UTC": ["UTC"]
    }
