"""Who chooses the node, and the GPU on it: the policies that are compared.

All see the same ledger and the same nodes with room. Ties go to the lowest name, so a run is the same each time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from carrel.ledger.machines import MachineRoom
from carrel.ledger.placement import Placement, able_cards, place
from carrel.ledger.requests import GpuPolicy, Request
from carrel.ledger.scoring import Ranking
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.fgd import Fgd, fgd_mix
from carrel.simulation.workload import SimulatedPod

SAMPLED_AT_LEAST = 100
"""kube-scheduler's own numbers: it scores at least so many nodes, and of large clusters a part that falls to 5 %."""


@dataclass(frozen=True, slots=True)
class Choice:
    node: str
    placement: Placement | None


class Policy(Protocol):
    def choose(self, pod: SimulatedPod) -> Choice | None:
        """None: there is no room for the pod."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    cluster: ClusterInRun
    trace: Sequence[SimulatedPod]
    """All pods of the trace: FGD plans for them."""
    chance: Random


class _Choosing:
    """A policy that compares nodes one by one."""

    def __init__(self, context: PolicyContext) -> None:
        self._cluster = context.cluster
        self._chance = context.chance

    def choose(self, pod: SimulatedPod) -> Choice | None:
        nodes = self._cluster.fitting(pod)
        return self._placed(pod, self._best(pod, nodes)) if nodes else None

    def _best(self, pod: SimulatedPod, nodes: Sequence[str]) -> str:
        raise NotImplementedError

    def _placed(self, pod: SimulatedPod, node: str) -> Choice:
        return Choice(node, _place(self._cluster, pod.request, node))


def _place(cluster: ClusterInRun, request: Request | None, node: str) -> Placement | None:
    if request is None:
        return None
    placement = place(cluster.ledger, request, node)
    assert isinstance(placement, Placement), f"{node} has room, as its summary says"
    return placement


class FirstFit(_Choosing):
    """The first node by name."""

    def _best(self, pod: SimulatedPod, nodes: Sequence[str]) -> str:
        return nodes[0]


class RandomNode(_Choosing):
    """Any node with room, and any GPU of it."""

    def _best(self, pod: SimulatedPod, nodes: Sequence[str]) -> str:
        return self._chance.choice(nodes)

    def _placed(self, pod: SimulatedPod, node: str) -> Choice:
        if pod.request is None or pod.request.cards > 1:
            return super()._placed(pod, node)
        card = self._chance.choice(able_cards(self._cluster.ledger, pod.request, node, ""))
        return Choice(node, Placement(node, (card.gpu,), pod.request))


class _ByState(_Choosing):
    """The node with the lowest score. A score hangs on one node and the kind of pod only, and is remembered."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._scores: dict[tuple[Request | None, MachineRoom], dict[str, tuple[object, object, float]]] = {}

    def _best(self, pod: SimulatedPod, nodes: Sequence[str]) -> str:
        known = self._scores.setdefault((pod.request, pod.machine), {})
        rooms, machines = self._cluster.ledger.rooms, self._cluster.machines.free
        best, least = nodes[0], float("inf")
        for name in nodes:
            room, machine = rooms[name], machines.get(name)
            found = known.get(name)
            if found is None or found[0] is not room or found[1] is not machine:
                found = known[name] = (room, machine, self._score(pod, name))
            if found[2] < least:
                best, least = name, found[2]
        return best

    def _score(self, pod: SimulatedPod, node: str) -> float:
        raise NotImplementedError

    def _free_gpus(self, node: str) -> float:
        return sum(card.free / card.gpu.memory for card in self._cluster.ledger.cards(node))


class BestFit(_ByState):
    """The node where the least is left of CPU and GPUs, each measured by the largest node."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        ledger = self._cluster.ledger
        self._most_gpus = max(len(ledger.cards(name)) for name in self._cluster.names)
        self._most_cpu = max((size.cpu_milli for size in self._cluster.sizes.values()), default=0) or 1

    def _score(self, pod: SimulatedPod, node: str) -> float:
        free = self._cluster.machines.free.get(node)
        cpu = (free.cpu_milli - pod.machine.cpu_milli) / self._most_cpu if free is not None else 0.0
        return cpu + (self._free_gpus(node) - pod.gpus()) / self._most_gpus


class Spread(_ByState):
    """The emptiest node, and the emptiest GPU of it."""

    def _score(self, pod: SimulatedPod, node: str) -> float:
        free, size = self._cluster.machines.free.get(node), self._cluster.sizes.get(node)
        cpu = free.cpu_milli / size.cpu_milli if free is not None and size is not None and size.cpu_milli else 0.0
        return -cpu if pod.request is None else -self._free_gpus(node)

    def _placed(self, pod: SimulatedPod, node: str) -> Choice:
        request = pod.request and replace(pod.request, policy=GpuPolicy.EMPTIEST)
        return Choice(node, _place(self._cluster, request, node))


class FgdPolicy(_ByState):
    """The node where the expected fragmentation grows least, by the paper's rule; ties by name."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._fgd = Fgd(self._cluster, fgd_mix(context.trace))

    def _score(self, pod: SimulatedPod, node: str) -> float:
        return -self._fgd.score(pod, node)

    def _placed(self, pod: SimulatedPod, node: str) -> Choice:
        return Choice(node, self._fgd.placement(pod, node))


class Carrel(_Choosing):
    """Carrel's own scoring, which learns what is asked while the pods come, and sees all nodes."""

    ranks_cpu_pods = True

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._ranking = Ranking(self._cluster.ledger, self._cluster.machines, remembered=1000)
        self._sizes = self._cluster.sizes

    def choose(self, pod: SimulatedPod) -> Choice | None:
        if pod.request is not None:
            self._ranking.demand.saw(pod.request, pod.machine, pod.name)
        return super().choose(pod)

    def _best(self, pod: SimulatedPod, nodes: Sequence[str]) -> str:
        if pod.request is None and not self.ranks_cpu_pods:
            return max(nodes, key=lambda name: self._default_score(pod, name))
        best = self._ranking.best(pod.request, nodes, machine=pod.machine)
        assert best is not None, "a node that fits has a cost"
        return best.node

    def _default_score(self, pod: SimulatedPod, node: str) -> float:
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
        self._positions = {name: position for position, name in enumerate(self._cluster.names)}
        count = len(self._cluster.names)
        self._asked = max(SAMPLED_AT_LEAST, count * max(5, 50 - count // 125) // 100)

    def choose(self, pod: SimulatedPod) -> Choice | None:
        if pod.request is not None:
            self._ranking.demand.saw(pod.request, pod.machine, pod.name)
        able = self._cluster.machine_fits(pod)
        has_gpus = set(self._cluster.fitting(pod))
        after = sum(self._positions[name] < self._start for name in able)
        turned = [*able[after:], *able[:after]]
        for first in range(0, len(turned), self._asked):
            sample = turned[first : first + self._asked]
            self._start = (self._positions[sample[-1]] + 1) % len(self._positions)
            fitting = sorted(name for name in sample if name in has_gpus)
            if fitting:
                return self._placed(pod, self._best(pod, fitting))
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
