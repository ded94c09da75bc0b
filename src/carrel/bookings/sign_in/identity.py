"""Who calls? `Identity.who` answers it for every call, from the one credential that the call carries.

- `Authorization: Bearer carrel_…`: a token of ours. Any other bearer: a token of the cluster, if there is one.
- the session's cookie: a browser. It sends that cookie also when another site makes it call, so a cookie is only
  believed for a write if the call proves that it comes from our own pages.
A credential that is no good is refused even if there is another: whoever sent it wants to know.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import Request

from carrel.bookings.people import How, People, Person, Scope
from carrel.bookings.sign_in.gate import too_many
from carrel.bookings.sign_in.oidc import SignIn
from carrel.bookings.sign_in.rates import Buckets
from carrel.bookings.sign_in.roles import RoleBook
from carrel.bookings.sign_in.secrets import TOKEN_PREFIX, csrf_of, hashed, is_same
from carrel.bookings.sign_in.token_review import Kubernetes
from carrel.http.problems import Problem
from carrel.kubernetes.cluster import ClusterError

SAFE = ("GET", "HEAD", "OPTIONS")
CSRF_HEADER, CSRF_FIELD = "x-csrf-token", "csrf"
LONGEST_CREDENTIAL = 8192


class NotSignedIn(Problem):
    """401. A browser that wants a page is sent to sign in instead."""

    def __init__(self, detail: str) -> None:
        super().__init__(401, "not-signed-in", "Nobody is signed in", detail, "carrel login")
        self.with_headers({"www-authenticate": "Bearer"})


@dataclass(frozen=True, slots=True)
class Means:
    """By which people may be recognised. None: not this way."""

    sign_in: SignIn | None = None
    kubernetes: Kubernetes | None = None
    is_dev: bool = False
    """Anybody on this machine may say who they are. Only for a door that listens on loopback."""


@dataclass(frozen=True, slots=True)
class Premises:
    """Where we are, and how long a guest may stay."""

    public_url: str = ""
    """As browsers see us. Empty: wherever they found us, for a door on loopback."""
    session: timedelta = timedelta(hours=12)
    longest_token: timedelta = timedelta(days=90)

    @property
    def is_https(self) -> bool:
        return self.public_url.startswith("https://")

    @property
    def cookie(self) -> str:
        """With https, a name that browsers let nobody else on the domain set."""
        return "__Host-carrel" if self.is_https else "carrel"


@dataclass(frozen=True, slots=True)
class Identity:
    people: People
    roles: RoleBook
    means: Means
    premises: Premises
    pace: Buckets
    now: Callable[[], datetime]

    async def who(self, request: Request) -> Person:
        """Raises `Problem`: 401 who are you, 403 not from there, 429 not so fast, 503 cannot be known now."""
        person = await self._recognised(request)
        # Our own processes ask for many people.
        wait_s = 0.0 if person.is_service else self.pace.wait_s(person.email)
        if wait_s:
            raise too_many(wait_s)
        return person

    def csrf_token(self, request: Request) -> str:
        """For the forms of our own pages: field `csrf`, or header `X-CSRF-Token`. Empty without a session."""
        secret = self.session_secret(request)
        return csrf_of(secret) if secret else ""

    def session_secret(self, request: Request) -> str:
        return request.cookies.get(self.premises.cookie, "")

    async def _recognised(self, request: Request) -> Person:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme:
            if scheme.lower() != "bearer" or not bearer.strip():
                raise NotSignedIn("The Authorization header must be: Bearer TOKEN.")
            return await self._by_bearer(bearer.strip())
        secret = self.session_secret(request)
        if not secret:
            raise NotSignedIn("The call carries neither a session nor a token.")
        person = await self._by_session(secret)
        if request.method not in SAFE:
            await self._check_own_page(request, secret)
        return person

    async def _by_bearer(self, bearer: str) -> Person:
        person = None
        if len(bearer) <= LONGEST_CREDENTIAL:
            is_ours = bearer.startswith(TOKEN_PREFIX)
            person = await (self._by_token(bearer) if is_ours else self._by_kubernetes(bearer))
        if person is None:
            raise NotSignedIn("The token is unknown, has expired or was revoked.")
        return await self._with_roles(person)

    async def _by_token(self, bearer: str) -> Person | None:
        token = await self.people.token(hashed(bearer), self.now())
        if token is None or not self._counts(token.how):
            return None
        return Person(token.email, roles=token.roles, how=How.TOKEN, scopes=token.scopes)

    async def _by_kubernetes(self, bearer: str) -> Person | None:
        if self.means.kubernetes is None:
            return None
        try:
            return await self.means.kubernetes.person(bearer)
        except ClusterError:
            why = "The cluster does not answer, so its tokens cannot be checked."
            raise Problem(
                503, "cluster-unavailable", "Nobody can be recognised by the cluster", why, "carrel login"
            ) from None

    async def _by_session(self, secret: str) -> Person:
        session = await self.people.session(hashed(secret), self.now()) if len(secret) <= LONGEST_CREDENTIAL else None
        if session is None or not self._counts(session.how):
            raise NotSignedIn("The session has ended.")
        return await self._with_roles(Person(session.email, session.name, session.roles, session.how))

    def _counts(self, how: How) -> bool:
        """What somebody said for trying it is not believed by a service that is for real, on the same database."""
        return how is not How.DEV or self.means.is_dev

    async def _with_roles(self, person: Person) -> Person:
        """A service stays a service: a grant to its name would make it a person."""
        if person.is_service:
            return person
        more = self.roles.by_name(person.email, await self.people.granted(person.email))
        if not person.roles | more:
            why = f"{person.email} is in no group that may use this service."
            raise Problem(403, "no-role", "You may not use this service", why, "ask a lab admin")
        return replace(person, roles=person.roles | more)

    async def _check_own_page(self, request: Request, secret: str) -> None:
        """Both must hold: the browser says that the call comes from our pages, and the call knows what they know."""
        given = request.headers.get(CSRF_HEADER, "")
        if not given and request.headers.get("content-type", "").startswith(
            ("application/x-www-form-urlencoded", "multipart/form-data")
        ):
            field = (await request.form()).get(CSRF_FIELD, "")
            given = field if isinstance(field, str) else ""
        if not self.is_own_page(request) or not is_same(given, csrf_of(secret)):
            why = "The call does not prove that it comes from a page of this service."
            raise Problem(
                403, "not-from-our-page", "The call was not made by you", why, "reload the page and try again"
            )

    def is_own_page(self, request: Request) -> bool:
        """By what browsers say and no script can change. Other programs say nothing of it."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        if origin is None:
            return True
        public = urlsplit(self.premises.public_url)
        if public.netloc:
            return origin == f"{public.scheme}://{public.netloc}"
        # A page of another site whose name was pointed at this machine has the same origin as its calls.
        return urlsplit(origin).netloc == request.headers.get("host", "") and is_for_loopback(request)


def is_for_loopback(request: Request) -> bool:
    """By the name that the caller called."""
    host = request.url.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def current_person(request: Request) -> Person:
    """Who calls, for a route: `person: CurrentPerson`."""
    identity: Identity = request.app.state.identity
    return await identity.who(request)


CurrentPerson = Annotated[Person, Depends(current_person)]


def forbidden(what: str, why: str) -> Problem:
    return Problem(403, "forbidden", what, why, "ask a lab admin")


def needs(person: Person, scope: Scope) -> None:
    """Raises a 403 `Problem` if this credential does not reach so far."""
    if scope not in person.scopes:
        has = ", ".join(sorted(each.value for each in person.scopes))
        why = f"This token reaches: {has}. This needs: {scope.value}."
        raise Problem(403, "scope", "The token does not reach so far", why, f"carrel login --scope {scope.value}")
