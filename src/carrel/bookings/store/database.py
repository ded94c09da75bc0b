"""A database, SQLite or PostgreSQL, and the two kinds of transactions on it.

A reading transaction sees one state. Writing transactions are serialised over all replicas before they read anything,
so that what one read is true until it commits: `BEGIN IMMEDIATE` on SQLite, an advisory lock on PostgreSQL (held by the
transaction, so that a process that dies releases it). Within one process writers queue in order and use one connection.

Migrations bring the tables to the level of this program: the number of the last one. Within a minor version migrations
only add (`migrations.OLDEST_LEVELS`), so a program of an older level runs on newer tables: after `helm rollback`, and
while replicas are replaced one by one. The database records the oldest level whose programs may use it: an older
program cannot know what was changed later.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiosqlite
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, delete, event, insert, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from carrel import __version__
from carrel.bookings.records import StoreUnavailable
from carrel.bookings.store.migrations import OLDEST_LEVELS
from carrel.bookings.store.tables import bookings, schema_levels
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

DEVELOPMENT = "its tables were made by a development version of Carrel, before 0.1.0; delete it, or name another one"


def bring_up_to_date(connection: Connection) -> None:
    """Raises `StoreUnavailable` if the tables are newer, and this program may not use them."""
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs each step at every start
    if _is_of_a_development_version(connection):
        raise StoreUnavailable(DEVELOPMENT)
    config = _config(connection)
    scripts = ScriptDirectory.from_config(config)
    level = MigrationContext.configure(connection).get_current_revision() or ""
    if level in {"", *(each.revision for each in scripts.walk_revisions())}:
        command.upgrade(config, "head")
        _record_oldest(connection)
        return
    known, oldest = scripts.get_current_head() or "", _recorded_oldest(connection) or level
    if known < oldest:
        # It would write into tables that mean something else.
        raise StoreUnavailable(
            f"its tables have level {level}, made by a newer version of Carrel, and need a program that knows "
            f"level {oldest}; this one knows {known}. Install the newer version again, or restore the backup "
            "from before the upgrade"
        )
    log.warning("newer_tables level=%s oldest=%s known=%s", level, oldest, known)


def _is_of_a_development_version(connection: Connection) -> bool:
    """Whether the tables are from before 0.1.0, when their names still changed."""
    found = inspect(connection)
    return found.has_table(bookings.name) and bookings.c.gpus.name not in {
        column["name"] for column in found.get_columns(bookings.name)
    }


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", "carrel.bookings.store:migrations")
    config.attributes["connection"] = connection
    return config


def _recorded_oldest(connection: Connection) -> str | None:
    """Return the oldest level whose programs may use the tables. Without one, it is their own."""
    is_recorded = inspect(connection).has_table(schema_levels.name)
    return connection.execute(select(schema_levels.c.oldest)).scalar() if is_recorded else None


def _record_oldest(connection: Connection) -> None:
    oldest = OLDEST_LEVELS[__version__.rpartition(".")[0]]
    if connection.execute(select(schema_levels.c.oldest)).scalars().all() != [oldest]:
        connection.execute(delete(schema_levels))
        connection.execute(insert(schema_levels).values(oldest=oldest))


DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
WRITERS_LOCK = 0x6361727265_6C
"""The same for all replicas on this database: `carrel` in ASCII."""
TAKE_WRITERS_LOCK = text(f"SELECT pg_advisory_xact_lock({WRITERS_LOCK})")
LEVEL = text("SELECT version_num FROM alembic_version")
LOCK_TIMEOUT_S = 30
"""How long a statement waits for a lock before it fails: less than the callers wait for an answer."""
WAL_RETRY_S = 0.02


class Database:
    def __init__(self, url: str) -> None:
        """Raises `Malformed` if it is not the address of a database that can be used."""
        self.url = _url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite(self.url) if self.is_sqlite else _postgres(self.url)
        one_state = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._readers = self.engine.execution_options(**one_state)
        self._writers = self.engine.execution_options(is_writer=True)
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        with _failures_translated():
            async with self._readers.connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Committed when the block ends without an error."""
        async with self._turn:
            with _failures_translated():
                async with self._writers.begin() as connection:
                    if not self.is_sqlite:
                        await connection.execute(TAKE_WRITERS_LOCK)
                    yield connection

    async def migrate(self) -> None:
        """Brings the tables up to date. Of several processes that start at once, one migrates and the others wait.
        Raises `StoreUnavailable` for tables of a newer version that this one may not use."""
        async with self.writing() as connection:
            await connection.run_sync(bring_up_to_date)

    async def level(self) -> str:
        """The number of the last migration of the tables."""
        async with self.reading() as connection:
            return str((await connection.execute(LEVEL)).scalar() or "")

    async def aclose(self) -> None:
        await self.engine.dispose()


