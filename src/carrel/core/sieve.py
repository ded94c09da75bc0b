"""Which nodes have room for a request and why the others have none, remembered until the room of a node changes.

kube-scheduler asks about thousands of nodes for every pod, and pods of one kind come in crowds: between two of them
only a few nodes have changed, and only these are looked at again. What is remembered never differs from what
`placement` would say now (a property test says so), is the same for every pod that asks alike, and is bounded: a
request that was not heard for long is forgotten.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from typing import Any

from carrel.core.ledger import Ledger
from carrel.core.placement import Placement, place, selected, why_not
from carrel.core.requests import Request
from carrel.core.room import fit_test

REMEMBERED = 32
"""Different requests; each costs about half a megabyte at 5,000 nodes."""


@dataclass(frozen=True, slots=True)
class Filtered:
    fitting: Sequence[str]
    refused: Mapping[str, str]
    """Why each other node will not do."""


@dataclass(slots=True)
class _Table:
    """Every node of the ledger is in one of the two."""

    moment: int = -1
    """Of the ledger, when the table was last true."""
    fitting: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)

    def note(self, node: str, why_not: str) -> None:
        if why_not:
            self.fitting.discard(node)
            self.refused[node] = why_not
        else:
            self.refused.pop(node, None)
            self.fitting.add(node)


class Sieve:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tables: OrderedDict[Request, _Table] = OrderedDict()

    def filter(self, request: Request, nodes: Sequence[str], pod: str = "") -> Filtered:
        """`pod` is the uid of who asks: cards may be kept for it."""
        table = self._table(request)
        if own := self._where_cards_are_kept(request, pod):
            table = _Table(table.moment, set(table.fitting), dict(table.refused))
            for name, why in own.items():
                table.note(name, why)
        if table.fitting.issuperset(nodes):
            return Filtered(nodes, {})
        # Thousands of nodes: each step runs over all of them without a line of Python for each.
        fitting = list(filter(table.fitting.__contains__, nodes)) if table.fitting else []
        others = list(filterfalse(table.fitting.__contains__, nodes)) if fitting else nodes
        refused: dict[str, Any] = dict(zip(others, map(table.refused.get, others), strict=True))
        if None in refused.values():
            refused = {name: why or why_not(self._ledger, request, name) for name, why in refused.items()}
        return Filtered(fitting, refused)

    def _table(self, request: Request) -> _Table:
        alike = request if request.gang is None else replace(request, gang=None)
        table = self._tables.setdefault(alike, _Table())
        self._tables.move_to_end(alike)
        if len(self._tables) > REMEMBERED:
            self._tables.popitem(last=False)
        changed = self._ledger.changed_since(table.moment)
        if changed is None:
            table.fitting, table.refused, changed = set(), {}, _side_by_side(self._ledger.nodes)
        if changed:
            self._judge(table, alike, changed)
            table.moment = self._ledger.moment
        return table

    def _judge(self, table: _Table, request: Request, nodes: Iterable[str]) -> None:
        ledger, fits = self._ledger, fit_test(request)
        for name in nodes:
            if fits(ledger.rooms[name]) and selected(ledger.node(name), request):
                table.note(name, "")
            else:
                # Many nodes are refused in the same words: they share them.
                table.note(name, sys.intern(why_not(ledger, request, name)))

    def _where_cards_are_kept(self, request: Request, pod: str) -> dict[str, str]:
        """What only this pod is told: on these few nodes it may have what nobody else may."""
        cards = map(self._ledger.card, self._ledger.kept_for(pod))
        return {
            name: ""
            if isinstance(place(self._ledger, request, name, pod), Placement)
            else why_not(self._ledger, request, name, pod)
            for name in {card.gpu.node for card in cards if card is not None}
        }


def _side_by_side(names: Sequence[str]) -> list[str]:
    """Copies that lie next to each other in memory: looking thousands of them up is then a tenth quicker."""
    return "\0".join(names).split("\0") if names else []
