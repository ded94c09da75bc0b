"""Bookings, maintenance, the log and the feeds in a database.

Transactions that write are serialised: what one reads stays true until it commits, on every replica. What was committed
is durable; what was not has no effect. A log entry is written in the same transaction as what it reports, and the
numbers of the log rise in the order of the commits.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Row,
    Select,
    String,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    union,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from carrel.bookings.capacity import BookedTime
from carrel.bookings.groups import BookingGroup, GroupPerson, group_of
from carrel.bookings.maintenance import Maintenance
from carrel.bookings.people import CredentialCount
from carrel.bookings.records import BookingRecord, IdempotencyKey, LogEntry, LogQuery, Query, State
from carrel.bookings.rules import Booking
from carrel.bookings.store import tables
from carrel.bookings.store.database import Database
from carrel.parsing.addresses import normal

B = tables.bookings.c
M = tables.maintenance.c
L = tables.log.c
G, W = tables.group_people.c, tables.seen_groups.c
E, S, T = tables.pending_logins.c, tables.sessions.c, tables.tokens.c


ALL_ENTRIES = LogQuery()


class SqlBookings:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_change: Callable[[str], None] = lambda booking: None
        """Called with the id of each booking that was added or changed, after the commit. Also if the commit failed,
        because it may have taken effect; so it must read what is stored."""

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator["SqlReading"]:
        async with self._database.reading() as connection:
            yield SqlReading(connection)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator["SqlWriting"]:
        writing: SqlWriting | None = None
        try:
            async with self._database.writing() as connection:
                yield (writing := SqlWriting(connection))
        finally:
            for booking in writing.changed if writing else ():
                self.on_change(booking)


class SqlReading:
    """Reads one consistent state."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def get(self, id: str) -> BookingRecord | None:
        return await self._one(_GET, id=id)

    async def of(self, user: str, group: str, since: datetime) -> Sequence[BookingRecord]:
        """Return the group's bookings that end after `since`, ordered by start; without a group the person's own, not
        those that they made for a group. Those that were cancelled before they began are not among them."""
        if group:
            return await self._all(_OF_GROUP, group=group, since=since)
        return await self._all(_OF_PERSON, person=normal(user), since=since)

    async def within(self, start: datetime, end: datetime, model: str = "") -> Sequence[BookingRecord]:
        """Return those that count and overlap [start, end), ordered by start."""
        touching = select(tables.bookings).where(*_touching(start, end))
        return await self._all(_in_order(touching.where(B.model == model) if model else touching))

    async def booked(self, start: datetime, end: datetime, person: str | None = None) -> Sequence[BookedTime]:
        """Return the times of the same bookings, or of those of one person: what usage needs, of thousands at once."""
        columns = select(B.person, B.group_name, B.model, B.starts_at, B.ends_at, B.gpus, B.share)
        found = columns.where(*_touching(start, end), *([] if person is None else [B.person == person]))
        rows = await self._connection.execute(found)
        return [
            BookedTime(user, group, model, start.timestamp(), ends.timestamp(), gpus, share)
            for user, group, model, start, ends, gpus, share in rows
        ]

    async def made_with_key(self, actor: str, key: str) -> BookingRecord | None:
        return await self._one(_MADE_WITH_KEY, actor=actor, key=key)

    async def search(self, query: Query, now: datetime) -> Sequence[BookingRecord]:
        found = select(tables.bookings).where(*_conditions(query, now)).limit(query.limit)
        return await self._all(_in_order(found, query.newest_first))

    async def maintenance(self, start: datetime, end: datetime, model: str = "") -> Sequence[Maintenance]:
        """Return those that overlap [start, end); with a model without those of another model."""
        rows = await self._connection.execute(_MAINTENANCE, {"start": start, "end": end, "model": model})
        return [_window(row) for row in rows]

    async def log(self, query: LogQuery = ALL_ENTRIES) -> Sequence[LogEntry]:
        """Return the newest first."""
        entries = select(tables.log).order_by(L.number.desc()).limit(query.limit)
        if query.subject:
            entries = entries.where(L.subject == query.subject)
        if query.person:
            entries = entries.where(or_(L.subject == query.person, L.actor == query.person))
        if query.action:
            entries = entries.where(L.action == query.action)
        if query.start is not None:
            entries = entries.where(L.at >= query.start)
        if query.end is not None:
            entries = entries.where(L.at < query.end)
        if query.before:
            entries = entries.where(L.number < query.before)
        return [_entry(row) for row in await self._connection.execute(entries)]

    async def actions(self) -> Sequence[str]:
        """Return those that the log has, by name."""
        return list((await self._connection.execute(select(L.action).distinct().order_by(L.action))).scalars())

    async def log_after(self, number: int, limit: int = 100) -> Sequence[LogEntry]:
        """Return the oldest first: what notifications are made from."""
        entries = select(tables.log).where(L.number > number).order_by(L.number).limit(limit)
        return [_entry(row) for row in await self._connection.execute(entries)]

    async def feed_owner(self, secret_hash: str) -> str | None:
        owner = select(tables.feeds.c.person).where(tables.feeds.c.secret_hash == secret_hash)
        return (await self._connection.execute(owner)).scalar_one_or_none()

    async def group(self, name: str) -> BookingGroup:
        """Return it without people, if there is no such group."""
        listed = await self._connection.execute(select(tables.group_people).where(G.group_name == name))
        seen = await self._connection.execute(select(tables.seen_groups).where(W.group_name == name))
        return group_of(name, _group_people(listed, seen).get(name, ()))

    async def groups(self) -> Sequence[BookingGroup]:
        """Return those that an admin has listed somebody in, and those with bookings; by name. Two reads in all."""
        listed = await self._connection.execute(select(tables.group_people))
        # A provider has many groups that never book: their people are not read.
        bookable = union(select(G.group_name), select(B.group_name).where(B.group_name != ""))
        seen = await self._connection.execute(select(tables.seen_groups).where(W.group_name.in_(bookable)))
        found = _group_people(listed, seen)
        return [group_of(name, found[name]) for name in sorted(found)]

    async def groups_of(self, user: str) -> Mapping[str, bool]:
        """Return the groups of a person, by name: whether they are a manager there."""
        seen = await self._connection.execute(select(W.group_name).where(W.person == user))
        listed = await self._connection.execute(select(G.group_name, G.is_manager).where(G.person == user))
        return dict.fromkeys(seen.scalars(), False) | {row.group_name: row.is_manager for row in listed}

    async def credentials(self, email: str, now: datetime) -> CredentialCount:
        """What the person could use the service with, besides signing in again."""

        async def count(table: Table, *which: ColumnElement[bool]) -> int:
            counted = await self._connection.execute(select(func.count()).select_from(table).where(*which))
            return int(counted.scalar_one())

        sessions = await count(tables.sessions, S.person == email, S.expires_at > now)
        tokens = await count(tables.tokens, *_valid(email, now))
        feeds = await count(tables.feeds, tables.feeds.c.person == email)
        people = tables.people.c
        known = await self._connection.execute(select(people.granted).where(people.person == email))
        row = known.one_or_none()
        return CredentialCount(sessions, tokens, bool(feeds), row is not None, row.granted or "" if row else "")

    async def _one(self, wanted: Select[Any], **given: object) -> BookingRecord | None:
        row = (await self._connection.execute(wanted, given)).one_or_none()
        return _record(row) if row is not None else None

    async def _all(self, wanted: Select[Any], **given: object) -> list[BookingRecord]:
        return [_record(row) for row in await self._connection.execute(wanted, given)]