def _url(given: str) -> URL:
    try:
        url = make_url(given)
    except ArgumentError:
        url = None
    if (
        url is None
        or url.get_backend_name() not in DRIVERS
        or (url.get_backend_name() == "sqlite" and not url.database)
    ):
        # The address may contain a password, so it is not shown.
        raise Malformed(
            "the database URL", "its form", "(hidden)", "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
        ) from None
    return url.set(drivername=DRIVERS[url.get_backend_name()])


def _sqlite(url: URL) -> AsyncEngine:
    # With its default `isolation_level` the driver would begin as a reader, and of two readers that both want to write
    # one fails.
    async def connected() -> aiosqlite.Connection:
        _create_private(url.database or "")
        connection = aiosqlite.connect(url.database or "", timeout=LOCK_TIMEOUT_S, isolation_level=None)
        thread = connection._thread
        thread.daemon = True  # it must not keep the process from ending
        try:
            await connection
            await _switch_to_wal(connection)
        except BaseException:
            await connection.close()
            # The thread calls back into this loop, which may be closed by then unless we wait.
            await asyncio.to_thread(thread.join)
            raise
        return connection

    engine = create_async_engine(url, async_creator=connected, pool_timeout=LOCK_TIMEOUT_S)

    @event.listens_for(engine.sync_engine, "connect")
    def configure(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = FULL")  # a booking that was acknowledged survives a power cut
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        is_writer = connection.get_execution_options().get("is_writer")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

    return engine


def _create_private(file: str) -> None:
    """So that only its owner can read it: it has everybody's bookings. SQLite gives its `-wal` and `-shm` files the
    same mode. A file that exists keeps its mode; one that cannot be made, SQLite complains about."""
    with contextlib.suppress(OSError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


async def _switch_to_wal(connection: aiosqlite.Connection) -> None:
    """While another process writes, for example because it starts at the same time, SQLite refuses this at once:
    it does not wait for its time-out here."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            async with connection.execute("PRAGMA journal_mode = WAL"):
                return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            await asyncio.sleep(WAL_RETRY_S)


def _postgres(url: URL) -> AsyncEngine:
    patience = f"{LOCK_TIMEOUT_S * 1000}"
    # A replica that is paused within a transaction must not block all others.
    options = f"-c timezone=UTC -c lock_timeout={patience} -c idle_in_transaction_session_timeout={patience}"
    # The server may have been restarted, so the pool tests a connection before it gives it.
    pool = {"pool_timeout": LOCK_TIMEOUT_S, "pool_size": 5, "pool_pre_ping": True}
    return create_async_engine(url, connect_args={"options": options}, **pool)


@contextlib.contextmanager
def _failures_translated() -> Iterator[None]:
    try:
        yield
    except (sqlalchemy.exc.DataError, UnicodeEncodeError):
        # A text has a NUL or a lone surrogate in it: SQLite would store the NUL, PostgreSQL neither.
        raise Malformed("the request", "a text in it", "(not shown)", "text without control characters") from None
    except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError, sqlalchemy.exc.NotSupportedError):
        raise  # defects in our code
    except (sqlalchemy.exc.DatabaseError, sqlalchemy.exc.InterfaceError, sqlalchemy.exc.TimeoutError) as error:
        # Down, full, locked, damaged, read-only after a fail-over, or our session was closed because it stalled.
        raise StoreUnavailable(_first_line(error)) from error


def _first_line(error: SQLAlchemyError) -> str:
    """The driver's message, without the statement and its values."""
    message = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return (message.splitlines() or ["no reason given"])[0]
