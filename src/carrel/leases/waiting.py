"""Why a pod waits for its GPUs: the one answer that Events, claims, pages and the command line show."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from carrel.dialects.interface import PodRequest
from carrel.dialects.tier import is_opportunistic
from carrel.kubernetes.objects.pods import gates_of
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.pods import holder_of
from carrel.ledger.filtering import NodeFilter
from carrel.ledger.gangs import GangMembers, GangPlanner
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import WaitingPod, left_by_another_bind
from carrel.ledger.precedence import WAITED_FOR, Precedence
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang


@dataclass(frozen=True, slots=True)
class WaitingContext:
    """What is known of the pods."""

    understand: Callable[[Pod], PodRequest | Refusal | None]
    members_of: Callable[[Gang], GangMembers]
    booked: Callable[[], Sequence[WaitingPod]]
    """The booked pods that wait, the oldest first."""


class WaitingReason:
    """Reads the ledger, and changes nothing."""

    def __init__(self, ledger: Ledger, context: WaitingContext) -> None:
        self._ledger = ledger
        self._context = context
        self._node_filter = NodeFilter(ledger)
        self._precedence = Precedence(ledger, context.booked)
        self._planner = GangPlanner(ledger)

    def why(self, pod: Pod, nodes: Sequence[str], elsewhere: str = "") -> Refusal | None:
        """None if the pod need not wait.

        `nodes` are where it may go; `elsewhere` says why it may not go to others that have cards.
        """
        ask = self._context.understand(pod)
        if ask is None or isinstance(ask, Refusal):
            return ask
        if gates := gates_of(pod):
            return _held_back(pod, gates)
        left = left_by_another_bind(self._ledger, ask.request, holder_of(pod))
        if left is not None:
            return left if isinstance(left, Refusal) else None
        if ask.request.gang is not None:
            together = self._why_gang_waits(ask.request.gang, pod, nodes)
            if together is not None:
                return together
        refusal = self._node_filter.why(ask.request, nodes, pod.metadata.uid)
        if refusal is None and is_opportunistic(pod):
            left_over = self._precedence.narrow(self._node_filter.filter(ask.request, nodes), ask.request)
            refusal = None if left_over.fitting else Refusal(f"{ask.request}: there is {WAITED_FOR}")
        return Refusal(f"{refusal.reason}; {elsewhere}") if refusal and elsewhere else refusal

    def _why_gang_waits(self, gang: Gang, pod: Pod, nodes: Sequence[str]) -> Refusal | None:
        """None if all members could be placed now, or some are placed already."""
        members = self._context.members_of(gang)
        if members.bound:
            return None
        with self._precedence.served() if is_opportunistic(pod) else nullcontext():
            plan = self._planner.plan(gang, members, nodes)
        return plan if isinstance(plan, Refusal) else None


def _held_back(pod: Pod, gates: Sequence[str]) -> Refusal:
    named = f"the scheduling gate {gates[0]}" if len(gates) == 1 else f"the scheduling gates {', '.join(gates)}"
    return Refusal(f"{holder_of(pod)} is held back by {named}: no scheduler looks at it until whoever set that is done")