class SqlWriting(SqlReading):
    """One serialised transaction; it is committed when the block ends without an error."""

    def __init__(self, connection: AsyncConnection) -> None:
        super().__init__(connection)
        self.changed: list[str] = []
        """The ids of the bookings that were written."""

    async def add(self, record: BookingRecord) -> None:
        self.changed.append(record.booking.id)
        await self._connection.execute(_ADD, _row(record))

    async def replace(self, record: BookingRecord) -> None:
        """The record has the next version."""
        changed = update(tables.bookings).where(B.id == record.booking.id, B.version == record.version - 1)
        self.changed.append(record.booking.id)
        outcome = await self._connection.execute(changed.values(_row(record)))
        if outcome.rowcount != 1:
            # Writers are serialised: the version that this transaction read is still there.
            raise RuntimeError(f"booking {record.booking.id} is not at version {record.version - 1}")

    async def add_maintenance(self, window: Maintenance) -> None:
        values = {"id": window.id, "model": window.model, "starts_at": window.start, "ends_at": window.end}
        values |= {"gpus": window.gpus, "why": window.why, "created_by": window.created_by}
        values |= {"nodes": list(window.nodes), "single_gpus": dict(window.single or {})}
        await self._connection.execute(insert(tables.maintenance).values(values))

    async def remove_maintenance(self, id: str) -> Maintenance | None:
        row = (await self._connection.execute(select(tables.maintenance).where(M.id == id))).one_or_none()
        if row is None:
            return None
        await self._connection.execute(delete(tables.maintenance).where(M.id == id))
        return _window(row)

    async def write_log(self, entry: LogEntry) -> None:
        values = {"at": entry.at, "actor": entry.actor, "action": entry.action, "subject": entry.subject}
        values |= {"booking": entry.booking, "why": entry.why, "details": dict(entry.details)}
        await self._connection.execute(_WRITE_LOG, values)

    async def set_feed(self, user: str, secret_hash: str | None) -> None:
        """A person has at most one feed; None revokes it."""
        await self._connection.execute(delete(tables.feeds).where(tables.feeds.c.person == user))
        if secret_hash is not None:
            await self._connection.execute(insert(tables.feeds).values(person=user, secret_hash=secret_hash))

    async def list_in_group(self, group: str, user: str, *, is_manager: bool) -> bool:
        """Return whether that is a change."""
        theirs = (G.group_name == group, G.person == user)
        known = (await self._connection.execute(select(G.is_manager).where(*theirs))).scalar_one_or_none()
        if known is None:
            row = {"group_name": group, "person": user, "is_manager": is_manager}
            await self._connection.execute(insert(tables.group_people).values(row))
        elif known != is_manager:
            await self._connection.execute(update(tables.group_people).where(*theirs).values(is_manager=is_manager))
        return known != is_manager

    async def unlist_from_group(self, group: str, user: str) -> bool:
        """Return whether the person was listed. A person whom a sign-in puts into the group stays in it."""
        gone = delete(tables.group_people).where(G.group_name == group, G.person == user)
        return (await self._connection.execute(gone)).rowcount > 0

    async def forget_person(self, email: str, now: datetime) -> None:
        """Takes the person off every list and out of the usage, takes their role, and forgets that they signed in."""
        await self.sign_out(email, now)
        await self._connection.execute(delete(tables.group_people).where(G.person == email))
        await self._connection.execute(delete(tables.people).where(tables.people.c.person == email))
        theirs = tables.usage_people.c.person == email
        await self._connection.execute(update(tables.usage_people).where(theirs).values(person=""))

    async def sign_out(self, email: str, now: datetime) -> int:
        """Ends a person's sessions and logins under way, revokes their tokens, feed and buttons, and forgets the groups
        that were seen; returns the number of sessions and tokens."""
        ended = await self._connection.execute(delete(tables.sessions).where(S.person == email))
        await self._connection.execute(delete(tables.feeds).where(tables.feeds.c.person == email))
        await self._connection.execute(delete(tables.buttons).where(tables.buttons.c.person == email))
        await self._connection.execute(delete(tables.seen_groups).where(W.person == email))
        logins = (await self._connection.execute(select(E.secret_hash, E.facts))).all()
        theirs = [row.secret_hash for row in logins if row.facts.get("email") == email]
        await self._connection.execute(delete(tables.pending_logins).where(E.secret_hash.in_(theirs)))
        revoked = await self._connection.execute(
            update(tables.tokens).where(*_valid(email, now)).values(revoked_at=now)
        )
        return ended.rowcount + revoked.rowcount


