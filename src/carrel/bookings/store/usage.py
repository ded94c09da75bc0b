"""Usage in the database: what was counted, and how far.

Whoever has counted writes it, in one transaction, together with how far it is counted then; it takes effect only if
nobody has counted further in between. So several replicas may count, and nothing is written twice. After a lost answer,
the progress says whether it was written.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any

import sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite
from sqlalchemy import (
    Column,
    Integer,
    Row,
    Select,
    Table,
    column,
    delete,
    func,
    insert,
    literal,
    select,
    update,
    values,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from carrel.bookings.store import tables
from carrel.bookings.store.database import Database
from carrel.bookings.usage.sums import (
    DAYS_KEPT,
    HOURS_KEPT,
    By,
    Counted,
    Gap,
    GpuTotals,
    Progress,
    Step,
    Sums,
    UsageAmount,
    UsageQuery,
    UsageSum,
    day_of,
    steps,
)
from carrel.ids import GpuUuid
from carrel.ledger.tiers import Tier

G, P, W = tables.usage_gpus.c, tables.usage_people.c, tables.usage_progress.c
TIERS = {None: tables.UNTIERED, Tier.BOOKED: tables.BOOKED, Tier.OPPORTUNISTIC: tables.OPPORTUNISTIC}
TIER_WORDS = {number: tier.value if tier else "" for tier, number in TIERS.items()}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR_MS = 3_600_000
AT_ONCE = 500
"""Rows of one statement."""


class SqlUsage:
    def __init__(self, database: Database) -> None:
        self._database = database

    # --- reading -----------------------------------------------------------------------------------------------------

    async def sums(self, query: UsageQuery, zone: tzinfo) -> Sequence[UsageSum]:
        """Return what was held, in the order of the steps; where nothing was, there is no sum. `zone`: the lab's."""
        if query.step is Step.HOUR:
            starts, statement = None, _of_hours(query)
        else:
            of = steps(query, zone)
            starts, statement = {each.first.toordinal(): each.start for each in of}, _of_days(query, of)
            if not of:
                return ()
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).all()
        return [_sum(row, starts, query.by) for row in rows]

    async def counted(self) -> Counted:
        async with self._database.reading() as connection:
            row = (await connection.execute(select(W.counted_since, W.counted_until))).one_or_none()
        return Counted(row.counted_since, row.counted_until) if row is not None else Counted()

    async def gaps(self, start: datetime, end: datetime) -> Sequence[Gap]:
        """Return those that are at least partly between these, the earliest first."""
        gaps = tables.usage_gaps.c
        found = select(tables.usage_gaps).where(gaps.starts_at < end, gaps.ends_at > start).order_by(gaps.starts_at)
        async with self._database.reading() as connection:
            return [Gap(row.starts_at, row.ends_at) for row in await connection.execute(found)]

    async def progress(self) -> Progress | None:
        """None: nothing was counted yet."""
        async with self._database.reading() as connection:
            row = (await connection.execute(select(W.counted_until, W.totals))).one_or_none()
        return Progress(row.counted_until, _read_totals(row.totals)) if row is not None else None

    # --- writing -----------------------------------------------------------------------------------------------------

    async def write(
        self, seen: datetime | None, progress: Progress, sums: Sums, zone: tzinfo, gaps: Iterable[Gap] = ()
    ) -> bool:
        """Add these sums if usage was counted until `seen` (None: never), and is until `progress` then. Returns whether
        that was so; if not, nothing is changed."""
        async with self._database.writing() as connection:
            if not await _moved(connection, seen, progress):
                return False
            rows = await _rows(connection, sums, zone)
            for table, of in rows.items():
                await self._add(connection, table, of)
            for gap in gaps:
                row = {"starts_at": gap.start, "ends_at": gap.end}
                await connection.execute(self._insert(tables.usage_gaps).on_conflict_do_nothing(), row)
            return True

    async def forget(self, now: datetime, zone: tzinfo, names_kept: timedelta) -> None:
        """Delete what has been kept for long enough, and take the names out of older sums. In small transactions: a
        booking never waits long for this."""
        today = day_of(now, zone).toordinal()
        await self._delete(tables.usage_hours, _minutes(now - HOURS_KEPT), 60)
        for table in (tables.usage_gpu_days, tables.usage_model_days):
            await self._delete(table, today - DAYS_KEPT.days, 1)
        async with self._database.reading() as connection:
            old = tables.usage_gaps.c.ends_at < now - DAYS_KEPT
            has_old = (await connection.execute(select(tables.usage_gaps).where(old).limit(1))).first() is not None
        if has_old:
            async with self._database.writing() as connection:
                await connection.execute(delete(tables.usage_gaps).where(old))
        while await self._forget_names(today - names_kept.days, zone):
            pass

    async def _delete(self, table: Table, before: int, step: int) -> None:
        """Delete the rows of each time before this one, so much of the time at once."""
        of = table.primary_key.columns[0]
        async with self._database.reading() as connection:
            first = (await connection.execute(select(func.min(of)))).scalar()
        while first is not None and first < before:
            async with self._database.writing() as connection:
                await connection.execute(delete(table).where(of < min(first + step, before)))
                first = (await connection.execute(select(func.min(of)))).scalar()

    async def _forget_names(self, before: int, zone: tzinfo) -> bool:
        """Take the names out of the sums of one day before this one. Returns whether there was one."""
        days = tables.usage_model_days
        async with self._database.reading() as connection:
            mark = select(tables.marks.c.number).where(tables.marks.c.name == NAMELESS)
            until = (await connection.execute(mark)).scalar() or 0
            named = select(func.min(days.c.day)).where(days.c.day >= until, days.c.day < before)
            day = (await connection.execute(named)).scalar()
        if day is None:
            return False
        async with self._database.writing() as connection:
            nobody = (await _numbers(connection, tables.usage_people, {("",)}))[("",)]
            hours = [_minutes(datetime.combine(date.fromordinal(each), time(), zone)) for each in (day, day + 1)]
            await self._forget_names_in(connection, tables.usage_hours, hours[0], hours[1], nobody)
            await self._forget_names_in(connection, tables.usage_gpu_days, day, day + 1, nobody)
            await self._forget_names_in(connection, days, day, day + 1, nobody)
            unused = P.id.not_in(select(days.c.person_id))
            await connection.execute(delete(tables.usage_people).where(P.id != nobody, unused))
            upsert = self._insert(tables.marks).values(name=NAMELESS, number=day + 1)
            await connection.execute(upsert.on_conflict_do_update(index_elements=["name"], set_={"number": day + 1}))
        return True

    async def _forget_names_in(
        self, connection: AsyncConnection, table: Table, first: int, last: int, nobody: int
    ) -> None:
        of = table.primary_key.columns[0]
        named = (of >= first) & (of < last) & (table.c.person_id != nobody)
        others = [each for each in table.primary_key if each.name != "person_id"]
        amounts = [func.sum(table.c[name]) for name in AMOUNTS]
        summed = select(*others, literal(nobody), *amounts).where(named).group_by(*others)
        new = self._insert(table).from_select([*(each.name for each in others), "person_id", *AMOUNTS], summed)
        await connection.execute(_adding(new, table))
        await connection.execute(delete(table).where(named))

    async def _add(self, connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        statement = _adding(self._insert(table), table)
        for first in range(0, len(rows), AT_ONCE):
            await connection.execute(statement, rows[first : first + AT_ONCE])

    @property
    def _insert(self) -> Callable[[Table], Any]:
        return sqlalchemy.dialects.sqlite.insert if self._database.is_sqlite else sqlalchemy.dialects.postgresql.insert


NAMELESS = "usage names"
"""The mark: of the days before this one, sums have no names any more."""
AMOUNTS = ("held_ms", "known_ms", "active_ms")


def _adding(new: Any, table: Table) -> Any:
    """Add the rows to those that there are."""
    added = {name: table.c[name] + new.excluded[name] for name in AMOUNTS}
    return new.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)


