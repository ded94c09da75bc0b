"""The usage counter samples what is held."""

from datetime import UTC, datetime, timedelta

import pytest

from carrel.bookings.capacity import booked_gpus
from carrel.bookings.rules import Booking
from carrel.bookings.usage_counter import KEPT, PodUser, UsageCounter
from carrel.ids import BookingId, GpuUuid, PodUid
from carrel.ledger.ledger import Ledger
from carrel.ledger.tiers import Tier
from tests.kit.gpus import N1, a_node, all_entries, held

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
GPUS = {GpuUuid("GPU-n1-0"): "n1 · 0", GpuUuid("GPU-n1-1"): "n1 · 1"}


def half_held() -> Ledger:
    return Ledger([a_node("n1")], [held("train", "n1", 0, 8138)])


def ada(uid: str) -> PodUser:
    return PodUser("ada@lab.example", Tier.BOOKED)


def sample_every_minute(usage_counter: UsageCounter, ledger: Ledger, minutes: int, start: datetime = NOON) -> None:
    for minute in range(minutes + 1):
        usage_counter.sample(all_entries(ledger), ada, start + minute * MINUTE)


def test_half_a_gpu_held_for_an_hour_counts_as_half_a_gpu_hour() -> None:
    usage_counter = UsageCounter()
    sample_every_minute(usage_counter, half_held(), 59)

    rows = usage_counter.by_gpu(GPUS, NOON, 2)

    assert [row.parts for row in rows] == [[pytest.approx(0.5), 0.0], [0.0, 0.0]]
    assert usage_counter.by_user(NOON)["ada@lab.example"].covered == pytest.approx(59 / 60 / 2)
    assert usage_counter.since == NOON


def test_hours_are_split_by_coverage_at_each_observation() -> None:
    """A booking that begins after half an hour covers the second half."""
    usage_counter, ledger = UsageCounter(), half_held()
    tiers: list[Tier | None] = [Tier.OPPORTUNISTIC] * 21 + [Tier.BOOKED] * 20 + [None] * 10
    for minute, tier in enumerate(tiers):
        user = PodUser("ada@lab.example", tier)
        usage_counter.sample(all_entries(ledger), lambda uid, user=user: user, NOON + minute * MINUTE)  # type: ignore[misc] # bound at once

    held_hours = usage_counter.by_user(NOON)["ada@lab.example"]
    parts = (held_hours.covered, held_hours.opportunistic, held_hours.untiered)
    assert parts == pytest.approx((20 / 60 / 2, 20 / 60 / 2, 10 / 60 / 2))
    assert held_hours.total == pytest.approx(50 / 60 / 2)


def test_only_hours_of_the_period_are_counted() -> None:
    usage_counter, ledger = UsageCounter(), half_held()
    sample_every_minute(usage_counter, ledger, 90)
    key = ("ada@lab.example", ledger.entries(N1)[0].gpu.model)

    first = usage_counter.by_user_and_model(NOON, NOON + timedelta(hours=1))[key].covered
    both = usage_counter.by_user_and_model(NOON)[key].covered
    assert first == pytest.approx(59 / 60 / 2)
    assert both == pytest.approx(90 / 60 / 2)


def test_a_share_released_within_the_hour_counts_until_then() -> None:
    usage_counter, ledger = UsageCounter(), half_held()
    sample_every_minute(usage_counter, ledger, 30)
    ledger.forget(PodUid("uid-train"))
    for minute in range(31, 60):
        usage_counter.sample(all_entries(ledger), ada, NOON + minute * MINUTE)

    assert list(usage_counter.by_gpu(GPUS, NOON, 1)[0].parts) == [pytest.approx(0.5 * 30 / 59)]


def test_time_without_samples_is_not_counted() -> None:
    usage_counter, ledger = UsageCounter(), half_held()
    usage_counter.sample(all_entries(ledger), ada, NOON)
    usage_counter.sample(all_entries(ledger), ada, NOON + timedelta(hours=5))
    usage_counter.sample(all_entries(ledger), ada, NOON + timedelta(hours=4))

    assert usage_counter.by_user(NOON) == {}
    assert usage_counter.since is None


def test_more_frequent_samples_give_the_same_count() -> None:
    often, seldom, ledger = UsageCounter(), UsageCounter(), half_held()
    for second in range(0, 601, 5):
        often.sample(all_entries(ledger), ada, NOON + timedelta(seconds=second))
    sample_every_minute(seldom, ledger, 10)

    counts = [counter.by_user(NOON)["ada@lab.example"].covered for counter in (often, seldom)]
    assert counts[0] == pytest.approx(counts[1])


def test_counts_are_deleted_after_two_weeks() -> None:
    usage_counter, ledger = UsageCounter(), half_held()
    sample_every_minute(usage_counter, ledger, 5)
    sample_every_minute(usage_counter, ledger, 5, NOON + KEPT)

    assert usage_counter.since == NOON + KEPT


@pytest.mark.parametrize(
    ("gpus", "is_share", "counted"),
    [
        pytest.param(1, False, 1, id="one GPU"),
        pytest.param(3, False, 3, id="three GPUs"),
        pytest.param(1, True, 0.25, id="a share counts as its part of the GPU"),
    ],
)
def test_a_booking_counts_for_the_gpus_it_takes(gpus: int, is_share: bool, counted: float) -> None:
    booking = Booking(BookingId("b"), "ada@lab.example", "a6000", NOON, NOON + timedelta(days=1), gpus, share=is_share)

    assert booked_gpus(booking, shares_per_gpu=4) == counted
