"""Whom bookings cover in a run with a clock: the rules of docs/tiers.md."""

from dataclasses import replace
from fractions import Fraction

import pytest

from carrel.configuration.schema import BookingRules
from carrel.ids import PersonId, PodUid
from carrel.ledger.gpus import Node
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, Portion, Request
from carrel.simulation.over_time import TimedResult, run_over_time
from carrel.simulation.policies import POLICIES
from carrel.simulation.waiting_pods import NO_GPU, NO_MACHINE
from carrel.simulation.workload import HOUR_S, BookingWish, SimulatedCluster, SimulatedPod, Trace
from tests.kit.gpus import A100, A6000, N1, a_node

A_GPU = Request(1, WHOLE, A6000)
ANY_GPU = Request(1, WHOLE)
HALF = Request(1, Portion(Fraction(1, 2)), A6000)
RULES = BookingRules()


def a_pod(
    name: str, owner: str = "hal", at: float = 0, hours: float | None = None, request: Request = A_GPU
) -> SimulatedPod:
    lasts = None if hours is None else hours * HOUR_S
    return SimulatedPod(PodUid(name), request, owner=PersonId(owner), arrives_s=at * HOUR_S, lasts_s=lasts)


def a_booking(user: str, start: float, hours: float = 24, gpus: int = 1) -> BookingWish:
    """As it is, whatever the rules say."""
    return BookingWish(PersonId(user), A6000, gpus, 0, start * HOUR_S, hours * HOUR_S, is_made=True)


def simulated(
    pods: tuple[SimulatedPod, ...], bookings: tuple[BookingWish, ...], *nodes: Node, policy: str = "carrel"
) -> TimedResult:
    cluster = SimulatedCluster(nodes or (a_node("n1", gpus=1),))
    return run_over_time(cluster, Trace(pods, bookings), policy, 42, RULES)


def counts(found: TimedResult) -> dict[str, int]:
    numbers = {"placed": found.placed, "waiting": found.waiting, "revoked": found.revoked, "ended": found.ended}
    return {name: number for name, number in numbers.items() if number}


def test_a_pod_ends_with_its_booking_and_the_next_booking_gets_the_gpu() -> None:
    pods = (a_pod("ada", "ada"), a_pod("bob", "bob", at=24, hours=20))

    found = simulated(pods, (a_booking("ada", 0), a_booking("bob", 24)))

    assert counts(found) == {"placed": 2, "ended": 1}
    assert found.waited_hours == {}


def test_a_pod_goes_on_if_another_booking_covers_it_when_its_own_ends() -> None:
    found = simulated((a_pod("ada", "ada"),), (a_booking("ada", 0), a_booking("ada", 24)))

    assert counts(found) == {"placed": 1, "ended": 1}
    assert found.allocated == 100.0, "it ended with the second booking, at the end of the run"


def test_at_a_bookings_end_pods_that_it_did_not_cover_stay() -> None:
    pods = (a_pod("covered", "ada"), a_pod("further", "ada"), a_pod("other", "hal"))

    found = simulated(pods, (a_booking("ada", 0),), a_node("n1", gpus=3))

    assert counts(found) == {"placed": 3, "ended": 1}


def test_a_covered_pod_that_waits_for_cpu_ends_with_its_booking() -> None:
    cluster = SimulatedCluster((a_node("n1", gpus=2),), {N1: MachineRoom(1000, 0)})
    pods = tuple(
        replace(pod, machine=MachineRoom(1000, 0)) for pod in (a_pod("hal", hours=30), a_pod("ada", "ada", at=1))
    )
    pods = (replace(pods[0], request=None), pods[1])

    found = run_over_time(cluster, Trace(pods, (a_booking("ada", 0),)), "carrel", 42, RULES)

    assert counts(found) == {"placed": 1, "ended": 1}
    assert found.waited_hours == {NO_MACHINE: 23 / 2}


def test_two_halves_of_one_gpu_count_as_one_booked_gpu() -> None:
    pods = (
        a_pod("whole", "hal"),
        a_pod("first", "ada", at=2, hours=10, request=HALF),
        a_pod("between", "hal", at=2.5, request=HALF),
        a_pod("second", "ada", at=3, hours=10, request=HALF),
    )

    found = simulated(pods, (a_booking("ada", 1),))

    assert counts(found) == {"placed": 4, "revoked": 2}, "both pods without a booking made room"
    assert found.waited_hours == {}


def test_halves_that_arrive_together_share_the_booked_gpu() -> None:
    pods = (a_pod("hal"), *(a_pod(f"half-{number}", "ada", at=2, request=HALF) for number in range(3)))

    found = simulated(pods, (a_booking("ada", 1),), a_node("n1", gpus=1))

    assert counts(found) == {"placed": 4, "revoked": 1, "ended": 2}, "the third waited until the booking had ended"
    assert found.waited_hours == {NO_GPU: 23 / 4}