# --- what is read ----------------------------------------------------------------------------------------------------


def _of_hours(query: UsageQuery) -> Select[Any]:
    table = tables.usage_hours
    hour = table.c.hour
    within = select(hour.label("step")).where(hour >= _minutes(query.start), hour < _minutes(query.end))
    return _summed(within, table, query)


def _of_days(query: UsageQuery, of: Sequence[Any]) -> Select[Any]:
    table = tables.usage_gpu_days if By.GPU in query.by else tables.usage_model_days
    days = [(each.first.toordinal(), each.last.toordinal()) for each in of]
    times = values(column("first", Integer), column("last", Integer), name="days").data(days).cte("steps")
    day = table.c.day
    within = select(times.c.first.label("step")).join_from(times, table, (day >= times.c.first) & (day < times.c.last))
    return _summed(within, table, query)


def _summed(within: Select[Any], table: Table, query: UsageQuery) -> Select[Any]:
    people, gpus = tables.usage_people, tables.usage_gpus
    names: dict[By, Column[Any]] = {By.TIER: table.c.tier}
    if By.PERSON in query.by or query.person is not None:
        within = within.join(people, people.c.id == table.c.person_id)
        names[By.PERSON] = people.c.person
    if "model" in table.c:
        names[By.MODEL] = table.c.model
    elif By.GPU in query.by or By.MODEL in query.by:
        within = within.join(gpus, gpus.c.id == table.c.gpu_id)
        names |= {By.MODEL: gpus.c.model, By.GPU: gpus.c.gpu}
    if query.person is not None:
        within = within.where(people.c.person == query.person)
    by = [names[each] for each in By if each in query.by]
    step = within.selected_columns.step
    amounts = [func.sum(table.c[name]).label(name) for name in AMOUNTS]
    return within.add_columns(*by, *amounts).group_by(step, *by).order_by(step, *by)


