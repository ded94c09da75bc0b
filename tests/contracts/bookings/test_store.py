"""The guarantees of the booking store, on SQLite and on PostgreSQL."""

import asyncio
import os
import sqlite3
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from carrel.bookings.capacity import BookedTime
from carrel.bookings.groups import GroupSource
from carrel.bookings.maintenance import Maintenance
from carrel.bookings.people import CredentialCount, Grant, How, PendingLogin, Role, Scope, Session, Token
from carrel.bookings.records import (
    BookingRecord,
    Cursor,
    IdempotencyKey,
    LogEntry,
    LogQuery,
    Query,
    State,
    StoreUnavailable,
)
from carrel.bookings.rules import Booking
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.people import SqlPeople
from carrel.bookings.store.tables import metadata
from carrel.ids import BookingId, GpuUuid, NodeName
from carrel.parsing import Malformed
from tests.contracts.bookings.kept import keep, names
from tests.kit.postgres import new_database

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def a_record(
    name: str, start: float = 1, end: float = 3, user: str = "ada@lab.org", model: str = "A6000"
) -> BookingRecord:
    booking = Booking(BookingId(name), user, model, NOW + start * DAY, NOW + end * DAY)
    return BookingRecord(booking, created_at=NOW, created_by=user)


def cancelled(record: BookingRecord, at: float) -> BookingRecord:
    booking = replace(record.booking, cancelled_at=NOW + at * DAY)
    return replace(record, booking=booking, version=record.version + 1)


async def test_a_booking_comes_back_as_it_was_kept(store: SqlBookings) -> None:
    whole = BookingRecord(
        booking=Booking(
            BookingId("b1"), "ada@lab.org", "A6000", NOW, NOW + DAY, 2, NOW + timedelta(hours=3), share=False
        ),
        created_at=NOW - DAY,
        created_by="eva@lab.org",
        version=3,
        namespace="lab",
        note="<b>große Läufe</b> 🙂",
        reason="on holiday",
        key=IdempotencyKey("k", "f" * 64),
    )

    await keep(store, whole)

    async with store.reading() as reading:
        assert await reading.get("b1") == whole
        assert await reading.get("b2") is None
        assert await reading.made_with_key("eva@lab.org", "k") == whole
        assert await reading.made_with_key("ada@lab.org", "k") is None


async def test_a_failed_transaction_has_no_effect(store: SqlBookings) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.writing() as writing:
            await writing.add(a_record("b1"))
            raise ZeroDivisionError

    async with store.reading() as reading:
        assert await reading.get("b1") is None


