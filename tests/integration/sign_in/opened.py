"""A service with identity and nothing else, over real HTTP, and a browser's manners to visit it with."""

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

from carrel.bookings.sign_in import (
    Buckets,
    CurrentPerson,
    Gate,
    Identity,
    Kubernetes,
    Limits,
    Means,
    Premises,
    Provider,
    Rate,
    RoleBook,
    SignIn,
    install_identity,
)
from carrel.http.serving import Address, serving
from tests.kit.lab import Clock
from tests.kit.oidc_provider import CLIENT, SECRET, OidcProvider
from tests.kit.people import PeopleInMemory

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
MANY = Rate(per_second=1000, burst=100_000)
WIDE = Limits(address=MANY)
NO_ROLES = RoleBook()


@dataclass
class Plan:
    """What is special about a service."""

    provider: OidcProvider | None = None
    kubernetes: Callable[[RoleBook, Clock], Kubernetes] | None = None
    is_dev: bool = False
    roles: RoleBook = NO_ROLES
    limits: Limits = WIDE
    per_person: Rate = MANY
    is_https: bool = False


class Service:
    def __init__(self, url: str, clock: Clock, people: PeopleInMemory, visitor: aiohttp.ClientSession) -> None:
        self.url = url
        self.clock = clock
        self.people = people
        self.visitor = visitor
        """A browser: it keeps cookies."""

    async def get(self, path: str, **call: Any) -> tuple[int, Any]:
        return await self.call("GET", path, **call)

    async def call(self, method: str, path: str, **call: Any) -> tuple[int, Any]:
        async with self.visitor.request(method, self.url + path, **call) as answer:
            is_json = "json" in answer.headers.get("content-type", "")
            return answer.status, await (answer.json(content_type=None) if is_json else answer.text())

    async def csrf(self) -> str:
        return str((await self.get("/page"))[1])

    @property
    def cookie(self) -> str:
        found = self.visitor.cookie_jar.filter_cookies(URL(self.url)).get("carrel")
        return found.value if found else ""


@contextlib.asynccontextmanager
async def a_service(plan: Plan | None = None) -> AsyncIterator[Service]:
    plan = plan or Plan(is_dev=True)
    clock, people = Clock(NOON), PeopleInMemory()
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        jar = aiohttp.CookieJar(unsafe=True)  # also for an address without a name
        visitor = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
        app = FastAPI()
        limits_and_app = Gate(app, plan.limits, clock.seconds, is_https=plan.is_https)
        url = await stack.enter_async_context(serving(limits_and_app, Address()))
        sign_in = None
        if plan.provider is not None:
            plan.provider.url = await stack.enter_async_context(serving(plan.provider.app, Address()))
            provider = Provider(plan.provider.url, CLIENT, SECRET, f"{url}/sign-in/callback")
            sign_in = SignIn(provider, http, clock)
        kubernetes = plan.kubernetes(plan.roles, clock) if plan.kubernetes else None
        identity = Identity(
            people,
            plan.roles,
            Means(sign_in, kubernetes, plan.is_dev),
            Premises("https://carrel.example" if plan.is_https else ""),
            Buckets(plan.per_person, clock.seconds),
            clock,
        )
        install_identity(app, identity)
        _add_routes(app, identity)
        yield Service(url, clock, people, visitor)


def _add_routes(app: FastAPI, identity: Identity) -> None:
    async def page(request: Request, person: CurrentPerson) -> PlainTextResponse:
        return PlainTextResponse(identity.csrf_token(request))

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