def _valid(email: str, now: datetime) -> tuple[ColumnElement[bool], ...]:
    """A person's tokens that are neither revoked nor expired."""
    return (T.person == email, T.revoked_at.is_(None), T.expires_at > now)


def _conditions(query: Query, now: datetime) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    theirs = [and_(B.person == query.user, B.group_name == "")] if query.user else []
    theirs += [B.group_name.in_(query.groups)] if query.groups else []
    if theirs:
        found.append(or_(*theirs))
    if query.id:
        found.append(B.id.startswith(query.id, autoescape=True))
    if query.model:
        found.append(B.model == query.model)
    if query.start is not None:
        found.append(B.ends_at > query.start)
    if query.end is not None:
        found.append(B.starts_at < query.end)
    if query.states:
        found.append(or_(*(_in_state(state, now) for state in State if state in query.states)))
    if query.text:
        found.append(_mentions(query.text, query.text_reader))
    if query.after is not None:
        place = tuple_(B.starts_at, B.id)
        last = tuple_(literal(query.after.start, tables.Instant), literal(query.after.id))
        found.append(place < last if query.newest_first else place > last)
    return found


def _mentions(text: str, reader: str) -> ColumnElement[bool]:
    def has(column: Column[str]) -> ColumnElement[bool]:
        return func.lower(column).contains(text.lower(), autoescape=True)

    private = or_(has(B.namespace), has(B.note))
    return or_(has(B.person), has(B.group_name), has(B.model), and_(B.person == reader, private) if reader else private)