async def test_bookings_are_found_by_person_and_by_period(store: SqlBookings) -> None:
    await keep(
        store,
        a_record("past", -5, -3),
        a_record("running", -1, 1),
        a_record("later", 5, 6),
        a_record("bob's", -1, 2, user="bob@lab.org"),
        a_record("other model", 0, 9, user="bob@lab.org", model="A100"),
        cancelled(a_record("not begun", 4, 6, user="eva@lab.org"), 1),
        cancelled(a_record("hers, not begun", 4, 6), 1),
    )

    async with store.reading() as reading:
        assert names(await reading.of("ada@lab.org", "", NOW)) == ["running", "later"]
        assert names(await reading.of("ada@lab.org", "", NOW - 4 * DAY)) == ["past", "running", "later"]
        assert names(await reading.within(NOW + DAY, NOW + 5 * DAY)) == ["bob's", "other model"]
        assert names(await reading.within(NOW, NOW + 9 * DAY, "A6000")) == ["bob's", "running", "later"]
        bobs = [
            BookedTime("bob@lab.org", "", "A6000", (NOW - DAY).timestamp(), (NOW + 2 * DAY).timestamp()),
            BookedTime("bob@lab.org", "", "A100", NOW.timestamp(), (NOW + 9 * DAY).timestamp()),
        ]
        assert sorted(await reading.booked(NOW + DAY, NOW + 5 * DAY)) == sorted(bobs)
        assert sorted(await reading.booked(NOW, NOW + DAY, "bob@lab.org")) == sorted(bobs)
        assert len(await reading.booked(NOW - 9 * DAY, NOW + 9 * DAY)) == 5, "not those that never began"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param(Query(), ["ended", "cancelled", "running", "plän_ned", "not begun"], id="all, by start"),
        pytest.param(Query(newest_first=True, limit=2), ["not begun", "plän_ned"], id="the newest two"),
        pytest.param(Query(states=frozenset({State.ENDED})), ["ended"], id="ended"),
        pytest.param(Query(states=frozenset({State.CANCELLED})), ["cancelled", "not begun"], id="cancelled"),
        pytest.param(
            Query(states=frozenset({State.ACTIVE, State.PLANNED})), ["running", "plän_ned"], id="active or planned"
        ),
        pytest.param(Query(user="bob@lab.org"), ["running"], id="of one person"),
        pytest.param(Query(model="A100"), ["plän_ned"], id="of one model"),
        pytest.param(Query(text="LÄ_N"), [], id="a wildcard is an ordinary character"),
        pytest.param(Query(text="BOB@"), ["running"], id="a part of a name, in any case"),
        pytest.param(Query(start=NOW, end=NOW + 5 * DAY), ["running"], id="in a period"),
        pytest.param(Query(after=Cursor(NOW - 1 * DAY, "running")), ["plän_ned", "not begun"], id="after a booking"),
        pytest.param(
            Query(after=Cursor(NOW - 1 * DAY, "running"), newest_first=True), ["cancelled", "ended"], id="before one"
        ),
    ],
)
async def test_bookings_are_searched(store: SqlBookings, query: Query, found: list[str]) -> None:
    await keep(
        store,
        a_record("ended", -9, -8),
        cancelled(a_record("cancelled", -5, 5), -4),
        a_record("running", -1, 1, user="bob@lab.org"),
        a_record("plän_ned", 5, 6, model="A100"),
        cancelled(a_record("not begun", 7, 8), -1),
    )

    async with store.reading() as reading:
        records = await reading.search(query, NOW)

    assert names(records) == found
    if query.states:
        assert {record.state(NOW) for record in records} <= query.states


async def test_a_change_raises_the_version_and_only_from_the_one_before(store: SqlBookings) -> None:
    await keep(store, a_record("b1"))
    longer = replace(a_record("b1", 1, 5), version=2)

    async with store.writing() as writing:
        await writing.replace(longer)

    async with store.reading() as reading:
        assert await reading.get("b1") == longer
    with pytest.raises(RuntimeError, match="not at version 1"):
        async with store.writing() as writing:
            await writing.replace(longer)


async def test_a_lone_surrogate_is_the_callers_mistake_not_the_stores(store: SqlBookings) -> None:
    with pytest.raises(Malformed, match="text without control characters"):
        await keep(store, replace(a_record("b1"), note="\ud800"))


async def test_maintenance_windows(store: SqlBookings) -> None:
    window = Maintenance("A6000", NOW, NOW + DAY, 2, "new fans", "eva@lab.org", "m1")
    async with store.writing() as writing:
        await writing.add_maintenance(window)

    async with store.writing() as writing:
        assert list(await writing.maintenance(NOW, NOW + DAY, "A6000")) == [window]
        assert not await writing.maintenance(NOW + DAY, NOW + 2 * DAY)
        assert not await writing.maintenance(NOW, NOW + DAY, "A100")
        assert await writing.remove_maintenance("m1") == window
        assert await writing.remove_maintenance("m1") is None


async def test_a_maintenance_of_nodes_and_gpus_is_read_back_for_every_model(store: SqlBookings) -> None:
    what = ("", NOW, NOW + DAY, 0, "new fans", "eva@lab.org", "m1")
    window = Maintenance(*what, nodes=(NodeName("n1"),), single={GpuUuid("GPU-3"): "n2/3"})
    async with store.writing() as writing:
        await writing.add_maintenance(window)

    async with store.reading() as reading:
        assert list(await reading.maintenance(NOW, NOW + DAY, "A100")) == [window]


