"""Why a pod can never start: no node could serve it, even if nobody held a GPU and all GPUs were in order.

The words depend on the inventory alone, so they stay the same whoever comes and goes, and end with the node that could
serve the pod. Where something is not known (the model or the memory of a GPU), it counts as what the pod asks for.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from carrel.ledger.gangs import GangMembers
from carrel.ledger.gpus import UNKNOWN_MEMORY, Gpu, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.node_room import needs_one_island
from carrel.ledger.placement import selected
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Gang, Memory, Request, TopologyMode

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
        """The same about a pod that runs without a GPU, as the end of a sentence."""
        return f"{self.fact[0].lower()}{self.fact[1:]}; {self.advice}"


class Impossibility:
    """Says why a pod can never start. What was found is kept as long as the inventory is the same: to compare a request
    with 5,000 nodes takes tens of milliseconds, and thousands of pods that wait are asked about again and again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[tuple[Request, int], tuple[tuple[str, ...], Never | None]] = {}
        self._most_members: dict[Request, int] = {}
        self._version = -1

    def why(self, request: Request, allowed: tuple[str, ...], everywhere: tuple[str, ...]) -> Never | None:
        """None if a node could serve the request, or if no node that the pod's selectors allow has a GPU."""
        self._forget_others()
        question = (request, id(allowed))  # a hash of 5,000 names would cost as much as many answers
        if question not in self._known:
            self._known[question] = (allowed, why_never(self._ledger, request, allowed, everywhere))
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


def why_never(ledger: Ledger, request: Request, allowed: Sequence[str], everywhere: Sequence[str]) -> Never | None:
    request = request.on_any_covered()
    if not any(_with_gpus(ledger, allowed)) or _could_serve(ledger, request, allowed):
        return None
    is_limited = _could_serve(ledger, request, everywhere)
    return _in_words(request, _with_gpus(ledger, allowed if is_limited else everywhere), is_limited=is_limited)


def _with_gpus(ledger: Ledger, names: Iterable[str]) -> Iterator[Node]:
    return (node for node in map(ledger.node, names) if node is not None and node.gpus)


def _could_serve(ledger: Ledger, request: Request, names: Iterable[str]) -> bool:
    """Whether one of the nodes could; also one whose report cannot be read."""
    nodes = filter(None, map(ledger.node, names))
    return any(
        _most(node, request) >= request.gpus or (node.unusable and not node.gpus) for node in _kinds(nodes, request)
    )


def _kinds(nodes: Iterable[Node], request: Request) -> Iterator[Node]:
    """The first node of each kind: what is true of it for the request is true of the others."""
    seen = set[object]()
    for node in nodes:
        gpus = [(gpu.model, gpu.memory, gpu.island, gpu.bandwidth_gbps) for gpu in node.gpus]
        uuids = node.name if request.selector.names_uuids else ""
        kind = (selected(node, request), bool(node.unusable), uuids, *gpus)
        if kind not in seen:
            seen.add(kind)
            yield node


# --- what a node could do at most ------------------------------------------------------------------------------------


def _most(node: Node, request: Request) -> int:
    """How many of its GPUs could serve the request together."""
    return max(_by_island(node, request).values(), default=0)


