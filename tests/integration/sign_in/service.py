"""A service with the sign-in and nothing else, over real HTTP, and a client that keeps cookies like a browser."""

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
from fastapi import FastAPI, Form
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from yarl import URL

from carrel.bookings.people import RoleOptions
from carrel.bookings.sign_in.authenticator import Authenticator, CurrentPerson, SignInMethods, SignInOptions
from carrel.bookings.sign_in.hub import HubClient, HubTokens
from carrel.bookings.sign_in.oidc import OidcClient
from carrel.bookings.sign_in.request_guard import PersonLimiter, Rate, RequestGuard, RequestLimits
from carrel.bookings.sign_in.routes import install_sign_in
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.configuration.schema import Bookings, HubSignIn, Oidc, SignIn
from carrel.dialects.jupyter import HubPeople
from carrel.http.serving import Address, serving
from tests.kit import hub_provider
from tests.kit.hub_provider import HubProvider
from tests.kit.lab import Clock
from tests.kit.oidc_provider import CLIENT, SECRET, OidcProvider
from tests.kit.people import PeopleInMemory

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
MANY = Rate(per_second=1000, burst=100_000)
HIGH_LIMITS = RequestLimits(address=MANY)
NO_ROLES = RoleOptions()


@dataclass
class ServicePlan:
    """How this service differs from the usual one."""

    provider: OidcProvider | None = None
    hub: HubProvider | None = None
    username_domain: str = "lab.example"
    kubernetes: Callable[[RoleOptions, Clock], TokenReviewer] | None = None
    is_dev: bool = False
    roles: RoleOptions = NO_ROLES
    limits: RequestLimits = HIGH_LIMITS
    per_person: Rate = MANY
    is_https: bool = False


class Service:
    def __init__(self, url: str, clock: Clock, people: PeopleInMemory, browser: aiohttp.ClientSession) -> None:
        self.url = url
        self.clock = clock
        self.people = people
        self.browser = browser
        """It keeps cookies."""

    async def get(self, path: str, **call: Any) -> tuple[int, Any]:
        return await self.call("GET", path, **call)

    async def call(self, method: str, path: str, **call: Any) -> tuple[int, Any]:
        async with self.browser.request(method, self.url + path, **call) as answer:
            is_json = "json" in answer.headers.get("content-type", "")
            return answer.status, await (answer.json(content_type=None) if is_json else answer.text())

    async def csrf(self) -> str:
        return str((await self.get("/page"))[1])

    @property
    def cookie(self) -> str:
        found = self.browser.cookie_jar.filter_cookies(URL(self.url)).get("carrel")
        return found.value if found else ""


@contextlib.asynccontextmanager
async def a_service(plan: ServicePlan | None = None) -> AsyncIterator[Service]:
    plan = plan or ServicePlan(is_dev=True)
    clock, people = Clock(NOON), PeopleInMemory()
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        jar = aiohttp.CookieJar(unsafe=True)  # accepts cookies of IP addresses
        browser = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
        app = FastAPI()
        limits_and_app = RequestGuard(app, plan.limits, clock.seconds, is_https=plan.is_https)
        url = await stack.enter_async_context(serving(limits_and_app, Address()))
        sign_in = None
        if plan.provider is not None:
            plan.provider.url = await stack.enter_async_context(serving(plan.provider.app, Address()))
            oidc = Oidc(issuer=plan.provider.url, client_id=CLIENT)
            sign_in = OidcClient(Bookings(public_url=url, sign_in=SignIn(oidc=oidc)), SECRET, http, clock)
        hub = None
        if plan.hub is not None:
            plan.hub.url = await stack.enter_async_context(serving(plan.hub.app, Address()))
            at_hub = SignIn(hub=HubSignIn(url=plan.hub.url))
            bookings, people_of_hub = Bookings(public_url=url, sign_in=at_hub), HubPeople(plan.username_domain)
            plan.hub.redirect_uri = f"{url}/oauth_callback"
            hub = HubTokens(HubClient(bookings, people_of_hub, hub_provider.SECRET, http), plan.roles, clock.seconds)
        kubernetes = plan.kubernetes(plan.roles, clock) if plan.kubernetes else None
        authenticator = Authenticator(
            people,
            plan.roles,
            SignInMethods(sign_in, kubernetes, plan.is_dev, hub),
            SignInOptions("https://carrel.example" if plan.is_https else ""),
            PersonLimiter(clock.seconds, plan.per_person),
            clock,
        )
        install_sign_in(app, authenticator)
        _add_routes(app, authenticator)
        yield Service(url, clock, people, browser)


def _add_routes(app: FastAPI, authenticator: Authenticator) -> None:
    async def page(request: Request, person: CurrentPerson) -> PlainTextResponse:
        return PlainTextResponse(authenticator.csrf_token(request))

    async def write(person: CurrentPerson, body: dict[str, Any]) -> dict[str, str]:
        return {"by": person.email}

    async def form(person: CurrentPerson, word: str = Form()) -> dict[str, str]:
        return {"by": person.email, "word": word}

    app.add_api_route("/page", page, methods=["GET"], response_model=None)
    app.add_api_route("/write", write, methods=["POST"])
    app.add_api_route("/form", form, methods=["POST"])


def csrf_in(page: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page
    return found[1]
