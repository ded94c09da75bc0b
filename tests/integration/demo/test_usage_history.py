"""The history of use with which the demo begins."""

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from carrel.bookings.store.database import Database
from carrel.bookings.store.usage import SqlUsage
from carrel.bookings.usage.sums import By, Counted, Gap, Step, UsageQuery, UsageSum
from carrel.demo.bookings import history, make_bookings
from carrel.demo.run import example_nodes
from carrel.demo.usage_history import UsageHistory, write_usage_history
from carrel.ids import GpuUuid

DAY = timedelta(days=1)
NOW = datetime(2026, 11, 16, 12, 20, tzinfo=UTC)


def a_history(seed: int = 1) -> UsageHistory:
    return UsageHistory(example_nodes(), (), NOW - 28 * DAY, NOW, UTC, Random(seed))


def test_the_same_seed_gives_the_same_history() -> None:
    assert a_history().write() == a_history().write()
    assert a_history().write() != a_history(2).write()


def test_no_gpu_is_held_for_longer_than_there_is_time() -> None:
    held: dict[tuple[datetime, GpuUuid], float] = {}
    for key, amount in a_history().write().items():
        place = key.hour, key.gpu
        held[place] = held.get(place, 0.0) + amount.held
        assert 0 <= amount.active <= amount.known <= amount.held
    last = NOW.replace(minute=0)
    assert max(held.values()) <= 3600
    assert max(seconds for (hour, _), seconds in held.items() if hour == last) <= 1200


@pytest.fixture
async def written(tmp_path: Path) -> tuple[list[UsageSum], Counted, list[Gap]]:
    url, nodes, random = f"sqlite:///{tmp_path}/bookings.db", example_nodes(), Random(1)
    await make_bookings(url, nodes, history(28, nodes, random), ())
    await write_usage_history(url, nodes, 28, random, UTC)
    async with aclosing(Database(url)) as database:
        usage, now = SqlUsage(database), datetime.now(UTC)
        query = UsageQuery(now - 28 * DAY, now, Step.WHOLE, (By.PERSON, By.TIER))
        return [*await usage.sums(query, UTC)], await usage.counted(), [*await usage.gaps(now - 30 * DAY, now)]


async def test_people_have_habits_and_the_service_was_away_once(
    written: tuple[list[UsageSum], Counted, list[Gap]],
) -> None:
    sums, counted, gaps = written
    of = {(each.person, each.tier): each for each in sums}
    hoarder, trains = of["hal@lab.example", "opportunistic"], of["nia@lab.example", "opportunistic"]
    assert hoarder.active == 0 and hoarder.idle > 0.9 * hoarder.held > 500
    assert trains.active > 0.8 * trains.held > 20
    notebooks = of["lab@lab.example", "opportunistic"]
    assert 0.2 < notebooks.active / notebooks.held < 0.5
    booked = [each for each in sums if each.tier == "booked"]
    assert len(booked) > 10 and any(each.unknown > 0.9 * each.held for each in booked), "a counter is stuck"
    assert counted.since is not None and counted.until is not None
    assert counted.until - counted.since == 28 * DAY
    assert [gap.end - gap.start for gap in gaps] == [timedelta(hours=7)]


async def test_without_days_there_is_no_history(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bookings.db"
    await make_bookings(url, example_nodes(), (), ())
    await write_usage_history(url, example_nodes(), 0, Random(1), UTC)
    async with aclosing(Database(url)) as database:
        assert (await SqlUsage(database).counted()).since is None
