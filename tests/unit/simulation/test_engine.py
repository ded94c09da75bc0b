"""Runs without a clock: the order of arrival, the policies, and that a run is the same each time."""

from fractions import Fraction

import pytest

from carrel.ids import NodeName, PodUid
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, Portion, Request
from carrel.simulation.engine import RunOptions, arrivals, run
from carrel.simulation.policies import POLICIES
from carrel.simulation.workload import SimulatedCluster, SimulatedPod
from tests.kit.gpus import a_node

HALF = Request(1, Portion(Fraction(1, 2)))


def a_cluster(nodes: int = 4, gpus: int = 2, cores: int = 16) -> SimulatedCluster:
    names = [f"n{number}" for number in range(nodes)]
    return SimulatedCluster(
        tuple(a_node(name, gpus=gpus, memory=1000) for name in names),
        {NodeName(name): MachineRoom(cores * 1000, 64_000) for name in names},
    )


def pods(*kinds: tuple[Request | None, int], each: int = 4) -> list[SimulatedPod]:
    """Of each kind so many, with its cores."""
    return [
        SimulatedPod(PodUid(f"pod-{kind}-{number}"), request, MachineRoom(cores * 1000, 1000))
        for kind, (request, cores) in enumerate(kinds)
        for number in range(each)
    ]


MIXED = pods((HALF, 2), (Request(1, WHOLE), 6), (Request(2, WHOLE), 8), (None, 4))


def test_pods_arrive_until_they_ask_for_the_target_and_in_another_order_with_another_seed() -> None:
    trace = pods((HALF, 1), (Request(1, WHOLE), 1))

    order = arrivals(trace, 12.0, seed=42)

    assert sum(pod.gpus() for pod in order) == pytest.approx(12.0, abs=0.5)
    assert {pod.name for pod in order[: len(trace)]} == {pod.name for pod in trace}, "first each pod of the trace"
    assert len({pod.name for pod in order}) == len(order), "who comes again has another name"
    assert order == arrivals(list(reversed(trace)), 12.0, seed=42)
    assert order != arrivals(trace, 12.0, seed=43)


def test_a_trace_that_asks_for_more_than_the_target_is_cut() -> None:
    assert sum(pod.gpus() for pod in arrivals(pods((Request(2, WHOLE), 1)), 3.0, seed=42)) == 4.0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_no_gpu_and_no_cpu_twice_and_the_same_result_again(policy: str) -> None:
    first = run(a_cluster(), MIXED, RunOptions(policy, 42))

    assert first.placed + first.dropped == len(arrivals(MIXED, 1.3 * 8, 42))
    assert 50 < first.allocated <= 100
    assert first.curve[-1].allocated == first.allocated
    assert run(a_cluster(), MIXED, RunOptions(policy, 42)) == first


def test_cpu_is_a_limit_as_gpus_are() -> None:
    trace = pods((Request(1, WHOLE), 16), each=8)

    assert run(a_cluster(), trace, RunOptions("carrel", 42, arrival=1.0)).allocated == 50.0


def test_carrel_leaves_whole_gpus_whole_where_random_does_not() -> None:
    trace = [*pods((HALF, 1), each=8), *pods((Request(2, WHOLE), 1), each=8)]
    allocated = {
        policy: run(a_cluster(nodes=16), trace, RunOptions(policy, 42, arrival=1.0)).allocated
        for policy in ("random", "carrel")
    }

    assert allocated["carrel"] > allocated["random"]


def test_where_cpu_pods_are_ranked_they_keep_fewer_gpus_from_being_used() -> None:
    trace = [*pods((Request(1, WHOLE), 8), each=16), *pods((None, 8), each=6)]
    cluster = SimulatedCluster(
        (*a_cluster(nodes=4).nodes, *(a_node(f"m{number}", gpus=1, memory=1000) for number in range(4))),
        {NodeName(f"n{number}"): MachineRoom(16_000, 64_000) for number in range(4)}
        | {NodeName(f"m{number}"): MachineRoom(16_000, 64_000) for number in range(4)},
    )

    def allocated(policy: str) -> float:
        return sum(run(cluster, trace, RunOptions(policy, seed, arrival=1.3)).allocated for seed in range(10))

    assert allocated("carrel-extender") > allocated("carrel-extender-gpu")
