"""Who chooses the node, and the GPU on it: the policies that are compared.

All see the same ledger and the same nodes with room. Ties go to the lowest name, so a run is the same each time.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from carrel.ids import NO_POD, NodeName
from carrel.ledger.placement import Placement, able_entries
from carrel.ledger.requests import GpuPolicy
from carrel.ledger.scoring import Ranking
from carrel.simulation.cluster import ClusterInRun, Kind
from carrel.simulation.fgd import Fgd, fgd_mix
from carrel.simulation.workload import SimulatedPod

SAMPLED_AT_LEAST = 100
"""kube-scheduler's own numbers: it scores at least so many nodes, and of large clusters a part that falls to 5 %."""

NO_ROOM = float("inf")


@dataclass(frozen=True, slots=True)
class Choice:
    node: NodeName
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class PolicyContext:
    cluster: ClusterInRun
    trace: Sequence[SimulatedPod]
    """All pods of the trace: FGD plans for them."""
    chance: Random


class Policy(ABC):
    def __init__(self, context: PolicyContext) -> None:
        self._cluster = context.cluster
        self._chance = context.chance

    def saw(self, pod: SimulatedPod) -> None:  # noqa: B027 # most policies learn nothing from it
        """The pod has come, and may have to wait. May be told twice."""

    def choose(self, pod: SimulatedPod) -> Choice | None:
        """None: there is no room for the pod."""
        node = self._node(pod)
        return self._placed(pod, node) if node is not None else None

    @abstractmethod
    def _node(self, pod: SimulatedPod) -> NodeName | None:
        """The best node with room; None: there is none."""

    def _placed(self, pod: SimulatedPod, node: NodeName) -> Choice:
        return Choice(node, self._cluster.placed(pod.request, node))


class FirstFit(Policy):
    """The first node by name."""

    def _node(self, pod: SimulatedPod) -> NodeName | None:
        return next(iter(self._cluster.fitting(pod)), None)


class RandomNode(Policy):
    """Any node with room, and any GPU of it."""

    def _node(self, pod: SimulatedPod) -> NodeName | None:
        nodes = self._cluster.fitting(pod)
        return self._chance.choice(nodes) if nodes else None

    def _placed(self, pod: SimulatedPod, node: NodeName) -> Choice:
        if pod.request is None or pod.request.gpus > 1:
            return super()._placed(pod, node)
        entry = self._chance.choice(able_entries(self._cluster.ledger, pod.request, node, NO_POD))
        return Choice(node, Placement(node, (entry.gpu,), pod.request))


class _Scores:
    """The scores of all nodes for one kind of pod, as of a moment. `NO_ROOM` of nodes without room."""

    def __init__(self, nodes: int) -> None:
        self.by_position = [NO_ROOM] * nodes
        self.moment = -1


class _ByState(Policy):
    """The node with the lowest score. A score hangs on one node and the kind of pod only, and is remembered."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._scores: dict[Kind, _Scores] = {}

    def _node(self, pod: SimulatedPod) -> NodeName | None:
        cluster = self._cluster
        scores = self._scores.setdefault((pod.request, pod.machine), _Scores(len(cluster.names)))
        has_room, by_position = cluster.has_room(pod), scores.by_position
        for name in cluster.changed_since(scores.moment):
            position = cluster.positions[name]
            by_position[position] = self._score(pod, name) if has_room[position] else NO_ROOM
        scores.moment = cluster.moment
        least = min(by_position)
        return cluster.names[by_position.index(least)] if least < NO_ROOM else None

    @abstractmethod
    def _score(self, pod: SimulatedPod, node: NodeName) -> float:
        """By the state of this node, and nothing else."""

    def _free_gpus(self, node: NodeName) -> float:
        return sum(entry.free / entry.gpu.memory for entry in self._cluster.ledger.entries(node))


class BestFit(_ByState):
    """The node where the least is left of CPU and GPUs, each measured by the largest node."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        ledger = self._cluster.ledger
        self._most_gpus = max(len(ledger.entries(name)) for name in self._cluster.names)
        self._most_cpu = max((size.cpu_milli for size in self._cluster.sizes.values()), default=0) or 1

    def _score(self, pod: SimulatedPod, node: NodeName) -> float:
        free = self._cluster.machines.free.get(node)
        cpu = (free.cpu_milli - pod.machine.cpu_milli) / self._most_cpu if free is not None else 0.0
        return cpu + (self._free_gpus(node) - pod.gpus()) / self._most_gpus


