"""A year of usage of 500 GPUs and 300 people, in both databases: its size, what it costs to read it, and to write on.

The year is filled as it is after the hours that are older than 90 days are gone. CPU is
that of this process: with SQLite, this includes the database; with PostgreSQL, its server is a process of its own, and
has a row of its own.
"""

import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Table, insert, text

from benchmarks import pages
from benchmarks.measuring import Figure, cpu_seconds
from carrel.bookings.people import Role
from carrel.bookings.queries import BookingQueries
from carrel.bookings.store import tables
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.tables import BOOKED, OPPORTUNISTIC
from carrel.bookings.store.usage import SUMS, SqlUsage
from carrel.bookings.usage.sums import (
    HOURS_KEPT,
    By,
    Progress,
    Step,
    UsageAmount,
    UsageKey,
    UsageQuery,
    day_of,
    hour_of,
    month_of,
)
from carrel.configuration.schema import BookingRules
from carrel.ids import GpuUuid
from carrel.ledger.tiers import Tier
from tests.kit.postgres import new_database, postgres

GPUS, PEOPLE, MODELS, DAYS = 500, 300, 8, 365
HELD = 0.75
"""Of the time, so much of each GPU is held; a tenth of the GPUs by up to three people at once."""
OWN_MODEL = 0.95
"""Of the pods of a person, so many want one model; the others, any. A person has six pods a day."""
ZONE = ZoneInfo("Europe/Stockholm")
END = datetime(2026, 11, 16, 23, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OF_EVERYBODY = "weeks by person"
"""Of a year, nobody draws so many lines: it is a file of 16,000 rows."""
QUERIES = {
    "weeks by model": UsageQuery(END - DAYS * DAY, END, Step.WEEK, (By.MODEL, By.TIER)),
    OF_EVERYBODY: UsageQuery(END - DAYS * DAY, END, Step.WEEK, (By.PERSON,)),
    "months by person": UsageQuery(END - DAYS * DAY, END, Step.MONTH, (By.PERSON,)),
    "in one by person, model and tier": UsageQuery(END - DAYS * DAY, END, Step.WHOLE, (By.PERSON, By.MODEL, By.TIER)),
    "weeks of one person": UsageQuery(END - DAYS * DAY, END, Step.WEEK, (By.MODEL,), person="p7@lab.org"),
}
GOALS = (200.0, 100.0)
"""MB on the disk, and milliseconds of CPU for a year, which the lab's people were promised."""


def measure() -> Iterator[Figure]:
    rows = _a_year()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = {"SQLite": f"sqlite:///{folder}/carrel.db", "PostgreSQL": ""}
        for name, url in places.items():
            yield from _measured(name, url or new_database(stack.enter_context(postgres())), rows)


def _measured(name: str, url: str, rows: Mapping[Table, Sequence[Mapping[str, Any]]]) -> Iterator[Figure]:
    with asyncio.Runner() as runner:
        database = Database(url)
        usage = SqlUsage(database)
        runner.run(_fill(database, rows))
        yield Figure(f"{name}: a year on the disk", runner.run(_size_mb(database)), "MB", GOALS[0])
        for what, query in QUERIES.items():
            cpu = cpu_seconds(lambda query=query: runner.run(_read(usage, query)))  # type: ignore[misc] # bound at once
            goal = None if what == OF_EVERYBODY else GOALS[1]
            yield Figure(f"{name}: a year, {what}", cpu * 1e3, "ms", goal)
            if not database.is_sqlite:
                yield Figure("  of its server", runner.run(_server_ms(database, usage, query)), "ms", goal)
        by_gpu = UsageQuery(END - 14 * DAY, END, Step.HOUR, (By.GPU,))
        cpu = cpu_seconds(lambda: runner.run(_read(usage, by_gpu)), runs=3)
        yield Figure(f"{name}: 14 days by hour and GPU", cpu * 1e3, "ms")
        yield Figure(f"{name}: the usage page of a year", runner.run(_page_s(database)) * 1e3, "ms", GOALS[1])
        writes = iter(range(1, 100))
        cpu = cpu_seconds(lambda: runner.run(_write(usage, next(writes))))
        yield Figure(f"{name}: write five minutes", cpu * 1e3, "ms")
        runner.run(database.aclose())


# --- the year --------------------------------------------------------------------------------------------------------


def _a_year() -> Mapping[Table, Sequence[Mapping[str, Any]]]:
    """Pods hold a GPU for an hour to four days each."""
    chance, first = Random(1), END - DAYS * DAY
    sums: dict[Table, dict[tuple[Any, ...], int]] = {table: defaultdict(int) for table in SUMS}
    at = [first + number * HOUR for number in range(DAYS * 24)]
    days = [day_of(each, ZONE) for each in at]
    for gpu in range(1, GPUS + 1):
        holders = 3 if gpu % 10 == 0 else 1
        for _ in range(holders):
            hour = 0
            while hour < len(at):
                length = min(int(chance.paretovariate(1.0)), 96)
                person = gpu % MODELS + 1 + MODELS * chance.randrange(PEOPLE // MODELS)
                person = person if chance.random() < OWN_MODEL else chance.randint(1, PEOPLE)
                pod = _Pod(gpu, person, chance.choice((BOOKED, OPPORTUNISTIC)), 3_600_000 // holders)
                for held in range(hour, min(hour + length, len(at))):
                    pod.hold(sums, at[held], days[held])
                hour += length + int(length * (1 / HELD - 1) + chance.random())
    gpus = [{"id": number, "gpu": str(_gpu(number)), "model_id": _model(number)} for number in range(1, GPUS + 1)]
    models = [{"id": number, "model": _model_name(number)} for number in range(1, MODELS + 1)]
    people = [{"id": number, "person": f"p{number}@lab.org"} for number in range(1, PEOPLE + 1)]
    return {
        tables.usage_models: models,
        tables.usage_gpus: gpus,
        tables.usage_people: people,
        **{table: _rows(table, of) for table, of in sums.items()},
    }


@dataclass(frozen=True, slots=True)
class _Pod:
    gpu: int
    person: int
    tier: int
    ms: int

    def hold(self, sums: Mapping[Table, dict[tuple[Any, ...], int]], at: datetime, day: date) -> None:
        number, model = day.toordinal(), _model(self.gpu)
        if at >= END - HOURS_KEPT:
            sums[tables.usage_hours][(at - EPOCH) // MINUTE, self.gpu, self.person, self.tier] += self.ms
        sums[tables.usage_days][number, self.gpu, self.person, self.tier] += self.ms
        sums[tables.usage_model_days][number, model, self.tier] += self.ms
        sums[tables.usage_person_days][number, self.person, model, self.tier] += self.ms
        sums[tables.usage_person_months][month_of(day), self.person, model, self.tier] += self.ms


def _model(gpu: int) -> int:
    return gpu % MODELS + 1


def _model_name(number: int) -> str:
    return f"NVIDIA-A100-SXM4-80GB-{number}"


def _gpu(number: int) -> GpuUuid:
    return GpuUuid(f"GPU-{number:08x}-7d3f-4c1e-9a2b-{number:012x}")


def _rows(table: Table, sums: Mapping[tuple[Any, ...], int]) -> Sequence[Mapping[str, Any]]:
    names = [each.name for each in table.c]
    return [dict(zip(names, (*key, ms, ms * 9 // 10, ms // 2), strict=True)) for key, ms in sorted(sums.items())]


async def _fill(database: Database, rows: Mapping[Table, Sequence[Mapping[str, Any]]]) -> None:
    await database.migrate()
    assert await SqlUsage(database).write(None, Progress(END), {}, ZONE)
    for table, of in rows.items():
        async with database.writing() as connection:
            if database.is_sqlite:
                await connection.execute(insert(table), of)
                continue
            raw = (await connection.get_raw_connection()).driver_connection
            assert raw is not None
            copy = f"COPY {table.name} ({', '.join(of[0])}) FROM STDIN"
            async with raw.cursor() as cursor, cursor.copy(copy) as copying:
                for row in of:
                    await copying.write_row(tuple(row.values()))
    if not database.is_sqlite:
        async with database.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("VACUUM ANALYZE"))


async def _size_mb(database: Database) -> float:
    async with database.reading() as connection:
        if not database.is_sqlite:
            size = (
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'usage_%' AND relkind = 'r'"
            )
            return float((await connection.execute(text(size))).scalar_one()) / 1e6
    file = Path(database.url.database or "")
    return (
        sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*") if not each.name.endswith("-wal")) / 1e6
    )


# --- what is measured ------------------------------------------------------------------------------------------------


async def _read(usage: SqlUsage, query: UsageQuery) -> None:
    assert await usage.sums(query, ZONE)


async def _page_s(database: Database) -> float:
    """CPU seconds of the page for a lab admin, with 1,000 bookings in that year."""
    store = SqlBookings(database)
    async with store.writing() as writing:
        for record in pages.records(END - 300 * DAY):
            await writing.add(record)
    lab = BookingQueries(store, pages.FakeInventory(), BookingRules(), ZONE, lambda: END)
    async with pages.a_service(lab, database, Role.LAB_ADMIN, SqlUsage(database)) as (_, secret, app):
        took, page = await pages.answered(app, secret, "/usage", b"days=365")
    assert b'more <a href="/usage.csv?days=365">as CSV' in page
    return took


async def _server_ms(database: Database, usage: SqlUsage, query: UsageQuery) -> float:
    """Return the CPU that PostgreSQL spends on one reading, from many."""
    async with database.engine.connect() as connection:
        server = int((await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one())
    before, runs = _cpu_s(server), 20
    for _ in range(runs):
        await _read(usage, query)
    return (_cpu_s(server) - before) / runs * 1e3


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _write(usage: SqlUsage, number: int) -> None:
    """Write on, as a replica does: one row for each GPU."""
    seen, until = END + (number - 1) * 5 * HOUR / 60, END + number * 5 * HOUR / 60
    key = [
        UsageKey(
            hour_of(seen, ZONE), _gpu(each), _model_name(_model(each)), f"p{each % PEOPLE + 1}@lab.org", Tier.BOOKED
        )
        for each in range(1, GPUS + 1)
    ]
    assert await usage.write(seen, Progress(until), dict.fromkeys(key, UsageAmount(300, 300, 100)), ZONE)
