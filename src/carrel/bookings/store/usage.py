"""Usage in the database: what was counted, and how far.

Whoever has counted writes it, in one transaction, together with how far it is counted then; it takes effect only if
nobody has counted further in between. So several replicas may count, and nothing is written twice. After a lost answer,
the progress says whether it was written.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any

import sqlalchemy.dialects.postgresql
import sqlalchemy.dialects.sqlite
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Table,
    cast,
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
    UsageKey,
    UsageQuery,
    UsageSum,
    Within,
    day_of,
    month_of,
    split_by_months,
    steps,
)
from carrel.ids import GpuUuid
from carrel.ledger.tiers import Tier

D, G, M = tables.usage_person_days.c, tables.usage_gpus.c, tables.usage_models.c
P, W = tables.usage_people.c, tables.usage_progress.c
TIERS = {None: tables.UNTIERED, Tier.BOOKED: tables.BOOKED, Tier.OPPORTUNISTIC: tables.OPPORTUNISTIC}
TIER_WORDS = {number: tier.value if tier else "" for tier, number in TIERS.items()}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR_MS = 3_600_000
SUMS = (
    tables.usage_hours,
    tables.usage_days,
    tables.usage_model_days,
    tables.usage_person_days,
    tables.usage_person_months,
)
AT_ONCE = 500
"""Rows of one statement."""


class SqlUsage:
    def __init__(self, database: Database) -> None:
        self._database = database

    # --- reading -----------------------------------------------------------------------------------------------------

    async def sums(self, query: UsageQuery, zone: tzinfo) -> Sequence[UsageSum]:
        """Return what was held, in the order of the steps; where nothing was, there is no sum. `zone`: the lab's."""
        async with self._database.reading() as connection:
            names = await _Names.read(connection, query)
            rows = [row for of in _statements(query, zone, names) for row in await connection.execute(of)]
        starts = {} if query.step is Step.HOUR else {each.first.toordinal(): each.start for each in steps(query, zone)}
        return _sums(query.by, rows, names, starts)

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
        for table in (tables.usage_days, tables.usage_model_days, tables.usage_person_days):
            await self._delete(table, today - DAYS_KEPT.days, 1)
        await self._delete(tables.usage_person_months, month_of(day_of(now - DAYS_KEPT, zone)), 1)
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
            # By the hour, up to its end: in another zone, which the lab may have had, it began earlier.
            end = _minutes(datetime.combine(date.fromordinal(day + 1), time(), zone))
            await self._forget_names_in(connection, tables.usage_hours, 0, end, nobody)
            await self._forget_names_in(connection, tables.usage_days, day, day + 1, nobody)
            await self._forget_names_in(connection, tables.usage_person_days, day, day + 1, nobody)
            await _sum_up_month(connection, date.fromordinal(day))
            unused = P.id.not_in(select(D.person_id).distinct()) & P.id.not_in(_people_after(end))
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


_Key = tuple[Any, ...]
"""Of a sum that is read: its step, and what else it is kept apart by."""


@dataclass(frozen=True, slots=True)
class _Names:
    """What the numbers of models, GPUs and people stand for."""

    models: Mapping[int, str]
    gpus: Mapping[int, str]
    people: Mapping[int, str]
    of_person: Sequence[int] | None
    """The numbers of the only person who is asked for; None: everybody."""

    @classmethod
    async def read(cls, connection: AsyncConnection, query: UsageQuery) -> "_Names":
        models, gpus, people = dict[int, str](), dict[int, str](), dict[int, str]()
        if By.MODEL in query.by:
            models = {row.id: row.model for row in await connection.execute(select(M.id, M.model))}
        if By.GPU in query.by:
            gpus = {row.id: row.gpu for row in await connection.execute(select(G.id, G.gpu))}
        if By.PERSON in query.by or query.person is not None:
            people = {row.id: row.person for row in await connection.execute(select(P.id, P.person))}
        theirs = [number for number, person in people.items() if person == query.person]
        return cls(models, gpus, people, theirs if query.person is not None else None)

    def of(self, by: By) -> Mapping[int, str]:
        return {By.PERSON: self.people, By.MODEL: self.models, By.TIER: TIER_WORDS, By.GPU: self.gpus}[by]


def _statements(query: UsageQuery, zone: tzinfo, names: _Names) -> Iterable[Select[Any]]:
    """Return what is to be read, from the tables in which it is the fewest rows."""
    if query.step is Step.HOUR:
        hour = tables.usage_hours.c.hour
        within = select(hour).where(hour >= _minutes(query.start), hour < _minutes(query.end))
        yield _summed(within, hour, tables.usage_hours, query, names)
        return
    days: Iterable[Within] = [(each.first.toordinal(),) * 2 + (each.last.toordinal(),) for each in steps(query, zone)]
    if By.GPU in query.by:
        yield from _in_steps(days, tables.usage_days, query, names)
    elif By.PERSON not in query.by and query.person is None:
        yield from _in_steps(days, tables.usage_model_days, query, names)
    else:
        if query.step in (Step.MONTH, Step.WHOLE):
            months, days = split_by_months(steps(query, zone))
            yield from _in_steps(months, tables.usage_person_months, query, names)
        yield from _in_steps(days, tables.usage_person_days, query, names)


