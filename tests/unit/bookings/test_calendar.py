"""Never more GPUs of a model are booked than there are; and who is booked now."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.bookings.calendar import Calendar, FreeNow, Span, days
from carrel.bookings.maintenance import Closing
from carrel.bookings.rules import Booking
from carrel.ids import BookingId
from tests.kit.gpus import A100, A6000

DAY0 = datetime(2026, 11, 16, tzinfo=UTC)
DAY = timedelta(days=1)


def day(number: float) -> datetime:
    return DAY0 + number * DAY


def booked(start: float, end: float, gpus: int = 1, model: str = A6000, user: str = "ada", name: str = "b") -> Booking:
    return Booking(BookingId(name), user, model, day(start), day(end), gpus)


def test_bookings_of_other_models_do_not_count() -> None:
    calendar = Calendar(A6000, 2, [booked(0, 5, model=A100, gpus=8), booked(0, 5)])

    assert calendar.free(day(0), day(5)) == 1


def test_a_gpu_is_free_again_at_the_instant_a_booking_ends() -> None:
    calendar = Calendar(A6000, 1, [booked(0, 5)])

    assert calendar.free(day(5), day(6)) == 1
    assert calendar.free(day(5) - timedelta(microseconds=1), day(6)) == 0


def test_the_fewest_free_gpus_of_a_period_count() -> None:
    calendar = Calendar(A6000, 3, [booked(1, 2), booked(3, 4, gpus=2)])

    assert calendar.free(day(0), day(5)) == 1
    assert list(calendar.spans(day(0), day(5))) == [
        Span(day(0), day(1), 3),
        Span(day(1), day(2), 2),
        Span(day(2), day(3), 3),
        Span(day(3), day(4), 1),
        Span(day(4), day(5), 3),
    ]


def test_a_period_that_begins_inside_a_booking_counts_it() -> None:
    calendar = Calendar(A6000, 1, [booked(0, 5)])

    assert list(calendar.spans(day(2), day(6))) == [Span(day(2), day(5), 0), Span(day(5), day(6), 1)]


def test_maintenance_takes_gpus_away_and_cancelled_bookings_give_them_back() -> None:
    cancelled = Booking(BookingId("c"), "bob", A6000, day(0), day(9), cancelled_at=day(2))
    calendar = Calendar(A6000, 2, [cancelled], [Closing(day(4), day(5), 2)])

    assert [span.free for span in calendar.spans(day(0), day(6))] == [1, 2, 0, 2]


def test_free_gpus_are_negative_when_more_are_booked_than_there_are() -> None:
    assert Calendar(A6000, 1, [booked(0, 1, gpus=3)]).free(day(0), day(1)) == -2


@pytest.mark.parametrize(
    ("gpus", "length", "not_before", "expected"),
    [
        pytest.param(1, 1, 0, 0, id="at once"),
        pytest.param(2, 1, 0, 0, id="in the gap before the first booking"),
        pytest.param(2, 2, 0, 3, id="longer than the gap: between the bookings"),
        pytest.param(2, 3, 0, 8, id="longer than any gap: after the last"),
        pytest.param(2, 1, 5.5, 8, id="not before an instant inside a booking"),
        pytest.param(3, 1, 0, None, id="more GPUs than there are"),
    ],
)
def test_the_next_free_start(gpus: int, length: float, not_before: float, expected: float | None) -> None:
    calendar = Calendar(A6000, 2, [booked(1, 3), booked(5, 8)])

    found = calendar.next_free(gpus, length * DAY, day(not_before))

    assert found == (None if expected is None else day(expected))


def test_a_model_in_endless_maintenance_has_no_next_free_start() -> None:
    for_ever = Closing(day(0), datetime.max.replace(tzinfo=UTC), 1)

    assert Calendar(A6000, 1, closings=[for_ever]).next_free(1, DAY, day(0)) is None


stretches = st.tuples(st.integers(0, 30), st.integers(1, 10), st.integers(1, 2)).map(
    lambda drawn: booked(drawn[0], drawn[0] + drawn[1], drawn[2])
)


@given(st.lists(stretches, max_size=8), st.integers(0, 40), st.integers(1, 5), st.integers(1, 3))
def test_the_next_free_start_is_free_and_no_whole_day_before_it_is(
    bookings: list[Booking], not_before: int, length: int, gpus: int
) -> None:
    calendar = Calendar(A6000, 3, bookings)

    found = calendar.next_free(gpus, length * DAY, day(not_before))

    assert found is not None
    assert calendar.free(found, found + length * DAY) >= gpus
    earlier = day(not_before)
    while earlier < found:
        assert calendar.free(earlier, earlier + length * DAY) < gpus
        earlier += DAY


def shared(start: float, end: float) -> Booking:
    return Booking(BookingId("s"), "ada", A6000, day(start), day(end), share=True)


def test_shares_fill_gpus_one_after_the_other() -> None:
    bookings = [booked(0, 9), shared(0, 4), shared(1, 4), shared(2, 3)]
    calendar = Calendar(A6000, 3, bookings, shares_per_gpu=2)

    assert [(span.free, span.shares) for span in calendar.spans(day(0), day(5))] == [
        (1, 3), (1, 2), (0, 1), (1, 2), (2, 4),
    ]  # fmt: skip
    assert calendar.next_free(1, DAY, day(2)) == day(3)
    assert calendar.next_free(1, DAY, day(2), share=True) == day(2)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(booked(0, 1, gpus=1), None, id="there is room"),
        pytest.param(booked(0, 2, gpus=2), (1, 2, 1), id="not for all of them"),
        pytest.param(booked(0, 2, gpus=3), (0, 2, 1), id="never for all of them"),
        pytest.param(booked(3, 4), (3, 4, -1), id="overbooked"),
        pytest.param(booked(0, 9, gpus=2), (1, 2, 1), id="the first of two times"),
        pytest.param(booked(2, 2), None, id="of no length: another rule says so"),
    ],
)
def test_where_room_is_missing(wanted: Booking, expected: tuple[float, float, int] | None) -> None:
    calendar = Calendar(A6000, 2, [booked(1, 2), booked(3, 4, gpus=3)])
    found = calendar.missing(wanted, [(wanted.start, wanted.end)])

    assert found == (Span(day(expected[0]), day(expected[1]), expected[2]) if expected else None)


def test_only_the_given_parts_of_a_booking_need_room() -> None:
    calendar, wanted = Calendar(A6000, 1, [booked(1, 2), booked(5, 6)]), booked(0, 7)

    assert calendar.missing(wanted, [(day(0), day(1)), (day(2), day(5))]) is None
    assert calendar.missing(wanted, [(day(0), day(1)), (day(4), day(7))]) == Span(day(5), day(6), 0)


CLOSED = Closing(day(0.8), day(1.2), 5)


@pytest.mark.parametrize(
    ("calendar", "shortest", "expected", "said"),
    [
        pytest.param(Calendar(A6000, 5), DAY, FreeNow(5, 5, next_start=day(0)), "", id="nothing is booked"),
        pytest.param(
            Calendar(A6000, 5, [booked(0, 9, gpus=2)], [CLOSED]),
            DAY,
            FreeNow(3, 0, day(0.8), "maintenance", day(1.2)),
            "3 free until 0.8 (maintenance); bookable from 1.2",
            id="maintenance begins before the shortest booking would end",
        ),
        pytest.param(
            Calendar(A6000, 5, [booked(0, 9, gpus=2)], [CLOSED]),
            0.8 * DAY,
            FreeNow(3, 3, next_start=day(0)),
            "",
            id="a shorter booking ends before the maintenance",
        ),
        pytest.param(
            Calendar(A6000, 5, [booked(0.5, 9, gpus=4)]),
            DAY,
            FreeNow(5, 1, day(0.5), "booked from then", day(0)),
            "5 free until 0.5 (booked from then)",
            id="one of five is free for long enough",
        ),
        pytest.param(
            Calendar(A6000, 2, [booked(0, 3, gpus=2)]),
            DAY,
            FreeNow(0, 0, next_start=day(3)),
            "bookable from 3",
            id="all are booked",
        ),
        pytest.param(
            Calendar(A6000, 1, [booked(0, 3, gpus=2)], [Closing(day(1), datetime.max.replace(tzinfo=UTC), 1)]),
            DAY,
            FreeNow(-1, 0, next_start=None),
            "",
            id="overbooked, and never again",
        ),
    ],
)
def test_what_can_be_booked_now_is_free_for_the_shortest_booking(
    calendar: Calendar, shortest: timedelta, expected: FreeNow, said: str
) -> None:
    found = calendar.free_now(day(0), shortest)

    assert found == expected
    assert found.words(lambda instant: f"{(instant - DAY0) / DAY:g}") == said


@given(st.lists(stretches, max_size=8), st.integers(0, 20), st.integers(0, 20))
def test_what_is_free_by_day_equals_what_is_free_on_each_day_alone(
    bookings: list[Booking], first: int, count: int
) -> None:
    """The days are local ones, which begin and end inside bookings."""
    calendar = Calendar(A6000, 3, bookings, shares_per_gpu=2)
    wanted = days(day(first).date(), count, ZoneInfo("Europe/Stockholm"))

    found = list(calendar.by_day(wanted))

    assert [span.free for span in found] == [calendar.free(each.start, each.end) for each in wanted]
