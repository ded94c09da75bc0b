"""How the pages write times, durations and models, read forms, and show rule checks."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings import wording
from carrel.bookings.calendar import DayAvailability, FreeNow
from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.pages.forms import (
    InvalidForm,
    day,
    gpu_count,
    idempotency_of,
    judged,
    local_instant,
    read_booking_form,
    why_earliest,
)
from carrel.bookings.pages.layout import time_tag
from carrel.bookings.pages.timeline_page import earliest_model, whole_minute
from carrel.bookings.records import Availability, Preview
from carrel.bookings.rules import Booking, Broken
from carrel.configuration.schema import BookingRules
from carrel.ids import BookingId
from carrel.ledger.gpus import MiB, memory_text

STOCKHOLM = ZoneInfo("Europe/Stockholm")
NOW = datetime(2026, 11, 16, 12, 0, 30, tzinfo=UTC)
DAY = timedelta(days=1)
FORM = {"model": "a6000", "start": "2026-11-20T09:00", "end": "2026-11-25T09:00", "gpus": "2"}


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (timedelta(days=3, hours=4, minutes=50), "3 d 4 h"),
        (timedelta(days=3, minutes=50), "3 d"),
        (timedelta(hours=4, minutes=20), "4 h 20 min"),
        (timedelta(minutes=20, seconds=59), "20 min"),
        (timedelta(seconds=59), "under a minute"),
        (timedelta(seconds=-5), "under a minute"),
    ],
)
def test_a_duration_has_its_two_largest_units(length: timedelta, said: str) -> None:
    assert wording.span(length) == said


def test_things_are_counted_also_parts_of_them() -> None:
    said = [wording.count(number, "GPU") for number in (1, 3, 1280, 7.0, 0.9)]

    assert said == ["1 GPU", "3 GPUs", "1,280 GPUs", "7 GPUs", "0.9 GPUs"]


def test_times_are_short_with_the_exact_time_in_the_tooltip() -> None:
    tag = time_tag(datetime(2026, 11, 3, 13, 5, tzinfo=UTC), STOCKHOLM)

    assert tag == (
        '<time datetime="2026-11-03T13:05:00+00:00" title="Tue 03 Nov 2026 14:05 CET">Tue 3 Nov 14:05</time>'
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NVIDIA-RTX-A6000", "RTX A6000"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("Tesla-T4", "Tesla T4"),
    ],
)
def test_a_model_is_shown_without_the_vendor(name: str, said: str) -> None:
    assert wording.model(name) == said


# --- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        pytest.param("2026-11-24T14:00", "2026-11-24T13:00:00+00:00", id="winter"),
        pytest.param("2026-07-01T14:00", "2026-07-01T12:00:00+00:00", id="summer"),
        pytest.param("2026-10-25T02:30", "2026-10-25T00:30:00+00:00", id="an hour that exists twice: the first"),
    ],
)
def test_times_in_forms_are_in_the_zone_of_the_lab(text: str, instant: str) -> None:
    assert local_instant(text, STOCKHOLM).isoformat() == instant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("2026-03-29T02:30", "02:30 does not exist", id="an hour that does not exist"),
        pytest.param("2026-02-30T09:00", "is not a date and time", id="the 30th of February"),
        pytest.param("", "missing", id="nothing"),
        pytest.param("tomorrow", "is not a date and time", id="a word"),
        pytest.param("0001-01-01T00:00", "too far in the past", id="the beginning of the calendar"),
    ],
)
def test_an_invalid_time_is_reported(text: str, said: str) -> None:
    with pytest.raises(InvalidForm, match=said):
        local_instant(text, STOCKHOLM)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "²", "one", "99999999"])
def test_an_invalid_number_of_gpus_is_reported(text: str) -> None:
    with pytest.raises(InvalidForm, match="not a number of GPUs"):
        gpu_count({"gpus": text})


@pytest.mark.parametrize("text", ["", "2026-13-01", "0001-01-01", "9999-12-31", "<script>"])
def test_a_day_that_cannot_be_shown_is_ignored(text: str) -> None:
    assert day(text) is None


def test_a_form_is_read() -> None:
    wanted = read_booking_form(FORM, STOCKHOLM, NOW)

    assert (wanted.model, wanted.gpus) == ("a6000", 2)
    assert wanted.start == datetime(2026, 11, 20, 8, tzinfo=UTC)
    assert wanted.end == datetime(2026, 11, 25, 8, tzinfo=UTC)


def test_everything_that_is_wrong_with_a_form_is_reported_at_once() -> None:
    with pytest.raises(InvalidForm) as told:
        read_booking_form({"gpus": "x", "start": "soon"}, STOCKHOLM, NOW)

    assert len(told.value.problems) == 4


def test_an_unchanged_start_in_the_current_minute_means_now_for_the_whole_length() -> None:
    form = {**FORM, "suggested": "2026-11-16T13:00", "start": "2026-11-16T13:00", "end": "2026-11-17T13:00"}

    wanted = read_booking_form(form, STOCKHOLM, NOW)

    assert wanted.start is None
    assert wanted.end == timedelta(days=1)


def test_a_past_start_that_was_not_suggested_stays_in_the_past() -> None:
    wanted = read_booking_form({**FORM, "start": "2026-11-16T08:00", "suggested": "2026-11-16T13:00"}, STOCKHOLM, NOW)

    assert wanted.start == datetime(2026, 11, 16, 7, tzinfo=UTC)


def test_a_form_sent_twice_is_one_request_and_a_changed_one_is_another() -> None:
    first, again = idempotency_of({**FORM, "key": "k"}), idempotency_of({**FORM, "key": "k"})
    changed = idempotency_of({**FORM, "key": "k", "gpus": "1"})

    assert first == again
    assert first is not None and changed is not None and first.key != changed.key
    assert idempotency_of(FORM) is None


def availability(model: str, *free: int) -> Availability:
    days = [
        DayAvailability((NOW + n * DAY).date(), NOW + n * DAY, NOW + (n + 1) * DAY, each) for n, each in enumerate(free)
    ]
    return Availability(ModelCapacity(model, 4, MiB(1)), FreeNow(free[0], free[0]), tuple(days))


def test_the_model_that_is_first_free_for_the_whole_length_is_suggested() -> None:
    soon = availability("soon", 1, 1, 1, 1)
    gone_tomorrow = availability("gone tomorrow", 3, 0, 3, 3)
    never = availability("never", 0, 0, 0, 0)

    assert earliest_model([gone_tomorrow, never, soon], NOW, 2 * DAY) == "soon"
    assert earliest_model([gone_tomorrow, never, soon], NOW, DAY) == "gone tomorrow"
    assert earliest_model([never], NOW, DAY) == "never"


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        pytest.param("2026-11-16T12:00:30", "2026-11-16T12:00:00", id="now: the minute that has begun"),
        pytest.param("2026-11-20T08:00:00", "2026-11-20T08:00:00", id="a whole minute"),
        pytest.param("2026-11-20T08:00:01", "2026-11-20T08:01:00", id="rounded up: never too early"),
        pytest.param("2027-10-31T00:30:00", "2027-10-31T00:30:00", id="02:30 for the first time"),
        pytest.param("2027-10-31T01:30:00", "2027-10-31T02:00:00", id="02:30 for the second time: the next hour"),
    ],
)
def test_an_suggested_start_is_a_time_that_a_form_can_express(start: str, shown: str) -> None:
    suggested = whole_minute(datetime.fromisoformat(start).replace(tzinfo=UTC), NOW, STOCKHOLM)

    assert suggested == datetime.fromisoformat(shown).replace(tzinfo=UTC)
    assert local_instant(suggested.astimezone(STOCKHOLM).strftime("%Y-%m-%dT%H:%M"), STOCKHOLM) == suggested


# --- rule checks -----------------------------------------------------------------------------------------------------


def test_every_rule_is_shown_and_broken_ones_are_marked() -> None:
    checks = judged(BookingRules(), [Broken("cooldown", "…"), Broken("capacity", "…")], 2)

    assert [check.words for check in checks if not check.is_kept] == ["14 d since the last one", "2 GPUs are free"]
    assert len(checks) == 8


def test_a_rule_that_the_page_does_not_know_is_shown_with_its_title() -> None:
    checks = judged(BookingRules(), [Broken("shares", "…")])

    assert [check.words for check in checks if not check.is_kept] == ["No such share"]


def test_a_lab_without_a_cooldown_does_not_show_that_rule() -> None:
    assert not [check for check in judged(BookingRules(cooldown=timedelta(0)), []) if "last one" in check.words]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([], "You can book a GPU now."),
        (["cooldown"], "Your cooldown ends then."),
        (["capacity"], "A GPU is free for the whole time then."),
        (["cooldown", "capacity"], "Your cooldown ends and a GPU is free then."),
        (["no-active-overlap", "cooldown"], "You have an active booking. You can book again when it has ended."),
        (["future-limit"], "You have as many planned bookings as the rules allow. Cancel or change one of them."),
    ],
)
def test_the_page_says_why_the_first_start_is_not_earlier(rules: list[str], said: str) -> None:
    booking = Booking(BookingId(""), "ada", "a6000", NOW, NOW + timedelta(days=1))
    preview = Preview(booking, tuple(Broken(rule, "…") for rule in rules), NOW)

    assert why_earliest(preview) == said


@pytest.mark.parametrize(
    ("mib", "expected"),
    [(49140, "48 GiB"), (81920, "80 GiB"), (8138, "7.9 GiB"), (8192, "8 GiB"), (1536, "1.5 GiB"), (512, "512 MiB")],
)
def test_memory_is_written_as_people_speak_of_a_gpu(mib: int, expected: str) -> None:
    assert memory_text(mib) == expected


def test_a_model_has_one_name_in_every_sentence() -> None:
    said = "There are 2 GPUs of NVIDIA-RTX-A6000 to book; NVIDIA-A100-SXM4-80GB and Tesla-T4 have more."

    assert wording.in_words(said) == "There are 2 GPUs of RTX A6000 to book; A100 SXM4 80GB and Tesla T4 have more."
