"""Why a pod waits for its GPUs: the one answer that Events, claims, pages and the command line show."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum

from carrel.cluster.eligible_nodes import Eligibility, EligibleNodes
from carrel.cluster.gangs.gang_members import GangMemberLookup
from carrel.cluster.pod_facts import PodFacts, PodFactsLookup
from carrel.cluster.pod_progress import holder_of
from carrel.cluster.waiting.person_limit import PersonLimit
from carrel.ids import NO_POD, HolderId, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.ledger.filtering import NodeFilter
from carrel.ledger.gangs import GangPlanner
from carrel.ledger.ledger import Ledger
from carrel.ledger.never import Impossibility, Never
from carrel.ledger.placement import allows, left_by_another_bind
from carrel.ledger.precedence import WAITED_FOR, Precedence
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request


class WaitCause(Enum):
    """Why a pod waits, as one of a few words: for counting. People are told the reason itself."""

    NO_FREE_GPU = "no_free_gpu"
    """No GPU that would do is free."""
    LEFT_TO_BOOKED_PODS = "left_to_booked_pods"
    """What is free is left to booked pods that wait."""
    NO_NODE = "no_node"
    """It may run on no node with GPUs, by its selectors, affinities and tolerations; or these are cordoned."""
    GANG_INCOMPLETE = "gang_incomplete"
    """Not all members of its gang are there, or have room."""
    PERSON_LIMIT = "person_limit"
    """Its person holds as many GPUs without a booking as one person may."""
    SCHEDULING_GATE = "scheduling_gate"
    """It is held back until its booking starts, or by somebody else's gate."""
    REQUEST_REFUSED = "request_refused"
    """What it asks for cannot be read, or no node could meet it, even if all GPUs were free."""
    EARLIER_BIND = "earlier_bind"
    """An earlier attempt to bind it left GPUs on another node."""
    KUBE_SCHEDULER = "kube_scheduler"
    """There is a GPU for it: kube-scheduler has not tried it since, or has another reason."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pod waits."""

    cause: WaitCause
    refusal: Refusal


