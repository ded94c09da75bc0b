"""Sign-in with a JupyterHub, and its users' own tokens.

A hub is an OAuth 2 provider, but no OpenID Connect one: it publishes nothing about itself, issues no ID token, knows no
scopes such as `openid`, and wants the client's secret in the form. Who the person is, it says at `/hub/api/user`.
Carrel is a service of the hub. People and tokens need the scope `access:services!service=NAME` of it: otherwise another
service that got a person's token could book in their name.

An answer about a token is cached for a minute, so that a busy caller costs one question.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from carrel.bookings.people import How, Person, RoleOptions, Scope
from carrel.bookings.sign_in.oidc import (
    ProviderUnavailable,
    SignInFailed,
    VerifiedClaims,
    ask_provider,
    code_challenge,
    code_form,
)
from carrel.bookings.sign_in.token_review import ReviewedTokens
from carrel.configuration.schema import Bookings
from carrel.dialects.jupyter import HubPeople
from carrel.http.problems import Problem
from carrel.parsing.addresses import is_address

MOST_QUESTIONS = 16
"""To the hub at the same time: guessed tokens must not keep it busy."""
TOKEN_FORM = re.compile("[0-9a-f]{32}")
"""How JupyterHub writes tokens. A token of the cluster looks different, and must never be sent to the hub."""
CALLBACK = "/oauth_callback"
"""Where a hub sends people back to, by default."""
REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class HubUser:
    """The owner of a token, as the hub describes them."""

    name: str
    is_service: bool
    groups: tuple[str, ...] | None
    """None: the token may not read them."""
    scopes: frozenset[str]

    def may_use(self, service: str) -> bool:
        return not self.scopes.isdisjoint({"access:services", f"access:services!service={service}"})


def read_user(found: Mapping[str, Any]) -> HubUser:
    """Raises `SignInFailed` if the answer names nobody."""
    name, groups, scopes = found.get("name"), found.get("groups"), found.get("scopes")
    if not isinstance(name, str) or not name:
        raise SignInFailed("JupyterHub did not say who you are")
    return HubUser(
        name=name,
        is_service=found.get("kind") != "user",
        groups=tuple(map(str, groups)) if isinstance(groups, list) else None,
        scopes=frozenset(map(str, scopes)) if isinstance(scopes, list) else frozenset(),
    )


class HubClient:
    def __init__(self, bookings: Bookings, people: HubPeople, secret: str, http: aiohttp.ClientSession) -> None:
        hub = bookings.sign_in.hub
        self._url = hub.url.rstrip("/")
        self._api = hub.api_url.rstrip("/") or f"{self._url}/hub/api"
        self.service_name = service_name(bookings)
        self._client_id, self._client_secret = f"service-{self.service_name}", secret
        self._redirect_uri = redirect_uri(bookings)
        self._people = people
        self._http = http
        self._questions = asyncio.Semaphore(MOST_QUESTIONS)

    async def url(self, state: str, nonce: str, verifier: str) -> str:
        """The address at the hub to which the browser is redirected. Without scopes: those that the hub has set for
        this service. A hub before 6 ignores the code challenge."""
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "state": state,
            "code_challenge": code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        return f"{self._url}/hub/api/oauth2/authorize?{urlencode(parameters)}"

    async def finish(self, code: str, verifier: str, nonce: str) -> VerifiedClaims:
        """Raises `SignInFailed`. The token is used once, here, and not kept."""
        form = code_form(code, verifier, self._client_id, self._redirect_uri)
        form["client_secret"] = self._client_secret
        status, answer = await self._ask("POST", "/oauth2/token", data=form)
        if status == 401:
            raise SignInFailed(
                "JupyterHub refuses this service. Its admin compares the service's name and api_token in the hub's"
                " configuration with the path of bookings.publicUrl and CARREL_HUB_CLIENT_SECRET"
            )
        token = _checked(status, answer).get("access_token")
        if not isinstance(token, str) or not token.isascii():
            raise SignInFailed("JupyterHub sent no token")
        user = read_user(await self._json("GET", "/user", headers=_bearer(token)))
        if user.is_service:
            raise SignInFailed(f"{user.name} is a service of JupyterHub, not a person")
        return VerifiedClaims(self.person(user.name), user.name, user.groups)

    async def owner(self, token: str) -> HubUser | None:
        """Return the owner of the token; None: the hub does not know it. Raises `SignInFailed`."""
        async with self._questions:
            status, found = await self._ask("GET", "/user", headers=_bearer(token))
        if status in REFUSED:
            return None
        return read_user(_checked(status, found))

    def person(self, name: str) -> str:
        """The address of a user. Raises `SignInFailed` if they have none."""
        person = self._people.person_of(name)
        if not is_address(person):
            raise SignInFailed(
                f"JupyterHub calls you {name!r}, which is no e-mail address, and people book under addresses."
                " An admin sets hubs.usernameDomain in the configuration, or lists you in hubs.users"
            )
        return person

    async def _json(self, method: str, path: str, **call: Any) -> Mapping[str, Any]:
        return _checked(*await self._ask(method, path, **call))

    async def _ask(self, method: str, path: str, **call: Any) -> tuple[int, object]:
        """The status, and the JSON of the answer if it is 200."""
        url = self._api + path
        return await ask_provider(self._http, "JupyterHub", method, url, **call)


def redirect_uri(bookings: Bookings) -> str:
    """Return it letter for letter as the hub has registered it: of a service on its own host, without the host."""
    hub, own = urlsplit(bookings.sign_in.hub.url), urlsplit(bookings.public_url)
    is_on_hub = bookings.base_path and (hub.scheme, hub.netloc) == (own.scheme, own.netloc)
    return f"{bookings.base_path if is_on_hub else bookings.link}{CALLBACK}"


def service_name(bookings: Bookings) -> str:
    """Return what the hub calls this service: NAME, where it shows it as /services/NAME."""
    folder, _, name = bookings.base_path.rpartition("/")
    return name if folder.endswith("/services") else "carrel"


def _checked(status: int, found: object) -> Mapping[str, Any]:
    if status >= 500:
        raise ProviderUnavailable(f"JupyterHub answered {status}")
    if not isinstance(found, dict):
        raise SignInFailed(f"JupyterHub answered {status}")
    return found


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@dataclass(slots=True)
class HubTokens:
    """Finds the person behind a hub user's own token, such as that of a notebook server."""

    client: HubClient
    roles: RoleOptions
    clock: Callable[[], float]
    reviewed: ReviewedTokens[HubUser] = field(init=False)

    def __post_init__(self) -> None:
        self.reviewed = ReviewedTokens(self.clock)

    def is_meant(self, bearer: str) -> bool:
        return TOKEN_FORM.fullmatch(bearer) is not None

    async def person(self, token: str, address: str = "") -> Person | None:
        """None: the hub does not know the token. Raises `Problem` if it knows it, and it is of no use here."""
        try:
            user = await self.reviewed.owner(token, address, self.client.owner)
            if user is None:
                return None
            self._check(user)
            email = self.client.person(user.name)
        except ProviderUnavailable as failure:
            why = f"{failure}, so Carrel cannot check its tokens."
            raise Problem(503, "hub-unavailable", "JupyterHub cannot be asked", why, "carrel login") from None
        except SignInFailed as failure:
            raise Problem(
                403, "hub-user", "JupyterHub's token is of no use here", f"{failure}.", "carrel login"
            ) from None
        # Whatever runs in a notebook has its token, so it may never do what admins may.
        return Person(
            email,
            user.name,
            roles=self.roles.by_groups(user.groups or ()),
            how=How.HUB,
            scopes=frozenset({Scope.READ, Scope.BOOK}),
            groups=frozenset(user.groups) if user.groups is not None else None,
        )

    def _check(self, user: HubUser) -> None:
        service = self.client.service_name
        if user.is_service:
            raise SignInFailed(f"It belongs to {user.name}, a service of JupyterHub; a person's own is needed")
        if not user.may_use(service):
            raise SignInFailed(
                f"It does not have the scope access:services!service={service}. An admin of JupyterHub adds it to the"
                " roles user and server"
            )
