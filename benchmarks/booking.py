"""Booking over HTTP at 50 requests a second with 10,000 stored bookings, on both databases, beside a bare FastAPI
app.

Each caller is another person with a token, and each request is different. The server runs in its own process. Requests
are sent at their planned time, whether the last one was answered or not, and latency is measured from that time.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import aiohttp
from fastapi import FastAPI
from sqlalchemy import insert

from benchmarks.extender import Server, a_server
from benchmarks.measuring import Figure
from carrel.bookings.api.models import BookingIn
from carrel.bookings.app import booking_app
from carrel.bookings.inventory import GpuInventory
from carrel.bookings.people import RoleOptions
from carrel.bookings.queries import BookingQueries
from carrel.bookings.service import ServiceParts
from carrel.bookings.sign_in.authenticator import Authenticator, SignInMethods, SignInOptions
from carrel.bookings.sign_in.request_guard import PersonLimiter, Rate, RequestLimits
from carrel.bookings.sign_in.secrets import hashed
from carrel.bookings.store import tables
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.outbox import SqlOutbox
from carrel.bookings.store.people import SqlPeople
from carrel.cluster.options import utc_now
from carrel.configuration.schema import BookingRules
from carrel.http.asgi import AsgiApp
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpus import Gpu, MiB, Node
from tests.kit.postgres import new_database, postgres

STORED, CALLS, PER_SECOND = 10_000, 1_000, 50
MODELS = [f"MODEL-{number}" for number in range(10)]
GPUS = 600
"""Of each model: nearly all wishes fit, so that what is measured is booking and not refusing."""
MANY = Rate(per_second=1e6, burst=10**6)
DAY = timedelta(days=1)


def measure() -> Iterator[Figure]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        places = {
            "SQLite": f"sqlite:///{folder}/carrel.db",
            "PostgreSQL": new_database(stack.enter_context(postgres())),
        }
        bare = asyncio.run(_load(stack.enter_context(a_server(make_bare))))
        yield Figure("a bare FastAPI app that reads the same wish: p99", bare.p99_ms, "ms")
        for name, url in places.items():
            asyncio.run(_fill(url))
            with a_server(partial(make_booking, url)) as server:
                load = asyncio.run(_load(server))
            yield Figure(f"{name}: create p50 at 50/s, 10,000 stored", load.p50_ms, "ms")
            yield Figure(f"{name}: create p99 at 50/s, 10,000 stored", load.p99_ms, "ms", 250.0)
            yield Figure("  server CPU per call", load.cpu_ms, "ms")
            yield Figure("  ratio to the bare app", load.cpu_ms / bare.cpu_ms, "×")


# --- the servers -----------------------------------------------------------------------------------------------------


def make_bare() -> AsgiApp:
    app = FastAPI()

    @app.post("/api/v1/bookings", status_code=201)
    async def create(wish: BookingIn) -> dict[str, Any]:
        return wish.model_dump()

    return app


def make_booking(url: str) -> AsgiApp:
    database = Database(url)
    nodes = [
        Node(
            NodeName(model.lower()),
            tuple(Gpu(GpuUuid(f"{model}-{i}"), NodeName(model.lower()), i, model, MiB(49140)) for i in range(GPUS)),
        )
        for model in MODELS
    ]
    queries = BookingQueries(SqlBookings(database), GpuInventory(nodes), BookingRules(), ZoneInfo("UTC"), utc_now)
    authenticator = Authenticator(
        SqlPeople(database),
        RoleOptions(),
        SignInMethods(),
        SignInOptions(),
        PersonLimiter(time.monotonic, MANY, MANY),
        utc_now,
    )
    return booking_app(ServiceParts(queries, authenticator, SqlOutbox(database)), RequestLimits(address=MANY))


async def _fill(url: str) -> None:
    """Half of the bookings have ended, half are planned; every caller has a token."""
    database, chance, now = Database(url), Random(1), datetime.now(UTC).replace(microsecond=0)
    await database.migrate()
    rows = []
    for number in range(STORED):
        start = now + chance.uniform(-90, 90) * DAY
        end = start + chance.randint(1, 14) * DAY
        rows.append(
            {
                "id": uuid4().hex, "person": f"had-{number}@lab.org", "model": chance.choice(MODELS),
                "starts_at": start, "planned_end": end, "ends_at": end, "gpus": 1, "share": False,
                "namespace": "", "note": "", "reason": "", "created_at": now, "created_by": "x", "version": 1,
            }
        )  # fmt: skip
    callers = [
        {
            "secret_hash": hashed(_token(number)), "id": uuid4().hex, "person": f"p{number}@lab.org",
            "label": "", "how": "token",
            "scopes": ["book", "read"], "roles": ["member"], "created_at": now, "expires_at": now + DAY,
            "last_used_at": now,
        }
        for number in range(CALLS)
    ]  # fmt: skip
    async with database.writing() as connection:
        await connection.execute(insert(tables.bookings), rows)
        await connection.execute(insert(tables.tokens), callers)
    await database.aclose()


# --- the callers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    p50_ms: float
    p99_ms: float
    cpu_ms: float


async def _load(server: Server) -> Load:
    chance, times = Random(2), list[float]()
    url = f"http://127.0.0.1:{server.connection.port}/api/v1/bookings"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def call(number: int, at: float) -> None:
            await asyncio.sleep(at - time.perf_counter())
            start = datetime.now(UTC) + chance.uniform(0.1, 80) * DAY
            request = {"model": chance.choice(MODELS), "start": start.isoformat(), "days": chance.randint(1, 14)}
            headers = {"authorization": f"Bearer {_token(number)}"}
            async with session.post(url, json=request, headers=headers) as answer:
                assert answer.status == 201, await answer.text()
            times.append(time.perf_counter() - at)

        cpu, began = _cpu_s(server.process), time.perf_counter() + 0.5
        await asyncio.gather(*(call(number, began + number / PER_SECOND) for number in range(CALLS)))
    times.sort()
    spent = _cpu_s(server.process) - cpu
    return Load(times[CALLS // 2] * 1e3, times[CALLS * 99 // 100] * 1e3, spent / CALLS * 1e3)


def _token(number: int) -> str:
    return f"carrel_{number}"


def _cpu_s(process: int) -> float:
    """Of all threads: SQLite works in threads of its own."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
