"""Whether a GPU is active or idle, and for which part of the last hour it was active."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.ledger.gpu_activity import (
    FRESH,
    IDLE_AFTER,
    REMEMBERED,
    STEP,
    ActivePart,
    ActivityState,
    GpuActivity,
    RecentSums,
    UnknownWhy,
    activity_of,
    for_one_of_several,
    of_all,
)
from carrel.ledger.gpu_usage import GpuSample, GpuUsage
from carrel.ledger.gpus import MiB

NOW = datetime(2026, 11, 16, 14, 30, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
QUIET = GpuSample(0.0, MiB(9000), 55.0)
BUSY = GpuSample(0.9, MiB(9000), 280.0)
LOWEST = 25.0
ACTIVE, NEW, IDLE, UNKNOWN = ActivityState.ACTIVE, ActivityState.NEW, ActivityState.IDLE, ActivityState.UNKNOWN


def a_usage(last: timedelta | None = None, latest: GpuSample = QUIET, age: timedelta = 10 * MINUTE / 60) -> GpuUsage:
    """Sampled without a gap for a day. `last`: so long ago it computed; `age`: of the report."""
    active = None if last is None else NOW - last
    return GpuUsage(NOW - 24 * HOUR, NOW - age, latest, last_active=active, sampled_since=NOW - 24 * HOUR)


HELD_LONG = NOW - 5 * HOUR


@pytest.mark.parametrize(
    ("usage", "held_since", "expected"),
    [
        pytest.param(a_usage(2 * MINUTE), HELD_LONG, (ACTIVE, NOW - 2 * MINUTE, None), id="computed two minutes ago"),
        pytest.param(a_usage(29 * MINUTE), HELD_LONG, (ACTIVE, NOW - 29 * MINUTE, None), id="not yet half an hour"),
        pytest.param(a_usage(IDLE_AFTER), HELD_LONG, (IDLE, NOW - IDLE_AFTER, None), id="half an hour is idle"),
        pytest.param(a_usage(None), HELD_LONG, (IDLE, HELD_LONG, None), id="never computed, since it is held"),
        pytest.param(
            a_usage(6 * HOUR), HELD_LONG, (IDLE, HELD_LONG, None), id="what was before its pod came is not the pod's"
        ),
        pytest.param(a_usage(6 * HOUR), NOW - MINUTE, (NEW, NOW - 6 * HOUR, None), id="held for a minute"),
        pytest.param(a_usage(None), None, (IDLE, NOW - 24 * HOUR, None), id="nobody knows since when it is held"),
        pytest.param(
            replace(a_usage(3 * HOUR), sampled_since=NOW - 10 * MINUTE),
            HELD_LONG,
            (ACTIVE, NOW - 3 * HOUR, None),
            id="it may have computed while nobody looked",
        ),
        pytest.param(
            replace(a_usage(3 * HOUR), sampled_since=NOW - 40 * MINUTE),
            HELD_LONG,
            (IDLE, NOW - 40 * MINUTE, None),
            id="idle since somebody looks again",
        ),
        pytest.param(None, HELD_LONG, (UNKNOWN, None, UnknownWhy.NO_REPORT), id="no report"),
        pytest.param(
            a_usage(HOUR, age=FRESH + MINUTE),
            HELD_LONG,
            (UNKNOWN, NOW - FRESH - MINUTE, UnknownWhy.OLD_REPORT),
            id="an old report says nothing about now",
        ),
        pytest.param(
            a_usage(HOUR, age=-HOUR),
            HELD_LONG,
            (UNKNOWN, NOW + HOUR, UnknownWhy.OLD_REPORT),
            id="a clock an hour ahead",
        ),
        pytest.param(
            a_usage(None, GpuSample(None, MiB(9000))),
            HELD_LONG,
            (UNKNOWN, None, UnknownWhy.NO_COUNTER),
            id="a MIG slice does not say how busy it is",
        ),
        pytest.param(
            a_usage(HOUR, GpuSample(0.0, MiB(9000))),
            HELD_LONG,
            (UNKNOWN, NOW - HOUR, UnknownWhy.NO_POWER),
            id="one sign alone makes no GPU idle",
        ),
        pytest.param(
            a_usage(None, replace(QUIET, power_watts=230.0)),
            HELD_LONG,
            (UNKNOWN, HELD_LONG, UnknownWhy.CONTRADICTION),
            id="a counter that is stuck at 0",
        ),
    ],
)
def test_what_a_gpu_does_for_who_holds_it(
    usage: GpuUsage | None,
    held_since: datetime | None,
    expected: tuple[ActivityState, datetime | None, UnknownWhy | None],
) -> None:
    found = activity_of(usage, NOW, held_since, LOWEST)
    assert (found.state, found.since, found.why) == expected


def test_without_the_power_of_a_gpu_of_its_model_nothing_can_be_compared() -> None:
    assert activity_of(a_usage(HOUR), NOW, HELD_LONG, None).why is UnknownWhy.NO_POWER


def test_of_a_shared_gpu_only_idleness_is_known_of_each() -> None:
    idle = GpuActivity(IDLE, NOW - 2 * HOUR)
    working = GpuActivity(ACTIVE, NOW, recent=ActivePart(NOW - HOUR, NOW, HOUR, HOUR), latest=BUSY)

    assert for_one_of_several(working, HELD_LONG, NOW) == GpuActivity(UNKNOWN, None, UnknownWhy.SHARED)
    assert for_one_of_several(idle, HELD_LONG, NOW).since == NOW - 2 * HOUR
    assert for_one_of_several(idle, NOW - HOUR, NOW) == replace(idle, since=NOW - HOUR), "it came later"
    assert for_one_of_several(idle, NOW - MINUTE, NOW).state is NEW, "it came a minute ago"
    old = GpuActivity(UNKNOWN, NOW - HOUR, UnknownWhy.OLD_REPORT)
    assert for_one_of_several(old, HELD_LONG, NOW) == old, "the better reason"


def test_a_pod_with_several_gpus_is_idle_only_if_all_are() -> None:
    early, late = GpuActivity(IDLE, NOW - 3 * HOUR), GpuActivity(IDLE, NOW - HOUR)

    assert of_all([]) is None
    assert of_all([early, late]) == replace(early, since=NOW - HOUR)
    for state in (ACTIVE, UNKNOWN, NEW):
        together = of_all([early, GpuActivity(state), late])
        assert together is not None and together.state is state


def test_the_parts_of_several_gpus_are_one_part_of_all() -> None:
    def gpu(active: timedelta) -> GpuActivity:
        return GpuActivity(ACTIVE, recent=ActivePart(NOW - HOUR, NOW, HOUR, active))

    both = of_all([gpu(HOUR), gpu(timedelta())])
    assert both is not None and both.recent is not None
    assert (both.recent.part, both.recent.gpus) == (0.5, 2)
    unknown = of_all([gpu(HOUR), GpuActivity(ACTIVE)])
    assert unknown is not None and unknown.recent is None, "of one of them nothing is known"


def test_who_may_not_see_figures_sees_the_state() -> None:
    seen = GpuActivity(IDLE, NOW - HOUR, recent=ActivePart(NOW - HOUR, NOW, HOUR, MINUTE), latest=QUIET)
    assert seen.without_figures() == GpuActivity(IDLE, NOW - HOUR)


# --- the last hour ---------------------------------------------------------------------------------------------------

ADA = frozenset({"uid-ada"})
START = GpuUsage(NOW - 24 * HOUR, NOW, sampled=9 * HOUR, active=4 * HOUR)


def later(usage: GpuUsage, minutes: float, active: float) -> GpuUsage:
    passed = minutes * MINUTE
    sampled, worked = usage.sampled + passed, usage.active + active * MINUTE
    return replace(usage, until=usage.until + passed, sampled=sampled, active=worked)


def test_the_first_report_of_a_process_says_nothing_about_an_hour() -> None:
    assert RecentSums(ADA, START).until(START) is None


def test_until_it_knows_an_hour_it_says_since_when() -> None:
    sums, usage = RecentSums(ADA, START), later(START, 7, 3)
    part = sums.until(usage)
    assert part == ActivePart(NOW, usage.until, 7 * MINUTE, 3 * MINUTE)


def test_it_forgets_what_is_older_than_an_hour() -> None:
    sums, usage = RecentSums(ADA, START), START
    for _ in range(600):  # ten hours of work, a minute after the other
        usage = later(usage, 1, 1)
        sums.add(usage)
    for _ in range(60):
        usage = later(usage, 1, 0)
        sums.add(usage)
    part = sums.until(usage)
    assert part is not None and REMEMBERED - STEP <= part.until - part.since <= REMEMBERED
    assert part.active <= MINUTE


@pytest.mark.parametrize(
    ("holders", "usage", "expected"),
    [
        pytest.param(ADA, later(START, 1, 1), True, id="the same"),
        pytest.param(frozenset({"uid-bob"}), later(START, 1, 1), False, id="another pod holds it"),
        pytest.param(ADA | {"uid-bob"}, later(START, 1, 1), False, id="another pod shares it"),
        pytest.param(ADA, replace(later(START, 1, 1), since=NOW), False, id="an agent that began anew"),
        pytest.param(ADA, replace(START, active=MINUTE), False, id="sums that jumped back"),
        pytest.param(ADA, replace(START, until=NOW - MINUTE), False, id="a report that is older than the last one"),
    ],
)
def test_what_is_remembered_is_of_the_same_holders_and_sums(
    holders: frozenset[str], usage: GpuUsage, expected: bool
) -> None:
    assert RecentSums(ADA, START).continues(holders, usage) is expected


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=60))
def test_the_remembered_part_is_that_of_the_truth(steps: list[tuple[int, int]]) -> None:
    sums, usage = RecentSums(ADA, START), START
    minutes: list[float] = []  # of each minute, the active part
    for length, active in steps:
        active = min(active, length)
        usage = later(usage, length, active)
        minutes += [active / length] * length
        sums.add(usage)
        if part := sums.until(usage):
            seen = round((part.until - part.since) / MINUTE)
            assert part.active / MINUTE == pytest.approx(sum(minutes[-seen:]))
            assert part.known == part.until - part.since <= REMEMBERED
            assert 0 <= part.part <= 1
