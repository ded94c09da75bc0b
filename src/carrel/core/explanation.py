"""Why a pod waits: one sentence about the whole cluster, then one about each node, the most hopeful first."""

from collections.abc import Sequence

from carrel.core.ledger import Ledger
from carrel.core.placement import Placement, able_cards, place
from carrel.core.reasons import Refusal
from carrel.core.requests import Request


def why_waiting(ledger: Ledger, request: Request, nodes: Sequence[str], pod: str = "") -> Refusal | None:
    """None if the pod need not wait. `nodes` are those where it may go by everything that is not about GPUs."""
    if not nodes:
        return Refusal(f"there is no node for {request}")
    refusals: list[tuple[int, int, str, Refusal]] = []
    for name in nodes:
        answer = place(ledger, request, name, pod)
        if isinstance(answer, Placement):
            return None
        room = ledger.rooms.get(name)
        refusals.append((-len(able_cards(ledger, request, name, pod)), -(room.largest if room else 0), name, answer))
    refusals.sort(key=lambda refusal: refusal[:3])
    closest = refusals[0][3]
    if len(nodes) == 1:
        return closest
    return Refusal(
        f"none of {len(nodes)} nodes has {request}; closest: {closest.reason}",
        tuple(refusal.reason for *_, refusal in refusals),
    )
