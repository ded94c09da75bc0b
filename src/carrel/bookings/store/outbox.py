"""The outbox, which keeps each notification until it is delivered.

Every notification is delivered at least once by every channel that its person had chosen when it was made, or given up
when it is of no use any more. Booking never waits for a notification and never fails with one: notifications are made
afterwards from the log, which is written in the same transaction as the booking.

A notification that a sender has taken becomes due again later: if it is not delivered by then, the sender counts as
dead. Whether there is anything to do costs one read; the lock of the writers is only taken if there is.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from carrel.bookings.notifications.choices import Recipient, choices_of
from carrel.bookings.notifications.messages import Notification, Occasion
from carrel.bookings.records import LogEntry
from carrel.bookings.store import tables
from carrel.bookings.store.bookings import SqlReading, SqlWriting
from carrel.bookings.store.buttons import SqlButtons
from carrel.bookings.store.database import Database
from carrel.parsing.time import zone_named

K, M, P = tables.outbox.c, tables.marks.c, tables.people.c
MARK = "log"
"""How far the log was read."""
NOTED = "log"
"""The channel of what is only in the log: its row keeps the key."""
ENTRIES_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Planned:
    """One notification by one channel, to be sent."""

    notification: Notification
    channel: str
    due: datetime
    held_until: datetime | None = None
    """The morning until which it waits for others, to be one message; None: it is sent when it is due."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notification, or those that waited for the same morning, by one channel. It is being sent."""

    notifications: tuple[Notification, ...]
    channel: str
    tries: int
    """This one included."""
    recipient: Recipient
    held_until: datetime | None = None

    def only(self, notifications: Sequence[Notification]) -> "Delivery":
        return replace(self, notifications=tuple(notifications))

    @property
    def useless_after(self) -> datetime:
        return max(each.useless_after for each in self.notifications)


@dataclass(frozen=True, slots=True)
class Failure:
    """A notification that did not arrive at the last try."""

    person: str
    channel: str
    occasion: Occasion
    at: datetime
    tries: int
    why: str
    again: datetime | None
    """When it is tried again; None: it was given up."""


Plan = Callable[[Notification, Recipient], Iterable[Planned]]


class SqlOutbox:
    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def buttons(self) -> SqlButtons:
        """Those in the messages."""
        return SqlButtons(self._database)

    async def collect(self, notification_of: Callable[[LogEntry], Notification | None], plan: Plan) -> int:
        """Read the log from where it stopped, and keep what is planned for each entry. Returns how many entries it
        read."""
        async with self._database.reading() as connection:
            if not await SqlReading(connection).log_after(await _mark(connection), 1):
                return 0
        async with self._database.writing() as connection:
            mark = await _mark(connection)
            entries = await SqlReading(connection).log_after(mark, ENTRIES_AT_ONCE)
            notifications = [notification for entry in entries if (notification := notification_of(entry)) is not None]
            recipients = await _recipients(connection, {each.person for each in notifications})
            await _add(connection, [_row(row) for each in notifications for row in plan(each, recipients[each.person])])
            if entries:
                await _set_mark(connection, entries[-1].number)
            return len(entries)

    async def recipients(self, people: Collection[str]) -> Mapping[str, Recipient]:
        """How each of them wants to be told things."""
        async with self._database.reading() as connection:
            return await _recipients(connection, people)

    async def add(self, planned: Sequence[Planned]) -> None:
        """Those that are kept already, delivered or not, stay as they are."""
        rows = [_row(each) for each in planned]
        async with self._database.reading() as connection:
            rows = await _new(connection, rows)
        if rows:
            async with self._database.writing() as connection:
                await _add(connection, rows)

    async def failures(self, since: datetime, limit: int, person: str = "") -> Sequence[Failure]:
        """Those that are tried again, and those that were given up since then; the newest first. Empty: everybody's."""
        is_open = (K.due_at.is_not(None)) | (K.done_at >= since)
        found = select(tables.outbox).where(K.failure != "", is_open, *([K.person == person] if person else []))
        async with self._database.reading() as connection:
            rows = await connection.execute(found.order_by(K.at.desc(), K.id, K.channel).limit(limit))
            return [
                Failure(row.person, row.channel, Occasion(row.occasion), row.at, row.tries, row.failure, row.due_at)
                for row in rows
            ]

    async def note(self, key: str, entry: LogEntry) -> bool:
        """Write into the log what another component reports; the same key once. Returns whether it was new."""
        noted = Notification(key, Occasion.REVOKED, entry.subject, entry.at)
        row = {**_row(Planned(noted, NOTED, entry.at)), "due_at": None, "done_at": entry.at}
        async with self._database.writing() as connection:
            is_new = bool(await _new(connection, [row]))
            if is_new:
                await _add(connection, [row])
                await SqlWriting(connection).write_log(entry)
            return is_new

    async def marks(self, prefix: str) -> frozenset[str]:
        """Return the names of the marks that are set and begin so."""
        async with self._database.reading() as connection:
            found = await connection.execute(select(M.name).where(M.name.startswith(prefix, autoescape=True)))
            return frozenset(found.scalars())

    async def set_mark(self, name: str, is_set: bool, entry: LogEntry | None = None) -> bool:
        """Set or remove a mark and, if that changes it, write into the log. Returns whether it did."""
        async with self._database.writing() as connection:
            there = (await connection.execute(select(M.name).where(M.name == name))).first() is not None
            if there == is_set:
                return False
            set_it, remove_it = insert(tables.marks).values(name=name, number=1), delete(tables.marks)
            await connection.execute(set_it if is_set else remove_it.where(M.name == name))
            if entry is not None:
                await SqlWriting(connection).write_log(entry)
            return True

    async def take(
        self, now: datetime, until: datetime, limit: int, channels: Collection[str] = (), *, others: bool = True
    ) -> Sequence[Delivery]:
        """Return what is due now by these channels, or by all others. Nobody else gets it before `until`: so long has
        the caller to send it."""
        with_person = select(tables.outbox, P.zone, P.messages).outerjoin(tables.people, P.person == K.person)
        by = K.channel.not_in(channels) if others else K.channel.in_(channels)
        due = with_person.where(K.due_at <= now, by).order_by(K.due_at, K.id, K.channel).limit(limit)
        async with self._database.reading() as connection:
            if (await connection.execute(due.limit(1))).first() is None:
                return []
        async with self._database.writing() as connection:
            rows = (await connection.execute(due)).all()
            if mornings := {row.held_until for row in rows if row.held_until is not None}:
                # What waited for the same morning goes together, however much it is.
                same = with_person.where(K.due_at <= now, by, K.held_until.in_(mornings)).order_by(K.at, K.id)
                together = {_group(row) for row in rows}
                rows = [row for row in rows if row.held_until is None]
                rows += [row for row in await connection.execute(same) if _group(row) in together]
            taken = _deliveries(rows)
            for delivery in taken:
                later = update(tables.outbox).where(_is(delivery)).values(due_at=until, tries=delivery.tries)
                await connection.execute(later)
            return taken

    async def delivered(self, delivery: Delivery, now: datetime) -> None:
        await self._set(delivery, due_at=None, done_at=now, failure="")

    async def failed(self, delivery: Delivery, why: str, again: datetime | None) -> None:
        """`again` is None: it is given up."""
        # A notification that is given up counts as done from the moment at which it lost its use.
        done = delivery.useless_after if again is None else None
        await self._set(delivery, due_at=again, done_at=done, failure=why[:500])

    async def forget(self, before: datetime) -> int:
        """Delete notifications that were delivered or given up before then. Returns how many."""
        async with self._database.writing() as connection:
            return (await connection.execute(delete(tables.outbox).where(K.done_at < before))).rowcount

    async def _set(self, delivery: Delivery, **values: Any) -> None:
        """Unless it is done: another sender may have delivered it, if this one took too long."""
        async with self._database.writing() as connection:
            mine = update(tables.outbox).where(_is(delivery), K.done_at.is_(None))
            await connection.execute(mine.values(values))


