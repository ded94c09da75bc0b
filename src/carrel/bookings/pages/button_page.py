"""The page behind a button in a message: it says what the button will do, and pressing it there does it.

Opening the link changes nothing: mail scanners and previews of chats open links. No sign-in is needed, because the link
itself shows that the message was received; but who is signed in as somebody else is asked to sign out first, so that a
message that was passed on is not answered by accident.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from carrel.bookings.button_acts import ACTS, person_of_button
from carrel.bookings.notifications.buttons import PATH, TITLES, Button
from carrel.bookings.pages.layout import PageRenderer
from carrel.bookings.people import Person, Scope
from carrel.bookings.records import BookingRefusal
from carrel.bookings.sign_in.authenticator import NotSignedIn, require_scope
from carrel.bookings.sign_in.request_guard import too_many
from carrel.bookings.sign_in.secrets import hashed
from carrel.parsing.time import moment

UNKNOWN = "This link is not known here. It may be cut off, or its message is older than a month. Nothing was changed."
HEADERS = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
"""The address of the page is its secret."""


class ButtonPage:
    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer

    async def show(self, request: Request, secret: str) -> Response:
        button = await self._found(secret)
        signed_in = await self._signed_in(request)
        if button is None or (why := self._why_not(button, signed_in)):
            return self._refused(request, signed_in, button, UNKNOWN if button is None else why)
        renderer = await self._renderer_for(button)
        prospect = await ACTS[button.act].prospect(renderer.service, button, person_of_button(button))
        return self._page(
            renderer, request, signed_in, button, says=prospect.says, problems=prospect.problems, secret=secret
        )

    async def press(self, request: Request, secret: str) -> Response:
        signed_in = await self._signed_in(request)
        if signed_in is not None:
            require_scope(signed_in, Scope.BOOK)  # a token that may only read does not even press what it found
        button = await self._found(secret)
        if button is None or (why := self._why_not(button, signed_in)):
            return self._refused(request, signed_in, button, UNKNOWN if button is None else why)
        service = self._renderer.service
        if wait_s := service.authenticator.limiter.wait_s(button.person, is_change=True):
            raise too_many(wait_s)
        renderer = await self._renderer_for(button)
        answer = await ACTS[button.act].press(renderer.service, button, person_of_button(button))
        if isinstance(answer, BookingRefusal):
            return self._page(renderer, request, signed_in, button, problems=answer.messages, status=409)
        await service.outbox.buttons.used(hashed(secret), service.queries.now())
        return self._page(renderer, request, signed_in, button, done=answer)

    async def _found(self, secret: str) -> Button | None:
        return await self._renderer.service.outbox.buttons.find(hashed(secret)) if secret.isascii() else None

    async def _signed_in(self, request: Request) -> Person | None:
        """Raises `Problem` if the request has a session and does not come from our page."""
        try:
            return await self._renderer.service.authenticator.authenticate(request)
        except NotSignedIn:
            return None

    async def _renderer_for(self, button: Button) -> PageRenderer:
        """In the zone of the person whose button it is."""
        known = await self._renderer.service.authenticator.people.person(button.person)
        return self._renderer.for_person(Person(button.person, zone=known.zone))

    def _why_not(self, button: Button, signed_in: Person | None) -> str:
        service = self._renderer.service
        if signed_in is not None and signed_in.email != button.person:
            why = f"This link is for {button.person}, and you are signed in as {signed_in.email}."
            return f"{why} Nothing was changed. Sign out first if you are both."
        zone = service.queries.zone
        if button.used is not None:
            return f"“{TITLES[button.act]}” was done already, {moment(button.used, zone)}. A link works once."
        if button.expires <= service.queries.now():
            return f"This link worked until {moment(button.expires, zone)}. Nothing was changed."
        return ""

    def _refused(self, request: Request, signed_in: Person | None, button: Button | None, why: str) -> Response:
        status = 404 if button is None else 403 if signed_in and signed_in.email != button.person else 410
        return self._page(self._renderer, request, signed_in, button, problems=[why], status=status)

    def _page(
        self,
        renderer: PageRenderer,
        request: Request,
        signed_in: Person | None,
        button: Button | None,
        *,
        says: str = "",
        done: str = "",
        problems: Sequence[str] = (),
        status: int = 200,
        secret: str = "",
    ) -> Response:
        given: dict[str, Any] = {"says": says, "done": done, "problems": problems, "path": f"{PATH}{secret}"}
        title = TITLES[button.act] if button else "This link does not work"
        response = renderer.page(
            request,
            signed_in,
            "button.html",
            status=status,
            button=button,
            title=title,
            may_press=bool(says) and not problems,
            **given,
        )
        response.headers.update(HEADERS)
        return response


def install_buttons(app: FastAPI, renderer: PageRenderer) -> None:
    page = ButtonPage(renderer)
    app.add_api_route("/act/{secret}", page.show, methods=["GET"], response_model=None, include_in_schema=False)
    app.add_api_route("/act/{secret}", page.press, methods=["POST"], response_model=None, include_in_schema=False)
