"""The timeline of a large lab: 128 GPUs of 8 models, 1,000 bookings within six weeks.

Goals: 50 ms on the server, so that the page feels immediate; 1 s until a browser has shown it.
"""

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from fastapi import FastAPI
from starlette.types import Message

from benchmarks.measuring import Figure, cpu_seconds
from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.inventory import GpuInventory
from carrel.bookings.pages import install_pages, timeline
from carrel.bookings.pages.timeline import DateRange, Viewer
from carrel.bookings.pages.timeline_page import DAYS, rows_of
from carrel.bookings.people import How, Person, Role, RoleOptions, Session
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import Booking
from carrel.bookings.service import ServiceParts
from carrel.bookings.sign_in.authenticator import Authenticator, SignInMethods, SignInOptions
from carrel.bookings.sign_in.request_guard import PersonLimiter, Rate
from carrel.bookings.sign_in.routes import install_sign_in
from carrel.bookings.sign_in.secrets import hashed
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.outbox import SqlOutbox
from carrel.bookings.store.people import SqlPeople
from carrel.bookings.store.usage import SqlUsage
from carrel.configuration.schema import BookingRules
from carrel.http.asgi import AsgiApp
from carrel.http.serving import Address, serving
from carrel.ids import BookingId
from carrel.ledger.gpus import MiB

MODELS, GPUS, BOOKINGS = 8, 16, 1_000
ZONE = ZoneInfo("Europe/Stockholm")
LENGTH = timedelta(days=5)


def now() -> datetime:
    return datetime.now(UTC)


class FakeInventory(GpuInventory):
    """The GPUs of the lab."""

    def __init__(self) -> None:
        super().__init__(())

    def stock(self) -> Mapping[str, ModelCapacity]:
        names = [f"NVIDIA-Model-{number}" for number in range(MODELS)]
        return {name: ModelCapacity(name, GPUS, MiB(81_920)) for name in names}


def records(first: datetime) -> Iterator[BookingRecord]:
    """On every GPU one after the other, until there are enough."""
    for number in range(BOOKINGS):
        gpu, turn = number % (MODELS * GPUS), number // (MODELS * GPUS)
        start = first + turn * LENGTH + timedelta(hours=gpu)
        user = f"person-{number}@lab.example"
        booking = Booking(
            BookingId(f"b{number}"), user, f"NVIDIA-Model-{gpu % MODELS}", start, start + LENGTH - timedelta(hours=1)
        )
        yield BookingRecord(booking, first, user)


@contextlib.asynccontextmanager
async def a_lab() -> AsyncIterator[tuple[BookingQueries, Database]]:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'bookings.db'}")
        async with contextlib.aclosing(database):
            await database.migrate()
            store = SqlBookings(database)
            async with store.writing() as writing:
                for record in records(now() - timedelta(days=3)):
                    await writing.add(record)
            inventory = FakeInventory()
            yield BookingQueries(store, inventory, BookingRules(), ZONE, now), database


@contextlib.asynccontextmanager
async def a_service(
    lab: BookingQueries, database: Database, role: Role = Role.MEMBER, usage: SqlUsage | None = None
) -> AsyncIterator[tuple[str, str, AsgiApp]]:
    """Its URL, the cookie of a signed-in person, and the app itself."""
    people, secret = SqlPeople(database), secrets.token_urlsafe(32)
    session = Session("ada@lab.example", "", frozenset({role}), How.DEV, lab.now(), lab.now() + timedelta(hours=1))
    await people.begin_session(hashed(secret), session)
    limiter = PersonLimiter(time.monotonic, Rate(1e6, 1e6))
    authenticator = Authenticator(people, RoleOptions(), SignInMethods(is_dev=True), SignInOptions(), limiter, lab.now)
    app = FastAPI()
    install_sign_in(app, authenticator)
    app.state.service = ServiceParts(lab, authenticator, SqlOutbox(database), usage=usage)
    install_pages(app, app.state.service)
    async with serving(app, Address()) as url:
        yield url, secret, app


async def drawn(lab: BookingQueries) -> float:
    """CPU seconds of all pictures of the page, from the records to the markup."""
    today = now().astimezone(ZONE).date()
    window = DateRange(today - timedelta(days=today.weekday()), DAYS, ZONE)
    person = Person("ada@lab.example")
    seen, viewer = await lab.overview(window.first, window.days), Viewer(now())
    return cpu_seconds(lambda: [timeline.draw(row, window, viewer) for row in rows_of(seen, window, person)])


async def answered(app: AsgiApp, secret: str, path: str, query: bytes = b"") -> tuple[float, bytes]:
    """CPU seconds of the whole request: sign-in, store, rules, pictures, page. Best of several. With the page.

    Without a socket: otherwise the client would run in this process and be counted too.
    """
    cookie = f"{SignInOptions().cookie}={secret}".encode()
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query,
        "headers": [(b"cookie", cookie)],
    }
    body: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        body.append(message.get("body", b""))

    took = []
    for _ in range(15):
        body.clear()
        start = time.process_time()
        await app(dict(scope), receive, send)
        took.append(time.process_time() - start)
    return min(took), b"".join(body)


async def shown(url: str, secret: str) -> float:
    """Seconds from the request until the page is painted, best of three."""
    from tests.browser.service import a_browser

    took: list[float] = []
    async with a_browser() as browser:
        context = await browser.new_context()
        await context.add_cookies([{"name": SignInOptions().cookie, "value": secret, "url": url}])
        page = await context.new_page()
        for _ in range(3):
            await page.goto(f"{url}/timeline")
            painted = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
            took.append(await page.evaluate(painted) / 1000)
    return min(took)


async def _measure() -> list[Figure]:
    async with a_lab() as (lab, database), a_service(lab, database) as (url, secret, app):
        took, page = await answered(app, secret, "/timeline")
        assert page.count(b'class="bar other"') > BOOKINGS * 0.8
        name = f"timeline, {MODELS * GPUS} GPUs, {BOOKINGS:,} bookings"
        return [
            Figure(f"{name}: drawn", await drawn(lab) * 1e3, "ms"),
            Figure(f"{name}: whole request", took * 1e3, "ms", 50.0),
            Figure(f"{name}: shown by Chromium, best of 3", await shown(url, secret), "s", 1.0),
        ]


def measure() -> Iterator[Figure]:
    yield from asyncio.run(_measure())
