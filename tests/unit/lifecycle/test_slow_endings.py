"""How long a disruption budget may keep a pod whose GPU a booked pod needs."""

from datetime import UTC, datetime, timedelta

from carrel.ids import PodUid
from carrel.lifecycle.freeing.slow_endings import BudgetDelays

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
TEN_MINUTES = timedelta(minutes=10)


class Clock:
    now = NOON

    def __call__(self) -> datetime:
        return self.now


def test_a_budget_keeps_a_pod_for_the_time_and_no_longer() -> None:
    clock = Clock()
    budgets = BudgetDelays(clock)
    assert "uid" not in budgets.kept(), "nobody has tried"
    assert budgets.refused(PodUid("uid"), due=NOON)
    clock.now += TEN_MINUTES - timedelta(seconds=1)
    assert budgets.refused(PodUid("uid"), due=NOON)
    assert "uid" in budgets.kept()
    clock.now += timedelta(seconds=1)
    assert not budgets.refused(PodUid("uid"), due=NOON)
    assert "uid" not in budgets.kept()


def test_a_second_revocation_soon_afterwards_gives_it_no_more_time_but_one_the_next_day_does() -> None:
    clock = Clock()
    budgets = BudgetDelays(clock)
    budgets.refused(PodUid("uid"), due=NOON)
    clock.now += timedelta(minutes=30)
    assert not budgets.refused(PodUid("uid"), due=clock.now)
    clock.now += timedelta(days=1)
    assert budgets.refused(PodUid("uid"), due=clock.now)


def test_after_a_restart_the_time_counts_from_when_the_end_was_due() -> None:
    clock = Clock()
    budgets = BudgetDelays(clock)

    assert not budgets.refused(PodUid("uid"), due=NOON - TEN_MINUTES)
    assert budgets.refused(PodUid("another"), due=NOON - timedelta(minutes=9))


def test_a_pod_that_is_gone_is_forgotten() -> None:
    budgets = BudgetDelays(Clock())
    budgets.refused(PodUid("uid"), due=NOON)
    budgets.forget(PodUid("uid"))

    assert "uid" not in budgets.kept()
