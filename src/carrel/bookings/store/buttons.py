"""The buttons in messages that were sent, by the hash of their secret."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import delete, insert, select, update

from carrel.bookings.notifications.buttons import Button, ButtonKind
from carrel.bookings.store import tables
from carrel.bookings.store.database import Database

B = tables.buttons.c


class SqlButtons:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, buttons: Mapping[str, Button]) -> None:
        """Keep them, by the hash of their secret."""
        rows = [
            {
                "secret_hash": secret_hash,
                "act": each.act.value,
                "person": each.person,
                "notification": each.notification,
                "booking": each.booking,
                "version": each.version,
                "expires_at": each.expires,
                "used_at": None,
            }
            for secret_hash, each in buttons.items()
        ]
        async with self._database.writing() as connection:
            await connection.execute(insert(tables.buttons), rows)

    async def find(self, secret_hash: str) -> Button | None:
        async with self._database.reading() as connection:
            wanted = select(tables.buttons).where(B.secret_hash == secret_hash)
            row = (await connection.execute(wanted)).one_or_none()
        if row is None:
            return None
        return Button(
            ButtonKind(row.act), row.person, row.notification, row.expires_at, row.booking, row.version, row.used_at
        )

    async def used(self, secret_hash: str, now: datetime) -> None:
        """Note the press; the first one stays noted."""
        async with self._database.writing() as connection:
            mine = update(tables.buttons).where(B.secret_hash == secret_hash, B.used_at.is_(None))
            await connection.execute(mine.values(used_at=now))

    async def forget(self, before: datetime) -> int:
        """Delete those that expired before then. Returns how many."""
        async with self._database.writing() as connection:
            return (await connection.execute(delete(tables.buttons).where(B.expires_at < before))).rowcount
