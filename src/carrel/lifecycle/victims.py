"""Which pods lose their GPUs when a booked pod needs some and none are free.

Only opportunistic pods are victims. Preferred are, in this order: the fewest; the least work lost; the node's name; the
victims' uids. No victim is superfluous: without any one of them the booked pod would not fit. GPUs of pods that are
ending anyway are counted as free before victims are chosen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from math import fsum
from random import Random

from carrel.ledger.gpu_choice import by_island
from carrel.ledger.gpus import Gpu
from carrel.ledger.ledger import Card, Ledger
from carrel.ledger.node_room import needs_one_island
from carrel.ledger.placement import Placement, WaitingPod, candidates, place, selected, suits
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder, ShareState


@dataclass(frozen=True, slots=True)
class OpportunisticPod:
    """A pod that holds a GPU without a booking."""

    holder: Holder
    work: timedelta
    """What is lost if it must stop now: the time since its last checkpoint or its start."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """When these victims are gone, the booked pod fits on these GPUs: keep them for it."""

    node: str
    gpus: tuple[Gpu, ...]
    victims: tuple[Holder, ...]
    """Empty: it is enough to wait for pods that are ending already."""


@dataclass(frozen=True, slots=True, order=True)
class _Cost:
    count: int
    work: float
    uids: tuple[str, ...]

    @property
    def size(self) -> tuple[int, float]:
        return (self.count, self.work)


def revoke(
    ledger: Ledger, booked: WaitingPod, opportunistic: Iterable[OpportunisticPod], rng: Random | None = None
) -> Placement | Revocation | Refusal:
    """How a booked pod gets its GPUs: a placement if there is room, else a revocation, else why neither is possible.

    With `rng` the victims are chosen at random among the fewest, whatever work they lose.
    """
    for node in candidates(ledger, booked.request, booked.nodes, booked.holder.uid).fitting:
        answer = place(ledger, booked.request, node, booked.holder.uid)
        if isinstance(answer, Placement):
            return answer
    by_uid = {each.holder.uid: each for each in sorted(opportunistic, key=lambda each: each.holder.uid)}
    work = {uid: rng.random() if rng else each.work.total_seconds() for uid, each in by_uid.items()}
    best: tuple[_Cost, str, Sequence[Card]] | None = None
    for node in sorted(booked.nodes):
        found = _cheapest_on_node(ledger, booked, node, work, best[0] if best else None)
        if found is not None and (best is None or found[0].size < best[0].size):
            best = (found[0], node, found[1])
    if best is None:
        where = f"{len(booked.nodes)} node{'s' * (len(booked.nodes) != 1)}"
        return Refusal(f"no room for {booked.request} on {where}, even if every pod without a booking ended")
    cost, node, cards = best
    return Revocation(node, tuple(card.gpu for card in cards), tuple(by_uid[uid].holder for uid in cost.uids))


def _cheapest_on_node(
    ledger: Ledger, booked: WaitingPod, node: str, work: Mapping[str, float], limit: _Cost | None
) -> tuple[_Cost, Sequence[Card]] | None:
    """None: the booked pod cannot fit on this node, or not as cheaply as on another."""
    there, request = ledger.node(node), booked.request
    if there is None or there.unusable or not selected(there, request):
        return None
    need = request.amount.on
    within_reach = [
        card
        for card in ledger.cards(node)
        if suits(card, request, booked.holder.uid) and card.free + _obtainable(card, work) >= need(card.gpu.memory)
    ]
    if len(within_reach) < request.cards:
        return None
    best: tuple[_Cost, Sequence[Card]] | None = None
    # One island only where it is required: a preference is not worth a victim.
    together = [cards for island, cards in by_island(within_reach).items() if island]
    for pool in together if needs_one_island(request) else [within_reach]:
        for cards in combinations(pool, request.cards):
            cost = _cheapest_victims(
                [(card, need(card.gpu.memory)) for card in cards], work, best[0] if best else limit
            )
            if cost is not None:
                best = (cost, cards)
    return best


def _obtainable(card: Card, work: Mapping[str, float]) -> int:
    """What would become free if all pods ended that are ending already or may be victims."""
    return sum(
        card.held(share) for uid, share in card.shares.items() if share.state is ShareState.RELEASING or uid in work
    )


def _cheapest_victims(
    wanted: Sequence[tuple[Card, int]], work: Mapping[str, float], limit: _Cost | None
) -> _Cost | None:
    """The cheapest set of victims that frees enough on every one of the GPUs; None if it is not below the limit.

    Branch and bound: at the first GPU that still lacks memory, each holder in turn is a victim or is spared for good.
    """
    missing = [need - card.free - card.memory_in(ShareState.RELEASING) for card, need in wanted]
    parts = [
        {
            uid: card.held(share)
            for uid, share in card.shares.items()
            if uid in work and share.state is not ShareState.RELEASING
        }
        for card, _ in wanted
    ]
    best = limit

    def search(gone: tuple[str, ...], spared: frozenset[str]) -> None:
        nonlocal best
        cost = _Cost(len(gone), fsum(work[uid] for uid in gone), tuple(sorted(gone)))
        if best is not None and cost >= best:
            return
        for lack, part in zip(missing, parts, strict=True):
            still = lack - sum(part.get(uid, 0) for uid in gone)
            if still <= 0:
                continue
            left = [uid for uid in part if uid not in gone and uid not in spared]
            if sum(part[uid] for uid in left) < still:
                return
            left.sort(key=lambda uid: (-part[uid], work[uid], uid))
            for position, uid in enumerate(left):
                search((*gone, uid), spared.union(left[:position]))
            return
        best = cost

    search((), frozenset())
    return best if best is not limit else None
