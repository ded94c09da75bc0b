"""Which nodes have room for a request, and why the others have none.

Why a pod waits is one sentence about the whole cluster, which names the node that is the closest to fitting.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.ids import NO_NODE, NO_POD, HolderId, NodeName
from carrel.ledger.ledger import Ledger
from carrel.ledger.node_room import NO_ROOM, able, fit_test
from carrel.ledger.placement import Placement, able_entries, allows, candidates, place, why_not
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import GpuPolicy, Request, TopologyMode

MOST_ANSWERS = 1_000
"""So many reasons are remembered while the ledger is the same: each keeps its nodes."""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Every node that was asked about, once: whether it has room, and the reason if not."""

    fitting: Collection[NodeName]
    refused: Mapping[NodeName, str]
    """The other nodes, and why they will not do."""

    @classmethod
    def by_reason(cls, nodes: Collection[NodeName], why: str) -> "FilterResult":
        """All for the same reason; if it is empty, all will do."""
        return cls((), dict.fromkeys(nodes, why)) if why else cls(nodes, {})

    def without(self, nodes: Collection[NodeName], why: str) -> "FilterResult":
        """The result if, for that reason, these nodes will not do."""
        if not nodes:
            return self
        fitting = [name for name in self.fitting if name not in nodes]
        return FilterResult(fitting, {**self.refused, **dict.fromkeys(sorted(nodes), why)})


class NodeFilter:
    """Finds the nodes that have room for a request."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Thousands of pods that ask alike wait: what was found for one of them is kept while the ledger is the same.
        self._version = -1
        self._known: dict[tuple[Request, int, HolderId], tuple[Sequence[NodeName], Refusal | None]] = {}

    def filter(self, request: Request, nodes: Sequence[NodeName], pod: HolderId = NO_POD) -> FilterResult:
        """`pod` is the uid of who asks: GPUs may be kept for it."""
        found = candidates(self._ledger, request, nodes, pod)
        return FilterResult(found.fitting, {name: why_not(self._ledger, request, name, pod) for name in found.refused})

    def why(self, request: Request, nodes: Sequence[NodeName], pod: HolderId = NO_POD) -> Refusal | None:
        """Why none of the nodes has room; None if one has."""
        if not isinstance(nodes, tuple):
            return why_waiting(self._ledger, request, nodes, pod)
        if self._version != self._ledger.version or len(self._known) >= MOST_ANSWERS:
            self._version, self._known = self._ledger.version, {}
        # A hash of 5,000 names would cost as much as many answers. The nodes are kept, so that their `id` stays theirs.
        question = (request, id(nodes), pod if self._ledger.kept_for(pod) else NO_POD)
        if question not in self._known:
            self._known[question] = (nodes, why_waiting(self._ledger, request, nodes, pod))
        return self._known[question][1]


def why_waiting(ledger: Ledger, request: Request, nodes: Sequence[NodeName], pod: HolderId = NO_POD) -> Refusal | None:
    """None if the pod need not wait. `nodes` are those where it may go by everything that is not about GPUs."""
    if not nodes:
        return Refusal(f"there is no node for {request}")
    if candidates(ledger, request, nodes, pod).fitting:
        return None
    closest = _closest(ledger, request, nodes, pod)
    if not ledger.entries(closest):
        # Then it does not help to name it: the GPUs are where the pod may not run.
        have = f"none of the {len(nodes)} nodes where the pod may run has a"
        return Refusal(
            f"{request} asked, but {have if len(nodes) > 1 else 'the only node for the pod has no'} GPU that Carrel"
            " knows of"
        )
    answer = place(ledger, request, closest, pod)
    assert not isinstance(answer, Placement), "none of the nodes has room"
    if len(nodes) == 1:
        return Refusal(answer.reason)
    return Refusal(f"none of {len(nodes)} nodes has {request}; closest: {answer.reason}")


def _closest(ledger: Ledger, request: Request, nodes: Iterable[NodeName], pod: HolderId) -> NodeName:
    """The node where the request could fit if nobody held anything, then where the most GPUs would do. A node with GPUs
    of another model only is further away, however many are free, and one without GPUs is the last."""
    rooms, is_kept_for = ledger.rooms, bool(ledger.kept_for(pod))

    def order(name: NodeName) -> tuple[int, int, str]:
        room = rooms.get(name, NO_ROOM)
        # A summary leaves out what is kept, for whomever.
        count = len(able_entries(ledger, request, name, pod)) if is_kept_for else able(room, request)
        return (-count, -(room.pieces[0] if room.pieces else 0), name)

    found, least = NO_NODE, 4
    for name in sorted(nodes, key=order):
        unfitness = _unfitness(ledger, request, name)
        if unfitness < least:
            found, least = name, unfitness
        if not least:
            break
    return found


def _unfitness(ledger: Ledger, request: Request, name: NodeName) -> int:
    """What is wrong with the node even if nobody held a part of its GPUs. The worse, the higher; 0: nothing."""
    node, gpus = ledger.node(name), [entry.gpu for entry in ledger.entries(name)]
    if not gpus:
        return 3
    need = request.amount.on
    suitable = sum(not gpu.unusable and allows(gpu, request) and need(gpu.memory) <= gpu.memory for gpu in gpus)
    if node is None or node.unusable or not request.selects(node) or not suitable:
        return 2
    return int(suitable < request.gpus)


def all_limit_memory(ledger: Ledger) -> bool:
    """Whether every node with GPUs can limit their memory. A silent one counts too: it may be back."""
    nodes = [node for node in map(ledger.node, ledger.nodes) if node is not None and node.gpus]
    return bool(nodes) and not any(node.why_no_limits for node in nodes)


def linked_first(ledger: Ledger, request: Request, nodes: tuple[NodeName, ...]) -> tuple[NodeName, ...]:
    """The nodes, those first where all GPUs of the request may be in one island, if it prefers that."""
    prefers = request.topology.mode is TopologyMode.PREFERRED
    if request.gpus == 1 or not prefers or request.policy in (GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS):
        return nodes
    together = replace(request, topology=replace(request.topology, mode=TopologyMode.REQUIRED))
    rooms, fits = ledger.rooms, fit_test(together)
    linked = {name for name in nodes if name in rooms and fits(rooms[name])}
    if not linked or len(linked) == len(nodes):
        return nodes
    return tuple(sorted(nodes, key=lambda name: name not in linked))
