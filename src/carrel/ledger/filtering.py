"""Which nodes have room for a request and why the others have none, remembered until the room of a node changes.

kube-scheduler asks about thousands of nodes for every pod, and pods of one kind come in large numbers: between two of
them only a few nodes have changed, and only these are looked at again. What is remembered never differs from what
`placement` and `explanation` would say now (property tests say so), is the same for every pod that asks alike, and is
bounded: the request that was asked longest ago is dropped.

Nodes that are refused in the same words are kept together. As long as the scheduler asks about the same nodes, in
whatever order, and none of them moves from one group to another, the answer stays the same object: what an adapter has
written of it can be sent again.
"""

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse

from carrel.ledger.explanation import Closeness, closeness, has_no_gpus, waiting_for, why_waiting, without_gpus
from carrel.ledger.ledger import Ledger
from carrel.ledger.node_room import fit_test
from carrel.ledger.placement import NO_KNOWN_GPU, Placement, place, selected, why_not
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import GpuPolicy, Request, TopologyMode

REMEMBERED = 32
"""Different requests; each costs about a megabyte at 5,000 nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class FilterResult:
    """The answer to "which of these nodes have room?": every node that was asked about, once, with the reason if not.

    Two results are equal only if they are the same object.
    """

    fitting: Collection[str]
    refused: Mapping[str, Collection[str]]
    """Why they will not do → those nodes."""

    @classmethod
    def by_reason(cls, nodes: Collection[str], why: str) -> "FilterResult":
        """All for the same reason; if it is empty, all will do."""
        return cls((), {why: nodes} if nodes else {}) if why else cls(nodes, {})

    def why_not(self) -> dict[str, str]:
        """Why each of the other nodes will not do."""
        return {name: why for why, names in self.refused.items() for name in names}

    def after(self, moves: Iterable[tuple[str, str, str]]) -> "FilterResult":
        """The same after some nodes (name, reason before, reason now) have moved; only their groups are new."""
        left, joined = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        for name, before, now in moves:
            left[before].add(name)
            joined[now].add(name)
        groups = {"": self.fitting, **self.refused}
        for why in sorted(left.keys() | joined.keys()):
            groups[why] = (*filterfalse(left[why].__contains__, groups.get(why, ())), *sorted(joined[why]))
        fitting = groups.pop("")
        return FilterResult(fitting, {why: names for why, names in groups.items() if names})


class _Refused(dict[str, Closeness]):
    """How far each node is from having room, found out when it is asked for."""

    def __init__(self, ledger: Ledger, request: Request) -> None:
        self._ledger = ledger
        self._request = request

    def __missing__(self, node: str) -> Closeness:
        self[node] = found = closeness(self._ledger, self._request, node)
        return found


@dataclass(slots=True)
class _Table:
    closeness: _Refused
    moment: int = -1
    """Of the ledger, when the table was last true."""
    verdicts: dict[str, str] = field(default_factory=dict)
    """Every node of the ledger → why it will not do; empty: it will."""
    asked: Sequence[str] | None = None
    asked_set: frozenset[str] = frozenset()
    """The nodes that were asked about last, in their order and without."""
    answer: FilterResult = FilterResult((), {})
    """About these."""
    explained: tuple[int, tuple[str, ...], Refusal | None] | None = None
    """At which moment, of which nodes, and why all of them are not enough."""

    def about(self, nodes: Collection[str], own: Mapping[str, str]) -> FilterResult:
        """`own` goes before what everybody is told."""
        groups = defaultdict[str, list[str]](list)
        verdicts = {**self.verdicts, **own} if own else self.verdicts
        for name in nodes:
            groups[verdicts.get(name, NO_KNOWN_GPU)].append(name)
        fitting = groups.pop("", ())
        return FilterResult(fitting, groups)


class NodeFilter:
    """Finds the nodes that have room for a request, and remembers the answer until the room of a node changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tables: OrderedDict[Request, _Table] = OrderedDict()

    def filter(self, request: Request, nodes: Sequence[str], pod: str = "") -> FilterResult:
        """`pod` is the uid of who asks: GPUs may be kept for it."""
        table = self._table(request)
        if own := self._where_cards_are_kept(request, pod):
            return table.about(nodes, own)
        if nodes is not table.asked:
            # The order may differ: kube-scheduler looks at its nodes on many threads. It names none twice.
            if len(nodes) != len(table.asked_set) or not table.asked_set.issuperset(nodes):
                table.asked_set, table.answer = frozenset(nodes), table.about(nodes, {})
            table.asked = None if isinstance(nodes, list) else nodes  # what nobody can change
        return table.answer

    def why(self, request: Request, nodes: Sequence[str], pod: str = "") -> Refusal | None:
        """What `why_waiting` says, without its details. Cheap if asked again with the very same tuple of nodes."""
        if self._ledger.kept_for(pod):
            plain = why_waiting(self._ledger, request, nodes, pod)
            return plain and Refusal(plain.reason)
        table, now = self._table(request), self._ledger.version
        if table.explained is not None and table.explained[0] == now and table.explained[1] is nodes:
            return table.explained[2]
        fits = "" in map(table.verdicts.get, nodes)
        refusal = None if fits else self._explain(table, request, nodes)
        table.explained = (now, nodes, refusal) if isinstance(nodes, tuple) else None
        return refusal

    def _explain(self, table: _Table, request: Request, nodes: Sequence[str]) -> Refusal:
        closest = min(nodes, key=table.closeness.__getitem__, default=None)
        if closest is not None and has_no_gpus(self._ledger, closest):
            return Refusal(without_gpus(request, len(nodes)).reason)
        answer = None if closest is None else place(self._ledger, request, closest)
        assert not isinstance(answer, Placement), "none of the nodes has room"
        return Refusal(waiting_for(request, len(nodes), answer).reason)

    def _table(self, request: Request) -> _Table:
        alike = request if request.gang is None else replace(request, gang=None)
        table = self._tables.setdefault(alike, _Table(_Refused(self._ledger, alike)))
        self._tables.move_to_end(alike)
        if len(self._tables) > REMEMBERED:
            self._tables.popitem(last=False)
        changed = self._ledger.changed_since(table.moment)
        if changed is None:
            table = self._tables[alike] = _Table(_Refused(self._ledger, alike))
            changed = self._ledger.nodes
        if changed:
            self._judge(table, alike, changed)
            table.moment = self._ledger.version
        return table

    def _judge(self, table: _Table, request: Request, nodes: Iterable[str]) -> None:
        ledger, fits = self._ledger, fit_test(request)
        moves = []
        for name in nodes:
            has_room = fits(ledger.rooms[name]) and selected(ledger.node(name), request)
            # Many nodes are refused in the same words: they share them.
            now = "" if has_room else sys.intern(why_not(ledger, request, name))
            table.closeness.pop(name, None)
            before = table.verdicts.get(name, NO_KNOWN_GPU)
            table.verdicts[name] = now
            if now != before and name in table.asked_set:
                moves.append((name, before, now))
        if moves:
            table.answer = table.answer.after(moves)

    def _where_cards_are_kept(self, request: Request, pod: str) -> dict[str, str]:
        """What only this pod is told: on these few nodes it may have what nobody else may."""
        cards = map(self._ledger.card, self._ledger.kept_for(pod))
        return {
            name: ""
            if isinstance(place(self._ledger, request, name, pod), Placement)
            else why_not(self._ledger, request, name, pod)
            for name in {card.gpu.node for card in cards if card is not None}
        }


def linked_first(ledger: Ledger, request: Request, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes, those first where all GPUs of the request may be in one island, if it prefers that."""
    prefers = request.topology.mode is TopologyMode.PREFERRED
    if request.cards == 1 or not prefers or request.policy in (GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS):
        return nodes
    together = replace(request, topology=replace(request.topology, mode=TopologyMode.REQUIRED))
    rooms, fits = ledger.rooms, fit_test(together)
    linked = {name for name in nodes if name in rooms and fits(rooms[name])}
    if not linked or len(linked) == len(nodes):
        return nodes
    return tuple(sorted(nodes, key=lambda name: name not in linked))
