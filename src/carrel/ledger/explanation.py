"""Why a pod waits: one sentence about the whole cluster, then one about each node, the closest to fitting first."""

from collections.abc import Sequence

from carrel.ledger.ledger import Ledger
from carrel.ledger.node_room import NO_ROOM, able
from carrel.ledger.placement import Placement, able_cards, place, selected, suits_by_nature
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request


def why_waiting(ledger: Ledger, request: Request, nodes: Sequence[str], pod: str = "") -> Refusal | None:
    """None if the pod need not wait. `nodes` are those where it may go by everything that is not about GPUs.

    It looks at every GPU of every node. Frequent callers that need only the sentence use `filtering.NodeFilter.why`.
    """
    refusals: dict[str, Refusal] = {}
    for name in nodes:
        answer = place(ledger, request, name, pod)
        if isinstance(answer, Placement):
            return None
        refusals[name] = answer
    best_first = sorted(refusals, key=lambda name: closeness(ledger, request, name, pod))
    reasons = tuple(refusals[name].reason for name in best_first)
    if best_first and has_no_gpus(ledger, best_first[0]):
        return without_gpus(request, len(nodes), reasons)
    return waiting_for(request, len(nodes), refusals[best_first[0]] if refusals else None, reasons)


Closeness = tuple[int, int, int, str]
"""How far a node is from having room; the least is the closest."""


def closeness(ledger: Ledger, request: Request, node: str, pod: str = "") -> Closeness:
    """Orders nodes that have no room: where the request could fit if nobody held anything, then where the most GPUs
    would do. A node with GPUs of another model only is further away, however many are free, and one without GPUs last.
    """
    room = ledger.rooms.get(node, NO_ROOM)
    # A summary leaves out what is kept, for whomever.
    count = len(able_cards(ledger, request, node, pod)) if ledger.kept_for(pod) else able(room, request)
    return (_unfitness(ledger, request, node), -count, -room.largest, node)


def _unfitness(ledger: Ledger, request: Request, name: str) -> int:
    """What is wrong with the node even if nobody held a part of its GPUs. The worse, the higher; 0: nothing."""
    node, gpus = ledger.node(name), [card.gpu for card in ledger.cards(name)]
    if not gpus:
        return 3
    need = request.amount.on
    suitable = sum(suits_by_nature(gpu, request) and need(gpu.memory) <= gpu.memory for gpu in gpus)
    if node is None or node.unusable or not selected(node, request) or not suitable:
        return 2
    return int(suitable < request.cards)


def waiting_for(request: Request, nodes: int, closest: Refusal | None, details: tuple[str, ...] = ()) -> Refusal:
    """`closest` is what the closest to fitting of so many nodes says; None if there is no node."""
    if closest is None:
        return Refusal(f"there is no node for {request}")
    if nodes == 1:
        return closest
    return Refusal(f"none of {nodes} nodes has {request}; closest: {closest.reason}", details)


def has_no_gpus(ledger: Ledger, node: str) -> bool:
    return not ledger.cards(node)


def without_gpus(request: Request, nodes: int, details: tuple[str, ...] = ()) -> Refusal:
    """If even the closest node has no GPU, it does not help to name it: the GPUs are where the pod may not run."""
    have = f"none of the {nodes} nodes where the pod may run has a" if nodes > 1 else "the only node for the pod has no"
    return Refusal(f"{request} asked, but {have} GPU that Carrel knows of", details)
