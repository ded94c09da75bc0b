"""The routes for signing in and out with a browser: with an OpenID Connect provider, with a JupyterHub, or with `--dev`
on one machine."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, unquote, urlencode

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from carrel.bookings.groups import GroupSource
from carrel.bookings.people import How, Person, Role, Session
from carrel.bookings.sign_in import sign_in_pages
from carrel.bookings.sign_in.authenticator import (
    Authenticator,
    CurrentPerson,
    NotSignedIn,
    SignInProvider,
    is_for_loopback,
)
from carrel.bookings.sign_in.oidc import LEEWAY, ProviderUnavailable, SignInFailed
from carrel.bookings.sign_in.secrets import derived, hashed, is_same, new_secret
from carrel.http.problems import Problem, answer_problem
from carrel.parsing.addresses import is_address, normal

log = logging.getLogger(__name__)

MAX_PATH = 1000
ATTEMPT_LIFETIME = timedelta(minutes=10)
"""How long a person may take at the provider."""
SESSION_LIFETIME = timedelta(hours=12)
"""A working day: the provider is asked again each morning who may come in."""
SEE_OTHER = 303
PROVIDERS = {"oidc": "The identity provider", "hub": "JupyterHub"}
"""For people, by the way to sign in."""
GROUP_SOURCES = {"oidc": GroupSource.IDENTITY_PROVIDER, "hub": GroupSource.HUB}
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def local_path(wanted: str) -> str:
    """The path to open after signing in. Never another site, however it is written."""
    path = unquote(wanted.partition("?")[0].partition("#")[0])
    # Browsers read a backslash as a slash, and leave the base path by dots.
    is_plain = "\\" not in path and not {".", ".."} & set(path.split("/"))
    is_local = wanted.startswith("/") and not wanted.startswith("//") and is_plain and wanted.isprintable()
    return wanted if is_local and len(wanted) <= MAX_PATH else "/"


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """A sign-in that has been sent to the provider and has not come back yet.

    The browser keeps it in a cookie, so that people who are not signed in cause no writes to the database. State, nonce
    and verifier are derived from its secret, which the provider never gets.
    """

    begun: datetime
    secret: str
    back_to: str
    way: str = "oidc"
    """With which provider: another one cannot finish it."""

    def derived(self, purpose: str) -> str:
        """Return its `state`, `nonce` or `verifier`."""
        return derived(self.secret, f"{purpose} {self.way} {self.begun.isoformat()}")

    def as_cookie(self) -> str:
        facts = {"begun": self.begun.isoformat(), "secret": self.secret, "back_to": self.back_to, "way": self.way}
        return urlencode(facts)

    @classmethod
    def of_cookie(cls, cookie: str) -> "SignInAttempt | None":
        found = dict(parse_qsl(cookie))
        try:
            begun = datetime.fromisoformat(found["begun"]).astimezone(UTC)
            return cls(begun, found["secret"], local_path(found.get("back_to", "/")), found["way"])
        except (KeyError, ValueError, OverflowError):
            return None


@dataclass(frozen=True, slots=True)
class SignInRoutes:
    authenticator: Authenticator

    async def begin(self, request: Request) -> Response:
        methods, back_to = self.authenticator.methods, local_path(request.query_params.get("back", "/"))
        options, providers = self.authenticator.options, methods.providers()
        if methods.is_dev:
            return sign_in_pages.dev_form(options, back_to)
        if not providers:
            return sign_in_pages.sign_in_unavailable(options)
        way = request.query_params.get("with", "") if len(providers) > 1 else next(iter(providers))
        if way not in providers:
            return sign_in_pages.choice(options, providers, back_to)
        attempt = SignInAttempt(self.authenticator.now(), new_secret(), back_to, way)
        try:
            url = await providers[way].url(*map(attempt.derived, ("state", "nonce", "verifier")))
        except SignInFailed as failure:
            return self._failed(failure)
        response = RedirectResponse(url, SEE_OTHER)
        self._set(response, self._attempt_cookie, attempt.as_cookie(), ATTEMPT_LIFETIME)
        return response

    async def finish(self, request: Request) -> Response:
        return await self._finish(request, "oidc")

    async def finish_with_hub(self, request: Request) -> Response:
        return await self._finish(request, "hub")

    async def _finish(self, request: Request, way: str) -> Response:
        provider = self.authenticator.methods.providers().get(way)
        if provider is None:
            return sign_in_pages.sign_in_unavailable(self.authenticator.options)
        try:
            return await self._finished(request, way, provider)
        except SignInFailed as failure:
            return self._failed(failure)

    async def _finished(self, request: Request, way: str, provider: SignInProvider) -> Response:
        """The state must belong to the attempt of this browser, and an attempt works once. Raises `SignInFailed`."""
        given, options = request.query_params, self.authenticator.options
        attempt = SignInAttempt.of_cookie(request.cookies.get(self._attempt_cookie, ""))
        if attempt is None or attempt.way != way or not is_same(given.get("state", ""), attempt.derived("state")):
            raise SignInFailed("This sign-in was not started in this browser")
        if not -LEEWAY <= self.authenticator.now() - attempt.begun < ATTEMPT_LIFETIME:
            raise SignInFailed("This sign-in took too long")
        if "error" in given:
            raise SignInFailed(f"{PROVIDERS[way]} reported: {given['error'][:200]}")
        claims = await provider.finish(given.get("code", ""), attempt.derived("verifier"), attempt.derived("nonce"))
        people, role_options, now = self.authenticator.people, self.authenticator.roles, self.authenticator.now()
        if not await people.use_once(hashed(attempt.secret), now + ATTEMPT_LIFETIME):
            raise SignInFailed("This sign-in was already used")
        roles = role_options.by_groups(claims.groups or ())
        if not roles | role_options.by_email(claims.email, (await people.person(claims.email)).granted):
            untold = "" if claims.groups is not None else f": {PROVIDERS[way]} does not tell your groups"
            raise SignInFailed(f"{claims.email} is in no group that may use this service{untold}")
        if claims.groups is not None:
            # Before the session: whoever is signed in was seen with the groups of that sign-in.
            await people.saw_groups(claims.email, GROUP_SOURCES[way], claims.groups, now)
        response = await self._signed_in(request, Person(claims.email, claims.name, roles), attempt.back_to)
        response.delete_cookie(self._attempt_cookie, options.cookie_path, secure=options.is_https, httponly=True)
        return response

    def _failed(self, failure: SignInFailed) -> Response:
        log.warning("sign_in_failed: %r", str(failure))
        status = 503 if isinstance(failure, ProviderUnavailable) else 403
        return sign_in_pages.failed(self.authenticator.options, str(failure), status)

    async def dev_sign_in(self, request: Request) -> Response:
        """`--dev`: everybody on this machine may choose a name. A request through a proxy may come from anywhere."""
        is_here = is_for_loopback(request) and not any(name in request.headers for name in PROXY_HEADERS)
        if not self.authenticator.methods.is_dev or not is_here or not self.authenticator.is_same_origin(request):
            raise Problem(
                404, "not-found", "There is no such page", "This sign-in works with --dev only.", "open /sign-in"
            )
        form = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        email, role = normal(form.get("email", "")), form.get("role", Role.MEMBER.value)
        if not is_address(email) or role not in ("member", "lab-admin", "platform-admin"):
            return self._failed(SignInFailed("An e-mail address and a role are needed"))
        person = Person(email, roles=frozenset({Role.MEMBER, Role(role)}), how=How.DEV)
        return await self._signed_in(request, person, local_path(form.get("back", "/")))

    async def sign_out(self, request: Request, person: CurrentPerson) -> Response:
        """The parameter `person` makes sure that the request comes from our own page."""
        await self.authenticator.people.end_session(hashed(self.authenticator.session_secret(request)))
        options, has_hub = self.authenticator.options, self.authenticator.methods.hub is not None
        response = RedirectResponse("/signed-out" if has_hub else "/", SEE_OTHER)
        response.delete_cookie(options.cookie, options.cookie_path, secure=options.is_https, httponly=True)
        return response

    async def signed_out(self) -> Response:
        return sign_in_pages.signed_out(self.authenticator.options)

    async def _signed_in(self, request: Request, person: Person, back_to: str) -> Response:
        """A new secret each time, and the old session ends: a cookie that somebody planted before does not work."""
        secret, now = new_secret(), self.authenticator.now()
        options = self.authenticator.options
        session = Session(person.email, person.name, person.roles, person.how, now, now + SESSION_LIFETIME)
        old = self.authenticator.session_secret(request)
        if old:
            await self.authenticator.people.end_session(hashed(old))
        await self.authenticator.people.begin_session(hashed(secret), session)
        log.info("signed_in person=%s how=%s", person.email, person.how.value)
        response = RedirectResponse(back_to, SEE_OTHER)
        self._set(response, options.cookie, secret, SESSION_LIFETIME)
        return response

    @property
    def _attempt_cookie(self) -> str:
        return f"{self.authenticator.options.cookie}-sign-in"

    def _set(self, response: Response, name: str, secret: str, age: timedelta) -> None:
        options, seconds = self.authenticator.options, int(age.total_seconds())
        response.set_cookie(
            name, secret, seconds, path=options.cookie_path, secure=options.is_https, httponly=True, samesite="lax"
        )


async def _redirect_to_sign_in(request: Request, problem: Exception) -> Response:
    """A browser that requests a page is redirected to the sign-in page."""
    wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if wants_page and not request.url.path.startswith("/api/"):
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/sign-in?{urlencode({'back': here})}", SEE_OTHER)
    return await answer_problem(request, problem)


def sign_in_routes(authenticator: Authenticator) -> list[BaseRoute]:
    router = APIRouter(include_in_schema=False)
    routes = SignInRoutes(authenticator)
    router.add_api_route("/sign-in", routes.begin, methods=["GET"], response_model=None)
    router.add_api_route("/sign-in/callback", routes.finish, methods=["GET"], response_model=None)
    router.add_api_route("/oauth_callback", routes.finish_with_hub, methods=["GET"], response_model=None)
    router.add_api_route("/signed-out", routes.signed_out, methods=["GET"], response_model=None)
    router.add_api_route("/sign-in/dev", routes.dev_sign_in, methods=["POST"], response_model=None)
    router.add_api_route("/sign-out", routes.sign_out, methods=["POST"], response_model=None)
    return router.routes


def install_sign_in(app: FastAPI, authenticator: Authenticator) -> None:
    """Adds the sign-in to an app: its routes can use `CurrentPerson`, and a `Problem` becomes an answer."""
    from carrel.bookings.sign_in.account_routes import credential_routes

    app.state.authenticator = authenticator
    app.add_exception_handler(Problem, answer_problem)
    app.add_exception_handler(NotSignedIn, _redirect_to_sign_in)
    for routes in (sign_in_routes(authenticator), credential_routes(authenticator, app.router.responses)):
        app.router.routes.extend(routes)  # An included router would make each of them once more.
