"""What a GPU is used for: sums of its samples."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.dialects.gpu_usage import NODE_USAGES, NodeUsage, read_usage, read_usage_of, write_usage
from carrel.ids import GpuUuid
from carrel.kubernetes.decoding import read_object
from carrel.ledger.gpu_usage import LONGEST_GAP, GpuSample, GpuUsage
from carrel.ledger.gpus import MiB
from carrel.parsing import Malformed

START = datetime(2026, 3, 2, 8, tzinfo=UTC)
TEN = timedelta(seconds=10)
BUSY, IDLE, UNKNOWN = GpuSample(1.0), GpuSample(0.0), GpuSample()


def used(*samples: GpuSample, start: datetime = START) -> GpuUsage:
    """Sampled every ten seconds."""
    usage = GpuUsage(start, start)
    for number, sample in enumerate(samples, 1):
        usage = usage.after(sample, start + number * TEN, TEN)
    return usage


@pytest.mark.parametrize(
    ("samples", "sampled", "busy", "active"),
    [
        pytest.param([], 0, 0, 0, id="nothing is known before the first sample"),
        pytest.param([BUSY] * 6, 60, 60, 60, id="a minute of work"),
        pytest.param([IDLE] * 6, 60, 0, 0, id="a minute without work"),
        pytest.param([GpuSample(0.3)], 10, 3, 10, id="ten seconds at 30 % are three busy ones"),
        pytest.param([IDLE] * 4 + [BUSY], 50, 10, 50, id="a busy sample makes its whole minute active"),
        pytest.param([BUSY] + [IDLE] * 4, 50, 10, 50, id="also what comes after it in the minute"),
        pytest.param([BUSY] + [IDLE] * 10, 110, 10, 50, id="and not the next minute"),
        pytest.param([UNKNOWN] * 6, 0, 0, 0, id="a GPU that does not say it is not idle but unknown"),
        pytest.param([BUSY] * 42, 420, 420, 420, id="seven minutes are seven minutes"),
    ],
)
def test_sums(samples: list[GpuSample], sampled: int, busy: int, active: int) -> None:
    usage = used(*samples)
    assert (usage.sampled, usage.busy, usage.active) == tuple(timedelta(seconds=s) for s in (sampled, busy, active))


def test_memory_and_energy_are_summed_over_time() -> None:
    usage = used(*[GpuSample(0.5, MiB(1000), 200.0)] * 6)
    assert (usage.used_mib_seconds, usage.energy_joules) == (60_000, 12_000)


def test_nothing_is_known_of_a_gap() -> None:
    usage = used(BUSY).after(BUSY, START + timedelta(hours=1), timedelta(hours=1))
    assert (usage.sampled, usage.busy) == (TEN, TEN)
    assert usage.last_active == START + timedelta(hours=1)


def test_it_is_known_since_when_no_sample_was_missed() -> None:
    usage = used(*[IDLE] * 6)
    assert usage.sampled_since == START + TEN
    later = usage.after(IDLE, START + timedelta(hours=1), timedelta(hours=1))
    assert later.sampled_since == START + timedelta(hours=1), "who knows what it did in that hour"
    assert later.after(UNKNOWN, later.until + TEN, TEN).sampled_since is None, "it does not say it any more"
    restarted = usage.after(IDLE, START + timedelta(hours=1), timedelta())
    assert restarted.sampled_since == START + timedelta(hours=1), "a new agent continues the sums after a pause"


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    usage = used(*[BUSY] * 60)
    later = usage.after(IDLE, START - timedelta(hours=1), TEN)
    assert later.busy == usage.busy
    assert later.active >= usage.active
    assert later.sampled == usage.sampled + TEN


SAMPLES = st.builds(
    GpuSample,
    st.none() | st.floats(0, 1),
    st.none() | st.integers(0, 80_000).map(MiB),
    st.none() | st.floats(0, 700),
)
STEPS = st.lists(st.tuples(SAMPLES, st.integers(-7200, 7200), st.integers(0, 120)), max_size=30)


@given(STEPS)
def test_sums_only_grow_and_busy_is_within_active_and_active_within_sampled(
    steps: list[tuple[GpuSample, int, int]],
) -> None:
    usage = GpuUsage(START, START)
    for sample, jump, passed in steps:
        before, now = usage, usage.until + timedelta(seconds=passed + jump)
        usage = usage.after(sample, now, timedelta(seconds=passed))
        assert usage.sampled - before.sampled <= LONGEST_GAP
        for name in ("sampled", "busy", "active", "used_mib_seconds", "energy_joules"):
            assert getattr(usage, name) >= getattr(before, name)
        assert usage.busy - timedelta(milliseconds=1) <= usage.active <= usage.sampled


@given(STEPS)
def test_what_is_reported_is_read_again_to_the_second(steps: list[tuple[GpuSample, int, int]]) -> None:
    usage = GpuUsage(START, START)
    for sample, _, passed in steps:
        usage = usage.after(sample, usage.until + timedelta(seconds=passed), timedelta(seconds=passed))
    uuid = GpuUuid("GPU-a")
    there = read_object(NODE_USAGES, {"metadata": {"name": "n1"}, "status": write_usage({uuid: usage})})
    read = read_usage(there)[uuid]
    for name in ("sampled", "busy", "active"):
        assert timedelta() <= getattr(usage, name) - getattr(read, name) < timedelta(seconds=1)
    assert (read.since, read.until, read.last_active) == (usage.since, usage.until, usage.last_active)
    assert read.sampled_since == usage.sampled_since
    assert read_usage_of(there, uuid) == read and read_usage_of(there, GpuUuid("GPU-b")) is None
    assert read.latest.used == usage.latest.used


def test_a_usage_that_cannot_be_read_is_named() -> None:
    there = read_object(NODE_USAGES, {"metadata": {"name": "n1"}, "status": {"usage": [{"uuid": "GPU-a"}]}})
    assert isinstance(there, NodeUsage)
    with pytest.raises(Malformed, match="GpuNodeStatus n1"):
        read_usage(there)
