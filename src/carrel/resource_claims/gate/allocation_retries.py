"""PURE. Whether the gate should go on saying yes to a claim whose allocation is never stored.

After the gate's yes another webhook may refuse the write. The scheduler tries again after some seconds, each yes holds
the GPU a little longer, and nobody else gets it. So after a while the gate says no, for long enough that the collector
frees the GPU (`allocation.claim_ends`): then others have their turn, and the claim may try again.
"""

from collections import OrderedDict
from dataclasses import dataclass

from carrel.ids import HolderId

RETRIED_S = 180.0
"""An allocation that can be stored is stored at the first try, or soon after a conflict."""
PAUSE_S = 180.0
"""Longer than what the gate said yes to may take to arrive (90 s), and two rounds of the collector."""
REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Tries:
    first: float
    last: float
    """When the gate last said yes."""


class AllocationRetries:
    def __init__(self) -> None:
        self._tries: OrderedDict[str, _Tries] = OrderedDict()

    def why_not(self, uid: HolderId, now: float) -> str:
        """Why the claim has to wait; empty if it may be allocated."""
        if now - self._series(uid, now).first > RETRIED_S:
            return (
                f"its allocation was approved and not stored for {RETRIED_S / 60:.0f} minutes: another webhook may"
                f" refuse it; others may have the GPU now, try again in {PAUSE_S / 60:.0f} minutes"
            )
        return ""

    def approved(self, uid: HolderId, now: float) -> None:
        """The gate says yes, and holds the GPUs. A try that lost a race holds nothing, and does not count."""
        self._tries[uid] = _Tries(self._series(uid, now).first, now)
        self._tries.move_to_end(uid)
        if len(self._tries) > REMEMBERED:
            self._tries.popitem(last=False)

    def _series(self, uid: HolderId, now: float) -> _Tries:
        before = self._tries.get(uid)
        return before if before is not None and now - before.last <= PAUSE_S else _Tries(now, now)

    def forget(self, uid: HolderId) -> None:
        """It was stored, or is gone."""
        self._tries.pop(uid, None)
