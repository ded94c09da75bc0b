"""What a pod could have on each node, or what it misses there, card by card."""

from collections.abc import Sequence

from carrel.core.ledger import Ledger
from carrel.core.placement import Placement, place
from carrel.core.reasons import Refusal
from carrel.core.requests import Request


def explain(ledger: Ledger, request: Request, nodes: Sequence[str], pod: str) -> dict[str, Placement | Refusal]:
    """As if the pod held nothing yet. `pod` is its uid."""
    with ledger.what_if():
        ledger.give_back(pod)
        return {name: place(ledger, request, name, pod) for name in nodes}
