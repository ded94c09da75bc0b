"""Whether a pod that is gone from the API server has really ended on its node.

A kubelet removes a pod only when its containers are gone, and says before that the pod has finished. A pod that was
deleted by force, or lost with its node's connection, is gone without that. Then its node must confirm it:

    the Node is gone                       nothing runs there any more
    its agent sees containers              two reports in a row, after the pod was found gone, name the pod neither as
                                           a user of a GPU nor among the orphans (`GpuNodeStatus.status.orphans`)
    its agent does not, or there is none   nobody can say it: the API server's word counts

An agent that is silent confirms nothing. The GPU stays set aside until it answers, or until an admin who knows better
says `carrel release`. Reports are counted by their heartbeats; no clocks are compared. The first new one may have been
under way when the pod was found gone.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from carrel.cluster.pod_progress import FINISHED
from carrel.cluster.state import ClusterState
from carrel.kubernetes.objects.kinds import Pod

REPORTS = 2


@dataclass(slots=True)
class _Reports:
    """What was heard of a node since a pod was found gone."""

    heartbeat: str
    new: int = 0


class ConfirmedEnds:
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._last: dict[str, Pod] = {}  # uid → the pod as it was last seen
        self._reports: dict[tuple[str, str], _Reports] = {}  # uid and node
        state.pods.on_change(self._on_pod)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None and self._state.ledger.shares_of(old.metadata.uid):
            self._last[old.metadata.uid] = old

    def forget_all_but(self, kept: AbstractSet[str]) -> None:
        self._last = {uid: pod for uid, pod in self._last.items() if uid in kept}
        self._reports = {key: seen for key, seen in self._reports.items() if key[0] in kept}

    def awaited_on(self, node: str) -> set[str]:
        """The uids of the pods that the node has to confirm."""
        return {uid for uid, where in self._reports if where == node}

    def why_unsure(self, uid: str, node: str) -> str:
        """Why a pod that is gone may still run on the node; empty if it does not. To be asked at each report."""
        last, status = self._last.get(uid), self._state.node_statuses.store.get(node)
        has_ended = last is not None and (last.status.phase in FINISHED or last.spec.node_name != node)
        if has_ended or self._state.nodes.store.get(node) is None or status is None or status.status.orphans is None:
            self._reports.pop((uid, node), None)
            return ""
        heartbeat = status.status.heartbeat
        seen = self._reports.setdefault((uid, node), _Reports(heartbeat))
        if uid in status.status.orphans or any(uid in device.in_use_by for device in status.status.devices):
            seen.heartbeat, seen.new = heartbeat, 0
            return f"its containers still run on {node}"
        if seen.heartbeat != heartbeat:
            seen.heartbeat, seen.new = heartbeat, seen.new + 1
        return "" if seen.new >= REPORTS else f"{node} has not confirmed yet that its containers are gone"
