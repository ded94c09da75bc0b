"""The work queue: every key once, one worker for each key, growing delays after failures."""

import asyncio
from contextlib import suppress

import pytest

from carrel.kubernetes.timing import Backoff
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from tests.kit.eventually import LIMIT_S
from tests.unit.kubernetes.fake_time import FakeTime


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def queue(time: FakeTime) -> WorkQueue[str]:
    return WorkQueue(backoff=Backoff(first_s=1, limit_s=8), timing=time.timing())


async def test_keys_are_processed_in_order_and_once(queue: WorkQueue[str]) -> None:
    for key in ("a", "b", "a"):
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.wait_next(), await queue.wait_next()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_worker_waits_for_the_next_key(queue: WorkQueue[str], time: FakeTime) -> None:
    waiting = asyncio.create_task(queue.wait_next())
    await time.settle()
    assert not waiting.done()
    queue.add("a")
    assert await waiting == "a"


async def test_a_key_added_while_it_is_processed_comes_again_afterwards(queue: WorkQueue[str], time: FakeTime) -> None:
    queue.add("a")
    assert await queue.wait_next() == "a"
    queue.add("a")
    queue.add("a")
    second = asyncio.create_task(queue.wait_next())
    await time.settle()
    assert not second.done()
    queue.done("a")
    assert await second == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_delayed_key_comes_in_time(queue: WorkQueue[str], time: FakeTime) -> None:
    queue.add_after("later", 10)
    queue.add_after("now", 0)
    assert await queue.wait_next() == "now"
    await time.advance(9)
    assert len(queue) == 0
    await time.advance(1)
    assert await queue.wait_next() == "later"


@pytest.mark.parametrize("delays", [(10, 3), (3, 10)])
async def test_the_earliest_of_two_delays_counts(
    queue: WorkQueue[str], time: FakeTime, delays: tuple[int, int]
) -> None:
    for delay in delays:
        queue.add_after("a", delay)
    await time.advance(3)
    assert await queue.wait_next() == "a"
    queue.done("a")
    await time.advance(10)
    assert len(queue) == 0


async def test_a_key_that_fails_is_delayed_longer_each_time_until_it_succeeds(
    queue: WorkQueue[str], time: FakeTime
) -> None:
    assert [queue.retry("a") for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    queue.forget("a")
    assert queue.retry("a") == 1
    assert queue.retry("b") == 1


async def test_closing_ends_every_worker_and_drops_delayed_keys(queue: WorkQueue[str], time: FakeTime) -> None:
    workers = [asyncio.create_task(queue.wait_next()) for _ in range(3)]
    queue.add_after("late", 5)
    await time.settle()
    queue.close()
    assert await asyncio.gather(*workers) == [None, None, None]
    queue.add("a")
    await time.advance(10)
    assert len(queue) == 0
    assert await queue.wait_next() is None


async def test_a_key_is_not_lost_if_the_worker_it_woke_is_cancelled(queue: WorkQueue[str], time: FakeTime) -> None:
    first, second = (asyncio.create_task(queue.wait_next()) for _ in range(2))
    await time.settle()
    queue.add("a")
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    assert await asyncio.wait_for(second, LIMIT_S) == "a"


class TestRunningWorkers:
    async def test_no_key_has_two_workers(self, queue: WorkQueue[str], time: FakeTime) -> None:
        at_work: set[str] = set()
        worked: list[str] = []

        async def process(key: str) -> None:
            assert key not in at_work
            at_work.add(key)
            await time.sleep(1)
            at_work.discard(key)
            worked.append(key)

        workers = [asyncio.create_task(run_worker(queue, process)) for _ in range(4)]
        for _ in range(5):
            for key in ("a", "b", "c"):
                queue.add(key)
            await time.advance(0.5)
        await time.advance(10)
        assert {worked.count(key) for key in ("a", "b", "c")} == {worked.count("a")}
        assert worked.count("a") >= 2
        queue.close()
        await asyncio.gather(*workers)

    async def test_a_key_whose_processing_raises_is_tried_again(
        self, queue: WorkQueue[str], time: FakeTime, caplog: pytest.LogCaptureFixture
    ) -> None:
        moments: list[float] = []

        async def process(key: str) -> None:
            moments.append(time.now - 1000)
            if len(moments) < 4:
                raise LookupError("not yet")

        worker = asyncio.create_task(run_worker(queue, process))
        queue.add("a")
        await time.advance(100)
        assert moments == [0, 1, 3, 7]
        assert caplog.text.count("work_failed key=a") == 3
        queue.close()
        await worker
