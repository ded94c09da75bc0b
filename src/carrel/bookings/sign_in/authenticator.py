"""`Authenticator.authenticate` finds the person who sends a request, from the one credential that it carries.

- `Authorization: Bearer carrel_…` is a token of Carrel. One in the form of JupyterHub's tokens is a token of a hub's
  user, if there is a hub. Any other bearer is a token of the cluster, if there is one. None is sent to two of them.
- The session cookie comes from a browser. A browser sends it also when another site causes the request, so a write with
  a cookie must also prove that it comes from our own pages (CSRF).

An invalid credential is refused even if the request also carries a valid one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import Request

from carrel.bookings.groups import GroupSource
from carrel.bookings.people import How, Person, RoleOptions, Scope
from carrel.bookings.records import StoreUnavailable
from carrel.bookings.sign_in.hub import HubClient, HubTokens
from carrel.bookings.sign_in.oidc import OidcClient
from carrel.bookings.sign_in.request_guard import OWN_HOST, Network, PersonLimiter, client_address, too_many
from carrel.bookings.sign_in.secrets import TOKEN_PREFIX, csrf_of, hashed, is_same
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.bookings.store.people import SqlPeople
from carrel.configuration.contradictions import is_loopback
from carrel.http.problems import Problem
from carrel.kubernetes.cluster import ClusterError

SAFE = ("GET", "HEAD", "OPTIONS")
CSRF_HEADER, CSRF_FIELD = "x-csrf-token", "csrf"
MAX_CREDENTIAL = 8192
LONG_ANSWERS = re.compile(r"/(timeline|timeline/table|usage|usage\.csv|bookings|availability|models)?$")
"""How the paths end of what reads all bookings; the home page too."""
PREVIEW = "/preview"
"""How the paths of requests end that are posted, and change nothing."""


class NotSignedIn(Problem):
    """401. A browser that requests a page is redirected to the sign-in page instead."""

    def __init__(self, detail: str) -> None:
        super().__init__(401, "not-signed-in", "You are not signed in", detail, "carrel login")
        self.with_headers({"www-authenticate": "Bearer"})


SignInProvider = OidcClient | HubClient
"""To which a browser is redirected, and which then says who the person is."""


@dataclass(frozen=True, slots=True)
class SignInMethods:
    """The ways to sign in. None: this way is not available."""

    oidc: OidcClient | None = None
    token_reviewer: TokenReviewer | None = None
    is_dev: bool = False
    """Everybody on this machine may sign in as anybody. Only for a service that listens on loopback."""
    hub: HubTokens | None = None

    def providers(self) -> Mapping[str, SignInProvider]:
        """Where people sign in with a browser, by the name of the way."""
        ways: dict[str, SignInProvider | None] = {"oidc": self.oidc, "hub": self.hub.client if self.hub else None}
        return {name: way for name, way in ways.items() if way is not None}


@dataclass(frozen=True, slots=True)
class SignInOptions:
    """The address of the service."""

    public_url: str = ""
    """The address that browsers see. Empty: the address of the request, for a service on loopback."""
    base_path: str = ""
    """Under which browsers see the service there, such as `/services/carrel`. Empty: it has the host for itself."""

    @property
    def is_https(self) -> bool:
        return self.public_url.startswith("https://")

    @property
    def cookie(self) -> str:
        """With https, the `__Host-` prefix: other hosts of the domain cannot set such a cookie. Browsers allow it only
        for a whole host; under a path, the next best prefix is used."""
        prefix = "__Secure-" if self.base_path else "__Host-"
        return f"{prefix}carrel" if self.is_https else "carrel"

    @property
    def cookie_path(self) -> str:
        """To other services of the same host, browsers do not send the cookie."""
        return self.base_path or "/"

    @property
    def own_source(self) -> str:
        """What pages may load from and send forms to: nothing of other services of the same host."""
        return f"{self.public_url}{self.base_path}/" if self.public_url and self.base_path else OWN_HOST

    @property
    def link(self) -> str:
        """The address of the service for people who read mail; empty: it is not known."""
        return f"{self.public_url}{self.base_path}" if self.public_url else ""

    def url_for(self, request: Request) -> str:
        """The address of the service, without a slash at the end."""
        return self.link or str(request.base_url).rstrip("/") + self.base_path


@dataclass(frozen=True, slots=True)
class Authenticator:
    people: SqlPeople
    roles: RoleOptions
    methods: SignInMethods
    options: SignInOptions
    limiter: PersonLimiter
    now: Callable[[], datetime]
    trusted_proxies: tuple[Network, ...] = ()
    """Their X-Forwarded-For is trusted, as in `RequestLimits`."""

    async def authenticate(self, request: Request) -> Person:
        """Raises `Problem`: 401 not signed in, 403 not from our page or no role, 429 too fast, 503 no cluster."""
        person = await self._authenticated(request)
        if person.is_hub:
            return person  # it asks on behalf of many people
        # An admin may have to book for a whole course at once.
        is_change = request.method not in SAFE and not request.url.path.endswith(PREVIEW) and not person.is_lab_admin
        is_long = request.method in SAFE and LONG_ANSWERS.search(request.url.path) is not None
        if wait_s := self.limiter.wait_s(person.email, is_change=is_change, is_long=is_long):
            raise too_many(wait_s)
        return person

    async def is_still(self, request: Request, person: Person) -> bool:
        """Whether an answer that takes minutes may go on: the person is signed in, with the same roles. While nobody
        can say, it may."""
        try:
            return await self._authenticated(request) == person
        except Problem as problem:
            return problem.status not in (401, 403)
        except StoreUnavailable:
            return True

    def csrf_token(self, request: Request) -> str:
        """For the forms of our own pages: the field `csrf` or the header `X-CSRF-Token`. Empty without a session."""
        secret = self.session_secret(request)
        return csrf_of(secret) if secret else ""

    def session_secret(self, request: Request) -> str:
        return request.cookies.get(self.options.cookie, "")

    async def _authenticated(self, request: Request) -> Person:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme:
            if scheme.lower() != "bearer" or not bearer.strip():
                raise NotSignedIn("The Authorization header must be: Bearer TOKEN.")
            return await self._by_bearer(bearer.strip(), client_address(request.scope, self.trusted_proxies))
        secret = self.session_secret(request)
        if not secret:
            raise NotSignedIn("The request has neither a session nor a token.")
        person = await self._by_session(secret)
        if request.method not in SAFE:
            await self._check_csrf(request, secret)
        return person

    async def _by_bearer(self, bearer: str, address: str) -> Person:
        person = None
        if len(bearer) <= MAX_CREDENTIAL:
            if bearer.startswith(TOKEN_PREFIX):
                person = await self._by_token(bearer)
            elif self.methods.hub is not None and self.methods.hub.is_meant(bearer):
                person = await self._by_hub(self.methods.hub, bearer, address)
            else:
                person = await self._by_kubernetes(bearer, address)
        if person is None:
            raise NotSignedIn("The token is unknown, expired or revoked.")
        accepted = await self._with_roles(person)
        if accepted.groups is not None:
            source = GroupSource.HUB if accepted.how is How.HUB else GroupSource.CLUSTER
            await self.people.saw_groups(accepted.email, source, accepted.groups, self.now())
        return accepted

    async def _by_hub(self, hub: HubTokens, bearer: str, address: str) -> Person | None:
        person = await hub.person(bearer, address)
        if person is None or person.groups is not None or not self.roles.member_groups:
            return person
        # The token may not read groups: those of the last sign-in count.
        seen = await self.people.seen_groups(person.email)
        return replace(person, roles=self.roles.by_groups(seen))

    async def _by_token(self, bearer: str) -> Person | None:
        token = await self.people.token(hashed(bearer), self.now())
        if token is None or not self._is_accepted(token.how):
            return None
        return Person(token.email, roles=token.roles, how=How.TOKEN, scopes=token.scopes)

    async def _by_kubernetes(self, bearer: str, address: str) -> Person | None:
        if self.methods.token_reviewer is None:
            return None
        try:
            return await self.methods.token_reviewer.person(bearer, address)
        except ClusterError:
            why = "The cluster does not answer, so Carrel cannot check its tokens."
            raise Problem(503, "cluster-unavailable", "The cluster cannot be asked", why, "carrel login") from None

    async def _by_session(self, secret: str) -> Person:
        session = await self.people.session(hashed(secret), self.now()) if len(secret) <= MAX_CREDENTIAL else None
        if session is None or not self._is_accepted(session.how):
            raise NotSignedIn("The session has ended.")
        return await self._with_roles(Person(session.email, session.name, session.roles, session.how))

    def _is_accepted(self, how: How) -> bool:
        """Sign-ins with `--dev` do not count for a service without `--dev` on the same database."""
        return how is not How.DEV or self.methods.is_dev

    async def _with_roles(self, person: Person) -> Person:
        """A hub gets no other roles: a grant to its name must not make it a person."""
        if person.is_hub:
            return person
        known = await self.people.person(person.email)
        more = self.roles.by_email(person.email, known.granted)
        if not person.roles | more:
            why = f"{person.email} is in no group that may use this service."
            raise Problem(403, "no-role", "You may not use this service", why, "ask a lab admin")
        return replace(person, roles=person.roles | more, zone=known.zone)

    async def _check_csrf(self, request: Request, secret: str) -> None:
        """Two checks: the browser says that the request comes from our pages, and the request has the CSRF token."""
        given = request.headers.get(CSRF_HEADER, "")
        if not given and request.headers.get("content-type", "").startswith(
            ("application/x-www-form-urlencoded", "multipart/form-data")
        ):
            field = (await request.form()).get(CSRF_FIELD, "")
            given = field if isinstance(field, str) else ""
        if not self.is_same_origin(request) or not is_same(given, csrf_of(secret)):
            why = "The request does not prove that it comes from a page of this service."
            raise Problem(
                403, "not-from-our-page", "The request did not come from our page", why, "reload the page and try again"
            )

    def is_same_origin(self, request: Request) -> bool:
        """Whether it comes from our pages, by headers that browsers set and scripts cannot change. Other programs send
        none of them."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        if origin is None:
            return True
        public = urlsplit(self.options.public_url)
        if public.netloc:
            return origin == f"{public.scheme}://{public.netloc}"
        # DNS rebinding: a page of another site whose name points to this machine has the same origin as its requests.
        return urlsplit(origin).netloc == request.headers.get("host", "") and is_for_loopback(request)


