"""When a GPU that would do for a pod will be free, as far as the cluster knows.

The end of a booking is known; a pod without a booking may keep its GPU for an hour or a month. So the answer is the
earliest end of a booking that covers such a GPU, if there is one, and whether pods without a booking hold others.
"""

from collections.abc import Collection

from carrel.cluster.coverage.coverage_words import NextFree
from carrel.cluster.state import ClusterState
from carrel.ids import HolderId, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.ledger import Ledger
from carrel.ledger.never import Never
from carrel.ledger.placement import allows
from carrel.ledger.requests import Request


def free_again(state: ClusterState, pod: Pod, request: Request) -> NextFree:
    why = state.waiting_reason.why_none_free(pod, request)
    if why is None or isinstance(why, Never):
        return NextFree(is_free=why is None)
    nodes, covered = frozenset(state.eligible_nodes.nodes_for(pod)), state.covered_pods
    running = sorted(covered.running(), key=lambda each: each.ends)
    ends = (
        booking.ends
        for booking in running
        for user in covered.covered_by(booking.booking)
        for uid in state.holders.held_by(user)
        if _holds_one(state.ledger, uid, request, nodes)
    )
    uncovered = (uid for uid in state.ledger.holders() if covered.of(uid) is None)
    return NextFree(
        at=next(ends, None), without_end=any(_holds_one(state.ledger, uid, request, nodes) for uid in uncovered)
    )


def _holds_one(ledger: Ledger, uid: HolderId, request: Request, nodes: Collection[NodeName]) -> bool:
    """Whether the pod holds a GPU, or a part of one, that would do."""
    for entry in filter(None, map(ledger.entry, ledger.shares_of(uid))):
        node = ledger.node(entry.gpu.node)
        is_there = node is not None and node.name in nodes and not node.unusable and request.selects(node)
        if is_there and not entry.gpu.unusable and allows(entry.gpu, request):
            return True
    return False
