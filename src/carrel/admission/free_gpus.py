"""Whether a GPU is free for a new pod: what `filter` would answer for it now, by the webhook's own ledger."""

import msgspec

from carrel.dialects.carrel import OPPORTUNISTIC, TIER, USER
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.cluster_state import ClusterState
from carrel.ledger.filtering import NodeFilter
from carrel.ledger.precedence import WAITED_FOR, Precedence
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request


class FreeGpus:
    """Reads the ledger, and changes nothing."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._node_filter = NodeFilter(state.ledger)
        self._precedence = Precedence(state.ledger, state.booked_waiting)

    def why_none(self, pod: Pod, person: str, request: Request) -> Refusal | None:
        """Why an opportunistic pod of that person could not be placed now; None if it could, or if no GPU is known."""
        if not self._state.ledger.rooms:
            return None  # the agents have not reported yet: nobody can say that all GPUs are taken
        nodes = self._state.nodes_for(pod)
        refusal = self._why_over_limit(pod, person, request) or self._node_filter.why(request, nodes)
        if refusal is not None:
            return refusal
        left = self._precedence.narrow(self._node_filter.filter(request, nodes), request)
        return None if left.fitting else Refusal(f"{request}: there is {WAITED_FOR}")

    def _why_over_limit(self, pod: Pod, person: str, request: Request) -> Refusal | None:
        if not self._state.options.tier_policy.opportunistic_gpus:
            return None
        told = {**pod.metadata.annotations, USER: person, TIER: OPPORTUNISTIC}
        metadata = msgspec.structs.replace(pod.metadata, annotations=told)
        return self._state.why_over_limit(msgspec.structs.replace(pod, metadata=metadata), request)
