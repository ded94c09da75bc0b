"""Bookings are objects of the cluster, whatever fails, and whoever else writes them: replicas on the embedded API."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from carrel.bookings.groups import BookingGroup
from carrel.bookings.mirror import BookingMirror
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import Booking
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.configuration.schema import BookingRules
from carrel.dialects.booking_objects import BOOKINGS, BookingObject, BookingObjectSpec, read_entitlement
from carrel.ids import BookingId
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, MergePatch, Unavailable
from carrel.kubernetes.reflector import Informers
from carrel.kubernetes.transport import ApiRequest, ResponseLike, Transport
from kubernetes_in_memory.faults import FaultPlan
from tests.kit.booking import FakeInventory
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import A6000
from tests.kit.lab import NOON, Lab, WriteCounter, a_lab

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
RULES = BookingRules(shares_per_gpu=4)


@dataclass
class Bookings:
    """The database, with the lab's clock, and replicas of the mirror."""

    lab: Lab
    store: SqlBookings

    def mirror(self, transport: Transport | None = None, **options: Any) -> BookingMirror:
        queries = BookingQueries(self.store, FakeInventory(), RULES, UTC, self.lab.clock)
        return BookingMirror(Client(transport or self.lab.api), queries, **options)

    async def make(self, id: str, **fields: Any) -> BookingRecord:
        times = {"start": NOON - HOUR, "end": NOON + HOUR}
        booking = Booking(BookingId(id), "ada@lab.org", A6000, **{**times, **fields})
        record = BookingRecord(booking, NOON, "ada@lab.org")
        async with self.store.writing() as writing:
            await writing.add(record)
        return record

    async def change(self, id: str, **fields: Any) -> None:
        async with self.store.writing() as writing:
            old = await writing.get(id)
            assert old is not None
            await writing.replace(replace(old, booking=replace(old.booking, **fields), version=old.version + 1))

    async def cancel(self, id: str) -> None:
        await self.change(id, cancelled_at=self.lab.clock.now)

    async def objects(self) -> dict[str, BookingObjectSpec]:
        return {each.metadata.name: each.spec for each in (await self.lab.client.list(BOOKINGS)).items}


@pytest.fixture
async def bookings(tmp_path: Path) -> AsyncIterator[Bookings]:
    database = Database(f"sqlite:///{tmp_path}/carrel.db")
    await database.migrate()
    async with a_lab([], has_booker=False) as lab, contextlib.aclosing(database):
        yield Bookings(lab, SqlBookings(database))


async def settle(mirror: BookingMirror) -> None:
    for booking in await mirror.compare():
        await mirror.write(booking)


async def test_a_booking_is_an_object_with_everything_that_decides_about_pods(bookings: Bookings) -> None:
    await bookings.make("b1", gpus=3, start=NOON + HOUR, end=NOON + 2 * HOUR + timedelta(microseconds=700_000))
    await bookings.make("b2", share=True)

    await settle(bookings.mirror())

    seen = {each.metadata.name: each for each in (await bookings.lab.client.list(BOOKINGS)).items}
    assert seen[BookingId("b1")].spec == BookingObjectSpec(
        user="ada@lab.org",
        model=A6000,
        gpus=3,
        start="2026-11-16T13:00:00Z",
        end="2026-11-16T14:00:00Z",
        version=1,
    )
    assert read_entitlement(seen[BookingId("b2")]).share_of == 4


async def test_it_follows_the_booking_and_keeps_what_the_controller_wrote(bookings: Bookings) -> None:
    mirror = bookings.mirror()
    await bookings.make("b1")
    await mirror.write("b1")
    status = MergePatch({"status": {"used": 1, "pods": ["lab/train"]}})
    await bookings.lab.client.patch(BOOKINGS, "b1", status, subresource="status")

    await bookings.change("b1", end=NOON + 5 * HOUR, gpus=2)
    await mirror.write("b1")

    seen = await bookings.lab.client.get(BOOKINGS, "b1")
    assert (seen["spec"]["end"], seen["spec"]["gpus"], seen["spec"]["version"]) == ("2026-11-16T17:00:00Z", 2, 2)
    assert seen["status"] == {"used": 1, "pods": ["lab/train"]}


