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

from carrel.core.ledger import Ledger
from carrel.core.placement import Placement, place, selected, why_not
from carrel.core.requests import Request
from carrel.core.room import fit_test

REMEMBERED = 32
"""Different requests; each costs about half a megabyte at 5,000 nodes."""

FITS = ""


@dataclass(frozen=True, slots=True)
class Filtered:
    fitting: Sequence[str]
    refused: Mapping[str, str]
    """Why each other node will not do."""


@dataclass(slots=True)
class _Table:
    moment: int = -1
    """Of the ledger, when the table was last true."""
    why: dict[str, str] = field(default_factory=dict)
    """Every node of the ledger; empty if the request fits there."""


class Sieve:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tables: OrderedDict[Request, _Table] = OrderedDict()

    def filter(self, request: Request, nodes: Sequence[str], pod: str = "") -> Filtered:
        """`pod` is the uid of who asks: cards may be kept for it."""
        known = self._table(request).why
        if own := self._where_cards_are_kept(request, pod):
            known = {**known, **own}
        found = list(map(known.get, nodes))
        if None in found:
            found = [known[name] if name in known else why_not(self._ledger, request, name) for name in nodes]
        if not any(found):
            return Filtered(nodes, {})
        answers = list(zip(nodes, found, strict=True))
        return Filtered([name for name, each in answers if not each], {name: each for name, each in answers if each})

    def _table(self, request: Request) -> _Table:
        alike = request if request.gang is None else replace(request, gang=None)
        table = self._tables.setdefault(alike, _Table())
        self._tables.move_to_end(alike)
        if len(self._tables) > REMEMBERED:
            self._tables.popitem(last=False)
        changed = self._ledger.changed_since(table.moment)
        if changed is None:
            table.why, changed = {}, self._ledger.nodes
        if changed:
            table.why.update(self._judge(alike, changed))
            table.moment = self._ledger.moment
        return table

    def _judge(self, request: Request, nodes: Iterable[str]) -> dict[str, str]:
        ledger, fits = self._ledger, fit_test(request)
        return {
            name: FITS
            if fits(ledger.rooms[name]) and selected(ledger.node(name), request)
            # Many nodes are refused in the same words: they share them.
            else sys.intern(why_not(ledger, request, name))
            for name in nodes
        }

    def _where_cards_are_kept(self, request: Request, pod: str) -> dict[str, str]:
        """What only this pod is told: on these few nodes it may have what nobody else may."""
        cards = map(self._ledger.card, self._ledger.kept_for(pod))
        return {
            name: FITS
            if isinstance(place(self._ledger, request, name, pod), Placement)
            else why_not(self._ledger, request, name, pod)
            for name in {card.gpu.node for card in cards if card is not None}
        }