async def test_the_log_is_read_by_person_action_and_time(store: SqlBookings) -> None:
    async with store.writing() as writing:
        for day, (actor, action, subject) in enumerate(
            (("ada@lab.org", "booked", "ada@lab.org"), ("eva@lab.org", "cancelled", "ada@lab.org"))
        ):
            await writing.write_log(LogEntry(NOW + day * DAY, actor, action, subject))

    async def found(**query: Any) -> list[str]:
        async with store.reading() as reading:
            return [entry.action for entry in await reading.log(LogQuery(**query))]

    assert await found(person="ada@lab.org") == ["cancelled", "booked"]
    assert await found(person="eva@lab.org") == ["cancelled"]
    assert await found(action="booked") == ["booked"]
    assert await found(start=NOW + DAY) == ["cancelled"]
    assert await found(end=NOW + DAY) == ["booked"]
    async with store.reading() as reading:
        assert await reading.actions() == ["booked", "cancelled"]


async def test_a_person_who_is_forgotten_has_nothing_left(store: SqlBookings, database: Database) -> None:
    people, email, until = SqlPeople(database), "ada@lab.org", NOW + 9 * DAY
    for whose in (email, "bob@lab.org"):
        session = Session(whose, "", frozenset({Role.MEMBER}), How.SESSION, NOW, until)
        await people.begin_session(f"session of {whose}", session)
        await people.add_token(f"token of {whose}", Token("t1", whose, "cli", frozenset({Scope.BOOK}), NOW, until))
        await people.begin_login(f"login of {whose}", PendingLogin({"email": whose}, until))
        await people.saw_groups(whose, GroupSource.HUB, ["seen"], NOW)
        await people.grant(Grant(whose, Role.LAB_ADMIN, "eva@lab.org", "helps", NOW))
    async with store.writing() as writing:
        await writing.set_feed(email, "hash")
        await writing.list_in_group("vision", email, is_manager=True)
        assert await writing.credentials(email, NOW) == CredentialCount(1, 1, True, True, "lab-admin")

        await writing.forget_person(email, NOW)

        assert await writing.credentials(email, NOW) == CredentialCount(0, 0, False, False, "")
        assert await writing.groups_of(email) == {}
        assert await writing.credentials("bob@lab.org", NOW) == CredentialCount(1, 1, False, True, "lab-admin")
    assert await people.take_login(f"login of {email}", NOW) is None
    assert await people.take_login("login of bob@lab.org", NOW) is not None


async def test_the_log_is_numbered_in_order_and_read_from_both_ends(store: SqlBookings) -> None:
    async with store.writing() as writing:
        for number in range(5):
            who = "ada@lab.org" if number % 2 else "bob@lab.org"
            await writing.write_log(LogEntry(NOW, "eva@lab.org", f"a{number}", who, details={"gpus": "1"}))

    async with store.reading() as reading:
        newest = await reading.log(LogQuery(limit=2))
        older = await reading.log(LogQuery(before=newest[-1].number, limit=2))
        about_ada = await reading.log(LogQuery("ada@lab.org"))
        assert [entry.action for entry in (*newest, *older)] == ["a4", "a3", "a2", "a1"]
        assert [entry.action for entry in about_ada] == ["a3", "a1"]
        assert about_ada[0].details == {"gpus": "1"}
        assert [entry.action for entry in await reading.log_after(older[-1].number)] == ["a2", "a3", "a4"]


async def test_a_person_has_one_feed_and_may_revoke_it(store: SqlBookings) -> None:
    async with store.writing() as writing:
        await writing.set_feed("ada@lab.org", "one")
        await writing.set_feed("ada@lab.org", "two")
        assert await writing.feed_owner("one") is None
        assert await writing.feed_owner("two") == "ada@lab.org"
        await writing.set_feed("ada@lab.org", None)
        assert await writing.feed_owner("two") is None


