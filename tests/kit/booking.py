"""The booking service in this process, on a database, and callers with tokens."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

from carrel.bookings.app import booking_app
from carrel.bookings.capacity import ModelCapacity, capacity_of
from carrel.bookings.inventory import GpuInventory
from carrel.bookings.maintenance import HeldPod, Maintenance
from carrel.bookings.people import ALL_SCOPES, Role, RoleOptions, Scope, Token
from carrel.bookings.queries import BookingQueries
from carrel.bookings.service import ServiceParts
from carrel.bookings.sign_in.authenticator import Authenticator, SignInMethods, SignInOptions
from carrel.bookings.sign_in.request_guard import PersonLimiter, Rate, RequestLimits
from carrel.bookings.sign_in.secrets import hashed
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.outbox import SqlOutbox
from carrel.configuration.schema import BookingRules
from carrel.http.asgi import AsgiApp
from carrel.ids import BookingId, NodeName
from carrel.ledger.gpus import Gpu, MiB, Node
from tests.kit.gpus import A6000
from tests.kit.lab import Clock
from tests.kit.people import PeopleInMemory

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)
MEMBER, OTHER, ADMIN = "ada@lab.org", "bob@lab.org", "eva@lab.org"
MAIA_TOKEN = "a token that nobody else knows"
MANY = Rate(per_second=1e6, burst=10**6)
NORMAL_RULES = BookingRules()


@dataclass
class FakeInventory(GpuInventory):
    """An inventory that a test can change."""

    gpus: dict[str, int] = field(default_factory=lambda: {A6000: 2})
    is_known: bool = True
    out_of_use: tuple[str, ...] = ()
    """Of each further GPU of every model, why."""
    unheld_gpus: dict[str, int] | None = None
    """None: there is no cluster."""
    used: frozenset[str] = frozenset()
    """The bookings that a pod uses."""
    machines: tuple[Node, ...] = ()
    """If there are any, their GPUs are those that there are."""
    pods: tuple[HeldPod, ...] = ()
    """On every GPU."""

    def nodes(self) -> Collection[NodeName]:
        return [node.name for node in self.machines]

    def gpus_of(self, node: NodeName) -> Sequence[Gpu]:
        return next((each.gpus for each in self.machines if each.name == node), ())

    def pods_on(self, window: Maintenance) -> Sequence[HeldPod]:
        return self.pods

    def pods_of(self, person: str) -> Sequence[HeldPod]:
        return [pod for pod in self.pods if pod.person == person]

    def is_used(self, booking: BookingId) -> bool:
        return booking in self.used

    def stock(self) -> Mapping[str, ModelCapacity]:
        if self.machines:
            return capacity_of(self.machines)
        return {
            model: ModelCapacity(model, count, MiB(49140), out_of_use=self.out_of_use)
            for model, count in self.gpus.items()
        }

    def unheld(self) -> Mapping[str, int] | None:
        return self.unheld_gpus

    def next_unheld(self) -> Mapping[str, datetime]:
        return {}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def codes(self) -> list[str]:
        """Of all problems."""
        return [problem["code"] for problem in self.json["problems"]]


@dataclass(frozen=True)
class Caller:
    app: AsgiApp
    token: str = ""

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.call("GET", path, headers=headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.call("POST", path, body, headers)

    async def patch(self, path: str, body: Any, **headers: str) -> Answer:
        return await self.call("PATCH", path, body, headers)

    async def delete(self, path: str) -> Answer:
        return await self.call("DELETE", path)

    async def book(self, **wish: Any) -> Answer:
        return await self.post("/api/v1/bookings", {"model": A6000, **wish})

    async def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Calls the app directly. A body of bytes is sent as it is."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json", "host": "carrel.test", "content-length": str(len(sent))}
        given |= {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        if self.token:
            given["authorization"] = f"Bearer {self.token}"
        route, _, query = path.partition("?")
        messages: list[Any] = []
        received = iter([{"type": "http.request", "body": sent, "more_body": False}])

        async def receive() -> dict[str, Any]:
            return next(received, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": route,
            "raw_path": route.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("carrel.test", 80),
            "state": {},
        }
        await self.app(scope, receive, send)
        start = messages[0]
        told = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], told, b"".join(message.get("body", b"") for message in messages[1:]))


@dataclass
class Opened:
    service: ServiceParts
    app: AsgiApp
    clock: Clock
    inventory: FakeInventory
    people: PeopleInMemory

    async def caller(self, email: str, scopes: frozenset[Scope] = ALL_SCOPES) -> Caller:
        token = f"carrel_{email}_{uuid4().hex}"
        until = datetime.max.replace(tzinfo=UTC)
        await self.people.add_token(
            hashed(token), Token(uuid4().hex, email, "test", scopes, NOW, until, frozenset({Role.MEMBER}))
        )
        return Caller(self.app, token)

    async def manage(self, group: str, *managers: str, members: tuple[str, ...] = ()) -> None:
        """An admin lists these people in a group, which makes it."""
        admin = await self.caller(ADMIN)
        for role, people in (("manager", managers), ("member", members)):
            for email in people:
                answer = await admin.call("PUT", f"/api/v1/groups/{group}/people/{email}", {"role": role})
                assert answer.status == 200, answer.body

    @property
    def nobody(self) -> Caller:
        return Caller(self.app)


def opened_on(database: Database, rules: BookingRules = NORMAL_RULES, zone: str = "Europe/Stockholm") -> Opened:
    clock, inventory, people = Clock(NOW), FakeInventory(), PeopleInMemory()
    queries = BookingQueries(SqlBookings(database), inventory, rules, ZoneInfo(zone), clock)
    roles = RoleOptions(lab_admins=frozenset({ADMIN}))
    authenticator = Authenticator(
        people, roles, SignInMethods(), SignInOptions(), PersonLimiter(clock.seconds, MANY, MANY), clock
    )
    service = ServiceParts(queries, authenticator, SqlOutbox(database), MAIA_TOKEN)
    return Opened(service, booking_app(service, RequestLimits(address=MANY)), clock, inventory, people)


def at(days: float) -> str:
    """So many days after the test's now, as RFC 3339."""
    return f"{(NOW + days * DAY).replace(tzinfo=None).isoformat()}Z"


def with_rules(opened: Opened, rules: BookingRules) -> Opened:
    """The same service after its admin changed the rules."""
    service = replace(opened.service, queries=replace(opened.service.queries, rules=rules))
    return replace(opened, service=service, app=booking_app(service, RequestLimits(address=MANY)))


async def made(caller: Caller, **wish: Any) -> dict[str, Any]:
    answer = await caller.book(**wish)
    assert answer.status == 201, answer.body
    found: dict[str, Any] = answer.json
    return found