def _in_state(state: State, now: datetime) -> ColumnElement[bool]:
    """Decides what `BookingRecord.state` decides, in SQL."""
    was_cut_short = and_(B.cancelled_at.is_not(None), B.ends_at < B.planned_end)
    match state:
        case State.PLANNED:
            return and_(B.starts_at > now, B.starts_at < B.ends_at)
        case State.ACTIVE:
            return and_(B.starts_at <= now, B.ends_at > now)
        case State.CANCELLED:
            return and_(B.ends_at <= now, was_cut_short)
        case State.ENDED:
            return and_(B.ends_at <= now, ~was_cut_short)


def _touching(start: datetime, end: datetime) -> tuple[ColumnElement[bool], ...]:
    return B.ends_at > start, B.starts_at < end, B.starts_at < B.ends_at


def _in_order(wanted: Select[Any], newest_first: bool = False) -> Select[Any]:
    return wanted.order_by(*((c.desc() if newest_first else c) for c in (B.starts_at, B.id)))


# The statements of every booking are built once: building one costs more than running it.
_GET = select(tables.bookings).where(B.id == bindparam("id"))
_COUNTING = select(tables.bookings).where(B.ends_at > bindparam("since"), B.starts_at <= B.ends_at)
_OF_PERSON = _in_order(_COUNTING.where(B.person == bindparam("person"), B.group_name == ""))
_OF_GROUP = _in_order(_COUNTING.where(B.group_name == bindparam("group")))
_MADE_WITH_KEY = select(tables.bookings).where(B.created_by == bindparam("actor"), B.once_key == bindparam("key"))
_MAINTENANCE = (
    select(tables.maintenance)
    .where(M.ends_at > bindparam("start"), M.starts_at < bindparam("end"))
    .where(or_(bindparam("model", type_=String) == "", M.model.in_(["", bindparam("model", type_=String)])))
    .order_by(M.starts_at, M.id)
)
_ADD = insert(tables.bookings)
_WRITE_LOG = insert(tables.log)


def _record(row: Row[Any]) -> BookingRecord:
    # In the order of the table's columns: a timeline reads a thousand of these, and by name each takes twice as long.
    cells: tuple[Any, ...] = tuple(row)
    id, person, model, start, planned_end, _, gpus, share, cancelled_at = cells[:9]
    namespace, note, reason, created_at, created_by, version, once_key, once_fingerprint, group = cells[9:]
    return BookingRecord(
        Booking(id, person, model, start, planned_end, gpus, cancelled_at, share, group),
        created_at,
        created_by,
        version,
        namespace,
        note,
        reason,
        IdempotencyKey(once_key, once_fingerprint) if once_key is not None else None,
    )


def _row(record: BookingRecord) -> dict[str, Any]:
    booking = record.booking
    return {
        "id": booking.id,
        "person": booking.user,
        "model": booking.model,
        "starts_at": booking.start,
        "planned_end": booking.end,
        "ends_at": booking.ends,
        "gpus": booking.gpus,
        "share": booking.share,
        "cancelled_at": booking.cancelled_at,
        "namespace": record.namespace,
        "note": record.note,
        "reason": record.reason,
        "created_at": record.created_at,
        "created_by": record.created_by,
        "version": record.version,
        "once_key": record.key.key if record.key else None,
        "once_fingerprint": record.key.fingerprint if record.key else None,
        "group_name": booking.group,
    }


def _group_people(listed: Iterable[Row[Any]], seen: Iterable[Row[Any]]) -> dict[str, list[GroupPerson]]:
    found: dict[str, list[GroupPerson]] = {}
    for row in listed:
        found.setdefault(row.group_name, []).append(GroupPerson(row.person, row.is_manager))
    for row in seen:
        person = GroupPerson(row.person, listed=False, seen_at=row.seen_at)
        found.setdefault(row.group_name, []).append(person)
    return found


def _window(row: Row[Any]) -> Maintenance:
    what = (row.model, row.starts_at, row.ends_at, row.gpus, row.why, row.created_by, row.id)
    return Maintenance(*what, nodes=tuple(row.nodes), single=row.single_gpus)


def _entry(row: Row[Any]) -> LogEntry:
    return LogEntry(row.at, row.actor, row.action, row.subject, row.booking, row.why, row.details, row.number)
