"""What people are told about what a GPU is used for."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carrel.cluster.activity_words import BRIEFLY, WHY, ActivityWords
from carrel.ledger.gpu_activity import ActivePart, ActivityState, GpuActivity, UnknownWhy

NOW = datetime(2026, 11, 16, 14, 30, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
ACTIVE, NEW, IDLE, UNKNOWN = ActivityState.ACTIVE, ActivityState.NEW, ActivityState.IDLE, ActivityState.UNKNOWN
WORDS = ActivityWords(UTC, NOW)


def part(length: timedelta, active: timedelta, known: timedelta | None = None, gpus: int = 1) -> ActivePart:
    return ActivePart(NOW - length, NOW, length if known is None else known, active, gpus)


@pytest.mark.parametrize(
    ("activity", "expected"),
    [
        (GpuActivity(ACTIVE, NOW, recent=part(HOUR, 25 * MINUTE)), "active, 42 % of the last hour"),
        (GpuActivity(ACTIVE, NOW, recent=part(52 * MINUTE, MINUTE)), "active, 2 % of the last hour"),
        (GpuActivity(ACTIVE, NOW, recent=part(10 * MINUTE, 5 * MINUTE)), "active, 50 % since 14:20"),
        (
            GpuActivity(ACTIVE, NOW, recent=part(HOUR, 10 * MINUTE, known=20 * MINUTE)),
            "active, 50 % of the 20 min that are known of the last hour",
        ),
        (
            GpuActivity(ACTIVE, NOW, recent=part(HOUR, HOUR, known=HOUR, gpus=4)),
            "active, 100 % of the 15 min that are known of the last hour",
        ),
        (GpuActivity(ACTIVE, NOW), "active"),
        (GpuActivity(NEW, NOW), "not active yet"),
        (GpuActivity(IDLE, NOW - 28 * MINUTE), "idle since 14:02"),
        (GpuActivity(IDLE, NOW - 28 * MINUTE, recent=part(HOUR, timedelta())), "idle since 14:02"),
        (
            GpuActivity(IDLE, NOW - 32 * MINUTE, recent=part(HOUR, 2 * MINUTE)),
            "idle since 13:58, 3 % of the last hour",
        ),
        (GpuActivity(IDLE, NOW - 24 * HOUR), "idle since Sun 15 Nov 14:30"),
        (GpuActivity(UNKNOWN, None, UnknownWhy.NO_REPORT), "use unknown: its node has reported no sample yet"),
        (
            GpuActivity(UNKNOWN, NOW - 28 * MINUTE, UnknownWhy.OLD_REPORT),
            "use unknown since 14:02: the agent of its node is silent",
        ),
        (
            GpuActivity(UNKNOWN, NOW - 28 * MINUTE, UnknownWhy.CONTRADICTION),
            "use unknown: its driver says 0 %, but it draws as much power as a GPU that works",
        ),
    ],
)
def test_everything_that_is_known_is_one_line(activity: GpuActivity, expected: str) -> None:
    assert WORDS.line(activity) == expected


def test_times_are_in_the_persons_zone() -> None:
    words = ActivityWords(ZoneInfo("Europe/Stockholm"), NOW)
    assert words.line(GpuActivity(IDLE, NOW - 28 * MINUTE)) == "idle since 15:02"
    just_before_midnight = datetime(2026, 11, 15, 22, 59, tzinfo=UTC)
    assert (words.short(NOW), words.short(just_before_midnight)) == ("15:30", "15 Nov")


@pytest.mark.parametrize("why", UnknownWhy)
def test_every_reason_has_words(why: UnknownWhy) -> None:
    unknown = GpuActivity(UNKNOWN, NOW, why)
    assert WORDS.line(unknown).endswith(WHY[why])
    assert WORDS.brief(unknown) == f"unknown: {BRIEFLY[why]}"
