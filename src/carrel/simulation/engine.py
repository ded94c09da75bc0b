"""One run: pods arrive one after the other and never leave; one that finds no room is dropped.

In which order they arrive follows from the seed, by the protocol of the FGD paper: pods are sorted by name and
shuffled. If they ask for less than the target, pods drawn at random are added until it is reached; if they ask for
more, the rest is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from carrel.ids import PodUid
from carrel.ledger.demand import Demand
from carrel.ledger.machines import ENOUGH
from carrel.ledger.scoring import Fragmentation
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.policies import POLICIES, PolicyContext
from carrel.simulation.workload import SimulatedCluster, SimulatedPod

MOST_ARRIVALS = 1_000_000
"""Of one run. A million take hours, and are some hundred times the pods of the traces that are known."""


def expected_arrivals(pods: Sequence[SimulatedPod], gpus: float, gpu_memory: int = 0) -> float:
    """About how many pods arrive until they ask for so many GPUs."""
    asked = sum(pod.gpus(gpu_memory) for pod in pods)
    return len(pods) * gpus / asked if asked else float(len(pods))


def arrivals(pods: Sequence[SimulatedPod], gpus: float, seed: int, gpu_memory: int = 0) -> list[SimulatedPod]:
    """`gpus` is the target: how many GPUs all of them ask for together, at least."""
    chance = Random(seed)  # noqa: S311 # a run must be repeatable
    known = sorted(pods, key=lambda pod: pod.name)
    order = known.copy()
    chance.shuffle(order)
    arrived: list[SimulatedPod] = []
    asked = 0.0
    if not any(pod.request for pod in known):
        return order
    while asked < gpus - 1e-9:
        position = len(arrived)
        pod = (
            order[position]
            if position < len(order)
            else replace(chance.choice(known), name=PodUid(f"again-{position}"))
        )
        arrived.append(pod)
        asked += pod.gpus(gpu_memory)
    return arrived


POINTS = 65
"""How many points a curve has."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    policy: str
    seed: int
    arrival: float = 1.3
    """How many GPUs are asked for in all, as a part of those that are there."""


@dataclass(frozen=True, slots=True)
class Point:
    """How the cluster was when so much had arrived. All in percent of its GPUs."""

    arrived: float
    """Of the cluster as it is, if GPUs were added."""
    allocated: float
    fragmented: float
    """Free, and of no use for the pods of the trace."""


@dataclass(frozen=True, slots=True)
class RunResult:
    policy: str
    seed: int
    allocated: float
    fragmented: float
    placed: int
    dropped: int
    curve: Sequence[Point] = field(default=())


def run(
    cluster: SimulatedCluster,
    pods: Sequence[SimulatedPod],
    options: RunOptions,
    measured_by: SimulatedCluster | None = None,
) -> RunResult:
    """`measured_by`: whose GPUs `arrival` is a part of, so that the same pods arrive on another; None: of this one."""
    state = ClusterInRun(cluster)
    measured_by = measured_by or cluster
    memory = largest_memory(measured_by)
    order = arrivals(pods, options.arrival * measured_by.gpus, options.seed, memory)
    chance = Random(options.seed)  # noqa: S311 # a run must be repeatable
    policy = POLICIES[options.policy](PolicyContext(state, pods, chance))
    measure = _Measure(state, pods, measured_by.gpus)
    arrived, dropped = 0.0, 0
    points: list[Point] = []
    next_point = 0.0
    for pod in order:
        if arrived >= next_point:
            points.append(measure.point(arrived))
            next_point += options.arrival * measured_by.gpus / (POINTS - 1)
        arrived += pod.gpus(memory)
        choice = policy.choose(pod)
        if choice is None:
            dropped += 1
        else:
            state.put(pod, choice.node, choice.placement)
    last = measure.point(arrived)
    return RunResult(
        options.policy, options.seed, last.allocated, last.fragmented, len(order) - dropped, dropped, (*points, last)
    )


def largest_memory(cluster: SimulatedCluster) -> int:
    """Of a GPU. So many MiB count as one GPU where a pod asks for MiB."""
    return max(gpu.memory for node in cluster.nodes for gpu in node.gpus)


class _Measure:
    """Measures all policies alike: by the mix of the whole trace."""

    def __init__(self, state: ClusterInRun, trace: Sequence[SimulatedPod], all_gpus: int) -> None:
        self._state = state
        self._all_gpus = all_gpus
        demand = Demand()
        for pod in trace:
            if pod.request is not None:
                demand.saw(pod.request, pod.machine)
        self._fragmentation = Fragmentation(demand.mix)

    def point(self, arrived: float) -> Point:
        total, machines = self._state.total_gpus, self._state.machines.free
        counts, rooms = self._fragmentation, self._state.ledger.rooms.items()
        useless = sum(
            counts.fragments(counts.free(room.alike), machines.get(node, ENOUGH).cpu_milli) for node, room in rooms
        )
        return Point(100 * arrived / self._all_gpus, self._state.allocated, 100 * useless / total)
