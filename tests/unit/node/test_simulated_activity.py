"""Simulated GPUs look like those of people."""

from datetime import UTC, datetime, timedelta

import pytest

from carrel.ledger.gpu_usage import GpuUsage
from carrel.ledger.gpus import MiB
from carrel.node.simulated_activity import Activity, sample_of

START = datetime(2026, 3, 2, tzinfo=UTC)
TEN = timedelta(seconds=10)


def a_day_of(activity: Activity) -> GpuUsage:
    usage = GpuUsage(START, START)
    for number in range(1, 8641):
        now = START + number * TEN
        usage = usage.after(sample_of(activity, "a", MiB(80_000), now), now, TEN)
    return usage


@pytest.mark.parametrize(
    ("activity", "busy", "active"),
    [
        pytest.param(Activity.TRAINING, (0.85, 1.0), (0.99, 1.0), id="training is busy all day"),
        pytest.param(Activity.NOTEBOOK, (0.02, 0.1), (0.1, 0.2), id="a notebook now and then"),
        pytest.param(Activity.LOADING, (0.2, 0.35), (0.99, 1.0), id="who waits for data is active, not busy"),
        pytest.param(Activity.IDLE, (0.0, 0.0), (0.0, 0.0), id="a forgotten one never"),
        pytest.param(Activity.STUCK, (0.0, 0.0), (0.0, 0.0), id="nor one whose counter lies"),
    ],
)
def test_how_busy_a_day_is(activity: Activity, busy: tuple[float, float], active: tuple[float, float]) -> None:
    usage = a_day_of(activity)
    assert busy[0] <= usage.busy / usage.sampled <= busy[1]
    assert active[0] <= usage.active / usage.sampled <= active[1]


def test_a_counter_that_lies_is_given_away_by_power() -> None:
    assert a_day_of(Activity.STUCK).energy_joules > 3 * a_day_of(Activity.IDLE).energy_joules
