"""The booking rules, all at once, and when the next booking may start."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.calendar import days
from carrel.bookings.rules import RULES, Booking, broken_rules, earliest_start, rule_input
from carrel.configuration.schema import BookingRules
from carrel.ids import BookingId
from carrel.parsing.time import words
from tests.kit.gpus import A6000

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
STOCKHOLM = ZoneInfo("Europe/Stockholm")
DAY = timedelta(days=1)


def a_booking(start: datetime, end: datetime, name: str = "b", cancelled: datetime | None = None) -> Booking:
    return Booking(id=BookingId(name), user="ada@lab.org", model=A6000, start=start, end=end, cancelled_at=cancelled)


def a_request(start_in: timedelta = DAY, lasting: timedelta = 5 * DAY) -> Booking:
    return a_booking(NOW + start_in, NOW + start_in + lasting, "wanted")


def broken(wanted: Booking, *own: Booking, rules: BookingRules | None = None) -> list[str]:
    return [rule.rule for rule in broken_rules(rule_input(wanted, own, NOW, rules or BookingRules()))]


ACTIVE = a_booking(NOW - DAY, NOW + DAY, "active")
PLANNED = a_booking(NOW + 40 * DAY, NOW + 45 * DAY, "planned")
ENDED = a_booking(NOW - 10 * DAY, NOW - 5 * DAY, "ended")


@pytest.mark.parametrize(
    ("wanted", "own", "expected"),
    [
        pytest.param(a_request(), [], [], id="a first booking"),
        pytest.param(a_request(20 * DAY), [ACTIVE], ["no-active-overlap"], id="while one is active"),
        pytest.param(a_request(), [PLANNED], ["future-limit"], id="while one is planned"),
        pytest.param(a_request(9 * DAY), [ENDED], [], id="14 full days after the last one ended"),
        pytest.param(
            a_request(9 * DAY - timedelta(seconds=1)), [ENDED], ["cooldown"], id="one second short of 14 full days"
        ),
        pytest.param(a_request(lasting=DAY), [], [], id="exactly one day"),
        pytest.param(a_request(lasting=DAY - timedelta(seconds=1)), [], ["min-duration"], id="24 h − 1 s"),
        pytest.param(a_request(lasting=14 * DAY), [], [], id="exactly 14 days"),
        pytest.param(a_request(lasting=14 * DAY + timedelta(seconds=1)), [], ["max-duration"], id="336 h + 1 s"),
        pytest.param(
            a_request(lasting=15 * DAY - timedelta(seconds=1)), [], ["max-duration"], id="14 d 23:59:59 is not 14 days"
        ),
        pytest.param(a_request(lasting=timedelta(0)), [], ["end-after-start"], id="no length"),
        pytest.param(a_request(lasting=-DAY), [], ["end-after-start"], id="end before start"),
        pytest.param(a_request(-timedelta(seconds=1)), [], ["not-in-the-past"], id="a start that has passed"),
        pytest.param(a_request(timedelta(0)), [], [], id="a start now"),
        pytest.param(
            a_request(-DAY, timedelta(hours=1)),
            [ACTIVE, PLANNED, ENDED],
            ["min-duration", "not-in-the-past", "no-active-overlap", "future-limit", "cooldown"],
            id="all broken rules are found at once",
        ),
        pytest.param(
            a_request(),
            [a_booking(NOW + DAY, NOW + 2 * DAY, "c", cancelled=NOW - DAY)],
            [],
            id="a booking that was cancelled before it began does not count",
        ),
        pytest.param(
            a_request(13 * DAY),
            [a_booking(NOW - 3 * DAY, NOW + 7 * DAY, "c", cancelled=NOW - DAY)],
            [],
            id="the cooldown of a booking that was cancelled while active starts there",
        ),
        pytest.param(
            a_request(13 * DAY - timedelta(seconds=1)),
            [a_booking(NOW - 3 * DAY, NOW + 7 * DAY, "c", cancelled=NOW - DAY)],
            ["cooldown"],
            id="a booking that was cancelled while active still has a cooldown",
        ),
        pytest.param(
            a_request(), [a_booking(NOW + DAY, NOW + 6 * DAY, "wanted")], [], id="a change of the same booking"
        ),
    ],
)
def test_broken_rules_are_found(wanted: Booking, own: list[Booking], expected: list[str]) -> None:
    assert broken(wanted, *own) == expected


@pytest.mark.parametrize("blocking", [ACTIVE, PLANNED, ENDED], ids=["active", "planned", "in its cooldown"])
def test_a_persons_own_bookings_and_those_of_a_group_do_not_block_each_other(blocking: Booking) -> None:
    wanted, of_group = a_request(), replace(blocking, group="vision")

    assert broken(wanted, blocking)
    assert broken(wanted, of_group) == []
    assert broken(replace(wanted, group="vision"), blocking) == []
    assert broken(replace(wanted, group="vision"), replace(of_group, group="nlp")) == []


@pytest.mark.parametrize("blocking", [ACTIVE, PLANNED, ENDED], ids=["active", "planned", "in its cooldown"])
def test_bookings_of_one_group_block_each_other_whoever_made_them(blocking: Booking) -> None:
    wanted = replace(a_request(), group="vision", user="bob@lab.org")

    assert broken(wanted, replace(blocking, group="vision")) == broken(a_request(), blocking)


def test_messages_about_a_groups_bookings_name_the_group() -> None:
    wanted = replace(a_request(), group="vision")
    own = [replace(each, group="vision") for each in (ACTIVE, PLANNED)]

    messages = [problem.message for problem in broken_rules(rule_input(wanted, own, NOW, BookingRules()))]

    assert [message.partition(" ")[0] for message in messages] == ["The", "The", "14"]
    assert "the group's of" in messages[2]
    assert not [message for message in messages if "you" in message.lower()]


@pytest.mark.parametrize(
    ("group", "gpus", "expected"),
    [
        pytest.param("", 2, [], id="a person, as many as allowed"),
        pytest.param("", 3, ["max-gpus"], id="a person, one too many"),
        pytest.param("vision", 4, [], id="a group, as many as allowed"),
        pytest.param("vision", 5, ["group-max-gpus"], id="a group, one too many"),
    ],
)
def test_people_and_groups_have_their_own_most_gpus(group: str, gpus: int, expected: list[str]) -> None:
    wanted = replace(a_request(), gpus=gpus, group=group)

    assert broken(wanted, rules=BookingRules(max_gpus=2, group_max_gpus=4)) == expected
    assert broken(wanted, rules=BookingRules(max_gpus=0)) == [], "0: no limit"


def test_by_default_a_person_books_up_to_four_gpus_and_a_group_any_number() -> None:
    assert broken(replace(a_request(), gpus=4)) == []
    assert broken(replace(a_request(), gpus=5)) == ["max-gpus"]
    assert broken(replace(a_request(), gpus=500, group="vision")) == []


def test_a_booking_with_more_gpus_than_are_allowed_by_now_may_become_smaller_or_shorter() -> None:
    rules = BookingRules(max_gpus=2)
    old = replace(PLANNED, gpus=8)

    def changed(**changes: Any) -> list[str]:
        given = rule_input(replace(old, **changes), [old], NOW, rules, old=old)
        messages.extend(problem.message for problem in broken_rules(given))
        return [problem.rule for problem in broken_rules(given)]

    messages: list[str] = []
    assert changed(gpus=4) == []
    assert changed(end=old.end - DAY) == []
    assert changed(end=old.end + DAY) == ["max-gpus"]
    assert changed(gpus=9) == ["max-gpus"]
    assert changed(end=old.end + DAY, gpus=2) == []
    assert messages == [
        "A booking has at most 2 GPUs; this one has more, and can only get shorter or smaller.",
        "A booking has at most 2 GPUs; 9 are asked for.",
    ]


def test_a_lab_may_change_the_rules() -> None:
    rules = BookingRules(min_duration=timedelta(hours=1), max_duration=60 * DAY, cooldown=timedelta(0), planned=2)

    assert broken(a_request(lasting=timedelta(hours=1)), PLANNED, rules=rules) == []
    assert broken(a_request(), PLANNED, a_booking(NOW + 50 * DAY, NOW + 51 * DAY, "p2"), rules=rules) == [
        "future-limit"
    ]


def test_the_cooldown_also_applies_before_a_planned_booking() -> None:
    rules = BookingRules(planned=2)

    assert broken(a_request(25 * DAY, DAY), PLANNED, rules=rules) == []
    assert broken(a_request(25 * DAY, 2 * DAY), PLANNED, rules=rules) == ["cooldown"]


def test_the_earliest_start_follows_the_last_booking_and_its_cooldown() -> None:
    assert earliest_start([], NOW, BookingRules()) == NOW
    assert earliest_start([ENDED], NOW, BookingRules()) == NOW + 9 * DAY
    assert earliest_start([ENDED, ACTIVE, PLANNED], NOW, BookingRules()) == NOW + 59 * DAY


@pytest.mark.parametrize(
    ("ended", "next_start"),
    [
        pytest.param(datetime(2026, 10, 18), datetime(2026, 10, 31, 23), id="clocks went back in between"),
        pytest.param(datetime(2026, 3, 22), datetime(2026, 4, 5, 1), id="clocks went forward in between"),
    ],
)
def test_fourteen_days_are_336_hours_also_across_dst(ended: datetime, next_start: datetime) -> None:
    end = ended.replace(tzinfo=STOCKHOLM)
    own = a_booking(end - DAY, end)

    found = earliest_start([own], end.astimezone(UTC), BookingRules())

    assert found == next_start.replace(tzinfo=STOCKHOLM)


def test_fourteen_local_autumn_days_are_337_hours_and_too_long() -> None:
    start = datetime(2026, 10, 18, tzinfo=STOCKHOLM)
    wanted = a_booking(start, datetime(2026, 11, 1, tzinfo=STOCKHOLM), "wanted")

    broken = broken_rules(rule_input(wanted, [], start, BookingRules()))

    assert [rule.message for rule in broken] == ["A booking lasts at most 14 d; this is 14 d 1 h."]


def test_a_message_says_what_is_wrong_and_when_it_would_work_in_the_labs_zone() -> None:
    own = a_booking(datetime(2026, 11, 8, 8, tzinfo=UTC), datetime(2026, 11, 14, 8, tzinfo=UTC))

    given = rule_input(a_request(), [own], NOW, BookingRules(), STOCKHOLM)

    assert [rule.message for rule in broken_rules(given)] == [
        "14 d must lie between two bookings; yours of NVIDIA-RTX-A6000 ends Sat 14 Nov 2026 09:00 CET."
        " The next may start Sat 28 Nov 2026 09:00 CET."
    ]
    assert given.earliest_start == datetime(2026, 11, 28, 8, tzinfo=UTC)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="start of booking b has no time zone"):
        a_booking(datetime(2026, 1, 1), NOW)


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(0), "0 s"),
        (timedelta(days=3, hours=4), "3 d 4 h"),
        (timedelta(days=14, hours=23, minutes=59, seconds=59), "14 d 23 h 59 min 59 s"),
        (-timedelta(hours=1), "-1 h"),
    ],
)
def test_lengths_are_written_exactly(length: timedelta, said: str) -> None:
    assert words(length) == said


def changed(
    old: Booking,
    start: datetime,
    end: datetime,
    *others: Booking,
    now: datetime = NOW,
    rules: BookingRules | None = None,
) -> list[str]:
    new = a_booking(start, end, old.id)
    return [rule.rule for rule in broken_rules(rule_input(new, [old, *others], now, rules or BookingRules(), old=old))]


def test_a_change_is_judged_without_its_own_booking_and_also_while_one_is_active() -> None:
    assert changed(PLANNED, NOW + 41 * DAY, NOW + 50 * DAY, ACTIVE) == []
    assert changed(ACTIVE, ACTIVE.start, NOW + 9 * DAY) == []
    assert changed(ACTIVE, ACTIVE.start, NOW + 27 * DAY, PLANNED) == ["max-duration", "cooldown"]


def test_a_booking_may_become_shorter_under_stricter_rules() -> None:
    strict = BookingRules(max_duration=2 * DAY, cooldown=60 * DAY)

    assert changed(PLANNED, PLANNED.start, PLANNED.end - DAY, ACTIVE, rules=strict) == []
    assert changed(PLANNED, PLANNED.start, PLANNED.end + DAY, ACTIVE, rules=strict) == ["max-duration"]


def test_a_change_is_judged_for_what_it_adds() -> None:
    """Under rules that became stricter, a booking is too near to the one before it, and too short."""
    strict = BookingRules(min_duration=12 * DAY, cooldown=60 * DAY)
    later = a_booking(PLANNED.end + 20 * DAY, PLANNED.end + 30 * DAY, "later")

    assert changed(PLANNED, PLANNED.start, PLANNED.end + DAY, ACTIVE, rules=strict) == []
    assert changed(PLANNED, PLANNED.start - DAY, PLANNED.end, ACTIVE, rules=strict) == ["cooldown"]
    assert changed(PLANNED, PLANNED.start, PLANNED.end + DAY, later, rules=strict) == ["cooldown"]
    assert changed(PLANNED, PLANNED.start, PLANNED.end - DAY, later, rules=strict) == ["min-duration"]


def test_the_time_that_needs_room_is_what_a_change_adds() -> None:
    def added(new: Booking, old: Booking | None, now: datetime = NOW) -> list[tuple[datetime, datetime]]:
        parts = rule_input(new, [], now, BookingRules(), old=old).added
        return [(start, end) for start, end in parts if start < end]

    old = a_booking(NOW + 10 * DAY, NOW + 20 * DAY)
    longer, moved = replace(old, end=NOW + 22 * DAY), replace(old, start=NOW + 30 * DAY, end=NOW + 40 * DAY)
    around = replace(old, start=NOW + 8 * DAY, end=NOW + 22 * DAY)
    assert added(old, None) == [(old.start, old.end)]
    assert added(longer, old) == [(old.end, longer.end)]
    assert added(around, old) == [(around.start, old.start), (old.end, around.end)]
    assert added(moved, old) == [(moved.start, moved.end)]
    assert added(replace(old, end=NOW + 19 * DAY), old) == []
    assert added(replace(old, gpus=2), old) == [(old.start, old.end)], "each of its days needs one more GPU"
    assert added(replace(old, gpus=2), old, now=NOW + 15 * DAY) == [(NOW + 15 * DAY, old.end)], "not in the past"


def test_a_booking_that_was_cancelled_or_is_over_cannot_be_changed() -> None:
    gone = a_booking(NOW + DAY, NOW + 5 * DAY, "gone", cancelled=NOW - DAY)

    assert changed(gone, gone.start, gone.end + DAY) == ["over"]
    assert changed(ENDED, ENDED.start, NOW + DAY) == ["over"]


def test_a_share_is_of_one_gpu_and_only_if_the_lab_allows_shares() -> None:
    share = Booking(BookingId("s"), "ada@lab.org", A6000, NOW, NOW + DAY, share=True)
    shares = Booking(BookingId("s"), "ada@lab.org", A6000, NOW, NOW + DAY, gpus=2, share=True)

    assert broken(share) == ["shares"]
    assert broken(share, rules=BookingRules(shares_per_gpu=4)) == []
    assert broken(shares, rules=BookingRules(shares_per_gpu=4)) == ["shares"]


def test_every_rule_that_can_be_broken_has_a_title() -> None:
    requests = [a_request(lasting=DAY / 2), a_request(lasting=20 * DAY), a_request(-DAY), a_request(lasting=-DAY)]
    told = [
        rule
        for wanted in requests
        for rule in broken_rules(rule_input(wanted, [ACTIVE, PLANNED, ENDED], NOW, BookingRules()))
    ]

    assert all(rule.title for rule in told)
    assert {rule.rule for rule in told} < {row.name for row in RULES}


def test_days_of_the_calendar_have_23_24_or_25_hours() -> None:
    lengths = {
        found.date.isoformat(): (found.end - found.start) / timedelta(hours=1)
        for first in (date(2026, 3, 28), date(2026, 10, 24))
        for found in days(first, 3, STOCKHOLM)
    }

    assert lengths == {
        "2026-03-28": 24, "2026-03-29": 23, "2026-03-30": 24,
        "2026-10-24": 24, "2026-10-25": 25, "2026-10-26": 24,
    }  # fmt: skip
    found = days(date(2026, 3, 28), 3, STOCKHOLM)
    assert [one.end for one in found[:-1]] == [other.start for other in found[1:]]