def test_a_covered_pod_without_a_model_goes_to_the_booked_model() -> None:
    pods = (a_pod("hal-1"), a_pod("hal-2"), a_pod("ada", "ada", at=2, hours=10, request=ANY_GPU))

    found = simulated(pods, (a_booking("ada", 1),), a_node("a", gpus=2, model=A100), a_node("b", gpus=2))

    assert counts(found) == {"placed": 3, "revoked": 1}, "the A100s are free, but A6000s were booked"


def test_a_running_pod_is_covered_when_its_booking_starts_and_is_no_victim() -> None:
    pods = (a_pod("hal", "hal"), a_pod("ada", "ada", at=0.5), a_pod("bob", "bob", at=5, hours=5))
    bookings = (a_booking("ada", 1), a_booking("bob", 1))

    found = simulated(pods, bookings, a_node("n1", gpus=2))

    # Without its cover ada's pod, the younger one, would be the victim.
    assert counts(found) == {"placed": 3, "revoked": 1, "ended": 1}
    assert found.allocated == pytest.approx(100 * (5 + 24.5 + 5) / 50), "hal 0-5 h, ada 0.5-25 h, bob 5-10 h"


def test_where_several_bookings_would_do_the_one_that_ends_last_is_taken() -> None:
    found = simulated((a_pod("ada", "ada"),), (a_booking("ada", 0, hours=24), a_booking("ada", 0, hours=48)))

    assert found.allocated == 100.0
    assert counts(found) == {"placed": 1, "ended": 1}


def test_when_a_covered_pod_ends_the_next_one_of_the_person_is_covered() -> None:
    pods = (a_pod("ada-1", "ada", hours=5), a_pod("ada-2", "ada", at=1, hours=5), a_pod("hal", "hal", at=0.5))

    found = simulated(pods, (a_booking("ada", 0),))

    assert counts(found) == {"placed": 3}
    assert found.waited_hours == {NO_GPU: (4 + 9.5) / 3}, "hal came earlier, but has no booking"


def test_a_booking_covers_no_more_gpus_than_were_booked() -> None:
    pods = (a_pod("hal-1"), a_pod("hal-2"), *(a_pod(f"ada-{number}", "ada", at=1) for number in range(2)))

    found = simulated(pods, (a_booking("ada", 0),), a_node("n1", gpus=2))

    assert (found.revoked, found.placed) == (1, 4), "the second got the GPU when the first ended with the booking"
    assert found.waited_hours == {NO_GPU: 23 / 4}


def test_a_pod_that_has_just_got_its_gpu_keeps_it_if_another_will_do() -> None:
    pods = (a_pod("old", "hal"), a_pod("young", "hal", at=1.9), a_pod("ada", "ada", at=2, hours=1))

    found = simulated(pods, (a_booking("ada", 0),), a_node("n1", gpus=2))

    assert found.revoked == 1
    assert found.allocated == pytest.approx(100 * (2 + 22.1 + 1) / 48), "the old one lost its GPU after two hours"


def test_the_cpu_of_pods_that_lose_their_gpus_counts_for_the_booked_pod() -> None:
    cluster = SimulatedCluster((a_node("n1", gpus=2),), {N1: MachineRoom(8000, 0)})
    small, large = MachineRoom(4000, 0), MachineRoom(5000, 0)
    others = (replace(a_pod("hal-1"), machine=small), replace(a_pod("hal-2"), machine=small))

    def revoked_for(machine: MachineRoom) -> TimedResult:
        ada = replace(a_pod("ada", "ada", at=1, hours=1), machine=machine)
        return run_over_time(cluster, Trace((*others, ada), (a_booking("ada", 0),)), "carrel", 42, RULES)

    assert counts(revoked_for(small)) == {"placed": 3, "revoked": 1}
    assert counts(revoked_for(large)) == {"placed": 2, "ended": 1}, "one GPU was booked, and its CPU is not enough"


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_places_booked_pods_on_booked_gpus(policy: str) -> None:
    pods = (
        *(a_pod(f"hal-{number}", request=HALF, at=number) for number in range(16)),
        *(a_pod(f"ada-{number}", "ada", at=10 + number, request=HALF) for number in range(8)),
        *(a_pod(f"bob-{number}", "bob", at=10.5 + number, request=HALF) for number in range(8)),
    )
    bookings = (a_booking("ada", 9, gpus=2), a_booking("bob", 9, gpus=3))

    found = simulated(pods, bookings, a_node("n1", gpus=4), a_node("n2", gpus=4), policy=policy)

    assert found.ended == 10, "four halves of ada's and six of bob's were covered"
    again = simulated(pods, bookings, a_node("n1", gpus=4), a_node("n2", gpus=4), policy=policy)
    assert found == again
