"""When people get the bookings that they wish for: in the order of time, beside the bookings that exist."""

from dataclasses import replace
from datetime import timedelta

import pytest

from carrel.configuration.schema import BookingRules
from carrel.ids import PersonId
from carrel.simulation.over_time import run_over_time
from carrel.simulation.wishes import BookingTimes, granted
from carrel.simulation.workload import HOUR_S, BookingWish, SimulatedCluster, Trace
from tests.kit.gpus import A6000, a_node

DAY_S = 24 * HOUR_S
ONE_GPU = SimulatedCluster((a_node("n1", gpus=1),))
TWO_GPUS = SimulatedCluster((a_node("n1", gpus=2),))
NO_COOLDOWN = replace(BookingRules(), cooldown=timedelta(0))


def a_wish(user: str, day: float = 0, days: float = 1, asked: float = 0, gpus: int = 1) -> BookingWish:
    return BookingWish(PersonId(user), A6000, gpus, asked * DAY_S, day * DAY_S, days * DAY_S)


def a_booking(user: str, day: float, days: float = 1, gpus: int = 1) -> BookingWish:
    return replace(a_wish(user, day, days, gpus=gpus), is_made=True)


def starts(
    cluster: SimulatedCluster,
    *wishes: BookingWish,
    rules: BookingRules = NO_COOLDOWN,
    times: BookingTimes | None = None,
) -> list[tuple[str, float | None]]:
    """Who gets a booking on which day."""
    found = granted(cluster, wishes, rules, times)
    return [(each.wish.user, None if each.start_s is None else each.start_s / DAY_S) for each in found]


def test_sixty_wishes_of_one_person_are_all_granted_each_after_the_cooldown_of_the_one_before() -> None:
    found = starts(ONE_GPU, *[a_wish("ada")] * 60, rules=BookingRules())

    assert found == [("ada", 15.0 * number) for number in range(60)]


def test_a_wish_that_has_to_wait_does_not_overtake_one_that_somebody_else_asks_earlier() -> None:
    wishes = (a_wish("ada", days=14), a_wish("ada", days=14), a_wish("bob", day=28, days=14, asked=1))

    found = granted(ONE_GPU, wishes, BookingRules())

    assert [(each.wish.user, (each.start_s or 0) / DAY_S) for each in found] == [("ada", 0), ("ada", 42), ("bob", 28)]
    assert found[1].delays == {"no-active-overlap": 14 * DAY_S, "cooldown": 14 * DAY_S, "capacity": 14 * DAY_S}


def test_of_wishes_of_one_moment_the_first_in_the_trace_is_heard_first() -> None:
    assert starts(ONE_GPU, a_wish("zoe"), a_wish("ada")) == [("zoe", 0.0), ("ada", 1.0)]


def test_a_wish_that_no_time_would_do_for_is_refused() -> None:
    impossible = replace(BookingRules(), min_duration=timedelta(days=3), max_duration=timedelta(days=2))

    assert starts(ONE_GPU, a_wish("ada"), rules=impossible) == [("ada", None)]
    assert starts(ONE_GPU, a_wish("ada"), rules=replace(BookingRules(), planned=0)) == [("ada", None)]


def test_a_wish_that_has_to_wait_beyond_the_last_year_that_can_be_booked_is_refused() -> None:
    found = starts(ONE_GPU, a_booking("ada", day=0, days=366 * 201), a_wish("ada"))

    assert found == [("ada", 0.0), ("ada", None)]


# --- bookings that exist ---------------------------------------------------------------------------------------------


def test_a_booking_that_exists_stays_as_it_is_whatever_the_rules_say() -> None:
    strict = replace(BookingRules(), max_gpus=1, max_duration=timedelta(days=2))
    wishes = (a_booking("ada", day=0, days=20, gpus=2), a_booking("ada", day=21, days=3, gpus=2))

    found = granted(TWO_GPUS, wishes, strict)

    assert [(each.start_s, each.end_s, each.gpus) for each in found] == [
        (0.0, 20 * DAY_S, 2),
        (21 * DAY_S, 24 * DAY_S, 2),
    ]


def test_a_booking_that_exists_counts_for_later_wishes_of_its_person_and_of_others() -> None:
    wishes = (a_booking("ada", day=0, days=2, gpus=2), a_wish("ada", day=3, asked=3), a_wish("bob", asked=1))

    found = starts(TWO_GPUS, *wishes, rules=BookingRules())

    assert found == [("ada", 0.0), ("bob", 2.0), ("ada", 16.0)], "bob by the calendar, ada by the cooldown"


def test_what_was_wished_for_before_the_run_begins_is_wished_for_then() -> None:
    found = starts(ONE_GPU, a_wish("ada", day=1), times=BookingTimes(begins_s=10 * DAY_S))

    assert found == [("ada", 10.0)]


def test_people_wish_for_the_same_booking_again_as_soon_as_it_has_ended() -> None:
    rules = replace(BookingRules(), cooldown=timedelta(days=7), max_gpus=1)
    times = BookingTimes(begins_s=0.0, again_until_s=20 * DAY_S)

    found = granted(TWO_GPUS, (a_booking("ada", day=-1, days=2, gpus=2),), rules, times)

    assert [((each.start_s or 0) / DAY_S, each.end_s / DAY_S, each.gpus) for each in found] == [
        (-1.0, 1.0, 2),
        (8.0, 10.0, 1),
        (17.0, 19.0, 1),
        (26.0, 28.0, 1),
    ]
    assert [each.delays for each in found[1:]] == [{"cooldown": 7 * DAY_S}] * 3


def test_who_had_a_booking_before_the_run_begins_does_not_wish_for_it_again() -> None:
    times = BookingTimes(begins_s=5 * DAY_S, again_until_s=20 * DAY_S)

    assert starts(ONE_GPU, a_booking("ada", day=0), times=times) == [("ada", 0.0)]


def test_delays_of_less_than_a_second_are_counted() -> None:
    wishes = (a_booking("ada", day=0), a_wish("bob", day=1 - 0.5 / DAY_S))

    found = run_over_time(ONE_GPU, Trace((), wishes), "carrel", 42, BookingRules())

    assert found.booking_delay_days == {"capacity": pytest.approx(0.5 / DAY_S / 2)}
