"""Who waits in a run with a clock, how long and why; and what is there when a run begins."""

from dataclasses import replace

import pytest

from carrel.configuration.schema import BookingRules
from carrel.ids import GpuUuid, PersonId, PodUid
from carrel.ledger.gpus import MiB
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, Memory, Request
from carrel.simulation.over_time import TimedResult, run_over_time
from carrel.simulation.policies import POLICIES, Choice, FirstFit
from carrel.simulation.waiting_pods import NO_GPU, NO_MACHINE, NO_SUCH_GPU
from carrel.simulation.workload import HOUR_S, BookingWish, SimulatedCluster, SimulatedPod, Trace
from tests.kit.gpus import A100, A6000, N1, a_node

ONE_GPU = SimulatedCluster((a_node("n1", gpus=1),))


def a_pod(name: str, at: float = 0, hours: float | None = None, gpus: int = 1, owner: str = "hal") -> SimulatedPod:
    lasts = None if hours is None else hours * HOUR_S
    return SimulatedPod(PodUid(name), Request(gpus, WHOLE), owner=PersonId(owner), arrives_s=at * HOUR_S, lasts_s=lasts)


def no_gpu(name: str, at: float) -> SimulatedPod:
    return SimulatedPod(PodUid(name), None, arrives_s=at * HOUR_S, lasts_s=0.0)


def running(pod: SimulatedPod, *gpus: int) -> SimulatedPod:
    """On n1, when the run begins."""
    return replace(pod, node=N1, held=tuple(GpuUuid(f"GPU-n1-{index}") for index in gpus))


def a_booking(user: str, start: float, hours: float = 24, gpus: int = 1) -> BookingWish:
    return BookingWish(PersonId(user), A6000, gpus, 0, start * HOUR_S, hours * HOUR_S, is_made=True)


def simulated(workload: Trace, cluster: SimulatedCluster = ONE_GPU, policy: str = "carrel") -> TimedResult:
    return run_over_time(cluster, workload, policy, 42, BookingRules())


# --- how long --------------------------------------------------------------------------------------------------------


def test_how_long_pods_wait_does_not_depend_on_what_else_happens_meanwhile() -> None:
    waiting = (a_pod("first", hours=1), a_pod("second", hours=0))
    often = tuple(no_gpu(f"c{number}", number / 4000) for number in range(4000))
    at_once = tuple(replace(pod, arrives_s=0.0) for pod in often)

    found = [simulated(Trace((*waiting, *others))).waited_hours[NO_GPU] * 4002 for others in (often, at_once)]

    assert found == [pytest.approx(1.0), pytest.approx(1.0)]


def test_pods_that_arrive_at_the_same_moment_are_taken_in_the_order_of_the_trace() -> None:
    found = simulated(Trace((a_pod("z", hours=1), a_pod("a", hours=10))))

    assert found.waited_hours == {NO_GPU: 0.5}, "a waited for z, one hour, over two pods"


def test_of_booked_pods_of_the_same_moment_the_first_in_the_trace_is_covered() -> None:
    pods = (a_pod("z", hours=1, owner="ada"), a_pod("a", hours=10, owner="ada"), a_pod("before", hours=5))

    found = simulated(Trace(pods, (a_booking("ada", 0),)))

    assert found.waited_hours == {NO_GPU: (1 + 11) / 3}


def test_a_pod_that_asks_for_less_cpu_than_those_that_wait_is_placed_at_once() -> None:
    cluster = SimulatedCluster((a_node("n1", gpus=3),), {N1: MachineRoom(3000, 0)})
    pods = (
        replace(a_pod("first", hours=10), machine=MachineRoom(2000, 0)),
        replace(a_pod("large", at=1, hours=1), machine=MachineRoom(2000, 0)),
        replace(a_pod("small", at=2, hours=1), machine=MachineRoom(1000, 0)),
    )

    assert simulated(Trace(pods), cluster).waited_hours == {NO_MACHINE: 9 / 3}


class CountingFirstFit(FirstFit):
    """First fit that counts how often it is asked."""

    asked = 0

    def choose(self, pod: SimulatedPod) -> Choice | None:
        CountingFirstFit.asked += 1
        return super().choose(pod)


def test_pods_that_wait_cost_nothing_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "counting", CountingFirstFit)
    monkeypatch.setattr(CountingFirstFit, "asked", 0)
    pods = tuple(a_pod(f"p{number}", at=number / 100, hours=1) for number in range(500))

    found = simulated(Trace(pods, (a_booking("ada", 0, hours=600),)), policy="counting")

    assert found.placed == CountingFirstFit.asked == 500


