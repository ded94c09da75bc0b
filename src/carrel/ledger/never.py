"""Why a pod can never start: no node could serve it, even if nobody held a GPU and all GPUs were in order.

The words depend on the inventory alone, so they stay the same whoever comes and goes, and end with the node that could
serve the pod. Where something is not known (the model or the memory of a GPU), it counts as what the pod asks for.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from carrel.ids import NodeName
from carrel.ledger.gangs import GangMembers
from carrel.ledger.gpus import UNKNOWN_MEMORY, Gpu, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ANY_SLICE, Gang, Memory, Request, TopologyMode

MOST_MODELS = 4
"""How many are listed: kubectl shows 256 characters of a warning."""
REMEMBERED = 256
"""Requests whose answer is kept."""
MANY = 1 << 20
"""More members of a gang than any GPU takes."""


@dataclass(frozen=True, slots=True)
class Never(Refusal):
    """A "no" that waiting does not change."""

    fact: str = ""
    advice: str = ""

    @classmethod
    def because(cls, fact: str, advice: str) -> "Never":
        return cls(f"{fact}. This pod will never start here: {advice}.", (), fact, advice)

    @property
    def on_cpu(self) -> str:
        """Why a pod runs without a GPU, as the end of a sentence."""
        return f"{self.fact[0].lower()}{self.fact[1:]}; {self.advice}"


class Impossibility:
    """Says why a pod can never start. What was found is kept as long as the inventory is the same: to compare a request
    with 5,000 nodes takes tens of milliseconds, and thousands of pods that wait are asked about again and again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[tuple[Request, int], tuple[tuple[NodeName, ...], Never | None]] = {}
        self._most_members: dict[Request, int] = {}
        self._version = -1

    def why(self, request: Request, allowed: tuple[NodeName, ...], everywhere: tuple[NodeName, ...]) -> Never | None:
        """None if a node could serve the request, or if no node that the pod's selectors allow has a GPU."""
        self._forget_others()
        question = (request, id(allowed))  # a hash of 5,000 names would cost as much as many answers
        if question not in self._known:
            request, never = request.on_any_covered(), None
            if _could_serve(self._ledger, request, allowed) is False:
                is_limited = bool(_could_serve(self._ledger, request, everywhere))
                nodes = _with_gpus(self._ledger, allowed if is_limited else everywhere)
                never = _in_words(request, nodes, is_limited=is_limited)
            self._known[question] = (allowed, never)
        return self._known[question][1]

    def why_gang(self, gang: Gang, members: GangMembers) -> Never | None:
        """Why not all members fit at once, though each would; None if they do, or if they are not alike."""
        kinds = {replace(request.on_any_covered(), gang=None) for _, request in members.waiting}
        if members.bound or len(members.waiting) < gang.size or len(kinds) != 1:
            return None
        self._forget_others()
        request = kinds.pop()
        if request not in self._most_members:
            nodes = _with_gpus(self._ledger, self._ledger.nodes)
            self._most_members[request] = sum(_most_members(node, request) for node in nodes)
        most = self._most_members[request]
        if most >= gang.size:
            return None
        fact = f"Gang {gang.name} needs {gang.size} pods with {request} each; if all GPUs were free, {most} would fit"
        return Never.because(fact, "ask for less in each pod, or for fewer pods")

    def _forget_others(self) -> None:
        known = len(self._known) + len(self._most_members)
        if self._version != self._ledger.inventory_version or known >= REMEMBERED:
            self._known.clear()
            self._most_members.clear()
            self._version = self._ledger.inventory_version


def _with_gpus(ledger: Ledger, names: Iterable[NodeName]) -> Iterator[Node]:
    return (node for node in map(ledger.node, names) if node is not None and node.gpus)


def _could_serve(ledger: Ledger, request: Request, names: Iterable[NodeName]) -> bool | None:
    """Whether one of the nodes could; also one whose report cannot be read. None: none of them has a GPU."""
    answer = None
    for node in _kinds(filter(None, map(ledger.node, names)), request):
        if _most(node, request) >= request.gpus or (node.unusable and not node.gpus):
            return True
        answer = False if node.gpus else answer
    return answer


def _kinds(nodes: Iterable[Node], request: Request) -> Iterator[Node]:
    """The first node of each kind: what is true of it for the request is true of the others."""
    seen = set[object]()
    for node in nodes:
        gpus = [(gpu.model, gpu.memory, gpu.island, gpu.bandwidth_gbps) for gpu in node.gpus]
        has_slices = any(gpu.slice.is_gpu for gpu in node.gpus if gpu.slice)
        uuids = node.name if request.selector.names_uuids else ""
        kind = (request.selects(node), bool(node.unusable), uuids, has_slices, *gpus)
        if kind not in seen:
            seen.add(kind)
            yield node


# --- what a node could do at most ------------------------------------------------------------------------------------


class _Step(IntEnum):
    """What a GPU lacks first, in the order in which people are told."""

    MODEL, UUID, LINKS, MEMORY, NOTHING = 0, 1, 2, 3, 4


