"""Why a pod waits for its GPUs: the one answer that Events, claims, pages and the command line show."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from carrel.dialects.interface import PodRequest
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.leases.pod_progress import holder_of
from carrel.ledger.filtering import NodeFilter
from carrel.ledger.gangs import GangMembers, GangPlanner
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import WaitingPod, left_by_another_bind
from carrel.ledger.precedence import WAITED_FOR, Precedence
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request


@dataclass(frozen=True, slots=True)
class WaitingContext:
    """What is known of the pods."""

    requested_by: Callable[[Pod], PodRequest | Refusal | None]
    members_of: Callable[[Gang], GangMembers]
    booked: Callable[[], Sequence[WaitingPod]]
    """The booked pods that wait, the oldest first."""
    keeper: Callable[[Pod], str]
    """In whose name a pod gets what is kept for it."""
    leaves_room: Callable[[Pod], bool]
    """Whether it leaves room for booked pods that wait."""
    why_over_limit: Callable[[Pod, Request], Refusal | None]
    """Why its person may hold no more without a booking."""


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

        `nodes` are where it may run; `elsewhere` says why it may not run on other nodes with GPUs.
        """
        asked = self._context.requested_by(pod)
        if asked is None or isinstance(asked, Refusal):
            return asked
        if gates := gates_of(pod):
            return _held_back(pod, gates)
        left = left_by_another_bind(self._ledger, asked.request, holder_of(pod))
        if left is not None:
            return left if isinstance(left, Refusal) else None
        over_limit = self._context.why_over_limit(pod, asked.request)
        if over_limit is not None:
            return over_limit
        if asked.request.gang is not None:
            together = self._why_gang_waits(asked.request.gang, pod, nodes)
            if together is not None:
                return together
        leaves_room, keeper = self._context.leaves_room(pod), self._context.keeper(pod)
        refusal = self.why_none_free(asked.request, nodes, keeper, leaves_room=leaves_room)
        return Refusal(f"{refusal.reason}; {elsewhere}") if refusal and elsewhere else refusal

    def why_none_free(
        self, request: Request, nodes: Sequence[str], keeper: str = "", *, leaves_room: bool
    ) -> Refusal | None:
        """Why no GPU of these nodes can be had now; None if one can. `leaves_room`: for booked pods that wait."""
        refusal = self._node_filter.why(request, nodes, keeper)
        if refusal is not None or not leaves_room:
            return refusal
        left_over = self._precedence.narrow(self._node_filter.filter(request, nodes), request)
        return None if left_over.fitting else Refusal(f"{request}: there is {WAITED_FOR}")

    def _why_gang_waits(self, gang: Gang, pod: Pod, nodes: Sequence[str]) -> Refusal | None:
        """None if all members could be placed now, or some are bound already."""
        members = self._context.members_of(gang)
        if members.bound:
            return None
        if gang.unplanned:
            return Refusal(gang.unplanned)
        with self._precedence.served() if self._context.leaves_room(pod) else nullcontext():
            plan = self._planner.plan(gang, members, nodes)
        return plan if isinstance(plan, Refusal) else None


def _held_back(pod: Pod, gates: Sequence[str]) -> Refusal:
    is_one = len(gates) == 1
    named = f"the scheduling gate {gates[0]}" if is_one else f"the scheduling gates {', '.join(gates)}"
    removed = "it is removed" if is_one else "they are removed"
    return Refusal(f"{holder_of(pod)} is held back by {named}: no scheduler tries it until {removed}")
