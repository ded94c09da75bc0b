"""What a database does wrong is no defect of ours: callers are told to come back."""

from pathlib import Path

import pytest
from sqlalchemy import text

from carrel.bookings.records import LogEntry, StoreUnavailable
from carrel.bookings.store.bookings import SqlBookings, SqlWriting
from carrel.bookings.store.database import Database
from tests.kit.booking import NOW
from tests.kit.postgres import new_database


async def test_a_read_only_database_is_unavailable_to_writers(database: Database) -> None:
    """As PostgreSQL after a fail-over to a replica that was not promoted."""
    only_read = "PRAGMA query_only = ON" if database.is_sqlite else "SET TRANSACTION READ ONLY"
    with pytest.raises(StoreUnavailable):
        async with database.writing() as connection:
            await connection.execute(text(only_read))
            await SqlWriting(connection).write_log(LogEntry(NOW, "ada@lab.org", "feed-made"))


async def test_a_transaction_that_stalled_fails_without_effect(postgres_server: str) -> None:
    """PostgreSQL ends its session, so that others get their turn."""
    database = Database(new_database(postgres_server))
    await database.migrate()
    with pytest.raises(StoreUnavailable):
        async with database.writing() as connection:
            await connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 1"))
            await SqlWriting(connection).write_log(LogEntry(NOW, "ada@lab.org", "feed-made"))
            async with database.reading() as other:
                await other.execute(text("SELECT pg_sleep(0.2)"))
            await SqlWriting(connection).write_log(LogEntry(NOW, "ada@lab.org", "feed-made"))
    async with SqlBookings(database).reading() as reading:
        assert await reading.log() == []
    await database.aclose()


async def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "carrel.db"
    file.write_bytes(b"a letter to my aunt, not a database. " * 100)
    database = Database(f"sqlite:///{file}")
    with pytest.raises(StoreUnavailable, match="not a database"):
        await database.migrate()
    await database.aclose()
