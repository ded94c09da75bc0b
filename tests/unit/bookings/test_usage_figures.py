"""Booked and held hours side by side: each in its step, once, and with what is not known left open."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.capacity import BookedTime
from carrel.bookings.people import Person, Role
from carrel.bookings.usage.figures import HeldHours, RowsBy, UsageQuestion, UsageSources, times_of, usage_rows
from carrel.bookings.usage.sums import Step, UsageSum
from carrel.ids import GpuUuid
from tests.kit.gpus import A6000

STOCKHOLM = ZoneInfo("Europe/Stockholm")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MONDAY = datetime(2026, 11, 15, 23, tzinfo=UTC)
"""Midnight in Stockholm."""
ADA, BOB = "ada@lab.org", "bob@lab.org"


def booked(user: str, start: datetime, hours: float, gpus: int = 1, group: str = "", share: bool = False) -> BookedTime:
    return BookedTime(user, group, A6000, start.timestamp(), (start + hours * HOUR).timestamp(), gpus, share)


def rows(
    question: UsageQuestion, *bookings: BookedTime, sums: tuple[UsageSum, ...] = (), shares: int = 1
) -> list[object]:
    found = usage_rows(question, UsageSources(bookings, sums, shares), STOCKHOLM)
    return [(row.person or row.model, row.start, row.bookings, row.booked) for row in found]


def test_a_booking_counts_in_each_day_with_its_hours_there() -> None:
    asked = UsageQuestion(MONDAY, MONDAY + 3 * DAY, RowsBy.MODEL, Step.DAY)
    assert rows(asked, booked(ADA, MONDAY + 20 * HOUR, 30, gpus=2)) == [
        (A6000, MONDAY, 1, 8.0),
        (A6000, MONDAY + DAY, 1, 48.0),
        (A6000, MONDAY + 2 * DAY, 1, 4.0),
    ]


def test_only_what_is_within_the_time_counts_and_a_share_is_its_part() -> None:
    asked = UsageQuestion(MONDAY + 6 * HOUR, MONDAY + 10 * HOUR)
    assert rows(asked, booked(ADA, MONDAY, 7), booked(ADA, MONDAY + 9 * HOUR, 100, share=True), shares=4) == [
        (ADA, MONDAY + 6 * HOUR, 2, 1.25)
    ]


def test_a_booked_slice_counts_as_its_part_of_a_gpu() -> None:
    sources = UsageSources([booked(ADA, MONDAY, 8, gpus=2)], (), parts={A6000: 0.125})
    (row,) = usage_rows(UsageQuestion(MONDAY, MONDAY + DAY), sources, STOCKHOLM)
    assert row.booked == 2.0


def test_steps_are_days_weeks_and_months_of_the_lab_also_where_the_clock_is_changed() -> None:
    change = datetime(2026, 10, 24, 22, tzinfo=UTC)
    days = times_of(UsageQuestion(change, change + 49 * HOUR, step=Step.DAY), STOCKHOLM)
    assert [(end - start) / HOUR for start, end in days] == [25, 24]
    weeks = times_of(UsageQuestion(change, change + 9 * DAY, step=Step.WEEK), STOCKHOLM)
    assert [start.astimezone(STOCKHOLM).strftime("%a %d") for start, _ in weeks] == ["Sun 25", "Mon 26", "Mon 02"]
    months = times_of(UsageQuestion(change, change + 9 * DAY, step=Step.MONTH), STOCKHOLM)
    assert [start.astimezone(STOCKHOLM).day for start, _ in months] == [25, 1]


def test_hours_are_those_of_the_labs_clock_and_hold_what_was_counted_in_them() -> None:
    asked = UsageQuestion(MONDAY, MONDAY + 3 * HOUR, step=Step.HOUR)
    sums = (
        UsageSum(MONDAY, 1.0, 0.5, 0.25, A6000, ADA, "booked"),
        UsageSum(MONDAY + 2 * HOUR, 2.0, 0.0, 2.0, A6000, ADA, ""),
        UsageSum(MONDAY + 2.5 * HOUR, 1.0, 1.0, 0.0, A6000, ADA, ""),
    )

    found = usage_rows(asked, UsageSources([booked(ADA, MONDAY + HOUR, 0.5)], sums), STOCKHOLM)

    assert [(row.start, row.end - row.start, row.booked, row.held and row.held.held) for row in found] == [
        (MONDAY, HOUR, 0.0, 1.0),
        (MONDAY + HOUR, HOUR, 0.5, 0.0),
        (MONDAY + 2 * HOUR, HOUR, 0.0, 3.0),
    ], "also of an hour that was counted in another zone"


@pytest.mark.parametrize(
    ("zone", "around", "hours"),
    [
        pytest.param("Europe/Stockholm", datetime(2026, 10, 25, 0, tzinfo=UTC), [1, 1, 1, 1], id="an hour twice"),
        pytest.param("Asia/Kolkata", datetime(2026, 10, 25, 0, 30, tzinfo=UTC), [1, 1, 1, 1], id="half an hour beside"),
        pytest.param(
            "Australia/Lord_Howe", datetime(2026, 4, 4, 13, tzinfo=UTC), [1, 0.5, 1, 1, 0.5], id="back by half an hour"
        ),
        pytest.param(
            "Australia/Lord_Howe",
            datetime(2026, 10, 3, 13, 30, tzinfo=UTC),
            [1, 0.5, 1, 1, 0.5],
            id="on by half an hour",
        ),
    ],
)
def test_hours_follow_one_another_also_where_the_clock_is_changed(
    zone: str, around: datetime, hours: list[float]
) -> None:
    found = times_of(UsageQuestion(around, around + 4 * HOUR, step=Step.HOUR), ZoneInfo(zone))

    assert [(end - start) / HOUR for start, end in found] == hours
    assert all(end == start for (_, end), (start, _) in pairwise(found))


def test_booked_and_held_hours_of_a_person_and_model_are_in_one_row_and_those_of_a_group_apart() -> None:
    sums = (
        UsageSum(MONDAY, 4.0, 1.0, 2.0, A6000, ADA, "booked"),
        UsageSum(MONDAY, 3.0, 0.0, 0.0, A6000, ADA, "opportunistic"),
        UsageSum(MONDAY, 1.0, 1.0, 0.0, A6000, "", ""),
    )
    of_group = booked(ADA, MONDAY, 2, group="vision")
    found = usage_rows(
        UsageQuestion(MONDAY, MONDAY + DAY), UsageSources([booked(ADA, MONDAY, 5), of_group], sums), STOCKHOLM
    )
    assert [(row.person, row.group, row.booked, row.held) for row in found] == [
        (ADA, "", 5.0, HeldHours(7.0, 1.0, 2.0, 4.0, 3.0)),
        (ADA, "vision", 2.0, None),
        ("", "", 0.0, HeldHours(1.0, 1.0, 0.0)),
    ]
    assert found[0].held is not None and found[0].held.unknown == 4.0


def test_what_is_not_known_is_none_and_not_zero() -> None:
    asked = UsageQuestion(MONDAY, MONDAY + DAY)
    (row,) = usage_rows(asked, UsageSources([booked(ADA, MONDAY, 5)], None), STOCKHOLM)
    assert (row.booked, row.held) == (5.0, None), "without a cluster"
    held = UsageSum(MONDAY, 4.0, model=A6000, person=ADA, tier="booked")
    (row,) = usage_rows(asked, UsageSources(None, [held]), STOCKHOLM)
    assert row.booked is None, "bookings are made elsewhere"
    of_gpu = UsageSum(MONDAY, 4.0, model=A6000, gpu=GpuUuid("GPU-1"), tier="booked")
    by_gpu = UsageQuestion(MONDAY, MONDAY + DAY, RowsBy.GPU)
    (row,) = usage_rows(by_gpu, UsageSources([booked(ADA, MONDAY, 5)], [of_gpu]), STOCKHOLM)
    assert (row.gpu, row.booked) == ("GPU-1", None), "bookings are of models"


@pytest.mark.parametrize(
    ("by", "role", "about"),
    [
        pytest.param(RowsBy.PERSON, Role.MEMBER, ADA, id="a member sees themselves"),
        pytest.param(RowsBy.GPU, Role.MEMBER, ADA, id="a member sees their own hours on each GPU"),
        pytest.param(RowsBy.MODEL, Role.MEMBER, None, id="sums of everybody are for everybody"),
        pytest.param(RowsBy.PERSON, Role.LAB_ADMIN, None, id="a lab admin sees everybody"),
    ],
)
def test_who_sees_whose_figures(by: RowsBy, role: Role, about: str | None) -> None:
    asked = UsageQuestion(MONDAY, MONDAY + DAY, by)
    person = Person(ADA, roles=frozenset({role}))
    assert asked.about(person) == asked.query(person).person == about
