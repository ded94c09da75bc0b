"""How much room a node has, as a small summary that answers "could this request fit?" without looking at its GPUs.

A summary is made once after a node has changed: that is what lets one question run over 5,000 nodes.
It is exact: `fit_test(request)(summary)` is true exactly if `placement.place` finds GPUs (a property test says so).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from carrel.ids import GpuUuid
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.requests import ANY_SLICE, WHOLE, GpuSelector, Memory, Request, TopologyMode

Alike = tuple[str, MiB, tuple[int, ...]]
"""Usable GPUs of a node that are alike: model, memory of each, free MiB of each, largest first."""
Pieces = tuple[Alike, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Usable GPUs of a node that are alike except for how much of them is free."""

    island: str
    model: str
    memory: MiB
    bandwidth_gbps: int
    pieces: tuple[int, ...]
    """Free MiB of each GPU, largest first."""

    def count(self, need: int) -> int:
        """How many of the GPUs have that much free."""
        pieces = self.pieces
        if not pieces or pieces[0] < need:
            return 0
        if pieces[-1] >= need:
            return len(pieces)
        return sum(piece >= need for piece in pieces)


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A summary of how much is free on one node. GPUs that are unusable, or kept for a pod, are not in it. MIG slices
    are only in the summaries under `slices`, unless they are advertised as GPUs."""

    gpus: tuple[tuple[Gpu, int], ...] = ()
    """The usable GPUs, each with its free MiB: for the few requests that name GPUs by their UUID."""
    uuids: frozenset[GpuUuid] = frozenset()
    """Of these GPUs; of a slot, its own name and all that it may turn out to be."""
    groups: tuple[Group, ...] = ()
    alike: Pieces = ()
    """The same by model and size alone: mostly there is one kind."""
    pieces: tuple[int, ...] = ()
    """Free MiB of every usable GPU, largest first."""
    smallest: int = 0
    """The memory of the smallest usable GPU. Whoever asks for more may mean a GPU with what its driver keeps."""
    whole: int = 0
    """Usable GPUs that nobody holds a part of."""
    together: int | None = None
    """The most in one NVLink island that nobody holds a part of; None: GPUs of an island differ, and only the groups
    can tell."""
    slowest: int = 0
    """The least bandwidth of these islands."""
    slices: Mapping[str, "NodeRoom"] | None = None
    """What a request for MIG slices may have, by what it asks for: a profile, or `ANY_SLICE`. None: there are none."""
    has_slices: bool = False
    """Whether its GPUs are slices: all of them are, or none."""

    def for_request(self, request: Request) -> "NodeRoom":
        """What the request may have, by whether it asks for slices."""
        room = (self.slices or {}).get(request.slices, NO_ROOM) if request.slices else self
        return NO_ROOM if request.avoids_slices and room.has_slices else room

    def without(self, selector: GpuSelector) -> "NodeRoom":
        """The room on those GPUs that the selector allows by their UUIDs."""
        return summarise(((gpu, free) for gpu, free in self.gpus if selector.allows_uuid(gpu)), slices_apart=False)


NO_ROOM = NodeRoom()


def alike(gpus: Iterable[tuple[str, MiB, int]]) -> Pieces:
    """Single GPUs, by model, memory and free MiB, put together."""
    found: dict[tuple[str, MiB], list[int]] = {}
    for model, memory, free in gpus:
        found.setdefault((model, memory), []).append(free)
    return tuple((*kind, tuple(sorted(free, reverse=True))) for kind, free in sorted(found.items()))


def summarise(gpus: Iterable[tuple[Gpu, int]], *, slices_apart: bool = True) -> NodeRoom:
    """The room on the given usable GPUs, each with its free MiB."""
    usable = tuple(gpus)
    if not usable:
        return NO_ROOM
    if slices_apart and any(gpu.slice for gpu, _ in usable):
        return _summarise_apart(usable)
    in_groups: dict[tuple[str, str, MiB, int], list[int]] = {}
    for gpu, free in usable:
        in_groups.setdefault((gpu.island, gpu.model, gpu.memory, gpu.bandwidth_gbps), []).append(free)
    groups = tuple(Group(*key, tuple(sorted(free, reverse=True))) for key, free in in_groups.items())
    by_kind = alike((gpu.model, gpu.memory, free) for gpu, free in usable)
    pieces = by_kind[0][2] if len(by_kind) == 1 else tuple(sorted((free for _, free in usable), reverse=True))
    together, linked = None, [group for group in groups if group.island]
    if len(by_kind) == 1 and len({group.island for group in groups}) == len(groups):
        together = max((group.count(group.memory) for group in linked), default=0)
    return NodeRoom(
        gpus=usable,
        uuids=frozenset(gpu.uuid for gpu, _ in usable).union(*(gpu.may_be for gpu, _ in usable)),
        groups=groups,
        alike=by_kind,
        pieces=pieces,
        smallest=min(memory for _, memory, _ in by_kind),
        whole=sum(free == gpu.memory for gpu, free in usable),
        together=together,
        slowest=min((group.bandwidth_gbps for group in linked), default=0),
        has_slices=usable[0][0].slice is not None,
    )


def _summarise_apart(usable: Iterable[tuple[Gpu, int]]) -> NodeRoom:
    by_kind: dict[str, list[tuple[Gpu, int]]] = {}
    for gpu, free in usable:
        for kind in (gpu.kind, ANY_SLICE) if gpu.slice else ("",):
            by_kind.setdefault(kind, []).append((gpu, free))
    plain = summarise(by_kind.pop("", ()), slices_apart=False)
    slices = {kind: summarise(of_kind, slices_apart=False) for kind, of_kind in by_kind.items()}
    return replace(plain, slices=slices)


def fit_test(request: Request) -> Callable[[NodeRoom], bool]:
    """The question "does it fit?" prepared for one request, to be asked of many nodes."""
    if request.slices:
        fits = fit_test(replace(request, slices=""))
        return lambda room: fits(room.for_request(request))
    if request.selector.names_uuids:
        return _fit_test_by_uuid(request)
    gpus, last, amount, selector = request.gpus, request.gpus - 1, request.amount, request.selector
    slowest = request.topology.min_bandwidth_gbps if request.topology.mode is TopologyMode.REQUIRED else 0
    is_any_model = not (request.model or selector.models or selector.not_models)
    is_plain = is_any_model and not slowest and not request.needs_one_island
    avoids_slices = request.is_limited or (gpus > 1 and request.avoids_slices)
    if is_plain and amount == WHOLE and not request.is_limited:
        return lambda room: room.whole >= gpus
    if is_plain and isinstance(amount, Memory):
        mib = amount.mib
        has_memory: Callable[[NodeRoom], bool] = lambda room: (  # noqa: E731 # nearly always what is returned
            len(room.pieces) >= gpus and room.pieces[last] >= mib
            if mib <= room.smallest
            else _most_gpus(room, request, _Needs(request), slowest) >= gpus
        )
        return (lambda room: not room.has_slices and has_memory(room)) if avoids_slices else has_memory
    needs = _Needs(request)
    if request.needs_one_island:
        whole = amount == WHOLE

        def fits_an_island(room: NodeRoom) -> bool:
            if whole and room.together is not None and room.slowest >= slowest:
                return room.together >= gpus and (is_any_model or request.allows_model(room.alike[0][0]))
            return _most_gpus(room, request, needs, slowest) >= gpus

        return fits_an_island

    def fits_the_node(room: NodeRoom) -> bool:
        if avoids_slices and room.has_slices:
            return False
        if slowest or len(room.alike) != 1:
            return _most_gpus(room, request, needs, slowest) >= gpus
        model, memory, pieces = room.alike[0]
        return len(pieces) >= gpus and pieces[last] >= needs[model, memory]

    return fits_the_node


def _fit_test_by_uuid(request: Request) -> Callable[[NodeRoom], bool]:
    """Only a node that has one of the named GPUs is looked at more closely."""
    selector = request.selector
    fits = fit_test(replace(request, selector=selector.without_uuids()))
    if named := [names for names in (selector.only, selector.uuids) if names]:
        first, last = named[0], named[-1]
        return lambda room: (
            not (room.uuids.isdisjoint(first) or room.uuids.isdisjoint(last)) and fits(room.without(selector))
        )
    excluded = selector.not_uuids | selector.not_on
    return lambda room: fits(room if room.uuids.isdisjoint(excluded) else room.without(selector))


def able(room: NodeRoom, request: Request) -> int:
    """How many GPUs would do, each by itself."""
    room = room.for_request(request)
    if request.selector.names_uuids:
        room = room.without(request.selector)
    slowest = request.topology.min_bandwidth_gbps if request.topology.mode is TopologyMode.REQUIRED else 0
    return sum(
        group.count(request.amount.on(group.memory))
        for group in room.groups
        if group.bandwidth_gbps >= slowest and request.allows_model(group.model)
    )


class _Needs(dict[tuple[str, MiB], MiB]):
    """Model and memory of a GPU → how much of it a request needs; more than it has, if the model is not allowed. A
    cluster has few kinds; a look-up is cheaper than a division."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __missing__(self, kind: tuple[str, MiB]) -> MiB:
        model, memory = kind
        need = self._request.amount.on(memory) if self._request.allows_model(model) else MiB(memory + 1)
        self[kind] = need
        return need


def _most_gpus(room: NodeRoom, request: Request, needs: _Needs, slowest: int) -> int:
    """The most GPUs that could serve the request: on the node or, where they must be together, on its best island."""
    islands: dict[str, int] = {}
    for group in room.groups:
        if group.bandwidth_gbps >= slowest:
            count = group.count(needs[group.model, group.memory])
            islands[group.island] = islands.get(group.island, 0) + count
    if not request.needs_one_island:
        return sum(islands.values())
    # GPUs without a link are islands of their own, however many of them a node has.
    return max((min(count, 1) if island == "" else count for island, count in islands.items()), default=0)
