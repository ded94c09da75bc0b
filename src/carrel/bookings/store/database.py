"""A database, SQLite or PostgreSQL, and the two kinds of transactions on it.

Reading sees one moment. Writing is serialised over all replicas before it reads anything, so that what it saw is true
until it commits: `BEGIN IMMEDIATE` on SQLite, an advisory lock on PostgreSQL (held by the transaction, so a process
that dies gives it back). Within one process writers queue in order and take one connection between them.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiosqlite
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Dialect, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from carrel.bookings.records import StoreUnavailable
from carrel.bookings.store.sqlite_thread import connect
from carrel.parsing import Malformed

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
WRITERS_LOCK = 0x6361727265_6C
"""One number for all replicas on this database: `carrel`, in ASCII."""
TAKE_TURN = text(f"SELECT pg_advisory_xact_lock({WRITERS_LOCK})")
PATIENCE_S = 30
"""How long a statement waits for others before it gives up: less than the callers' own patience."""
IDLE_S = 5.0


class Database:
    def __init__(self, url: str) -> None:
        """Raises `Malformed` if it is not the address of a database that can be used."""
        self.url = _url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite(self.url) if self.is_sqlite else _postgres(self.url)
        self._readers = self.engine if self.is_sqlite else _snapshots(self.engine)
        self._glances = self.engine.execution_options(isolation_level="AUTOCOMMIT", is_glance=True)
        self._writers = self.engine.execution_options(is_writer=True)
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        with _failures_told():
            async with self._readers.connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def glancing(self) -> AsyncIterator[AsyncConnection]:
        """For one statement that only reads: it sees one moment by itself, and needs no transaction around it."""
        with _failures_told():
            async with self._glances.connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Committed when the block ends without an error."""
        async with self._turn:
            with _failures_told():
                async with self._writers.begin() as connection:
                    if not self.is_sqlite:
                        await connection.execute(TAKE_TURN)
                    yield connection

    async def migrate(self) -> None:
        """Brings the tables up to date. Others may start at the same time: one migrates, they wait."""
        async with self.writing() as connection:
            try:
                await connection.run_sync(_upgrade)
            except CommandError as error:
                # Whoever goes back to an older version must not write into tables that it does not know.
                raise StoreUnavailable(f"its tables were made by a newer version of Carrel ({error})") from None

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
        # The address may hold a password: it is not shown.
        raise Malformed(
            "the database URL", "its form", "(hidden)", "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
        ) from None
    return url.set(drivername=DRIVERS[url.get_backend_name()])


def _sqlite(url: URL) -> AsyncEngine:
    # Without an `isolation_level` of its own the driver would begin as a reader, and two readers that both want to
    # write cannot.
    async def connected() -> aiosqlite.Connection:
        return await connect(url.database or "", timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)

    engine = create_async_engine(url, async_creator=connected, pool_timeout=PATIENCE_S)

    @event.listens_for(engine.sync_engine, "connect")
    def configure(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")  # a booking that was acknowledged survives a power cut
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if not options.get("is_glance"):
            connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("is_writer") else "BEGIN")

    return engine


def _postgres(url: URL) -> AsyncEngine:
    patience = f"{PATIENCE_S * 1000}"
    # A replica that was paused within a transaction must not keep all others from booking.
    options = f"-c timezone=UTC -c lock_timeout={patience} -c idle_in_transaction_session_timeout={patience}"
    engine = create_async_engine(url, connect_args={"options": options}, pool_timeout=PATIENCE_S, pool_size=5)
    dialect = engine.sync_engine.dialect

    # The server may have been restarted: a connection that lay idle is tried before it is used. To try every one
    # every time would double what a short call costs.
    @event.listens_for(engine.sync_engine, "checkin")
    def note(_: object, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def ask(connection: Any, record: Any, _: object) -> None:
        if time.monotonic() - record.info.get("idle_since", math.inf) > IDLE_S and not _answers(dialect, connection):
            raise sqlalchemy.exc.DisconnectionError  # the pool takes another

    return engine


def _answers(dialect: Dialect, connection: Any) -> bool:
    try:
        return dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error:
        return False


def _snapshots(engine: AsyncEngine) -> AsyncEngine:
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


@contextlib.contextmanager
def _failures_told() -> Iterator[None]:
    try:
        yield
    except (sqlalchemy.exc.DataError, UnicodeEncodeError):
        # Somebody's text has a NUL or half a character in it: SQLite would keep the one, PostgreSQL neither.
        raise Malformed("the request", "a text in it", "(not shown)", "text without control characters") from None
    except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError, sqlalchemy.exc.NotSupportedError):
        raise  # defects of ours
    except (sqlalchemy.exc.DatabaseError, sqlalchemy.exc.InterfaceError, sqlalchemy.exc.TimeoutError) as error:
        # Away, full, locked, damaged, read-only after a fail-over, or our session was ended because we stalled.
        raise StoreUnavailable(_first_line(error)) from error


def _first_line(error: SQLAlchemyError) -> str:
    """What the driver said, without the statement and its values."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return (said.splitlines() or ["no reason given"])[0]


def _upgrade(connection: Connection) -> None:
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells how it works, at every start
    config = Config()
    config.set_main_option("script_location", "carrel.bookings.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
