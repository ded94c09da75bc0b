"""What the webhook remembers of the booking service's answers."""

import asyncio
from datetime import UTC, datetime

import pytest

from carrel.bookings.client import BookingCache, BookingStatus, Declined, NoAnswer

ENDS = datetime(2026, 11, 20, tzinfo=UTC)


class FakeService:
    def __init__(self) -> None:
        self.asked = 0
        self.is_down = False
        self.is_booked = True
        self.go = asyncio.Event()
        self.go.set()

    async def status(self, user: str, namespace: str) -> BookingStatus:
        self.asked += 1
        await self.go.wait()
        if self.is_down:
            raise NoAnswer("refused")
        if user == "unknown":
            raise Declined("400")
        return BookingStatus(ENDS, "A6000", 1) if self.is_booked else BookingStatus()


class Setup:
    def __init__(self) -> None:
        self.service = FakeService()
        self.seconds = 0.0
        self.cache = BookingCache(self.service, lambda: self.seconds)

    async def answer(self) -> tuple[bool | None, float, str]:
        found = await self.cache.status("alice", "lab")
        return found.value.ends is not None if found.value else None, found.age_s, found.failure


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_an_answer_is_used_for_some_seconds_and_then_asked_for_again(setup: Setup) -> None:
    assert await setup.answer() == (True, 0, "")
    setup.service.is_booked, setup.seconds = False, 5
    assert await setup.answer() == (True, 5, "")
    setup.seconds = 5.1
    assert await setup.answer() == (False, 0, "")
    assert setup.service.asked == 2


async def test_each_person_and_namespace_has_its_own_answer(setup: Setup) -> None:
    await setup.answer()
    await setup.cache.status("bob", "lab")
    await setup.cache.status("alice", "other")
    assert setup.service.asked == 3


async def test_after_a_failure_nobody_asks_for_a_moment_and_the_last_answer_is_used(setup: Setup) -> None:
    await setup.answer()
    setup.service.is_down, setup.seconds = True, 6
    assert await setup.answer() == (True, 6, "refused")
    setup.seconds = 10
    assert await setup.answer() == (True, 10, "refused")
    assert setup.service.asked == 2, "it was asked once since it went down"
    setup.seconds = 300
    assert await setup.answer() == (True, 300, "refused")
    assert setup.cache.oldest_s == 300 and setup.cache.failures == 2
    setup.seconds = 301
    assert await setup.answer() == (None, 0, "refused")


async def test_a_service_that_is_back_is_asked_again(setup: Setup) -> None:
    setup.service.is_down = True
    assert await setup.answer() == (None, 0, "refused")
    setup.service.is_down, setup.seconds = False, 5
    assert await setup.answer() == (True, 0, "")
    assert setup.cache.oldest_s == 0


async def test_of_many_callers_that_ask_at_once_one_asks_the_service(setup: Setup) -> None:
    setup.service.go.clear()
    asking = [asyncio.ensure_future(setup.answer()) for _ in range(20)]
    await asyncio.sleep(0)
    setup.service.go.set()

    assert await asyncio.gather(*asking) == [(True, 0, "")] * 20
    assert setup.service.asked == 1


async def test_a_cancelled_caller_does_not_leave_the_others_without_an_answer(setup: Setup) -> None:
    setup.service.go.clear()
    first, second = (asyncio.ensure_future(setup.answer()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    setup.service.go.set()

    assert await second == (True, 0, "")


async def test_a_declined_question_does_not_block_others(setup: Setup) -> None:
    for _ in range(3):
        assert (await setup.cache.status("unknown", "lab")).failure == "400"
    assert setup.service.asked == 1, "only this question waits"
    assert await setup.answer() == (True, 0, "")
    setup.seconds = 5
    await setup.cache.status("unknown", "lab")
    assert setup.service.asked == 3
