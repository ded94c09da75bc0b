"""Which pods wait, and why, as the leader last found: for a metric."""

from collections import Counter
from collections.abc import Mapping

from carrel.cluster.waiting.waiting_reason import WaitCause
from carrel.ledger.tiers import Tier

NO_TIER = "none"


class WaitingPods:
    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str]] = {}  # uid → cause and tier

    def note(self, uid: str, cause: WaitCause, tier: Tier | None) -> None:
        self._found[uid] = (cause.value, tier.value if tier is not None else NO_TIER)

    def forget(self, uid: str) -> None:
        self._found.pop(uid, None)

    def clear(self) -> None:
        """This process does not lead any more."""
        self._found.clear()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """By cause and tier: all that there are, also those that no pod has now."""
        tiers = [*(tier.value for tier in Tier), NO_TIER]
        none = {(cause.value, tier): 0 for cause in WaitCause for tier in tiers}
        return {**none, **Counter(self._found.values())}