@pytest.mark.parametrize(
    ("fields", "is_more"),
    [
        pytest.param({"gpus": 2}, True, id="more GPUs"),
        pytest.param({"start": NOON - 2 * HOUR}, True, id="an earlier start"),
        pytest.param({"end": NOON + 5 * HOUR}, False, id="a later end"),
        pytest.param({"start": NOON - 30 * MINUTE}, False, id="a later start"),
    ],
)
async def test_an_object_says_since_when_it_entitles_to_more(
    bookings: Bookings, fields: Mapping[str, Any], is_more: bool
) -> None:
    mirror, lab = bookings.mirror(), bookings.lab
    await bookings.make("b1")
    await mirror.write("b1")
    lab.clock.now += MINUTE
    await bookings.change("b1", **fields)
    await mirror.write("b1")
    settled = read_entitlement((await lab.client.list(BOOKINGS)).items[0]).settled
    assert settled == (NOON + MINUTE if is_more else NOON) + timedelta(seconds=10)

    lab.clock.now += MINUTE  # less, and a repair of what somebody has deleted, change nothing about it
    await bookings.change("b1", gpus=1, start=NOON - 30 * MINUTE)
    await mirror.write("b1")

    assert read_entitlement((await lab.client.list(BOOKINGS)).items[0]).settled == settled
    assert await mirror.compare() == []


@pytest.mark.parametrize(
    ("fields", "is_there"),
    [
        pytest.param({}, True, id="running"),
        pytest.param({"start": NOON + HOUR, "end": NOON + 2 * HOUR}, True, id="planned"),
        pytest.param({"end": NOON - 9 * MINUTE}, True, id="ended nine minutes ago"),
        pytest.param({"end": NOON - 10 * MINUTE}, False, id="ended ten minutes ago"),
        pytest.param({"cancelled_at": NOON}, False, id="cancelled a moment ago, while it ran"),
        pytest.param({"start": NOON + HOUR, "end": NOON + 2 * HOUR, "cancelled_at": NOON}, False, id="cancelled early"),
    ],
)
async def test_which_bookings_have_an_object(bookings: Bookings, fields: Mapping[str, Any], is_there: bool) -> None:
    mirror = bookings.mirror()
    await bookings.make("b1")
    await settle(mirror)

    await bookings.change("b1", **fields)
    await settle(mirror)
    assert ("b1" in await bookings.objects()) is is_there
    await bookings.make("b2", **fields)
    await settle(mirror)
    assert ("b2" in await bookings.objects()) is is_there


async def test_a_regular_end_stays_visible_for_ten_minutes(bookings: Bookings) -> None:
    mirror = bookings.mirror()
    await bookings.make("b1")
    await settle(mirror)
    for minutes, is_there in ((60, True), (69, True), (70, False)):
        bookings.lab.clock.now = NOON + minutes * MINUTE
        await settle(mirror)
        assert ("b1" in await bookings.objects()) is is_there, minutes


async def test_what_is_changed_or_deleted_by_hand_is_repaired(bookings: Bookings) -> None:
    mirror, client = bookings.mirror(), bookings.lab.client
    for id in ("b1", "b2", "b3"):
        await bookings.make(id)
    await settle(mirror)
    before = await bookings.objects()

    await client.patch(BOOKINGS, "b1", MergePatch({"spec": {"gpus": 8, "version": 99}}))
    await client.patch(BOOKINGS, "b2", MergePatch({"spec": {"members": ["eve@lab.org"]}}))
    await client.delete(BOOKINGS, "b3")
    assert set(await mirror.compare()) == {"b1", "b2", "b3"}
    await settle(mirror)

    assert await bookings.objects() == before
    assert not await mirror.compare()


