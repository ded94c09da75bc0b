"""Leader election: never two leaders, under pauses, lost answers, partitions and clocks that disagree."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import OutcomeUnknown, Unavailable
from carrel.kubernetes.leader_election import (
    Candidate,
    Election,
    ElectionStep,
    ElectionTiming,
    Leadership,
    LeadershipLost,
    ObservedLease,
    OwnLoop,
    decide,
)
from carrel.kubernetes.objects.resources import LEASES
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from kubernetes_in_memory import EmbeddedApi
from tests.kit.eventually import LIMIT_S
from tests.unit.kubernetes.fake_time import FakeTime

TIMING = ElectionTiming(lease_s=15, renew_within_s=10, retry_s=2)
ME = Candidate("default", "carrel", "me", TIMING)


def seen(holder: str, since: float = 0, duration_s: int = 15) -> ObservedLease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration_s, "leaseTransitions": 1}
    return ObservedLease({"metadata": {"resourceVersion": "1"}, "spec": spec}, since)


@pytest.mark.parametrize(
    ("lease", "now", "step"),
    [
        pytest.param(None, 0, ElectionStep.CREATE, id="there is none"),
        pytest.param(seen("me"), 0, ElectionStep.TAKE, id="mine, of which I do not know: a leadership of its own"),
        pytest.param(seen(""), 0, ElectionStep.TAKE, id="given back"),
        pytest.param(seen("you"), 14.9, ElectionStep.WAIT, id="another's, and fresh"),
        pytest.param(seen("you"), 15, ElectionStep.TAKE, id="another's, unchanged for its duration"),
        pytest.param(seen("you", since=10), 24.9, ElectionStep.WAIT, id="counted from when it was seen"),
        pytest.param(seen("you", duration_s=60), 59, ElectionStep.WAIT, id="of another, with a longer duration"),
        pytest.param(seen("you", duration_s=1), 14, ElectionStep.WAIT, id="of another, with a shorter duration"),
        pytest.param(replace(seen(""), lease={"metadata": {"resourceVersion": "1"}}), 0, ElectionStep.TAKE, id="empty"),
    ],
)
def test_each_situation_of_a_candidate_has_one_step(
    lease: ObservedLease | None, now: float, step: ElectionStep
) -> None:
    assert decide(lease, ME, now, is_leading=False) is step


@pytest.mark.parametrize(
    ("lease", "step"),
    [
        pytest.param(seen("me"), ElectionStep.RENEW, id="still mine"),
        pytest.param(seen("you"), ElectionStep.WAIT, id="another's"),
        pytest.param(seen(""), ElectionStep.TAKE, id="given back in my name: another leadership"),
        pytest.param(None, ElectionStep.CREATE, id="deleted: another leadership"),
    ],
)
def test_each_situation_of_a_leader_has_one_step(lease: ObservedLease | None, step: ElectionStep) -> None:
    assert decide(lease, ME, 0, is_leading=True) is step


@pytest.mark.parametrize("election_timing", [(15, 15, 2), (10, 15, 2), (15, 2, 2), (15, 10, 0)])
def test_a_timing_that_could_give_two_leaders_is_refused(election_timing: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="lease_s"):
        ElectionTiming(*election_timing)


class Connection:
    """The connection of one process to the API server, which a test can interrupt."""

    def __init__(self, api: EmbeddedApi) -> None:
        self._api = api
        self.is_cut = False
        self.loses_answers = False
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.writes = 0

    async def send(self, request: ApiRequest) -> ResponseLike:
        await self.hangs.wait()
        if self.is_cut:
            raise Unavailable(0, "NoConnection", "cut")
        response = await self._api.send(request)
        if request.method != "GET":
            self.writes += 1
            if self.loses_answers:
                raise OutcomeUnknown(0, "AnswerLost", "lost")
        return response

    async def aclose(self) -> None:
        pass


class Process:
    """One candidate with its own clock, which works while it leads."""

    def __init__(self, api: EmbeddedApi, name: str, time: FakeTime) -> None:
        self.time = time
        self.connection = Connection(api)
        self.election = Election(
            Client(self.connection), Candidate("default", "carrel", name, TIMING), timing=time.timing()
        )
        self.leadership: Leadership | None = None
        self.terms: list[int] = []
        self.lost = 0
        self._task = asyncio.create_task(self._work())

    def leads(self) -> bool:
        """What the process itself would say before a write."""
        return self.leadership is not None and self.leadership.holds()

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _work(self) -> None:
        while True:
            try:
                async with self.election.leading() as leadership:
                    self.terms.append(leadership.term)
                    self.leadership = leadership
                    await asyncio.Event().wait()
            except LeadershipLost:
                self.lost += 1


class TwoCandidates:
    """Two processes and one API server. Time passes equally for both, unless a test stops one."""

    def __init__(self) -> None:
        self.api = EmbeddedApi()
        self.client = Client(self.api)
        # Their clocks differ, as those of two machines may.
        self.processes = [Process(self.api, "first", FakeTime(1e3)), Process(self.api, "second", FakeTime(1e6))]

    async def advance(self, seconds: int) -> None:
        for _ in range(seconds):
            for process in self.processes:
                await process.time.advance(1)
            assert self.leaders() <= 1, "two leaders"

    def leaders(self) -> int:
        return sum(process.leads() for process in self.processes)

    async def lease(self) -> Any:
        return await self.client.get(LEASES, "carrel", "default")

    async def close(self) -> None:
        for process in self.processes:
            process.connection.hangs.set()
            await process.stop()
        await self.api.aclose()


@contextlib.asynccontextmanager
async def two_candidates(first_leads: bool = True) -> Any:
    candidates = TwoCandidates()
    if first_leads:
        await candidates.processes[0].time.settle()
        assert candidates.processes[0].leads()
        await candidates.advance(5)
    try:
        yield candidates
    finally:
        await candidates.close()


async def test_one_leads_and_the_other_waits() -> None:
    async with two_candidates() as candidates:
        first, second = candidates.processes
        await candidates.advance(60)
        assert (first.leads(), second.leads()) == (True, False)
        assert first.terms == [0]
        spec = (await candidates.lease())["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("first", 15, 0)
        assert second.connection.writes == 0


async def test_a_released_lease_is_taken_at_the_next_read() -> None:
    async with two_candidates() as candidates:
        first, second = candidates.processes
        await first.stop()
        assert not first.leads()
        assert (await candidates.lease())["spec"]["holderIdentity"] == ""
        await candidates.advance(3)
        assert second.leads()
        assert second.terms == [1]


async def test_a_disconnected_leader_stops_before_another_starts() -> None:
    async with two_candidates() as candidates:
        first, second = candidates.processes
        first.connection.is_cut = True
        await candidates.advance(11)
        assert (first.leads(), first.lost, second.leads()) == (False, 1, False)
        await candidates.advance(10)
        assert second.leads()
        first.connection.is_cut = False
        await candidates.advance(30)
        assert second.leads()
        assert second.terms > first.terms


async def test_a_leader_whose_server_hangs_stops_in_time() -> None:
    async with two_candidates() as candidates:
        first, second = candidates.processes
        first.connection.hangs.clear()
        await candidates.advance(11)
        assert not first.leads()
        assert first.lost == 0, "its work was told to stop; giving the Lease back still hangs"
        await candidates.advance(10)
        assert second.leads()


async def test_a_short_disconnection_does_not_end_leadership() -> None:
    async with two_candidates() as candidates:
        first, _ = candidates.processes
        first.connection.is_cut = True
        await candidates.advance(6)
        first.connection.is_cut = False
        await candidates.advance(60)
        assert first.leads()
        assert (first.lost, len(first.terms)) == (0, 1)


async def test_a_renewal_whose_answer_was_lost_is_recognized() -> None:
    async with two_candidates() as candidates:
        first, _ = candidates.processes
        first.connection.loses_answers = True
        await candidates.advance(5)
        first.connection.loses_answers = False
        await candidates.advance(60)
        assert first.leads()
        assert first.terms == [0]


async def test_an_election_whose_answer_was_lost_is_recognized() -> None:
    async with two_candidates(first_leads=False) as candidates:
        first, second = candidates.processes
        first.connection.loses_answers = True
        second.connection.is_cut = True
        await candidates.advance(3)
        assert candidates.leaders() == 0
        first.connection.loses_answers = False
        await candidates.advance(5)
        assert first.leads()
        written = (await candidates.lease())["spec"]["leaseTransitions"]
        assert first.terms == [written]


async def test_a_leader_that_was_paused_may_not_write() -> None:
    async with two_candidates() as candidates:
        first, second = candidates.processes
        for _ in range(40):
            await second.time.advance(0.5)
        assert second.leads()
        first.time.now += 20
        assert not first.leads(), "before a single task of it ran"
        with pytest.raises(LeadershipLost):
            first.leadership.require()
        await first.time.pause(0)
        assert first.lost == 1
        await candidates.advance(30)
        assert second.leads()


async def test_a_lease_taken_by_another_process_ends_leadership() -> None:
    async with two_candidates() as candidates:
        first, second = candidates.processes
        second.connection.is_cut = True
        lease = await candidates.lease()
        lease["spec"] |= {"holderIdentity": "an administrator", "leaseTransitions": 9}
        await candidates.client.update(LEASES, lease)
        await candidates.advance(5)
        assert not first.leads()
        assert first.lost == 1
        assert (await candidates.lease())["spec"]["holderIdentity"] == "an administrator"


async def test_a_leader_that_lost_and_won_again_has_a_later_term() -> None:
    async with two_candidates() as candidates:
        first, second = candidates.processes
        first.connection.is_cut = True
        await candidates.advance(30)
        assert second.leads()
        first.connection.is_cut = False
        second.connection.is_cut = True
        await candidates.advance(30)
        assert first.leads()
        assert first.terms == [0, 2]


async def test_stopping_the_process_does_not_raise_leadership_lost() -> None:
    api = EmbeddedApi()
    election = Election(Client(api), ME, timing=FakeTime().timing())

    async def work() -> None:
        async with election.leading():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await FakeTime().settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await api.aclose()


async def test_an_error_of_the_work_is_raised_and_the_lease_is_released() -> None:
    api = EmbeddedApi()
    client = Client(api)
    election = Election(client, ME, timing=FakeTime().timing())
    with pytest.raises(LookupError):
        async with election.leading():
            raise LookupError("no such GPU")
    assert (await client.get(LEASES, "carrel", "default"))["spec"]["holderIdentity"] == ""
    await api.aclose()


FAULTS: list[Callable[[Process], None]] = [
    lambda process: setattr(process.connection, "is_cut", True),
    lambda process: setattr(process.connection, "is_cut", False),
    lambda process: setattr(process.connection, "loses_answers", True),
    lambda process: setattr(process.connection, "loses_answers", False),
    lambda process: process.connection.hangs.clear(),
    lambda process: process.connection.hangs.set(),
]


@settings(max_examples=max(12, settings().max_examples // 4))
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1]), st.integers(0, len(FAULTS) - 1), st.integers(1, 12)), min_size=1, max_size=8
    )
)
async def test_with_any_failures_there_are_never_two_leaders_and_finally_one(story: list[tuple[int, int, int]]) -> None:
    candidates = TwoCandidates()
    try:
        for who, fault, seconds in story:
            FAULTS[fault](candidates.processes[who])
            await candidates.advance(seconds)
        for process in candidates.processes:
            for mend in (1, 3, 5):
                FAULTS[mend](process)
        await candidates.advance(40)
        assert candidates.leaders() == 1
        terms = [term for process in candidates.processes for term in process.terms]
        assert len(set(terms)) == len(terms), "every leadership has a term of its own"
    finally:
        await candidates.close()


async def test_the_lease_is_renewed_while_the_process_thinks_about_something_else() -> None:
    connection = Connection(EmbeddedApi())
    candidate = Candidate("default", "carrel", "me", ElectionTiming(lease_s=600, renew_within_s=300, retry_s=0.001))
    with OwnLoop("election") as own_loop:
        async with Election(Client(connection), candidate, own_loop=own_loop).leading() as leadership:
            before, safe_until = connection.writes, leadership.safe_until
            wait_blocking(lambda: connection.writes > before + 3)

            assert leadership.holds() and leadership.safe_until > safe_until
    assert not leadership.holds()


def wait_blocking(condition: Callable[[], bool]) -> None:
    """Without giving the event loop a turn."""
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "nothing was renewed while the event loop was busy"
        time.sleep(0.001)
