"""When a GPU that would do for a pod will be free, as far as the cluster knows.

The end of a booking is known; a pod without a booking may keep its GPU for an hour or a month. So the answer is the
earliest end of a booking that covers such a GPU, if there is one, and whether pods without a booking hold others.
"""

from collections.abc import Collection
from datetime import datetime

from carrel.cluster.coverage.coverage_words import NextFree
from carrel.cluster.state import ClusterState
from carrel.ids import HolderId, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.never import Never
from carrel.ledger.placement import allows
from carrel.ledger.requests import Request


class FreeAgain:
    """Reads, and changes nothing."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def of(self, pod: Pod, request: Request) -> NextFree:
        why = self._state.waiting_reason.why_none_free(pod, request)
        if why is None or isinstance(why, Never):
            return NextFree(is_free=why is None)
        nodes = frozenset(self._state.eligible_nodes.nodes_for(pod))
        return NextFree(at=self._first_end(request, nodes), without_end=self._are_held_without_end(request, nodes))

    def _first_end(self, request: Request, nodes: Collection[NodeName]) -> datetime | None:
        covered, now = self._state.covered_pods, self._state.options.now()
        running = sorted((each for each in covered.bookings() if each.runs_at(now)), key=lambda each: each.ends)
        for booking in running:
            pods = covered.covered_by(booking.booking)
            uids = (uid for pod in pods for uid in self._state.holders.held_by(pod))
            if any(self._holds_one(uid, request, nodes) for uid in uids):
                return booking.ends
        return None

    def _are_held_without_end(self, request: Request, nodes: Collection[NodeName]) -> bool:
        covered = self._state.covered_pods
        holders = (uid for uid in self._state.ledger.holders() if covered.of(uid) is None)
        return any(self._holds_one(uid, request, nodes) for uid in holders)

    def _holds_one(self, uid: HolderId, request: Request, nodes: Collection[NodeName]) -> bool:
        """Whether the pod holds a GPU, or a part of one, that would do."""
        ledger = self._state.ledger
        for entry in filter(None, map(ledger.entry, ledger.shares_of(uid))):
            node = ledger.node(entry.gpu.node)
            is_there = node is not None and node.name in nodes and not node.unusable and request.selects(node)
            if is_there and not entry.gpu.unusable and allows(entry.gpu, request):
                return True
        return False