async def test_an_object_that_no_booking_was_made_for_is_deleted_unless_it_comes_from_an_enquiry(
    bookings: Bookings, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = bookings.mirror()
    await bookings.lab.book("eve@lab.org", 8, name="forged")
    await bookings.lab.book("bob@lab.org", 1, name="maia-1")
    source = MergePatch({"metadata": {"labels": {"carrel.dev/source": "enquiry"}}})
    await bookings.lab.client.patch(BOOKINGS, "maia-1", source)

    with caplog.at_level(logging.WARNING):
        await settle(mirror)

    assert set(await bookings.objects()) == {"maia-1"}
    assert "booking_object_unknown name=forged user=eve@lab.org" in caplog.text


async def test_an_older_version_never_replaces_a_newer_one(bookings: Bookings) -> None:
    """One replica has read the database and is slow; meanwhile the booking changes and the other writes it."""
    slow_read, go_on = asyncio.Event(), asyncio.Event()

    class Slow(WriteCounter):
        async def send(self, request: ApiRequest) -> Any:
            if request.method != "GET" and not slow_read.is_set():
                slow_read.set()
                await go_on.wait()
            return await super().send(request)

    await bookings.make("b1")
    for is_cancelled in (False, True):
        slow_read.clear()
        go_on.clear()
        await bookings.change("b1", gpus=2)
        slow = asyncio.ensure_future(bookings.mirror(Slow(bookings.lab.api)).write("b1"))
        await slow_read.wait()
        await (bookings.cancel("b1") if is_cancelled else bookings.change("b1", gpus=3))
        await bookings.mirror().write("b1")
        go_on.set()
        await slow
        seen = await bookings.objects()
        assert not seen if is_cancelled else (seen["b1"].gpus, seen["b1"].version) == (3, 3)


async def test_a_booking_that_is_cancelled_while_its_object_is_created_has_none(bookings: Bookings) -> None:
    """The replica that cancels finds no object to delete: the one that creates it has to look again."""

    class CancelsFirst(WriteCounter):
        async def send(self, request: ApiRequest) -> Any:
            if request.method == "POST":
                await bookings.cancel("b1")
                await bookings.mirror().write("b1")
            return await super().send(request)

    await bookings.make("b1")
    await bookings.mirror(CancelsFirst(bookings.lab.api)).write("b1")

    assert await bookings.objects() == {}


async def test_a_bad_booking_does_not_stop_the_others_and_is_tried_again(bookings: Bookings) -> None:
    await bookings.make("Not_a_DNS_name")
    await bookings.make("b1")
    async with running(bookings.mirror()) as mirror:
        await eventually(lambda: mirror.failures >= 2)
        assert set(await bookings.objects()) == {"b1"}
        await bookings.cancel("Not_a_DNS_name")


async def test_without_an_api_server_the_service_goes_on_and_catches_up(bookings: Bookings) -> None:
    class Down:
        is_down = True

        async def send(self, request: ApiRequest) -> ResponseLike:
            if self.is_down:
                raise Unavailable(0, "Refused", "no connection")
            return await bookings.lab.api.send(request)

        async def aclose(self) -> None: ...

    transport = Down()
    mirror = bookings.mirror(transport)
    bookings.store.on_change = mirror.on_change
    async with running(mirror):
        await bookings.make("b1")
        await eventually(lambda: mirror.failures >= 2)
        transport.is_down = False
        await _there(bookings, {"b1"})


async def test_a_change_is_written_at_once_without_waiting_for_the_comparison(bookings: Bookings) -> None:
    mirror = bookings.mirror()
    bookings.store.on_change = mirror.on_change
    async with running(mirror):
        await _there(bookings, set())
        await bookings.make("b1")
        await _there(bookings, {"b1"})
        await bookings.cancel("b1")
        await _there(bookings, set())


async def test_a_write_that_failed_to_commit_is_looked_at_too(bookings: Bookings) -> None:
    told: list[str] = []
    bookings.store.on_change = told.append
    record = await bookings.make("b1")
    with pytest.raises(ZeroDivisionError):
        async with bookings.store.writing() as writing:
            await writing.replace(replace(record, version=2))
            raise ZeroDivisionError
    assert told == ["b1", "b1"]


async def test_ten_thousand_bookings_are_compared_with_one_list_and_only_differences_are_written(
    bookings: Bookings,
) -> None:
    count = 10_000
    times = NOON - HOUR, NOON + HOUR
    records = [
        BookingRecord(Booking(BookingId(f"b{number}"), f"p{number}@lab.org", A6000, *times), NOON, "eva@lab.org")
        for number in range(count)
    ]
    bookings = replace(bookings, store=RecordsInMemory(records))  # type: ignore[arg-type] # it can only be read
    calls = WriteCounter(bookings.lab.api)
    mirror = bookings.mirror(calls)
    missing = await mirror.compare()
    assert len(missing) == count
    await asyncio.gather(*map(mirror.write, missing[:200]))
    assert len(calls.writes) == 200
    assert len(await mirror.compare()) == count - 200


@pytest.mark.parametrize("seed", range(12))
async def test_two_replicas_under_faults_end_with_what_the_database_says(bookings: Bookings, seed: int) -> None:
    """Every change is written by the replica that made it, while the other compares: no object ever goes back to an
    older version, and in the end all is as it should be."""
    chance = random.Random(seed)
    informers, versions = Informers(bookings.lab.client), dict[str, list[int]]()

    def on_change(old: BookingObject | None, new: BookingObject | None) -> None:
        if new is not None:
            versions.setdefault(new.metadata.uid, []).append(new.spec.version)

    informers.watch(BOOKINGS).on_change(on_change)
    watching = asyncio.ensure_future(informers.run())
    plans = [
        FaultPlan(seed=10 * seed + number, refuse=0.15, lose_answer=0.15, stale_list=0.5, stale_by=20)
        for number in range(2)
    ]
    mirrors = [bookings.mirror(Jittery(Faulty(bookings.lab.api, plan), chance)) for plan in plans]
    ids = [f"b{number}" for number in range(4)]

    async def act(mirror: BookingMirror, id: str) -> None:
        for _ in range(chance.randint(1, 4)):
            async with bookings.store.reading() as reading:
                found = await reading.get(id)
            if found is not None and found.booking.cancelled_at is None:
                if chance.random() < 0.3:
                    await bookings.cancel(id)
                else:
                    await bookings.change(id, gpus=chance.randint(1, 8))
            await until_written(mirror, id)

    async def compare(mirror: BookingMirror) -> None:
        for _ in range(6):
            with contextlib.suppress(ClusterError):
                for id in await mirror.compare():
                    await until_written(mirror, id)

    for id in ids:
        await bookings.make(id)
    await asyncio.gather(
        *(act(mirrors[number % 2], id) for number, id in enumerate(ids)), *(compare(each) for each in mirrors)
    )

    assert not await bookings.mirror().compare(), "nothing is left for the next comparison"
    watching.cancel()
    assert all(seen == sorted(seen) for seen in versions.values()), versions


class RecordsInMemory:
    """A store of bookings that is only read, as the mirror reads it."""

    def __init__(self, records: Sequence[BookingRecord]) -> None:
        self._records = {record.booking.id: record for record in records}

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator["RecordsInMemory"]:
        yield self

    async def get(self, id: BookingId) -> BookingRecord | None:
        return self._records.get(id)

    async def within(self, start: datetime, end: datetime) -> Sequence[BookingRecord]:
        return list(self._records.values())

    async def groups(self) -> Sequence[BookingGroup]:
        return ()


class Jittery:
    """Each call waits for a random number of turns."""

    def __init__(self, inner: Transport, chance: random.Random) -> None:
        self._inner = inner
        self._chance = chance

    async def send(self, request: ApiRequest) -> ResponseLike:
        for _ in range(self._chance.randint(0, 5)):
            await asyncio.sleep(0)
        return await self._inner.send(request)

    async def aclose(self) -> None: ...


async def until_written(mirror: BookingMirror, id: str) -> None:
    """As the queue does."""
    while True:
        with contextlib.suppress(ClusterError):
            return await mirror.write(id)


@contextlib.asynccontextmanager
async def running(mirror: BookingMirror) -> AsyncIterator[BookingMirror]:
    task = asyncio.ensure_future(mirror.run())
    try:
        yield mirror
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def _there(bookings: Bookings, names: set[str]) -> None:
    for _ in range(10_000):
        if set(await bookings.objects()) == names:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"the objects never became {names}")
