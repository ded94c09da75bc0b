"""Ends GPU pods when somebody asks: MAIA's pod terminator.

Only pods that may be ended: those whose booking is over, and those without a booking. What is asked for is written down
as a hand-over; whoever leads carries it out. So any replica may be asked, and asking twice changes nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from random import Random

from carrel.dialects.hand_over_record import Why, record_name
from carrel.dialects.maia import PodToEnd
from carrel.dialects.tier import tier_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.pods import is_going
from carrel.ledger.refusals import Refusal
from carrel.ledger.tiers import Tier
from carrel.lifecycle.expiry import Expiry
from carrel.lifecycle.hand_over import HandOvers, Order


@dataclass(frozen=True, slots=True)
class TerminatorContext:
    """Which pods there are."""

    pods: Callable[[], Iterable[Pod]]
    pod_named: Callable[[str, str], Pod | None]
    """By name and namespace."""
    has_cards: Callable[[str], bool]
    """By uid."""
    now: Callable[[], datetime]
    chance: Random


class Terminator:
    def __init__(self, expiry: Expiry, hand_overs: HandOvers, context: TerminatorContext) -> None:
        self._expiry = expiry
        self._hand_overs = hand_overs
        self._context = context

    def ended_at_will(self) -> list[Pod]:
        """Whose booking is over, and who has a card without a booking."""
        over = {pod.metadata.uid: pod for pod in self._expiry.over()}
        low = [pod for pod in self._context.pods() if tier_of(pod) is Tier.OPPORTUNISTIC and not is_going(pod)]
        return [*over.values(), *(pod for pod in low if self._context.has_cards(pod.metadata.uid))]

    async def end_any(self) -> Pod | None:
        """One of them by lot, which frees a card. None: there is nobody who could be ended."""
        asked = set(await self._hand_overs.under_way())
        able = [pod for pod in self.ended_at_will() if record_name(pod.metadata.uid) not in asked]
        able = [pod for pod in able if self._context.has_cards(pod.metadata.uid)]
        while able:
            pod = able.pop(self._context.chance.randrange(len(able)))
            if await self._end(pod):
                return pod
        return None

    async def end(self, which: PodToEnd) -> Pod | Refusal:
        title = f"{which.namespace}/{which.name}"
        pod = self._context.pod_named(which.name, which.namespace)
        if pod is None:
            return Refusal(f"there is no pod {title}")
        if pod.metadata.uid not in {each.metadata.uid for each in self.ended_at_will()}:
            return Refusal(f"pod {title} may stay: its booking is not over, or it has no card")
        return pod if await self._end(pod) else Refusal(f"pod {title} has changed just now; ask again")

    async def _end(self, pod: Pod) -> bool:
        why = Why.REVOKED if tier_of(pod) is Tier.OPPORTUNISTIC else Why.EXPIRED
        return bool(await self._hand_overs.intend(pod, Order(why, self._context.now())))
