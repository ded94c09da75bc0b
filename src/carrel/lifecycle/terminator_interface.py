"""The pod terminator: what MAIA's clients ask of Carrel. `lifecycle.terminator.Terminator` does it."""

from collections.abc import Sequence
from typing import Protocol

from carrel.dialects.maia import PodToEnd
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.refusals import Refusal


class PodTerminator(Protocol):
    """Its writes raise `ClusterError` if the API server does not take them."""

    def ended_at_will(self) -> Sequence[Pod]:
        """Whose booking is over, and who has a card without a booking."""
        ...

    async def end_any(self) -> Pod | None:
        """Ends one of them. None: there is nobody who could be ended."""
        ...

    async def end(self, which: PodToEnd) -> Pod | Refusal: ...