class WaitingReason:
    """Reads the ledger, and changes nothing."""

    def __init__(
        self,
        ledger: Ledger,
        pod_facts: PodFactsLookup,
        members_of: GangMemberLookup,
        precedence: Precedence,
        eligible_nodes: EligibleNodes,
        person_limit: PersonLimit,
    ) -> None:
        self._ledger = ledger
        self._pod_facts = pod_facts
        self._members_of = members_of
        self._eligible_nodes = eligible_nodes
        self._person_limit = person_limit
        self._node_filter = NodeFilter(ledger)
        self._precedence = precedence
        self._planner = GangPlanner(ledger)
        self._impossibility = Impossibility(ledger)

    def why_never(self, pod: Pod, request: Request) -> Never | None:
        """Why no node could serve the pod, even if all GPUs were free; None if one could. Whoever says it asks here."""
        eligible, gang = self._eligible_nodes.of(pod), request.gang
        never = self._impossibility.why(request, eligible.selected, eligible.everywhere)
        if never is not None or gang is None:
            return never
        return self._impossibility.why_gang(gang, self._members_of(gang))

    def why(self, pod: Pod) -> Refusal | None:
        """Why a pod waits for its GPUs; None if it need not wait."""
        waiting = self.of(pod)
        return waiting.refusal if waiting is not None else None

    def of(self, pod: Pod) -> Waiting | None:
        """Why a pod waits, with the cause as one of a few words; None if it need not wait."""
        facts = self._pod_facts(pod)
        asked, nodes = facts.asked, self._eligible_nodes.nodes_for(pod)
        if asked is None:
            return None
        if isinstance(asked, Refusal):
            return Waiting(WaitCause.REQUEST_REFUSED, asked)
        if gates := gates_of(pod):
            return Waiting(WaitCause.SCHEDULING_GATE, _held_back(pod, gates))
        if (never := self.why_never(pod, asked.request)) is not None:
            return Waiting(WaitCause.REQUEST_REFUSED, never)
        left = left_by_another_bind(self._ledger, asked.request, facts.holder)
        if left is not None:
            return Waiting(WaitCause.EARLIER_BIND, left) if isinstance(left, Refusal) else None
        over_limit = self._person_limit.why_over(facts, asked.request)
        if over_limit is not None:
            return Waiting(WaitCause.PERSON_LIMIT, over_limit)
        eligible = self._eligible_nodes.of(pod)
        if asked.request.gang is not None:
            together = self._why_gang_waits(asked.request.gang, facts, nodes)
            is_here = len(self._members_of(asked.request.gang).waiting) >= asked.request.gang.size
            if together is not None and is_here and (why := self._why_not_elsewhere(asked.request, eligible)):
                together = Refusal(f"{together.reason}; {why}")
            if together is not None:
                return Waiting(WaitCause.GANG_INCOMPLETE, together)
        refusal = self._why_none_free(asked.request, nodes, eligible, facts.keeper, leaves_room=facts.leaves_room)
        return Waiting(self._cause(asked.request, nodes, facts.keeper), refusal) if refusal is not None else None

    def why_none_free(self, pod: Pod, request: Request) -> Refusal | None:
        """Why an opportunistic pod that is about to be created could not be placed now; None if it could."""
        nodes, eligible = self._eligible_nodes.nodes_for(pod), self._eligible_nodes.of(pod)
        return self.why_never(pod, request) or self._why_none_free(request, nodes, eligible, leaves_room=True)

    def _cause(self, request: Request, nodes: Sequence[NodeName], keeper: HolderId) -> WaitCause:
        """Why no GPU is free, as one of a few words."""
        if not self._have_gpus(nodes):
            return WaitCause.NO_NODE
        is_full = self._node_filter.why(request, nodes, keeper) is not None
        return WaitCause.NO_FREE_GPU if is_full else WaitCause.LEFT_TO_BOOKED_PODS

    def _why_none_free(
        self,
        request: Request,
        nodes: Sequence[NodeName],
        eligible: Eligibility,
        keeper: HolderId = NO_POD,
        *,
        leaves_room: bool,
    ) -> Refusal | None:
        """Why no GPU of these nodes can be had now, and none of the other nodes that would do; None if one can.
        `leaves_room`: for booked pods that wait."""
        refusal = self._node_filter.why(request, nodes, keeper)
        if refusal is not None and (why := self._why_not_elsewhere(request, eligible)):
            return Refusal(f"{refusal.reason}; {why}" if self._have_gpus(nodes) else f"{request} asked, but {why}")
        if refusal is not None or not leaves_room:
            return refusal
        left_over = self._precedence.narrow(self._node_filter.filter(request, nodes), request)
        return None if left_over.fitting else Refusal(f"{request}: there is {WAITED_FOR}")

    def _have_gpus(self, nodes: Iterable[NodeName]) -> bool:
        return any(node in self._ledger.rooms for node in nodes)

    def _why_not_elsewhere(self, request: Request, eligible: Eligibility) -> str:
        return eligible.why_not_elsewhere(lambda node: self._would_do(node, request))

    def _would_do(self, node: NodeName, request: Request) -> bool:
        """Whether the node would do if it were empty and in order."""
        gpus = (entry.gpu for entry in self._ledger.entries(node))
        fitting = sum(allows(gpu, request) and request.amount.on(gpu.memory) <= gpu.memory for gpu in gpus)
        return fitting >= request.gpus and request.selects(self._ledger.node(node))

    def _why_gang_waits(self, gang: Gang, facts: PodFacts, nodes: Sequence[NodeName]) -> Refusal | None:
        """None if all members could be placed now, or some are bound already."""
        members = self._members_of(gang)
        if members.bound:
            return None
        if gang.unplanned:
            return Refusal(gang.unplanned)
        with self._precedence.served() if facts.leaves_room else nullcontext():
            plan = self._planner.plan(gang, members, nodes)
        return plan if isinstance(plan, Refusal) else None


def _held_back(pod: Pod, gates: Sequence[str]) -> Refusal:
    is_one = len(gates) == 1
    named = f"the scheduling gate {gates[0]}" if is_one else f"the scheduling gates {', '.join(gates)}"
    removed = "it is removed" if is_one else "they are removed"
    return Refusal(f"{holder_of(pod)} is held back by {named}: no scheduler tries it until {removed}")