def _lacks(gpu: Gpu, request: Request) -> _Step:
    """What keeps the GPU from serving the request, even if nobody held it."""
    selector, topology, amount = request.selector, request.topology, request.amount
    is_of_kind = (gpu.slice is None and not request.slices) or request.allows_slice(gpu.slice)
    if not is_of_kind or (gpu.model and not request.allows_model(gpu.model)):
        return _Step.MODEL
    is_named = not selector.uuids or not gpu.possible_uuids.isdisjoint(selector.uuids)
    if not is_named or (selector.not_uuids and gpu.possible_uuids <= selector.not_uuids):
        return _Step.UUID
    if topology.mode is TopologyMode.REQUIRED and gpu.bandwidth_gbps < topology.min_bandwidth_gbps:
        return _Step.LINKS
    if isinstance(amount, Memory) and UNKNOWN_MEMORY != gpu.memory < amount.on(gpu.memory):
        return _Step.MEMORY
    return _Step.NOTHING


def _able(node: Node, request: Request) -> dict[str, list[Gpu]]:
    """The GPUs that would do, by where all GPUs of the pod must be: on the node, or in the same island."""
    found: dict[str, list[Gpu]] = {}
    in_island = request.needs_one_island
    for gpu in node.gpus if request.selects(node) else ():
        if _lacks(gpu, request) is _Step.NOTHING:
            found.setdefault((gpu.island or gpu.uuid) if in_island else "", []).append(gpu)
    return found


def _most(node: Node, request: Request) -> int:
    """How many of its GPUs could serve the request together."""
    return max(map(len, _able(node, request).values()), default=0)


def _most_members(node: Node, request: Request) -> int:
    """How many pods with this request it could take, or more."""
    most = 0
    for gpus in _able(node, request).values():
        needs = [(gpu.memory, request.amount.on(gpu.memory)) for gpu in gpus]
        most += sum(MANY if need > memory else memory // need for memory, need in needs) // request.gpus
    return most


# --- in words --------------------------------------------------------------------------------------------------------


def _in_words(request: Request, nodes: Iterable[Node], *, is_limited: bool) -> Never:
    """The sentence about it. Of equal nodes, it names the first by name. `is_limited`: only the pod's own selectors
    keep it from a node that could serve it."""
    where = " that this pod's node selector or affinity allows" if is_limited else ""
    if request.node_labels:
        where += " labelled " + ", ".join(f"{key}={value}" for key, value in sorted(request.node_labels))
    chosen = sorted((node for node in nodes if request.selects(node)), key=lambda node: node.name)
    fact, advice = _why_none(request, chosen, where) or _why_too_few(request, chosen, where)
    return Never.because(fact, f"{advice}, or allow other nodes" if where else advice)


def _why_none(request: Request, nodes: Sequence[Node], where: str) -> tuple[str, str] | None:
    """What is the case if no GPU would do, and what helps; None if one would."""
    lacks = {gpu: _lacks(gpu, request) for node in _kinds(nodes, request) for gpu in node.gpus}
    if not lacks and request.is_limited:
        fact = f"No node{where} with GPUs can limit the memory of a part of one (memory.limits)"
        return fact, "ask for a whole GPU, or see docs/memory-limits.md"
    if not lacks:
        return f"No node{where} has a GPU", "correct the labels in the claim"
    step = max(lacks.values())
    nearest = [gpu for gpu, lack in lacks.items() if lack is step]
    kind = "GPU" if not request.slices else f"MIG slice {request.slices}".removesuffix(f" {ANY_SLICE}")
    wanted = request.model or f"{kind}{request.selector.without_uuids()}"
    there = f" of the nodes{where}" if where else ""
    match step:
        case _Step.MODEL:
            has, it_has = (f"The nodes{where} have", "They have") if where else ("This cluster has", "It has")
            return f"{has} no {wanted}. {it_has}: {_listed(nodes)}", "ask for another model"
        case _Step.UUID:
            return f"No node{where} has a GPU{request.selector}", "correct the UUIDs"
        case _Step.LINKS:
            best = max(nearest, key=lambda gpu: gpu.bandwidth_gbps)
            fact = f"No {wanted}{there} has links of {request.topology.min_bandwidth_gbps:,} GB/s"
            return f"{fact}; the fastest, of {best.node}, has {best.bandwidth_gbps:,} GB/s", "ask for slower links"
        case _Step.MEMORY:
            best = max(nearest, key=lambda gpu: gpu.memory)
            fact = f"No {wanted}{there} has {request.amount}; the largest, of {best.node}, has {best.memory:,} MiB"
            return fact, f"ask for {best.memory:,} MiB or less"
    return None


def _why_too_few(request: Request, nodes: Sequence[Node], where: str) -> tuple[str, str]:
    best = max(_kinds(nodes, request), key=lambda node: _most(node, request))
    most = _most(best, request)
    wanted = f"{request.gpus} {request.model or f'GPUs{request.selector}'}"
    wanted += f" with {request.amount} each" if isinstance(request.amount, Memory) else ""
    if request.needs_one_island:
        fact = f"No node{where} has {wanted} in one NVLink island; the largest island, of {best.name}, has {most}"
        return fact, f"ask for {most} or fewer, or do not require one island"
    in_gang = request.gang is not None
    advice = f"ask for {most} or fewer{' in each pod of the gang' if in_gang else ', or use a gang'}"
    return f"No node{where} has {wanted}; the largest, {best.name}, has {most}", advice


def _listed(nodes: Sequence[Node]) -> str:
    """The models with their numbers, the most first."""
    counts = sorted(
        Counter(gpu.model for node in nodes for gpu in node.gpus).items(), key=lambda each: (-each[1], each[0])
    )
    listed = ", ".join(f"{count:,} {model}" for model, count in counts[:MOST_MODELS])
    return f"{listed} and {len(counts) - MOST_MODELS} other models" if len(counts) > MOST_MODELS else listed
