"""Signing in and out with a browser: at the provider, or by saying so on one's own machine."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.people import How, Role, Session, is_address, normal
from carrel.bookings.sign_in import forms
from carrel.bookings.sign_in.identity import CurrentPerson, Identity, NotSignedIn, is_for_loopback
from carrel.bookings.sign_in.oidc import LEEWAY, SignInFailed
from carrel.bookings.sign_in.secrets import derived, hashed, is_same, new_secret
from carrel.http.problems import Problem, answer_problem

log = logging.getLogger(__name__)

LONGEST_PATH = 1000
ON_THE_WAY = timedelta(minutes=10)
"""How long somebody may take at the provider's."""
SEE_OTHER = 303
PROXIES_SAY = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def path_of_ours(wanted: str) -> str:
    """Where to go after signing in; never to another site, however it is spelled."""
    is_ours = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_ours and len(wanted) <= LONGEST_PATH else "/"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in on its way to the provider and back.

    The browser carries it in a cookie and we keep nothing, so that strangers make us write nothing. What the provider
    is told follows from its secret, which the provider is not told.
    """

    begun: datetime
    secret: str
    back_to: str

    @property
    def state(self) -> str:
        return self._derived("state")

    @property
    def nonce(self) -> str:
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        return self._derived("verifier")

    def _derived(self, purpose: str) -> str:
        return derived(self.secret, f"{purpose} {self.begun.isoformat()}")

    def as_cookie(self) -> str:
        return urlencode({"begun": self.begun.isoformat(), "secret": self.secret, "back_to": self.back_to})

    @classmethod
    def of_cookie(cls, cookie: str) -> "Attempt | None":
        found = dict(parse_qsl(cookie))
        try:
            begun = datetime.fromisoformat(found["begun"]).astimezone(UTC)
            return cls(begun, found["secret"], path_of_ours(found.get("back_to", "/")))
        except (KeyError, ValueError, OverflowError):
            return None


@dataclass(frozen=True, slots=True)
class Guest:
    """Somebody who has just been recognised."""

    email: str
    name: str
    roles: frozenset[Role]
    how: How = How.SESSION


@dataclass(frozen=True, slots=True)
class SignInDesk:
    identity: Identity

    async def begin(self, request: Request) -> Response:
        means, back_to = self.identity.means, path_of_ours(request.query_params.get("back", "/"))
        if means.is_dev:
            return forms.dev_form(back_to)
        if means.sign_in is None:
            return forms.no_way_in()
        attempt = Attempt(self.identity.now(), new_secret(), back_to)
        try:
            url = await means.sign_in.url(attempt.state, attempt.nonce, attempt.verifier)
        except SignInFailed as failure:
            return _failed(str(failure))
        response = RedirectResponse(url, SEE_OTHER)
        self._set(response, self._attempt_cookie, attempt.as_cookie(), ON_THE_WAY)
        return response

    async def finish(self, request: Request) -> Response:
        """The state must be that of this browser's attempt, which works once: nobody is signed in as another."""
        given, sign_in = request.query_params, self.identity.means.sign_in
        attempt = Attempt.of_cookie(request.cookies.get(self._attempt_cookie, ""))
        if sign_in is None:
            return forms.no_way_in()
        if attempt is None or not is_same(given.get("state", ""), attempt.state):
            return _failed("This sign-in was not begun in this browser")
        if not -LEEWAY <= self.identity.now() - attempt.begun < ON_THE_WAY:
            return _failed("This sign-in took too long")
        if "error" in given:
            return _failed(f"The identity provider said: {given['error'][:200]}")
        try:
            claimed = await sign_in.finish(given.get("code", ""), attempt.verifier, attempt.nonce)
        except SignInFailed as failure:
            return _failed(str(failure))
        if not await self.identity.people.use_once(hashed(attempt.secret), self.identity.now() + ON_THE_WAY):
            return _failed("This sign-in was used before")
        roles = self.identity.roles.by_groups(claimed.groups)
        if not roles | self.identity.roles.by_name(claimed.email, await self.identity.people.granted(claimed.email)):
            return _failed(f"{claimed.email} is in no group that may use this service")
        response = await self._signed_in(request, Guest(claimed.email, claimed.name, roles), attempt.back_to)
        response.delete_cookie(self._attempt_cookie, path="/", secure=self.identity.premises.is_https, httponly=True)
        return response

    async def say_so(self, request: Request) -> Response:
        """`--dev`: whoever is on this machine is who they say. Who comes through a proxy may be anywhere."""
        is_here = is_for_loopback(request) and not any(name in request.headers for name in PROXIES_SAY)
        if not self.identity.means.is_dev or not is_here or not self.identity.is_own_page(request):
            raise Problem(404, "not-found", "There is no such page", "This sign-in is for trying it.", "open /sign-in")
        form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        email, role = normal(form.get("email", "")), form.get("role", Role.MEMBER.value)
        if not is_address(email) or role not in ("member", "lab-admin", "platform-admin"):
            return _failed("An address and a role are needed")
        guest = Guest(email, "", frozenset({Role.MEMBER, Role(role)}), How.DEV)
        return await self._signed_in(request, guest, path_of_ours(form.get("back", "/")))

    async def sign_out(self, request: Request, person: CurrentPerson) -> Response:
        """`person` proves that the call comes from a page of ours."""
        await self.identity.people.end_session(hashed(self.identity.session_secret(request)))
        response = RedirectResponse("/", SEE_OTHER)
        premises = self.identity.premises
        response.delete_cookie(premises.cookie, path="/", secure=premises.is_https, httponly=True, samesite="lax")
        return response

    async def _signed_in(self, request: Request, guest: Guest, back_to: str) -> Response:
        """A new secret each time, and the old session ends: a cookie that was planted before is worth nothing."""
        secret, now = new_secret(), self.identity.now()
        premises = self.identity.premises
        session = Session(guest.email, guest.name, guest.roles, guest.how, now, now + premises.session)
        old = self.identity.session_secret(request)
        if old:
            await self.identity.people.end_session(hashed(old))
        await self.identity.people.begin_session(hashed(secret), session)
        log.info("signed_in person=%s how=%s", guest.email, guest.how.value)
        response = RedirectResponse(back_to, SEE_OTHER)
        self._set(response, premises.cookie, secret, premises.session)
        return response

    @property
    def _attempt_cookie(self) -> str:
        return f"{self.identity.premises.cookie}-sign-in"

    def _set(self, response: Response, name: str, secret: str, age: timedelta) -> None:
        is_https = self.identity.premises.is_https
        seconds = int(age.total_seconds())
        response.set_cookie(name, secret, seconds, path="/", secure=is_https, httponly=True, samesite="lax")