async def test_writers_of_several_replicas_take_turns(database: Database) -> None:
    """Each reads how many there are and adds one of that number: without a lock, two would choose the same."""
    others = [Database(database.url.render_as_string(hide_password=False)) for _ in range(3)]
    stores = [SqlBookings(each) for each in (database, *others)]

    async def add_one(store: SqlBookings) -> None:
        async with store.writing() as writing:
            count = len(await writing.within(NOW, NOW + 9 * DAY))
            await asyncio.sleep(0)
            await writing.add(a_record(f"b{count}"))

    await asyncio.gather(*(add_one(store) for store in stores * 5))

    async with stores[0].reading() as reading:
        assert sorted(names(await reading.search(Query(), NOW))) == sorted(f"b{number}" for number in range(20))
    for other in others:
        await other.aclose()


async def test_several_processes_may_start_on_an_empty_database_at_once(database_url: str) -> None:
    replicas = [Database(database_url) for _ in range(4)]

    await asyncio.gather(*(each.migrate() for each in replicas))

    for each in replicas:
        await keep(SqlBookings(each), a_record(f"b{id(each)}"))
        await each.aclose()


def modes_in(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


async def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    database = Database(f"sqlite:///{tmp_path}/carrel.db")
    try:
        await database.migrate()
        modes = await asyncio.to_thread(modes_in, tmp_path)
    finally:
        os.umask(before)
        await database.aclose()

    assert modes == dict.fromkeys(("carrel.db", "carrel.db-wal", "carrel.db-shm"), 0o600)


async def test_a_start_waits_for_another_process_that_writes_to_a_new_file(tmp_path: Path) -> None:
    """Only a file in WAL mode lets SQLite wait by itself; that mode cannot be set while somebody writes."""
    other = sqlite3.connect(tmp_path / "carrel.db", isolation_level=None)
    other.execute("CREATE TABLE something (id INTEGER)")
    other.execute("BEGIN IMMEDIATE")
    replica = Database(f"sqlite:///{tmp_path}/carrel.db")
    starting = asyncio.ensure_future(replica.migrate())
    done, _ = await asyncio.wait([starting], timeout=0.2)
    other.execute("ROLLBACK")
    other.close()
    await starting

    assert not done
    await keep(SqlBookings(replica), a_record("b1"))
    await replica.aclose()


async def test_the_migrations_make_the_tables_that_the_code_knows(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"target_metadata": metadata, "compare_type": True})
        return list(compare_metadata(context, metadata))

    async with database.reading() as connection:
        assert await connection.run_sync(differences) == []


@pytest.mark.parametrize("url", ["", "mysql://host/db", "sqlite://", "postgresql", "https://:secret@host/"])
def test_an_invalid_database_address_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(Malformed, match="sqlite:///FILE or postgresql://") as refused:
        Database(url)

    assert "secret" not in str(refused.value)


async def test_a_database_that_does_not_answer_is_unavailable(tmp_path: object) -> None:
    for url in (f"sqlite:///{tmp_path}/no/such/folder/carrel.db", f"postgresql://carrel@/none?host={tmp_path}"):
        lost = Database(url)
        with pytest.raises(StoreUnavailable):
            async with SqlBookings(lost).reading() as reading:
                await reading.get("b1")
        await lost.aclose()


async def test_connections_that_a_server_restart_closed_are_replaced(postgres_server: str) -> None:
    opened = Database(new_database(postgres_server))
    await opened.migrate()
    with psycopg.connect(host=postgres_server, user="carrel", dbname="postgres", autocommit=True) as admin:
        cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
        assert admin.execute(cut, [opened.url.database]).fetchone() == (1,)

    await keep(SqlBookings(opened), a_record("b1"))

    await opened.aclose()
