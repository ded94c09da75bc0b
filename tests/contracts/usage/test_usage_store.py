"""What the database promises about usage, on SQLite and on PostgreSQL."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select

from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.tables import usage_people
from carrel.bookings.store.usage import SqlUsage
from carrel.bookings.usage.sums import (
    DAYS_KEPT,
    By,
    Counted,
    Gap,
    GpuTotals,
    Progress,
    Step,
    UsageAmount,
    UsageKey,
    UsageQuery,
    UsageSum,
    hour_of,
)
from carrel.ids import GpuUuid
from carrel.ledger.tiers import Tier

STOCKHOLM = ZoneInfo("Europe/Stockholm")
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
G1, G2 = GpuUuid("GPU-1"), GpuUuid("GPU-2")
WHOLE_HOUR = UsageAmount(3600)


def key(hour: datetime, person: str = "ada@lab.org", gpu: GpuUuid = G1, tier: Tier | None = Tier.BOOKED) -> UsageKey:
    return UsageKey(hour_of(hour, STOCKHOLM), gpu, "A100" if gpu == G1 else "T4", person, tier)


async def write(usage: SqlUsage, sums: dict[UsageKey, UsageAmount], until: datetime) -> None:
    seen = await usage.progress()
    assert await usage.write(seen.until if seen else None, Progress(until), sums, STOCKHOLM)


async def all_sums(usage: SqlUsage, query: UsageQuery) -> list[UsageSum]:
    return list(await usage.sums(query, STOCKHOLM))


async def test_what_was_written_is_read_by_whatever_is_asked_for(usage: SqlUsage) -> None:
    sums = {
        key(NOON): UsageAmount(3600, 1800, 900),
        key(NOON, "bob@lab.org", G2, Tier.OPPORTUNISTIC): UsageAmount(1800),
        key(NOON + HOUR, "", G2, None): UsageAmount(900),
    }
    await write(usage, sums, NOON + 2 * HOUR)

    whole = UsageQuery(NOON, NOON + 2 * HOUR)
    midnight = datetime(2026, 11, 15, 23, tzinfo=UTC)
    assert await all_sums(usage, whole) == [
        UsageSum(midnight, 1.0, 0.25, 0.25, model="A100"),
        UsageSum(midnight, 0.75, 0.0, 0.0, model="T4"),
    ]
    by_person = UsageQuery(NOON, NOON + 2 * HOUR, Step.HOUR, (By.PERSON, By.TIER, By.GPU))
    assert await all_sums(usage, by_person) == [
        UsageSum(NOON, 1.0, 0.25, 0.25, person="ada@lab.org", tier="booked", gpu=G1),
        UsageSum(NOON, 0.5, person="bob@lab.org", tier="opportunistic", gpu=G2),
        UsageSum(NOON + HOUR, 0.25, person="", tier="", gpu=G2),
    ]
    assert (await all_sums(usage, by_person))[0].unknown == 0.5
    only_bobs = UsageQuery(NOON, NOON + DAY, Step.DAY, (By.GPU,), person="bob@lab.org")
    assert await all_sums(usage, only_bobs) == [UsageSum(midnight, 0.5, gpu=G2)]


async def test_weeks_and_months_are_those_of_the_lab_also_where_the_clock_is_changed(usage: SqlUsage) -> None:
    first = datetime(2026, 10, 23, 22, tzinfo=UTC)  # Saturday 0:00 in Stockholm; on Sunday summer time ends
    hours = {key(first + number * HOUR): WHOLE_HOUR for number in range(49 + 7 * 24 + 24)}
    await write(usage, hours, first + len(hours) * HOUR)

    async def found(step: Step) -> list[tuple[datetime, float]]:
        query = UsageQuery(first, first + len(hours) * HOUR, step, ())
        return [(each.start, each.held) for each in await all_sums(usage, query)]

    days = await found(Step.DAY)
    assert days[:3] == [(first, 24.0), (first + DAY, 25.0), (first + 2 * DAY + HOUR, 24.0)]
    assert await found(Step.WEEK) == [
        (first, 49.0),
        (first + 49 * HOUR, 168.0),
        (first + (49 + 168) * HOUR, 24.0),
    ]
    november = datetime(2026, 10, 31, 23, tzinfo=UTC)
    assert await found(Step.MONTH) == [(first, 193.0), (november, 48.0)]
    assert await found(Step.WHOLE) == [(first, 241.0)]


async def test_a_day_begins_when_it_does_in_a_lab_half_an_hour_beside_the_others(usage: SqlUsage) -> None:
    kolkata = ZoneInfo("Asia/Kolkata")
    midnight = datetime(2026, 11, 16, 18, 30, tzinfo=UTC)
    assert hour_of(midnight - timedelta(minutes=1), kolkata) == midnight - HOUR
    sums = {UsageKey(each, G1, "A100"): WHOLE_HOUR for each in (midnight - HOUR, midnight)}
    assert await usage.write(None, Progress(midnight + HOUR), sums, kolkata)

    found = await usage.sums(UsageQuery(midnight - HOUR, midnight + HOUR, Step.DAY, ()), kolkata)
    assert [(each.start, each.held) for each in found] == [(midnight - DAY, 1.0), (midnight, 1.0)]


async def test_only_who_has_seen_how_far_it_is_counted_writes(usage: SqlUsage) -> None:
    assert await usage.counted() == Counted()
    assert await usage.progress() is None
    totals = {G1: GpuTotals(NOON, NOON - DAY, NOON, 86_000.0, 3_600.5)}
    assert await usage.write(None, Progress(NOON, totals), {}, STOCKHOLM)
    assert await usage.progress() == Progress(NOON, totals)

    later = Progress(NOON + HOUR)
    assert not await usage.write(None, later, {key(NOON): WHOLE_HOUR}, STOCKHOLM)
    assert await usage.write(NOON, later, {key(NOON): WHOLE_HOUR}, STOCKHOLM)
    assert not await usage.write(NOON, later, {key(NOON): WHOLE_HOUR}, STOCKHOLM)

    assert await usage.counted() == Counted(NOON, NOON + HOUR)
    assert [each.held for each in await all_sums(usage, UsageQuery(NOON, NOON + HOUR))] == [1.0]


async def test_what_is_written_later_of_an_hour_is_added(usage: SqlUsage) -> None:
    await write(usage, {key(NOON): UsageAmount(60.5, 60, 0)}, NOON)
    await write(usage, {key(NOON): UsageAmount(60.5, 60, 60)}, NOON + HOUR)

    (found,) = await all_sums(usage, UsageQuery(NOON, NOON + HOUR, Step.HOUR, (By.GPU,)))
    assert (found.held, found.active, found.idle) == pytest.approx((121 / 3600, 60 / 3600, 60 / 3600))


async def test_gaps_are_found_where_they_are(usage: SqlUsage) -> None:
    gap = Gap(NOON + HOUR, NOON + 2 * HOUR)
    assert await usage.write(None, Progress(NOON + 2 * HOUR), {}, STOCKHOLM, [gap])

    assert await usage.gaps(NOON, NOON + HOUR) == []
    assert await usage.gaps(NOON, NOON + HOUR * 1.5) == [gap]
    assert await usage.gaps(gap.end, gap.end + DAY) == []


async def test_a_person_who_is_removed_leaves_sums_without_a_name(database: Database, usage: SqlUsage) -> None:
    await write(usage, {key(NOON): WHOLE_HOUR, key(NOON, "bob@lab.org"): WHOLE_HOUR}, NOON + HOUR)

    async with SqlBookings(database).writing() as writing:
        await writing.forget_person("ada@lab.org", NOON)
    await write(usage, {key(NOON + HOUR, "ada@lab.org"): WHOLE_HOUR, key(NOON + HOUR, ""): WHOLE_HOUR}, NOON + 2 * HOUR)

    found = await all_sums(usage, UsageQuery(NOON, NOON + 2 * HOUR, Step.HOUR, (By.PERSON,)))
    assert [(each.start, each.person, each.held) for each in found] == [
        (NOON, "", 1.0),
        (NOON, "bob@lab.org", 1.0),
        (NOON + HOUR, "", 1.0),
        (NOON + HOUR, "ada@lab.org", 1.0),  # a pod of hers runs on
    ]


async def test_sums_lose_their_names_after_some_days_and_stay(database: Database, usage: SqlUsage) -> None:
    people = ["ada@lab.org", "bob@lab.org", ""]
    days = [key(NOON - number * DAY, who) for number in range(1, 12) for who in people]
    await write(usage, dict.fromkeys(days, UsageAmount(3600, 1800, 900)), NOON)
    query = UsageQuery(NOON - 12 * DAY, NOON, Step.DAY, (By.PERSON, By.GPU))

    for _ in range(2):
        await usage.forget(NOON, STOCKHOLM, 10 * DAY)

        found = await all_sums(usage, query)
        assert [(each.person, each.held, each.active) for each in found[:4]] == [
            ("", 3.0, 0.75),
            ("", 1.0, 0.25),
            ("ada@lab.org", 1.0, 0.25),
            ("bob@lab.org", 1.0, 0.25),
        ]
        assert sum(each.held for each in found) == 33.0
        for step in (Step.HOUR, Step.WHOLE):
            same = replace(query, step=step, by=(By.PERSON,))
            by_person = Counter[str]()
            for each in await all_sums(usage, same):
                by_person[each.person or ""] += round(each.held)
            assert by_person == {"": 13, "ada@lab.org": 10, "bob@lab.org": 10}

    await usage.forget(NOON + 20 * DAY, STOCKHOLM, 10 * DAY)
    async with database.reading() as connection:
        assert list((await connection.execute(select(usage_people.c.person))).scalars()) == [""], "no name is left"


async def test_hours_are_deleted_after_90_days_and_days_after_three_years(usage: SqlUsage) -> None:
    ages = [1, 89, 91, 1095, 1097]
    await write(usage, {key(NOON - age * DAY): WHOLE_HOUR for age in ages}, NOON)
    assert await usage.write(NOON, Progress(NOON + HOUR), {}, STOCKHOLM, [Gap(NOON - 1200 * DAY, NOON - 1199 * DAY)])

    await usage.forget(NOON, STOCKHOLM, DAYS_KEPT)

    async def ages_of(step: Step, by: By) -> list[int]:
        found = await all_sums(usage, UsageQuery(NOON - 1200 * DAY, NOON, step, (by,)))
        return [(NOON - each.start) // DAY for each in found]

    assert await ages_of(Step.HOUR, By.GPU) == [89, 1]
    assert await ages_of(Step.DAY, By.GPU) == [1095, 91, 89, 1]
    assert await ages_of(Step.DAY, By.PERSON) == [1095, 91, 89, 1]
    assert await usage.gaps(NOON - 1200 * DAY, NOON) == []


async def test_absurd_names_of_pods_and_gpus_are_kept_as_far_as_they_fit(usage: SqlUsage) -> None:
    names = ["a\x00b", "ab", "\ud800x", "y" * 5000]
    sums = {UsageKey(NOON, GpuUuid("G" * 999), "M\x00" * 999, name, None): WHOLE_HOUR for name in names}
    await write(usage, sums, NOON + HOUR)

    found = await all_sums(usage, UsageQuery(NOON, NOON + HOUR, Step.WHOLE, (By.PERSON, By.MODEL)))
    assert {each.person: each.held for each in found} == {"ab": 2.0, "x": 1.0, "y" * 320: 1.0}
    assert {each.model for each in found} == {"M" * 255}


@pytest.mark.parametrize("now_in", [STOCKHOLM, ZoneInfo("America/New_York"), ZoneInfo("Asia/Tokyo")], ids=str)
async def test_hours_are_read_after_names_were_forgotten_also_if_the_lab_has_moved_since(
    usage: SqlUsage, now_in: ZoneInfo
) -> None:
    since = NOON - 12 * DAY
    hours = [since + number * HOUR for number in range(-12, 12)]
    assert await usage.write(None, Progress(NOON), {key(hour): WHOLE_HOUR for hour in hours}, STOCKHOLM)

    await usage.forget(NOON, now_in, 10 * DAY)

    query = UsageQuery(NOON - 14 * DAY, NOON, Step.HOUR, (By.PERSON,))
    found = await usage.sums(query, now_in)
    assert sum(each.held for each in found) == 24