def _failed(why: str) -> Response:
    log.warning("sign_in_failed: %r", why)
    return forms.failed(why)


async def _answer_stranger(request: Request, problem: Exception) -> Response:
    """A browser that wants a page is shown where to sign in."""
    wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if wants_page and not request.url.path.startswith("/api/"):
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/sign-in?{urlencode({'back': here})}", SEE_OTHER)
    return await answer_problem(request, problem)


def sign_in_router(identity: Identity) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    desk = SignInDesk(identity)
    router.add_api_route("/sign-in", desk.begin, methods=["GET"], response_model=None)
    router.add_api_route("/sign-in/callback", desk.finish, methods=["GET"], response_model=None)
    router.add_api_route("/sign-in/dev", desk.say_so, methods=["POST"], response_model=None)
    router.add_api_route("/sign-out", desk.sign_out, methods=["POST"], response_model=None)
    return router


def install_identity(app: FastAPI, identity: Identity) -> None:
    """Everything about people, on an app: `CurrentPerson` works in its routes, and problems are answered as such."""
    from carrel.bookings.sign_in.credentials import credentials_router

    app.state.identity = identity
    app.add_exception_handler(Problem, answer_problem)
    app.add_exception_handler(NotSignedIn, _answer_stranger)
    app.include_router(sign_in_router(identity))
    app.include_router(credentials_router(identity))
