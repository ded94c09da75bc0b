"""An opportunistic pod does not take the GPUs that a booked pod is waiting for.

A booked pod that has room is bound within moments, and for one that has none GPUs are kept. In between, an
opportunistic pod could take them. So a request of such a pod is answered as if each booked pod that waits, and has
room, had its GPUs already: the oldest first, each where GPUs are kept for it, else on the first node that takes it. In
the end it may get other GPUs. What counts is that enough are left for it.

Hundreds of booked pods may wait, and the ledger changes with every bind. So nothing is tried out in the ledger: what
they would take is counted beside it, and pods that ask alike look at each node once, because what one of them takes
never makes room for the next. Where very many different requests wait, the search ends after `MOST_STEPS`, and no room
is left for the youngest of them. That is safe: a booked pod that finds no room has GPUs revoked for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from carrel.ids import NO_NODE, HolderId, NodeName
from carrel.ledger.filtering import FilterResult
from carrel.ledger.gpus import total_of
from carrel.ledger.ledger import GpuEntry, Ledger, room_on
from carrel.ledger.node_room import NodeRoom, fit_test
from carrel.ledger.placement import Placement, WaitingPod, choose, suits
from carrel.ledger.requests import Memory, Request
from carrel.ledger.shares import Coverage, Share

SOME_INSTANT = datetime.min.replace(tzinfo=UTC)
"""In a what-if, it does not matter since when a share is covered."""
WAITED_FOR = "room, but a booked pod waits for it"
MOST_STEPS = 250_000
"""How far the search for what booked pods take goes: about a tenth of a second."""
STEPS_BY_GPU = 10
"""To look at the GPUs of a node takes so many times as long as to look at the summary of its room."""


class Precedence:
    """The rule that opportunistic pods leave room for the booked pods that wait."""

    def __init__(
        self, ledger: Ledger, waiting: Callable[[], Sequence[WaitingPod]], most_steps: int = MOST_STEPS
    ) -> None:
        """`waiting` are the booked pods that want GPUs and are not bound, the oldest first."""
        self._ledger = ledger
        self._waiting = waiting
        self._most_steps = most_steps
        self._known: tuple[int, Sequence[WaitingPod], _TakenFirst] = (-1, (), _TakenFirst(ledger))

    def narrow(self, found: FilterResult, request: Request) -> FilterResult:
        """Of the nodes that would do, only those that will do also when the booked pods have theirs."""
        taken_first = self.taken_first()
        if not taken_first.nodes:
            return found
        fits = fit_test(request)
        touched = taken_first.nodes.intersection(found.fitting)
        return found.without({name for name in touched if not fits(taken_first.room(name))}, WAITED_FOR)

    @contextmanager
    def served(self, node: NodeName = NO_NODE) -> Iterator[None]:
        """As if every booked pod that waits, and has room, had its GPUs; only those on that node, if it is given.
        Afterwards nothing has changed."""
        shares = self.taken_first().shares_on(node)
        if not shares:
            yield
            return
        with self._ledger.what_if():
            self._ledger.hold(*shares)
            yield

    def taken_first(self) -> "_TakenFirst":
        """Looked for anew only when the ledger, or who waits, has changed."""
        waiting = tuple(self._waiting())
        version, before, found = self._known
        if version != self._ledger.version or waiting != before:
            found = self._look(waiting)
            self._known = (self._ledger.version, waiting, found)
        return found

    def _look(self, waiting: Sequence[WaitingPod]) -> "_TakenFirst":
        found = _TakenFirst(self._ledger, self._most_steps)
        for booked in waiting:
            if found.steps_left <= 0:
                break
            if not self._ledger.shares_of(booked.holder.uid):  # else it is being bound
                found.serve(booked)
        return found


@dataclass(slots=True)
class _Alike:
    """Pods that ask for the same, on the same nodes. What did not do for one of them will not do for the next."""

    left: Iterator[NodeName]
    """The nodes that may still do, the first by name first."""
    node: NodeName | None


@dataclass(slots=True)
class _Nodes:
    """The nodes where some pods may run: thousands of names, mostly the same for all pods."""

    names: tuple[NodeName, ...]
    in_order: list[NodeName] = field(init=False)
    there: frozenset[NodeName] = field(init=False)

    def __post_init__(self) -> None:
        self.in_order = sorted(self.names)
        self.there = frozenset(self.names)


class _TakenFirst:
    """What booked pods that wait take, counted beside the ledger."""

    def __init__(self, ledger: Ledger, most_steps: int = 0) -> None:
        self.nodes: set[NodeName] = set()
        """Where something is taken."""
        self.steps_left = most_steps
        self._ledger = ledger
        self._taken: dict[NodeName, list[tuple[WaitingPod, list[GpuEntry]]]] = {}  # by node
        self._entries: dict[NodeName, tuple[GpuEntry, ...]] = {}  # of these nodes, as they would be
        self._most_free: dict[NodeName, int] = {}  # the same, MiB of one GPU
        self._rooms: dict[NodeName, NodeRoom] = {}  # the same, as far as anybody has asked
        self._alike: dict[tuple[Request, int], _Alike] = {}
        self._known_nodes: dict[int, _Nodes] = {}  # by the `id` of the names, which are kept with them

    def shares_on(self, node: NodeName = NO_NODE) -> Sequence[Share]:
        """On all nodes, if none is given."""
        taken = {node: self._taken.get(node, [])} if node else self._taken
        return [share for name, there in taken.items() for booked, own in there for share in _shares(booked, name, own)]

    def room(self, node: NodeName) -> NodeRoom:
        if node not in self._rooms:
            self._rooms[node] = room_on(self._entries[node])
        return self._rooms[node]

    def serve(self, booked: WaitingPod) -> None:
        """Takes GPUs for the pod, if there is room."""
        keeper = booked.keeper(self._ledger)
        kept = {entry.gpu.node for entry in map(self._ledger.entry, self._ledger.kept_for(keeper)) if entry is not None}
        for node in sorted(kept.intersection(self._nodes(booked).there) if kept else ()):
            if self._take(booked, node, keeper):
                return
        alike = self._alike_to(booked)
        while alike.node is not None and self.steps_left > 0:
            if self._take(booked, alike.node, keeper):
                return
            alike.node = next(alike.left, None)

    def _alike_to(self, booked: WaitingPod) -> _Alike:
        question = (booked.request, id(booked.nodes))
        if question not in self._alike:
            left = self._may_do(booked)
            self._alike[question] = _Alike(left, next(left, None))
        return self._alike[question]

    def _may_do(self, booked: WaitingPod) -> Iterator[NodeName]:
        """The nodes that have room as long as nobody takes anything, in order."""
        request, nodes = booked.request, self._nodes(booked)
        if request.selector.only:
            entries = map(self._ledger.entry, request.selector.only)
            yield from sorted(nodes.there.intersection(entry.gpu.node for entry in entries if entry is not None))
            return
        if request.selector.names_uuids:
            yield from nodes.in_order  # there the summaries do not help
            return
        fits, rooms = fit_test(request), self._ledger.rooms
        for name in nodes.in_order:
            self.steps_left -= 1
            room = rooms.get(name)
            if room is not None and fits(room):
                yield name
            elif self.steps_left <= 0:
                return

    def _nodes(self, booked: WaitingPod) -> _Nodes:
        key = id(booked.nodes)
        if key not in self._known_nodes:
            self._known_nodes[key] = _Nodes(booked.nodes)
        return self._known_nodes[key]

    def _take(self, booked: WaitingPod, node: NodeName, keeper: HolderId) -> bool:
        """False: there is no room."""
        request, there = booked.request, self._ledger.node(node)
        if isinstance(request.amount, Memory) and request.amount.mib > self._most_free.get(node, request.amount.mib):
            self.steps_left -= 1  # each of thousands of pods that ask for different amounts comes past all full nodes
            return False
        self.steps_left -= STEPS_BY_GPU
        if there is None or there.unusable or not request.selects(there):
            return False
        need, entries = request.amount.on, self._entries.get(node) or self._ledger.entries(node)
        able = [
            entry
            for entry in entries
            if entry.free and entry.free >= need(entry.gpu.memory) and suits(entry, request, keeper)
        ]
        chosen = choose(able, request) if len(able) >= request.gpus else None
        if chosen is None:
            return False
        self.nodes.add(node)
        self._taken.setdefault(node, []).append((booked, chosen))
        self._entries[node] = tuple(
            entry.less(need(entry.gpu.memory)) if entry in chosen else entry for entry in entries
        )
        self._most_free[node] = max(
            total_of(entry.gpu.memory) if entry.free == entry.gpu.memory else entry.free
            for entry in self._entries[node]
        )
        return True


def _shares(booked: WaitingPod, node: NodeName, entries: Sequence[GpuEntry]) -> Iterable[Share]:
    coverage = Coverage(booked.booking, SOME_INSTANT) if booked.booking else None
    return Placement(node, tuple(entry.gpu for entry in entries), booked.request, coverage).shares(booked.holder)
