"""What a pod could have on each node, or what it misses there, card by card."""

from collections.abc import Sequence

from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request


def explain(ledger: Ledger, request: Request, nodes: Sequence[str], pod: str) -> dict[str, Placement | Refusal]:
    """As if the pod held nothing yet. `pod` is its uid."""
    with ledger.what_if():
        ledger.give_back(pod)
        return {name: place(ledger, request, name, pod) for name in nodes}
