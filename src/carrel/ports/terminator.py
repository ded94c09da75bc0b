"""The pod terminator: what MAIA's clients ask of Carrel. `usecases.terminate.Terminator` does it."""

from collections.abc import Sequence
from typing import Protocol

from carrel.core.reasons import Refusal
from carrel.protocols.kubernetes.shapes import Pod
from carrel.protocols.maia import PodToEnd


class PodTerminator(Protocol):
    """Its writes raise `ClusterError` if the API server does not take them."""

    def ended_at_will(self) -> Sequence[Pod]:
        """Whose booking is over, and who has a card without a booking."""
        ...

    async def end_any(self) -> Pod | None:
        """Ends one of them. None: there is nobody who could be ended."""
        ...

    async def end(self, which: PodToEnd) -> Pod | Refusal: ...