def _most_members(node: Node, request: Request) -> int:
    """How many pods with this request it could take, or more."""
    parts = Counter[str]()
    for gpu in _able(node, request):
        need = gpu.memory if request.amount == WHOLE else request.amount.on(gpu.memory)
        parts[_together(gpu, request)] += MANY if need > gpu.memory else gpu.memory // need
    return sum(count // request.gpus for count in parts.values())


def _by_island(node: Node, request: Request) -> Counter[str]:
    return Counter(_together(gpu, request) for gpu in _able(node, request))


def _together(gpu: Gpu, request: Request) -> str:
    """Where the other GPUs of the pod must be: on the node, or in the same island."""
    return "" if not needs_one_island(request) else gpu.island or gpu.uuid


def _able(node: Node, request: Request) -> Iterator[Gpu]:
    checks = (_is_of_model, _is_named, _is_linked, _is_large)
    gpus = node.gpus if selected(node, request) else ()
    return (gpu for gpu in gpus if all(check(gpu, request) for check in checks))


def _is_of_model(gpu: Gpu, request: Request) -> bool:
    return not gpu.model or request.allows_model(gpu.model)


def _is_named(gpu: Gpu, request: Request) -> bool:
    uuids, possible = request.selector.uuids, gpu.possible_uuids
    return (not uuids or not possible.isdisjoint(uuids)) and not possible <= request.selector.not_uuids


def _is_linked(gpu: Gpu, request: Request) -> bool:
    topology = request.topology
    return topology.mode is not TopologyMode.REQUIRED or gpu.bandwidth_gbps >= topology.min_bandwidth_gbps


def _is_large(gpu: Gpu, request: Request) -> bool:
    is_known = isinstance(request.amount, Memory) and gpu.memory != UNKNOWN_MEMORY
    return not is_known or request.amount.on(gpu.memory) <= gpu.memory


# --- in words --------------------------------------------------------------------------------------------------------


def _in_words(request: Request, nodes: Iterable[Node], *, is_limited: bool) -> Never:
    """Of equal nodes, the first by name is named. `is_limited`: only the pod's own selectors keep it from a node that
    could serve it."""
    where = " that this pod's node selector or affinity allows" if is_limited else ""
    if request.node_labels:
        where += " labelled " + ", ".join(f"{key}={value}" for key, value in sorted(request.node_labels))
    chosen = sorted((node for node in nodes if selected(node, request)), key=lambda node: node.name)
    fact, advice = _why_none(request, chosen, where) or _why_too_few(request, chosen, where)
    return Never.because(fact, f"{advice}, or allow other nodes" if where else advice)


def _why_none(request: Request, nodes: Sequence[Node], where: str) -> tuple[str, str] | None:
    """What is the case if no GPU would do, and what helps; None if one would."""
    gpus = [gpu for node in _kinds(nodes, request) for gpu in node.gpus]
    if not gpus:
        return f"No node{where} has a GPU", "correct the labels in the claim"
    wanted = request.model or f"GPU{request.selector.without_uuids()}"
    of_model = [gpu for gpu in gpus if _is_of_model(gpu, request)]
    if not of_model:
        has, it_has = (f"The nodes{where} have", "They have") if where else ("This cluster has", "It has")
        return f"{has} no {wanted}. {it_has}: {_listed(nodes)}", "ask for another model"
    named = [gpu for gpu in of_model if _is_named(gpu, request)]
    if not named:
        return f"No node{where} has a GPU{request.selector}", "correct the UUIDs"
    linked = [gpu for gpu in named if _is_linked(gpu, request)]
    there = f" of the nodes{where}" if where else ""
    if not linked:
        best = max(named, key=lambda gpu: gpu.bandwidth_gbps)
        fact = f"No {wanted}{there} has links of {request.topology.min_bandwidth_gbps:,} GB/s"
        return f"{fact}; the fastest, of {best.node}, has {best.bandwidth_gbps:,} GB/s", "ask for slower links"
    if any(_is_large(gpu, request) for gpu in linked):
        return None
    best = max(linked, key=lambda gpu: gpu.memory)
    fact = f"No {wanted}{there} has {request.amount}; the largest, of {best.node}, has {best.memory:,} MiB"
    return fact, f"ask for {best.memory:,} MiB or less"


def _why_too_few(request: Request, nodes: Sequence[Node], where: str) -> tuple[str, str]:
    best = max(_kinds(nodes, request), key=lambda node: _most(node, request))
    most = _most(best, request)
    wanted = f"{request.gpus} {request.model or f'GPUs{request.selector}'}"
    wanted += f" with {request.amount} each" if isinstance(request.amount, Memory) else ""
    if needs_one_island(request):
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
