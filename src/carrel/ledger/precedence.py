"""An opportunistic pod does not take the GPUs that a booked pod is waiting for.

A booked pod that has room is bound within moments, and for one that has none GPUs are kept. In between, an
opportunistic pod could take them. So a request of such a pod is answered as if each booked pod that waits, and has
room, had its GPUs already: the oldest first, each where GPUs are kept for it, else on the first node that takes it. In
the end it may get other GPUs. What counts is that enough are left for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from carrel.ledger.filtering import FilterResult, NodeFilter
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.ledger.shares import Coverage, Share

SOME_INSTANT = datetime.min.replace(tzinfo=UTC)
"""In a what-if, it does not matter since when a share is covered."""
WAITED_FOR = "room, but a booked pod waits for it"


class Precedence:
    """The rule that opportunistic pods leave room for the booked pods that wait."""

    def __init__(self, ledger: Ledger, waiting: Callable[[], Sequence[WaitingPod]]) -> None:
        """`waiting` are the booked pods that want GPUs and are not bound, the oldest first."""
        self._ledger = ledger
        self._waiting = waiting
        self._node_filter = NodeFilter(ledger)
        self._known: tuple[int, Sequence[WaitingPod], Sequence[Share]] = (-1, (), ())

    def narrow(self, found: FilterResult, request: Request) -> FilterResult:
        """Of the nodes that would do, only those that will do also when the booked pods have theirs."""
        nodes = {card.gpu.node for share in self._taken_first() if (card := self._ledger.card(share.gpu)) is not None}
        touched = nodes.intersection(found.fitting) if nodes else ()
        if not touched:
            return found
        with self.served():
            taken = [name for name in sorted(touched) if isinstance(place(self._ledger, request, name), Refusal)]
        return found.after([(name, "", WAITED_FOR) for name in taken]) if taken else found

    @contextmanager
    def served(self) -> Iterator[None]:
        """As if every booked pod that waits, and has room, had its GPUs. Afterwards nothing has changed."""
        shares = self._taken_first()
        if not shares:
            yield
            return
        with self._ledger.what_if():
            for share in shares:
                self._ledger.hold(share)
            yield
        self._known = (self._ledger.moment, *self._known[1:])

    def _taken_first(self) -> Sequence[Share]:
        """Looked for anew only when the ledger, or who waits, has changed."""
        waiting = tuple(self._waiting())
        moment, before, shares = self._known
        if moment != self._ledger.moment or waiting != before:
            shares = self._look(waiting) if waiting else ()
            self._known = (self._ledger.moment, waiting, shares)
        return shares

    def _look(self, waiting: Sequence[WaitingPod]) -> Sequence[Share]:
        shares: list[Share] = []
        with self._ledger.what_if():
            for booked in waiting:
                if self._ledger.shares_of(booked.holder.uid):
                    continue  # it is being bound
                placement = self._place(booked)
                if isinstance(placement, Placement):
                    for share in placement.shares(booked.holder):
                        self._ledger.hold(share)
                        shares.append(share)
        return shares

    def _place(self, booked: WaitingPod) -> Placement | Refusal:
        keeper = booked.keeper(self._ledger)
        cards = map(self._ledger.card, self._ledger.kept_for(keeper))
        kept = {card.gpu.node for card in cards if card is not None}
        fitting = self._node_filter.filter(booked.request, booked.nodes, keeper).fitting
        node = min(kept.intersection(fitting) if kept else (), default="") or min(fitting, default="")
        placement = place(self._ledger, booked.request, node, keeper)
        if isinstance(placement, Refusal) or not booked.booking:
            return placement
        return replace(placement, coverage=Coverage(booked.booking, SOME_INSTANT))
