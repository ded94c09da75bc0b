"""One object that cannot be treated does not stop what is done for the others."""

import asyncio
import logging

import pytest

from carrel.kubernetes.cluster import Conflict, Forbidden
from carrel.kubernetes.isolation import REMEMBERED, Isolation
from carrel.kubernetes.leader_election import LeadershipLost
from carrel.kubernetes.timing import Backoff
from carrel.parsing import Malformed

RETRY = Backoff(first_s=1.0, limit_s=4.0)


class Round:
    """Treats a, b and c. What happens to b is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.isolation = Isolation(lambda: self.now, RETRY)
        self.failures = self.isolation.failures
        self.error: BaseException | None = ValueError("--5 is no number")
        self.tried: list[str] = []

    async def treat(self, name: str) -> str:
        self.tried.append(name)
        if name == "b" and self.error is not None:
            raise self.error
        return name.upper()

    async def run(self) -> list[str]:
        self.tried.clear()
        return await self.isolation.each("step", ["a", "b", "c"], self.treat)


async def test_the_others_are_treated_and_the_failure_is_counted_and_logged_with_the_objects_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Round()
    assert await one.run() == ["A", "C"]
    assert one.failures == {"step": 1}
    assert "step=step object=b failures=1" in caplog.text
    assert "--5 is no number" in caplog.text


async def test_an_answer_about_an_object_does_not_end_the_delay_of_a_step_that_failed() -> None:
    one = Round()
    for _ in range(100):
        assert one.isolation.found("step", ["b"], lambda name: name) == ["b"]
        await one.run()
    assert one.failures == {"step": 1}


async def test_it_is_tried_again_with_growing_delays_and_at_once_after_a_success() -> None:
    one = Round()
    times = []
    for tenth in range(120):
        one.now = tenth / 10
        await one.run()
        times += [one.now] if "b" in one.tried else []
    assert times == [0.0, 1.0, 3.0, 7.0, 11.0]
    one.error, one.now = None, 15.0
    assert await one.run() == ["A", "B", "C"]
    one.error = ValueError("again")
    await one.run()
    one.now = 16.0
    await one.run()
    assert "b" in one.tried, "its next failure counts as the first"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), LeadershipLost("another leads")], ids=type)
async def test_a_stop_and_the_loss_of_the_leadership_pass_through(error: BaseException) -> None:
    one = Round()
    one.error = error
    with pytest.raises(type(error)):
        await one.run()
    with pytest.raises(type(error)):
        one.isolation.ask("step", "b", lambda _: _raise(error), None)
    assert not one.failures


async def test_an_object_that_has_changed_is_no_failure_and_is_due_again_at_once() -> None:
    one = Round()
    one.error = Conflict(409, "Conflict", "it has changed")
    assert await one.run() == ["A", "C"]
    assert (await one.run(), one.tried, one.failures) == (["A", "C"], ["a", "b", "c"], {})


async def test_a_question_that_cannot_be_answered_is_left_out_and_said_from_time_to_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Round()

    def look(name: str) -> str | None:
        if name == "b":
            raise ValueError("unreadable")
        return name.upper() if name != "c" else None

    for tenth in range(20):
        one.now = tenth / 10
        assert one.isolation.found("look", "abc", look) == ["A"]
    assert one.failures.total() == 20
    assert caplog.text.count("object=b") == 2


async def test_a_stack_trace_is_for_our_mistakes_only_and_only_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = Round()
    for one.now in (0.0, 10.0):
        await one.run()
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]
    caplog.clear()
    refused = Round()
    refused.error = Forbidden(403, "Forbidden", "not this one")
    await refused.run()
    assert [bool(record.exc_info) for record in caplog.records] == [False]

    caplog.clear()
    again = Round()
    again.error = Malformed("ResourceClaim lab/x", "memory", "1e30", "a quantity up to 2⁶³−1")
    await again.run()
    assert [bool(record.exc_info) for record in caplog.records] == [False], "that is somebody else's mistake"


def test_what_is_remembered_of_failures_is_bounded() -> None:
    isolation = Isolation(lambda: 0.0, RETRY)
    for number in range(REMEMBERED + 10):
        isolation.failed("step", str(number), ValueError("x"))
    assert isolation.is_due("step", "0")
    assert not isolation.is_due("step", str(REMEMBERED + 9))


def _raise(error: BaseException) -> None:
    raise error
