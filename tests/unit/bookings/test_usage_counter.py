"""The counter of usage: what it makes of looks at the cluster, and what it keeps until it is written."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.usage import counter as counting
from carrel.bookings.usage.counter import GpuLook, HeldPart, Summed, UsageCounter, progressed
from carrel.bookings.usage.sums import Gap, GpuTotals, Progress, UsageAmount
from carrel.ids import GpuUuid, PodUid
from carrel.ledger.gpu_usage import GpuSample, GpuUsage
from carrel.ledger.tiers import Tier

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
ZONE = ZoneInfo("Europe/Stockholm")
G1 = GpuUuid("GPU-1")
ADA = HeldPart(PodUid("a"), "ada@lab.org", Tier.BOOKED, since=NOON - 10 * HOUR)
BOB = HeldPart(PodUid("b"), "bob@lab.org", Tier.OPPORTUNISTIC, since=NOON - 10 * HOUR)


def a_counter(until: datetime = NOON) -> UsageCounter:
    counter = UsageCounter(ZONE)
    counter.begin(Progress(until))
    return counter


def look(counter: UsageCounter, at: datetime, *holdings: HeldPart, usage: GpuUsage | None = None) -> None:
    counter.look([GpuLook(G1, "A100", holdings, usage, lowest_watts=25.0)], at, {})


def look_every(counter: UsageCounter, minutes: int, *holdings: HeldPart, start: datetime = NOON) -> None:
    for minute in range(1, minutes + 1):
        look(counter, start + minute * MINUTE, *holdings)


def all_of(counter: UsageCounter, progress: Progress) -> list[Summed]:
    counter.close()
    found = []
    while summed := counter.next(progress):
        found.append(summed)
        progress = summed.progress
    return found


def held(parts: Sequence[Summed]) -> dict[tuple[datetime, str], float]:
    """By hour and person."""
    sums: dict[tuple[datetime, str], float] = {}
    for part in parts:
        for key, amount in part.sums.items():
            sums[key.hour, key.person] = sums.get((key.hour, key.person), 0.0) + amount.held
    return sums


def totals(at: float, since: float, until: float, sampled: float, active: float) -> GpuTotals:
    """Instants in seconds after noon."""
    return GpuTotals(NOON + at * SECOND, NOON + since * SECOND, NOON + until * SECOND, sampled, active)


BASE = totals(0, -1000, 0, 900, 300)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        pytest.param(totals(60, -1000, 60, 960, 330), ("new", (60, 30)), id="the next report"),
        pytest.param(totals(60, -1000, 0, 900, 300), ("base", None), id="no new report"),
        pytest.param(totals(60, -1000, -30, 870, 290), ("base", None), id="an older one, of an agent that goes"),
        pytest.param(totals(900, -1000, -30, 870, 290), ("new", None), id="an older one for long: the last was wrong"),
        pytest.param(totals(60, -1000, 60, 960, 100), ("new", None), id="a counter that jumped back"),
        pytest.param(totals(60, 10, 60, 50, 20), ("new", (50, 20)), id="an agent that has lost its sums"),
        pytest.param(totals(60, -500, 60, 500, 20), ("new", None), id="sums that began before the last report"),
        pytest.param(totals(60, -2000, 60, 950, 310), ("base", None), id="sums that began before the others"),
        pytest.param(
            totals(60, -1000, -3540, 960, 330), ("new", (60, 30)), id="the node's clock was set back by an hour"
        ),
    ],
)
def test_what_a_report_adds_to_what_is_counted(
    new: GpuTotals, expected: tuple[str, tuple[float, float] | None]
) -> None:
    base, added = progressed(BASE, new)
    assert (base is new, added) == (expected[0] == "new", expected[1])


def test_the_first_report_ever_only_says_where_counting_begins() -> None:
    assert progressed(None, BASE) == (BASE, None)


def test_hours_are_cut_where_they_end_and_tiers_where_they_change() -> None:
    counter = a_counter(NOON + 50 * MINUTE)
    look_every(counter, 5, ADA, start=NOON + 50 * MINUTE)
    look_every(counter, 15, replace(ADA, tier=Tier.OPPORTUNISTIC), start=NOON + 55 * MINUTE)

    (found,) = all_of(counter, Progress(NOON + 50 * MINUTE))
    assert {(key.hour, key.tier): amount.held for key, amount in found.sums.items()} == {
        (NOON, Tier.BOOKED): 300,
        (NOON, Tier.OPPORTUNISTIC): 300,
        (NOON + HOUR, Tier.OPPORTUNISTIC): 600,
    }


def test_a_mig_slice_counts_as_its_part_of_a_gpu() -> None:
    counter = a_counter()
    look_every(counter, 10, replace(ADA, of=0.125), replace(BOB, part=0.0, of=0.125))

    assert held(all_of(counter, Progress(NOON)))[NOON, "ada@lab.org"] == 75


def test_who_was_bound_and_gone_between_two_looks_is_counted_from_and_until_then() -> None:
    counter = a_counter()
    look(counter, NOON + 10 * SECOND, ADA)
    came = replace(BOB, since=NOON + 25 * SECOND)
    counter.look([GpuLook(G1, "A100", [came])], NOON + 30 * SECOND, {ADA.holder: NOON + 22 * SECOND})
    counter.look([GpuLook(G1, "A100", [])], NOON + 70 * SECOND, {BOB.holder: NOON + 60 * SECOND})

    assert held(all_of(counter, Progress(NOON))) == {(NOON, "ada@lab.org"): 22, (NOON, "bob@lab.org"): 35}


def test_a_pod_that_makes_room_is_gone_when_the_next_one_comes() -> None:
    counter = a_counter()
    look(counter, NOON + 10 * SECOND, ADA)
    look(counter, NOON + 70 * SECOND, replace(BOB, since=NOON + 30 * SECOND))

    assert held(all_of(counter, Progress(NOON))) == {(NOON, "ada@lab.org"): 30, (NOON, "bob@lab.org"): 40}


def test_a_gpu_is_never_held_more_than_once_whatever_the_cluster_says() -> None:
    counter = a_counter()
    look_every(counter, 10, ADA, BOB)
    assert held(all_of(counter, Progress(NOON))) == {(NOON, "ada@lab.org"): 300, (NOON, "bob@lab.org"): 300}


def test_a_replica_goes_on_where_another_one_has_stopped_in_the_middle_of_a_slice() -> None:
    counter = a_counter()
    look_every(counter, 10, ADA)
    (found,) = all_of(counter, Progress(NOON + 5 * MINUTE + 17 * SECOND))
    assert (found.start, found.end) == (NOON + 5 * MINUTE + 17 * SECOND, NOON + 10 * MINUTE)
    assert held([found]) == {(NOON, "ada@lab.org"): 283}


def test_what_is_written_is_forgotten_by_whomever_it_was() -> None:
    counter = a_counter()
    look_every(counter, 10, ADA)
    counter.written(Progress(NOON + 8 * MINUTE))
    assert counter.waiting == 2
    counter.written(Progress(NOON + DAY))
    assert counter.waiting == 0
    assert counter.next(Progress(NOON + DAY)) is None


def test_hours_that_wait_for_too_long_make_room_and_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_SUMS", 5)
    counter = a_counter()
    look_every(counter, 600, ADA)

    parts = all_of(counter, Progress(NOON))
    kept_from = parts[0].start
    assert NOON + 3 * HOUR < kept_from < NOON + 7 * HOUR
    assert [gap for part in parts for gap in part.gaps] == [Gap(NOON, kept_from)]
    assert sum(held(parts).values()) == pytest.approx((NOON + 10 * HOUR - kept_from).total_seconds())


def test_who_holds_a_gpu_after_a_long_time_counts_for_a_day_of_it() -> None:
    counter = a_counter(NOON - 9 * DAY)
    look(counter, NOON, replace(ADA, since=NOON - 20 * DAY), replace(BOB, part=0.5, since=None))

    parts = all_of(counter, Progress(NOON - 9 * DAY))
    assert {key.person for part in parts for key in part.sums} == {"ada@lab.org"}, "nobody says since when Bob has it"
    assert sum(held(parts).values()) == pytest.approx(DAY.total_seconds() * 2 / 3)
    assert [gap for part in parts for gap in part.gaps] == [Gap(NOON - 9 * DAY, NOON)]


def test_while_the_clock_is_back_nothing_is_counted() -> None:
    counter = a_counter()
    look_every(counter, 60, ADA)
    look_every(counter, 59, ADA, start=NOON)
    look_every(counter, 30, ADA, start=NOON + HOUR)
    assert sum(held(all_of(counter, Progress(NOON))).values()) == 90 * 60


def used(until: datetime, active_minutes: float, since: datetime = NOON - DAY) -> GpuUsage:
    sampled = until - since
    return GpuUsage(since, until, GpuSample(0.0, None, 30.0), sampled, active=active_minutes * MINUTE)


def test_what_a_silent_agent_reports_later_is_of_those_who_held_the_gpu_all_the_time() -> None:
    counter = a_counter()
    for minute in range(1, 181):
        reported = min(minute, 10) if minute < 170 else minute
        active = 0 if reported <= 10 else 80
        look(counter, NOON + minute * MINUTE, ADA, usage=used(NOON + reported * MINUTE, active))

    sums = [amount for part in all_of(counter, Progress(NOON)) for amount in part.sums.values()]
    assert sum(each.held for each in sums) == 180 * 60
    assert sum(each.known for each in sums) == pytest.approx(179 * 60), "since the first report"
    assert sum(each.active for each in sums) == pytest.approx(80 * 60)
    assert max(each.known for each in sums) <= 3600.001


def test_what_is_reported_after_another_pod_has_come_is_nobodys() -> None:
    counter = a_counter()
    for minute in range(1, 61):
        reported = 10 if 10 < minute < 50 else minute
        holder = ADA if minute < 30 else replace(BOB, since=NOON + 30 * MINUTE)
        look(counter, NOON + minute * MINUTE, holder, usage=used(NOON + reported * MINUTE, 0 if reported <= 10 else 5))

    sums = [each for part in all_of(counter, Progress(NOON)) for each in part.sums.values()]
    assert sum(each.active for each in sums) == 0
    assert sum(each.known for each in sums) == pytest.approx(19 * 60), "the first nine minutes and the last ten"


def test_a_sum_is_as_much_as_its_parts() -> None:
    assert UsageAmount(3, 2, 1) + UsageAmount(1, 1, 1) == UsageAmount(4, 3, 2)
    assert UsageAmount(3, 2, 1) * 2 == UsageAmount(6, 4, 2)