class Spread(_ByState):
    """The emptiest node, and the emptiest GPU of it."""

    def _score(self, pod: SimulatedPod, node: NodeName) -> float:
        free, size = self._cluster.machines.free.get(node), self._cluster.sizes.get(node)
        cpu = free.cpu_milli / size.cpu_milli if free is not None and size is not None and size.cpu_milli else 0.0
        return -cpu if pod.request is None else -self._free_gpus(node)

    def _placed(self, pod: SimulatedPod, node: NodeName) -> Choice:
        request = pod.request and replace(pod.request, policy=GpuPolicy.EMPTIEST)
        return Choice(node, self._cluster.placed(request, node))


class FgdPolicy(_ByState):
    """The node where the expected fragmentation grows least, by the paper's rule; ties by name."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._fgd = Fgd(self._cluster, fgd_mix(context.trace))

    def _score(self, pod: SimulatedPod, node: NodeName) -> float:
        return -self._fgd.score(pod, node)

    def _placed(self, pod: SimulatedPod, node: NodeName) -> Choice:
        return Choice(node, self._fgd.placement(pod, node))


class Carrel(Policy):
    """Carrel's own scoring, which learns what is asked while the pods come, and sees all nodes."""

    ranks_cpu_pods = True

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._ranking = Ranking(self._cluster.ledger, self._cluster.machines, remembered=1000)
        self._sizes = self._cluster.sizes

    def saw(self, pod: SimulatedPod) -> None:
        if pod.request is not None:
            self._ranking.demand.saw(pod.request, pod.machine, pod.name)

    def choose(self, pod: SimulatedPod) -> Choice | None:
        self.saw(pod)
        return super().choose(pod)

    def _node(self, pod: SimulatedPod) -> NodeName | None:
        nodes = self._cluster.fitting(pod)
        return self._best(pod, nodes) if nodes else None

    def _best(self, pod: SimulatedPod, nodes: Sequence[NodeName]) -> NodeName:
        """One of the nodes, which are ordered by name; there is at least one."""
        if pod.request is None and not self.ranks_cpu_pods:
            return max(nodes, key=lambda name: self._default_score(pod, name))
        best = self._ranking.best(pod.request, nodes, machine=pod.machine)
        assert best is not None, "a node that fits has a cost"
        return best.node

    def _default_score(self, pod: SimulatedPod, node: NodeName) -> float:
        """What kube-scheduler's own plugins say: least allocated, and balanced."""
        free, size = self._cluster.machines.free.get(node), self._sizes.get(node)
        if free is None or size is None:
            return 0.0
        cpu = (free.cpu_milli - pod.machine.cpu_milli) / (size.cpu_milli or 1)
        memory = (free.memory_mib - pod.machine.memory_mib) / (size.memory_mib or 1)
        return 100 * (cpu + memory) / 2 + 100 * (1 - abs(cpu - memory) / 2)


class CarrelExtender(Carrel):
    """The same as an extender: of the nodes that have the CPU, kube-scheduler asks about a part only. It goes on from
    there with the next pod. A pod for which Carrel finds nothing there is tried again with the next nodes."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._start = 0
        count = len(self._cluster.names)
        self._asked = max(SAMPLED_AT_LEAST, count * max(5, 50 - count // 125) // 100)

    def _node(self, pod: SimulatedPod) -> NodeName | None:
        cluster = self._cluster
        able, has_room, positions = cluster.machine_fits(pod), cluster.has_room(pod), cluster.positions
        after = bisect_left(able, cluster.names[self._start])
        turned = [*able[after:], *able[:after]]
        for first in range(0, len(turned), self._asked):
            sample = turned[first : first + self._asked]
            self._start = (positions[sample[-1]] + 1) % len(positions)
            fitting = sorted(name for name in sample if has_room[positions[name]])
            if fitting:
                return self._best(pod, fitting)
        return None


class CarrelExtenderGpuPods(CarrelExtender):
    """The same, where pods without a GPU use the default scheduler and Carrel is not asked about them."""

    ranks_cpu_pods = False


POLICIES: dict[str, Callable[[PolicyContext], Policy]] = {
    "first-fit": FirstFit,
    "best-fit": BestFit,
    "random": RandomNode,
    "spread": Spread,
    "fgd": FgdPolicy,
    "carrel": Carrel,
    "carrel-extender": CarrelExtender,
    "carrel-extender-gpu": CarrelExtenderGpuPods,
}
