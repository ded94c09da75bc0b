"""What the webhook remembers of the booking service."""

import asyncio
from collections.abc import Mapping

import pytest

from carrel.bookings.client.cache import Desk
from carrel.bookings.client.interface import Declined, NoAnswer
from carrel.dialects.maia import Verdict


class Service:
    def __init__(self) -> None:
        self.asked = 0
        self.is_down = False
        self.counts_nothing = False
        self.schedulable = True
        self.go = asyncio.Event()
        self.go.set()

    async def verdict(self, user: str, namespace: str) -> Verdict:
        self.asked += 1
        await self.go.wait()
        if self.is_down:
            raise NoAnswer("refused")
        if user == "unheard of":
            raise Declined("400")
        return Verdict(self.schedulable)

    async def free(self) -> Mapping[str, int]:
        if self.counts_nothing:
            raise NoAnswer("404")
        return {"A6000": 1}


class Bench:
    def __init__(self) -> None:
        self.service = Service()
        self.seconds = 0.0
        self.desk = Desk(self.service, lambda: self.seconds)

    async def says(self) -> tuple[bool | None, float, str]:
        heard = await self.desk.verdict("alice", "lab")
        return heard.said.schedulable if heard.said else None, heard.age_s, heard.silence


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_an_answer_counts_for_some_seconds_and_then_is_asked_for_again(bench: Bench) -> None:
    assert await bench.says() == (True, 0, "")
    bench.service.schedulable, bench.seconds = False, 5
    assert await bench.says() == (True, 5, "")
    bench.seconds = 5.1
    assert await bench.says() == (False, 0, "")
    assert bench.service.asked == 2


async def test_people_and_namespaces_are_told_apart(bench: Bench) -> None:
    await bench.says()
    await bench.desk.verdict("bob", "lab")
    await bench.desk.verdict("alice", "other")
    assert bench.service.asked == 3


async def test_a_silent_service_is_left_alone_for_a_moment_and_its_last_word_counts_for_a_while(bench: Bench) -> None:
    await bench.says()
    bench.service.is_down, bench.seconds = True, 6
    assert await bench.says() == (True, 6, "refused")
    bench.seconds = 10
    assert await bench.says() == (True, 10, "refused")
    assert bench.service.asked == 2, "it was asked once since it is down"
    bench.seconds = 300
    assert await bench.says() == (True, 300, "refused")
    assert bench.desk.oldest_s == 300 and bench.desk.failures == 2
    bench.seconds = 301
    assert await bench.says() == (None, 0, "refused")


async def test_a_service_that_is_back_is_believed_at_once(bench: Bench) -> None:
    bench.service.is_down = True
    assert await bench.says() == (None, 0, "refused")
    bench.service.is_down, bench.seconds = False, 5
    assert await bench.says() == (True, 0, "")
    assert bench.desk.oldest_s == 0


async def test_of_many_who_ask_at_once_one_asks(bench: Bench) -> None:
    bench.service.go.clear()
    asking = [asyncio.ensure_future(bench.says()) for _ in range(20)]
    await asyncio.sleep(0)
    bench.service.go.set()

    assert await asyncio.gather(*asking) == [(True, 0, "")] * 20
    assert bench.service.asked == 1


async def test_who_gives_up_asking_does_not_leave_the_others_without_an_answer(bench: Bench) -> None:
    bench.service.go.clear()
    first, second = (asyncio.ensure_future(bench.says()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    bench.service.go.set()

    assert await second == (True, 0, "")


async def test_free_cards_are_remembered_too(bench: Bench) -> None:
    assert (await bench.desk.free()).said == {"A6000": 1}


async def test_who_cannot_count_free_cards_may_still_know_bookings(bench: Bench) -> None:
    bench.service.counts_nothing = True
    assert (await bench.desk.free()).silence == "404"
    assert await bench.says() == (True, 0, ""), "else every pod without a booking would cost somebody theirs"
    assert bench.desk.failures == 1


async def test_a_question_that_is_declined_silences_no_other(bench: Bench) -> None:
    for _ in range(3):
        assert (await bench.desk.verdict("unheard of", "lab")).silence == "400"
    assert bench.service.asked == 1, "it is put off itself"
    assert await bench.says() == (True, 0, "")
    bench.seconds = 5
    await bench.desk.verdict("unheard of", "lab")
    assert bench.service.asked == 3