def is_for_loopback(request: Request) -> bool:
    """Whether the request is for this machine, by its host name."""
    return is_loopback(request.url.hostname or "")


async def current_person(request: Request) -> Person:
    """The person of a request, for a route: `person: CurrentPerson`. A hub is no person, and is refused. So is a
    credential that may only read, where the request could change something."""
    person = await current_person_or_hub(request)
    if person.is_hub:
        raise forbidden("A hub may not ask this", "It may ask what its users may start, at /api/v1/startable.")
    if request.method not in SAFE and person.scopes <= {Scope.READ}:
        require_scope(person, Scope.BOOK)
    return person


async def current_person_or_hub(request: Request) -> Person:
    """For the route that a hub may ask too."""
    authenticator: Authenticator = request.app.state.authenticator
    return await authenticator.authenticate(request)


CurrentPerson = Annotated[Person, Depends(current_person)]
CurrentPersonOrHub = Annotated[Person, Depends(current_person_or_hub)]


def forbidden(what: str, why: str) -> Problem:
    return Problem(403, "forbidden", what, why, "ask a lab admin")


def require_scope(person: Person, scope: Scope) -> None:
    """Raises a 403 `Problem` if the credential does not have this scope."""
    if scope not in person.scopes:
        has = ", ".join(sorted(each.value for each in person.scopes))
        why = f"This token has the scopes: {has}. This needs: {scope.value}."
        raise Problem(403, "scope", "The token does not have this scope", why, f"carrel login --scope {scope.value}")
