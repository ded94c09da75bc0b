"""What was held is counted by looking now and then."""

from datetime import UTC, datetime, timedelta

import pytest

from carrel.bookings.pages.usage_counter import KEPT, Tally
from carrel.ledger.ledger import Ledger
from tests.kit.gpus import a_node, held

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
CARDS = {"GPU-n1-0": "n1 · 0", "GPU-n1-1": "n1 · 1"}


def half_held() -> Ledger:
    return Ledger([a_node("n1")], [held("train", "n1", 0, 8138)])


def ada(uid: str) -> str:
    return "ada@lab.example"


def looked(tally: Tally, ledger: Ledger, minutes: int, start: datetime = NOON) -> None:
    for minute in range(minutes + 1):
        tally.look(ledger, ada, start + minute * MINUTE)


def test_a_card_that_is_half_held_is_half_warm_and_costs_half_its_hours() -> None:
    tally = Tally()
    looked(tally, half_held(), 59)

    rows = tally.by_card(CARDS, NOON, 2)

    assert [row.parts for row in rows] == [[pytest.approx(0.5), 0.0], [0.0, 0.0]]
    assert tally.by_user(NOON) == {"ada@lab.example": pytest.approx(59 / 60 / 2)}
    assert tally.since == NOON


def test_what_changes_within_the_hour_counts_for_as_long_as_it_was() -> None:
    tally, ledger = Tally(), half_held()
    looked(tally, ledger, 30)
    ledger.forget("uid-train")
    for minute in range(31, 60):
        tally.look(ledger, ada, NOON + minute * MINUTE)

    assert list(tally.by_card(CARDS, NOON, 1)[0].parts) == [pytest.approx(0.5 * 30 / 59)]


def test_time_in_which_nobody_looked_is_not_counted() -> None:
    tally, ledger = Tally(), half_held()
    tally.look(ledger, ada, NOON)
    tally.look(ledger, ada, NOON + timedelta(hours=5))
    tally.look(ledger, ada, NOON + timedelta(hours=4))

    assert tally.by_user(NOON) == {}
    assert tally.since is None


def test_looking_more_often_costs_and_changes_nothing() -> None:
    often, seldom, ledger = Tally(), Tally(), half_held()
    for second in range(0, 601, 5):
        often.look(ledger, ada, NOON + timedelta(seconds=second))
    looked(seldom, ledger, 10)

    assert often.by_user(NOON)["ada@lab.example"] == pytest.approx(seldom.by_user(NOON)["ada@lab.example"])


def test_after_a_fortnight_it_is_forgotten() -> None:
    tally, ledger = Tally(), half_held()
    looked(tally, ledger, 5)
    looked(tally, ledger, 5, NOON + KEPT)

    assert tally.since == NOON + KEPT