# --- why -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(Request(1, WHOLE, A100), id="no GPU of that model"),
        pytest.param(Request(2, WHOLE), id="more GPUs than any node has"),
        pytest.param(Request(1, Memory(MiB(100_000))), id="more memory than any GPU has"),
    ],
)
def test_a_pod_that_could_never_fit_waits_because_there_is_no_such_gpu(request_: Request) -> None:
    pods = (replace(a_pod("never"), request=request_), a_pod("other", hours=10), a_pod("next", at=5, hours=1))

    found = simulated(Trace(pods))

    assert found.waited_hours == {NO_GPU: 5 / 3, NO_SUCH_GPU: 11 / 3}
    assert found.waiting == 1


# --- what is there when a run begins ---------------------------------------------------------------------------------


def test_a_pod_that_runs_when_the_run_begins_keeps_the_gpus_that_it_holds() -> None:
    cluster = SimulatedCluster((a_node("n1", gpus=2),))
    pods = (running(a_pod("runs", hours=5), 1), running(a_pod("runs-too", hours=3), 0), a_pod("waits", at=1, hours=1))

    found = simulated(Trace(pods), cluster)

    assert (found.placed, found.waited_hours) == (3, {NO_GPU: 2 / 3})
    assert found.curve[0] == (0.0, 100.0)


def test_a_run_begins_with_the_pods_and_bookings_of_before() -> None:
    pods = (running(a_pod("hal", at=-5), 0), a_pod("ada", at=-3, hours=1, owner="ada"), a_pod("later", at=-4, hours=2))
    bookings = (a_booking("ada", -10, hours=24), a_booking("bob", -30, hours=20))

    found = simulated(Trace(pods, bookings, begins_s=0.0))

    assert (found.revoked, found.placed, found.bookings) == (1, 3, 1), "bob's was over by then"
    assert found.waited_hours == {NO_GPU: 1 / 3}, "ada's booking ran, and the other pod waited from then on"
    assert found.curve[-1][0] == 14.0, "hours from the beginning to the end of ada's booking"


def test_a_pod_that_runs_when_the_run_begins_is_covered_by_its_persons_booking() -> None:
    pods = (running(a_pod("ada", at=-5, owner="ada"), 0), a_pod("bob", at=1, hours=1, owner="bob"))
    bookings = (a_booking("ada", -10, hours=24), a_booking("bob", 0, hours=24))

    found = simulated(Trace(pods, bookings, begins_s=0.0))

    assert (found.revoked, found.ended, found.placed) == (0, 1, 2)
    assert found.waited_hours == {NO_GPU: 13 / 2}, "bob's pod got the GPU when ada's booking had ended"


def test_among_pods_that_wait_when_the_run_begins_the_oldest_goes_first() -> None:
    pods = (a_pod("younger", at=-1, hours=10), a_pod("older", at=-2, hours=1))

    assert simulated(Trace(pods, begins_s=0.0)).waited_hours == {NO_GPU: 0.5}


def test_people_who_book_again_use_gpus_until_the_run_ends() -> None:
    bookings = (a_booking("ada", 0),)
    once = simulated(Trace((), bookings, begins_s=0.0))
    again = simulated(Trace((), bookings, begins_s=0.0, books_again_until_s=40 * 24 * HOUR_S))

    assert (once.bookings, again.bookings) == (1, 3), "every 15 days; the fourth would begin after the run"


def test_a_run_in_which_people_book_again_is_as_long_whatever_they_book() -> None:
    pods = (running(a_pod("ada", at=-5), 0), a_pod("waits", at=-1))

    for hours in (24, 24 * 14):
        found = simulated(Trace(pods, (a_booking("bob", 0, hours),), begins_s=0.0, books_again_until_s=240 * HOUR_S))
        assert found.curve[-1][0] == 240.0
        assert found.waited_hours == {NO_GPU: 240 / 2}


def test_only_what_lies_in_the_run_counts_as_booked() -> None:
    bookings = (a_booking("ada", -12, hours=24), a_booking("bob", 228, hours=24), a_booking("eve", 300, hours=24))

    found = simulated(Trace((), bookings, begins_s=0.0, books_again_until_s=240 * HOUR_S))

    assert (found.bookings, found.booked_gpu_days) == (2, 1.0), "the second half of ada's, the first half of bob's"


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(a_booking("ada", 0, hours=0), id="a booking that ends when it begins"),
        pytest.param(a_booking("ada", 0, gpus=1 << 60), id="a booking of more GPUs than there can be"),
    ],
)
def test_an_odd_booking_ends_no_run(odd: BookingWish) -> None:
    part = replace(a_pod("part", owner="ada"), request=Request(1, Memory(MiB(16))))

    assert simulated(Trace((part, a_pod("whole")), (odd,), begins_s=0.0)).placed