def _sum(row: Row[Any], starts: Mapping[int, datetime] | None, by: Collection[By]) -> UsageSum:
    held = int(row.held_ms)
    known = min(int(row.known_ms), held)
    active = min(int(row.active_ms), known)
    return UsageSum(
        start=starts[row.step] if starts is not None else EPOCH + row.step * MINUTE,
        held=held / HOUR_MS,
        active=active / HOUR_MS,
        idle=(known - active) / HOUR_MS,
        model=row.model if By.MODEL in by else None,
        person=row.person if By.PERSON in by else None,
        tier=TIER_WORDS[row.tier] if By.TIER in by else None,
        gpu=GpuUuid(row.gpu) if By.GPU in by else None,
    )


def _minutes(at: datetime) -> int:
    return -((EPOCH - at) // MINUTE)


# --- what is written -------------------------------------------------------------------------------------------------


async def _moved(connection: AsyncConnection, seen: datetime | None, progress: Progress) -> bool:
    moved = {"counted_until": progress.until, "totals": _written_totals(progress.totals)}
    if seen is not None:
        step = update(tables.usage_progress).where(W.counted_until == seen).values(moved)
        return (await connection.execute(step)).rowcount == 1
    if (await connection.execute(select(W.number))).first() is not None:
        return False
    first = {"number": 1, "counted_since": progress.until, **moved}
    await connection.execute(insert(tables.usage_progress).values(first))
    return True


async def _rows(connection: AsyncConnection, sums: Sums, zone: tzinfo) -> Mapping[Table, Sequence[Mapping[str, Any]]]:
    gpus = await _numbers(connection, tables.usage_gpus, {(key.gpu, key.model) for key in sums})
    people = await _numbers(connection, tables.usage_people, {(key.person,) for key in sums})
    added: dict[Table, dict[tuple[Any, ...], UsageAmount]] = {
        table: defaultdict(UsageAmount)
        for table in (tables.usage_hours, tables.usage_gpu_days, tables.usage_model_days)
    }
    for key, amount in sums.items():
        gpu, day = gpus[key.gpu, key.model], day_of(key.hour, zone).toordinal()
        whose = people[(key.person,)], TIERS[key.tier]
        added[tables.usage_hours][_minutes(key.hour), gpu, *whose] += amount
        added[tables.usage_gpu_days][day, gpu, *whose] += amount
        added[tables.usage_model_days][day, key.model, *whose] += amount
    return {table: [_row(table, *each) for each in sorted(of.items())] for table, of in added.items()}


def _row(table: Table, key: tuple[Any, ...], amount: UsageAmount) -> Mapping[str, Any]:
    names = [each.name for each in table.primary_key]
    in_ms = (round(1000 * each) for each in (amount.held, amount.known, amount.active))
    return dict(zip((*names, *AMOUNTS), (*key, *in_ms), strict=True))


async def _numbers(
    connection: AsyncConnection, table: Table, wanted: Collection[tuple[str, ...]]
) -> Mapping[tuple[str, ...], int]:
    """Return the number of each, also of those that are new. Writers are serialised: nobody else adds the same."""
    number, *named = table.c
    known = {tuple(row[1:]): row.id for row in await connection.execute(select(number, *named).order_by(number.desc()))}
    for each in sorted(set(wanted) - set(known)):
        row = dict(zip((column.name for column in named), each, strict=True))
        known[each] = (await connection.execute(insert(table).values(row).returning(number))).scalar_one()
    return known


def _written_totals(totals: Mapping[GpuUuid, GpuTotals]) -> Mapping[str, Any]:
    return {
        gpu: [each.at.isoformat(), each.since.isoformat(), each.until.isoformat(), each.sampled, each.active]
        for gpu, each in totals.items()
    }


def _read_totals(kept: Mapping[str, Any]) -> Mapping[GpuUuid, GpuTotals]:
    return {
        GpuUuid(gpu): GpuTotals(_instant(at), _instant(since), _instant(until), *sums)
        for gpu, (at, since, until, *sums) in kept.items()
    }


_instant = datetime.fromisoformat
