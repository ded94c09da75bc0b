"""How busy a GPU was in each of the last ten minutes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from carrel.cli.recent_minutes import RecentMinutes
from carrel.ledger.gpu_usage import GpuUsage

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
FIRST = GpuUsage(NOON - HOUR, NOON, sampled=HOUR, busy=HOUR / 2)
"""It has computed until now, as far as is known."""


def later(usage: GpuUsage, passed: timedelta, busy: timedelta, sampled: timedelta | None = None) -> GpuUsage:
    known = passed if sampled is None else sampled
    return replace(usage, until=usage.until + passed, sampled=usage.sampled + known, busy=usage.busy + busy)


def parts(recent: RecentMinutes, now: datetime) -> list[float | None]:
    return [None if part is None else round(part, 2) for part in recent.parts(now)]


def test_before_the_first_report_nothing_is_known() -> None:
    assert parts(RecentMinutes(FIRST), NOON) == [None] * 10


def test_a_gpu_that_has_long_not_computed_is_known_to_have_been_idle() -> None:
    quiet = replace(FIRST, sampled_since=NOON - HOUR, last_active=NOON - 4 * MINUTE)

    assert parts(RecentMinutes(quiet), NOON - SECOND) == [*[None] * 6, *[0.0] * 4]


def test_each_minute_has_its_own_part() -> None:
    recent, usage = RecentMinutes(FIRST), FIRST
    for busy in (60, 60, 30, 0):
        for _ in range(4):
            usage = later(usage, MINUTE / 4, busy * SECOND / 4)
            recent.add(usage)

    assert parts(recent, usage.until - SECOND) == [*[None] * 6, 1.0, 1.0, 0.5, 0.0]


def test_reports_that_were_missed_cost_resolution_and_no_time() -> None:
    recent = RecentMinutes(FIRST)
    recent.add(later(FIRST, 4 * MINUTE, MINUTE))

    assert parts(recent, NOON + 4 * MINUTE - SECOND) == [*[None] * 6, *[0.25] * 4]


def test_old_minutes_go() -> None:
    recent, usage = RecentMinutes(FIRST), FIRST
    for _ in range(30):
        usage = later(usage, MINUTE, MINUTE)
        recent.add(usage)

    assert parts(recent, usage.until - SECOND) == [1.0] * 10
    assert parts(recent, usage.until + 5 * MINUTE - SECOND) == [*[1.0] * 5, *[None] * 5]
    assert parts(recent, usage.until + 5 * HOUR) == [None] * 10


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(GpuUsage(NOON, NOON + MINUTE), id="sums that begin anew"),
        pytest.param(later(FIRST, MINUTE, -MINUTE), id="a counter that jumps back"),
        pytest.param(later(FIRST, -HOUR, MINUTE), id="a report older than the last, as of a clock that was corrected"),
        pytest.param(later(FIRST, MINUTE, HOUR), id="more work than time"),
        pytest.param(later(FIRST, MINUTE, timedelta(), timedelta()), id="a driver that does not say how busy it is"),
        pytest.param(later(FIRST, MINUTE, SECOND, SECOND), id="a minute of which one second is known"),
        pytest.param(later(FIRST, 10_000 * 365 * HOUR, timedelta(), timedelta()), id="a clock that is years ahead"),
    ],
)
def test_a_report_that_does_not_continue_the_last_one_says_nothing_and_the_next_one_counts_again(odd: GpuUsage) -> None:
    recent = RecentMinutes(FIRST)
    recent.add(odd)
    assert parts(recent, odd.until) == [None] * 10

    recent.add(later(odd, MINUTE, MINUTE))
    assert 1.0 in parts(recent, odd.until + MINUTE)