def _is(delivery: Delivery) -> ColumnElement[bool]:
    return K.id.in_([each.id for each in delivery.notifications]) & (K.channel == delivery.channel)


async def _mark(connection: AsyncConnection) -> int:
    return (await connection.execute(select(M.number).where(M.name == MARK))).scalar_one_or_none() or 0


async def _set_mark(connection: AsyncConnection, number: int) -> None:
    outcome = await connection.execute(update(tables.marks).where(M.name == MARK).values(number=number))
    if not outcome.rowcount:
        await connection.execute(insert(tables.marks).values(name=MARK, number=number))


async def _new(connection: AsyncConnection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    wanted = [(row["id"], row["channel"]) for row in rows]
    kept = await connection.execute(select(K.id, K.channel).where(tuple_(K.id, K.channel).in_(wanted)))
    known = {(row.id, row.channel) for row in kept}
    return [row for row in rows if (row["id"], row["channel"]) not in known]


async def _add(connection: AsyncConnection, rows: Iterable[dict[str, Any]]) -> None:
    """Writers are serialised: nobody else inserts the same row in between."""
    new = await _new(connection, list(rows))
    if new:
        await connection.execute(insert(tables.outbox), new)


async def _recipients(connection: AsyncConnection, people: Collection[str]) -> Mapping[str, Recipient]:
    wanted = select(P.person, P.zone, P.messages).where(P.person.in_(people))
    found = {row.person: _recipient(row) for row in (await connection.execute(wanted)).all()} if people else {}
    return {person: found.get(person) or Recipient(person) for person in people}


def _recipient(row: Any) -> Recipient:
    return Recipient(row.person, zone_named(row.zone or ""), choices_of(row.messages))


def _row(planned: Planned) -> dict[str, Any]:
    notification = planned.notification
    return {
        "id": notification.id,
        "channel": planned.channel,
        "occasion": notification.occasion.value,
        "person": notification.person,
        "at": notification.at,
        "booking": notification.booking,
        "facts": dict(notification.facts),
        "tries": 0,
        "due_at": planned.held_until or planned.due,
        "held_until": planned.held_until,
        "done_at": None,
        "failure": "",
    }


def _group(row: Row[Any]) -> tuple[str, ...]:
    """What is one message has the same."""
    return (row.channel, row.person, row.held_until.isoformat()) if row.held_until else (row.channel, row.id)


def _deliveries(rows: Sequence[Row[Any]]) -> list[Delivery]:
    groups: dict[tuple[str, ...], list[Row[Any]]] = {}
    for row in rows:
        groups.setdefault(_group(row), []).append(row)
    return [_delivery(group) for group in groups.values()]


def _delivery(rows: Sequence[Row[Any]]) -> Delivery:
    first = rows[0]
    told = [Notification(row.id, Occasion(row.occasion), row.person, row.at, row.booking, row.facts) for row in rows]
    return Delivery(tuple(told), first.channel, max(row.tries for row in rows) + 1, _recipient(first), first.held_until)