def _in_steps(times: Iterable[Within], table: Table, query: UsageQuery, names: _Names) -> Iterable[Select[Any]]:
    if rows := list(times):
        named = (column(name, Integer) for name in ("step", "first", "last"))
        wanted, of = values(*named, name="times").data(rows).cte("steps"), table.primary_key.columns[0]
        within = select(wanted.c.step).join_from(wanted, table, (of >= wanted.c.first) & (of < wanted.c.last))
        yield _summed(within, wanted.c.step, table, query, names)


def _summed(
    within: Select[Any], step: ColumnElement[int], table: Table, query: UsageQuery, names: _Names
) -> Select[Any]:
    by: dict[By, ColumnElement[Any]] = {By.TIER: table.c.tier}
    if "model_id" in table.c:
        by[By.MODEL] = table.c.model_id
    elif By.MODEL in query.by:
        within = within.join(tables.usage_gpus, table.c.gpu_id == G.id)
        by[By.MODEL] = G.model_id
    if "person_id" in table.c:
        by[By.PERSON] = table.c.person_id
    if "gpu_id" in table.c:
        by[By.GPU] = table.c.gpu_id
    if names.of_person is not None:
        within = within.where(table.c.person_id.in_(names.of_person))
    wanted = [by[each] for each in By if each in query.by]
    amounts = [cast(func.sum(table.c[name]), BigInteger) for name in AMOUNTS]
    return within.add_columns(*wanted, *amounts).group_by(step, *wanted)


def _sums(
    by: Collection[By], rows: Iterable[Sequence[Any]], names: _Names, starts: Mapping[int, datetime]
) -> Sequence[UsageSum]:
    """Name the rows, and add up those of one name: people whose names were forgotten, a month and the days beside
    it."""
    wanted = [each for each in By if each in by]
    words = [names.of(each) for each in wanted]
    found: dict[_Key, tuple[int, int, int]] = {}
    for step, *numbers, held, known, active in rows:
        key = (step, *(of[each] for of, each in zip(words, numbers, strict=True)))
        other = found.get(key)
        if other is not None:
            held, known, active = held + other[0], known + other[1], active + other[2]
        found[key] = held, known, active
    fields = [each.value for each in wanted]
    sums = []
    for (step, *named), (held, known, active) in sorted(found.items()):
        known = min(known, held)
        active = min(active, known)
        hours = held / HOUR_MS, active / HOUR_MS, (known - active) / HOUR_MS
        start = starts[step] if starts else EPOCH + step * MINUTE
        sums.append(UsageSum(start, *hours, **dict(zip(fields, named, strict=True))))
    return sums


def _people_after(end: int) -> Select[tuple[int]]:
    """Select who has hours in the days after this minute: the days of another zone, which the lab may have had, end
    later than these."""
    hours = tables.usage_hours.c
    return select(hours.person_id).where(hours.hour >= end, hours.hour < end + 2 * 24 * 60).distinct()


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
    rows = [(_fitting(key), amount) for key, amount in sums.items()]
    models = await _numbers(connection, tables.usage_models, {(key.model,) for key, _ in rows})
    gpus = await _numbers(connection, tables.usage_gpus, {(key.gpu, models[(key.model,)]) for key, _ in rows})
    people = await _numbers(connection, tables.usage_people, {(key.person,) for key, _ in rows})
    added = {table: defaultdict[tuple[Any, ...], UsageAmount](UsageAmount) for table in SUMS}
    for key, amount in rows:
        model, day = models[(key.model,)], day_of(key.hour, zone)
        gpu, person, tier = gpus[key.gpu, model], people[(key.person,)], TIERS[key.tier]
        added[tables.usage_hours][_minutes(key.hour), gpu, person, tier] += amount
        added[tables.usage_days][day.toordinal(), gpu, person, tier] += amount
        added[tables.usage_model_days][day.toordinal(), model, tier] += amount
        added[tables.usage_person_days][day.toordinal(), person, model, tier] += amount
        added[tables.usage_person_months][month_of(day), person, model, tier] += amount
    return {table: [_row(table, *each) for each in sorted(of.items())] for table, of in added.items()}


def _row(table: Table, key: tuple[Any, ...], amount: UsageAmount) -> Mapping[str, Any]:
    names = [each.name for each in table.primary_key]
    in_ms = (round(1000 * each) for each in (amount.held, amount.known, amount.active))
    return dict(zip((*names, *AMOUNTS), (*key, *in_ms), strict=True))


def _fitting(key: UsageKey) -> UsageKey:
    """Return it with names that fit into the columns: they come from pods and reports, which may say anything."""
    person, model, gpu = (
        "".join(filter(str.isprintable, text))[:most]
        for text, most in ((key.person, 320), (key.model, 255), (key.gpu, 255))
    )
    return replace(key, person=person, model=model, gpu=GpuUuid(gpu))


async def _sum_up_month(connection: AsyncConnection, day: date) -> None:
    """Sum the month of that day up again."""
    months, month = tables.usage_person_months, month_of(day)
    first = day.replace(day=1)
    last = (first + timedelta(days=31)).replace(day=1)
    amounts = [func.sum(D[name]) for name in AMOUNTS]
    within = select(literal(month), D.person_id, D.model_id, D.tier, *amounts)
    within = within.group_by(D.person_id, D.model_id, D.tier)
    within = within.where(D.day >= first.toordinal(), D.day < last.toordinal())
    await connection.execute(delete(months).where(months.c.month == month))
    await connection.execute(insert(months).from_select([each.name for each in months.c], within))


async def _numbers(
    connection: AsyncConnection, table: Table, wanted: Collection[tuple[Any, ...]]
) -> Mapping[tuple[Any, ...], int]:
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
