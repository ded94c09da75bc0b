"""A process whose clock is wrong goes by the API server's."""

import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.kubernetes.server_clock import ServerClock
from carrel.kubernetes.transport import ApiRequest, ApiResponse

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def date_of(at: datetime) -> str:
    return format_datetime(at.replace(microsecond=0), usegmt=True)


def answered(skew: timedelta, took: timedelta = timedelta(milliseconds=20), times: int = 5) -> ServerClock:
    """A clock that is ahead by `skew`, after some answers."""
    clock = ServerClock(lambda: NOON + skew)
    for _ in range(times):
        clock.observe(date_of(NOON - took / 2), NOON + skew - took)
    return clock


@pytest.mark.parametrize("skew_s", [-86400, -60, -5, 5, 60, 86400])
def test_a_wrong_clock_is_corrected_to_the_second(skew_s: int) -> None:
    clock = answered(timedelta(seconds=skew_s))

    assert abs(clock.now() - NOON) <= timedelta(seconds=1.1)
    assert abs(clock.skew - timedelta(seconds=skew_s)) <= timedelta(seconds=1.1)


@given(
    skew=st.floats(-1e6, 1e6),
    took=st.floats(0, 10),
    part=st.floats(0, 1),
    at=st.floats(0, 1),
)
def test_the_time_is_never_worse_than_what_is_tolerated(skew: float, took: float, part: float, at: float) -> None:
    """Wherever within its second, and whenever during the call, the server wrote its date."""
    received = NOON + timedelta(seconds=at)
    clock = ServerClock(lambda: received + timedelta(seconds=skew))
    written = received - timedelta(seconds=took * part)
    clock.observe(date_of(written), received + timedelta(seconds=skew - took))

    error = abs(clock.now() - received)
    assert error <= timedelta(seconds=3 + 1 + took + 0.001)
    assert not clock.skew or abs(clock.skew) <= abs(timedelta(seconds=skew)) + timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "clock",
    [
        pytest.param(answered(timedelta(seconds=2)), id="two seconds are tolerated"),
        pytest.param(answered(timedelta(hours=1), took=timedelta(seconds=11)), id="a slow answer says nothing"),
        pytest.param(answered(timedelta(hours=1), times=0), id="no answer yet"),
    ],
)
def test_otherwise_the_own_clock_counts(clock: ServerClock) -> None:
    assert clock.skew == timedelta()
    assert clock.now() == clock.machine()


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 16 Nov 2026 12:00:00 -0000", "Mon, 99 Nov 2026 12:00:00 GMT"])
def test_a_date_that_cannot_be_read_says_nothing(date: str) -> None:
    clock = ServerClock(lambda: NOON + timedelta(hours=1))
    clock.observe(date, NOON + timedelta(hours=1))

    assert clock.skew == timedelta()


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("answers", "is_followed"),
    [
        pytest.param({"a": 1, "b": 1, "wrong": 50}, False, id="most answers come from one of them"),
        pytest.param({"wrong": 50, "a": 1}, False, id="one against one: the own clock agrees with one of them"),
        pytest.param({"wrong 1": 1, "wrong 2": 1, "a": 50}, True, id="most API servers say so"),
        pytest.param({"wrong": 1}, True, id="nobody else was heard"),
        pytest.param({"wrong": 1, **dict.fromkeys("abcdefgh", 1)}, False, id="long ago"),
    ],
)
def test_of_several_api_servers_one_whose_clock_is_wrong_decides_nothing(
    answers: dict[str, int], is_followed: bool
) -> None:
    clock = ServerClock(lambda: NOON)
    for voice, times in answers.items():
        for _ in range(times):
            clock.observe(date_of(NOON + HOUR * voice.startswith("wrong")), NOON, voice)

    assert clock.now() == NOON + HOUR * is_followed


def test_after_the_machines_clock_was_set_the_first_answer_counts_again() -> None:
    ahead = timedelta()
    clock = ServerClock(lambda: NOON + ahead, monotonic=NOON.timestamp)
    for voice in "abcde":
        clock.observe(date_of(NOON), NOON, voice)
    ahead = HOUR

    clock.observe(date_of(NOON), NOON + ahead, "a")

    assert abs(clock.now() - NOON) <= timedelta(seconds=1)


@pytest.mark.parametrize(("later_s", "is_corrected"), [(60, False), (301, True)])
def test_after_the_api_servers_own_clock_was_set_watches_that_stay_open_count_for_five_minutes(
    later_s: float, is_corrected: bool
) -> None:
    now = NOON
    clock = ServerClock(lambda: now)
    for voice in ("", "pods", "nodes", "leases"):
        clock.observe(date_of(now + HOUR), now, voice)
    now += timedelta(seconds=later_s)

    clock.observe(date_of(now), now)

    assert clock.now() == now + HOUR * (not is_corrected)


def test_a_skew_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ahead = timedelta(minutes=5)
    clock = ServerClock(lambda: NOON + ahead)
    for _ in range(7):
        clock.observe(date_of(NOON), NOON + ahead)
    ahead = timedelta()
    for _ in range(7):
        clock.observe(date_of(NOON), NOON)

    assert [record.message for record in caplog.records] == [
        "clock_skew seconds=299: the API server's time counts",
        "clock_skew_over",
    ]


async def test_every_answer_of_the_api_server_sets_the_clock_also_of_a_fenced_client() -> None:
    class Answers:
        async def send(self, request: ApiRequest) -> ApiResponse:
            return ApiResponse(200, b"{}", {"date": date_of(NOON)})

        async def aclose(self) -> None:
            pass

    client = Client(Answers(), clock=ServerClock(lambda: NOON + timedelta(hours=2)))
    await client.guarded(lambda: None).get(PODS, "p", "lab")

    assert abs(client.clock.now() - NOON) <= timedelta(seconds=1)


async def test_each_watch_has_a_voice_of_its_own_and_all_other_calls_together_one() -> None:
    """Calls go to an API server whose clock is wrong, watches to others."""

    class Answers:
        async def send(self, request: ApiRequest) -> ApiResponse:
            is_watch = "watch" in request.query
            date = {"date": date_of(NOON if is_watch else NOON + HOUR)}
            return ApiResponse(200, b"{}", date, _nothing() if is_watch else None)

        async def aclose(self) -> None:
            pass

    client = Client(Answers(), clock=ServerClock(lambda: NOON))
    for resource in (PODS, NODES):
        async with client.watch(resource, resource_version="1"):
            pass
    for name in ("p", "q", "r"):
        await client.get(PODS, name, "lab")

    assert client.clock.now() == NOON


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield b""
