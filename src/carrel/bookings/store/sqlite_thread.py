"""SQLite in a thread, one call per statement.

aiosqlite calls its thread to open a cursor, again to execute, and again to fetch; each call costs more than most
statements. Here a statement is opened, executed and fetched in one call, and its rows wait for SQLAlchemy.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import aiosqlite


class QuickConnection(aiosqlite.Connection):
    def cursor(self) -> "QuickCursor":  # type: ignore[override] # it has all that SQLAlchemy uses
        return QuickCursor(self)

    async def run(self, statement: Callable[[sqlite3.Connection], sqlite3.Cursor]) -> "Fetched":
        def work() -> Fetched:
            cursor = statement(self._conn)
            try:
                return Fetched(cursor, cursor.fetchall() if cursor.description else [])
            finally:
                cursor.close()

        fetched: Fetched = await self._execute(work)  # type: ignore[no-untyped-call] # its method for calling its thread
        return fetched


class Fetched:
    """The result of a statement."""

    def __init__(self, cursor: sqlite3.Cursor, rows: list[Any]) -> None:
        self.description = cursor.description
        self.rowcount = cursor.rowcount
        self.lastrowid = cursor.lastrowid
        self.rows = rows


class QuickCursor:
    arraysize = 1
    description: Any = None
    rowcount = -1
    lastrowid: int | None = None

    def __init__(self, connection: QuickConnection) -> None:
        self._connection = connection
        self._rows: list[Any] = []

    async def __aenter__(self) -> "QuickCursor":
        return self

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> "QuickCursor":
        return self._holding(await self._connection.run(lambda raw: raw.execute(statement, parameters)))

    async def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> "QuickCursor":
        return self._holding(await self._connection.run(lambda raw: raw.executemany(statement, parameters)))

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        self._rows = []

    def _holding(self, fetched: Fetched) -> "QuickCursor":
        self.description, self.rowcount, self.lastrowid = fetched.description, fetched.rowcount, fetched.lastrowid
        self._rows = fetched.rows
        return self


async def connect(database: str, **options: Any) -> QuickConnection:
    """Its thread does not keep the process from ending."""
    connection = QuickConnection(lambda: sqlite3.connect(database, **options), iter_chunk_size=64)
    thread = connection._thread
    thread.daemon = True
    try:
        await connection
    except BaseException:
        # Its thread still calls back into this loop, which may be closed by then unless we wait.
        await asyncio.to_thread(thread.join)
        raise
    return connection
