"""Records pods that have GPUs without a Lease: from then on their Leases say what they hold, as for all other pods.

Without a record such pods count too (`cluster.record.unrecorded_pods`); with one they show up on Leases, also for other
tools, and what they hold no longer depends on annotations. Doing it twice changes nothing: a pod that a Lease names is
not among them. A crash in between leaves a pod with some of its Leases; the next time the others are written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from carrel.cluster.record.unrecorded_pods import UnrecordedPod
from carrel.cluster.state import ClusterState
from carrel.ids import HolderId, NodeName
from carrel.ledger.gpus import Gpu
from carrel.ledger.requests import WHOLE
from carrel.ledger.shares import Holder, Share, ShareState


class Outcome(Enum):
    RECORDED = "recorded"
    TO_RECORD = "would be recorded"
    UNKNOWN = "counted, not recorded: nobody says which GPU it has"
    NOT_BY_KUBELET = "counted, not recorded: it has not asked the kubelet for its GPU"
    NO_SLOT = "counted, not recorded: all GPUs of the node are on Leases"
    OTHER_UNIT = "counted, not recorded: its agent counts memory in another unit than the scheduler"
    FAILED = "not recorded: it changed meanwhile, or its Lease was refused; try again"
    CHANGED = "not recorded: the Lease of its GPU has changed; try again"


@dataclass(frozen=True, slots=True)
class AdoptedPod:
    """What was done about one pod."""

    holder: Holder
    node: NodeName
    gpus: tuple[int, ...]
    """Indices; empty: not known."""
    amount: str
    outcome: Outcome


class Adoption:
    def __init__(self, state: ClusterState) -> None:
        self._cluster_ledger = state.cluster_ledger
        self._lease_writer = state.lease_writer
        self._isolation = state.isolation

    def unrecorded(self) -> Sequence[tuple[NodeName, UnrecordedPod]]:
        """Node and pod, by their names."""
        nodes = self._cluster_ledger.ledger.nodes
        found = self._isolation.found("adoption", nodes, lambda node: (node, self._cluster_ledger.unrecorded(node)))
        pods = [(node, pod) for node, listed in found for pod in listed]
        return sorted(pods, key=lambda each: (each[0], each[1].holder.full_name))

    def plan(self) -> list[AdoptedPod]:
        """What `record` would do."""
        return [_adopted(node, pod, self._why_not(node, pod) or Outcome.TO_RECORD) for node, pod in self.unrecorded()]

    async def record(self, uids: Iterable[HolderId] | None = None) -> list[AdoptedPod]:
        """Records all of them, or those with these uids."""
        wanted = None if uids is None else frozenset(uids)
        due = [(node, pod) for node, pod in self.unrecorded() if wanted is None or pod.holder.uid in wanted]
        done = await self._isolation.each("adoption", due, self._adopt, lambda each: each[1].holder.full_name)
        treated = {each.holder.uid for each in done}
        failed = [_adopted(node, pod, Outcome.FAILED) for node, pod in due if pod.holder.uid not in treated]
        return [*done, *failed]

    async def _adopt(self, due: tuple[NodeName, UnrecordedPod]) -> AdoptedPod:
        return _adopted(*due, await self._record(*due))

    async def _record(self, node: NodeName, pod: UnrecordedPod) -> Outcome:
        why_not = self._why_not(node, pod)
        if why_not is not None:
            return why_not
        for gpu in self._gpus(node, pod):
            share = Share(pod.holder, gpu.uuid, pod.memory_on(gpu), ShareState.ASSIGNED)
            if not await self._lease_writer.record_share(gpu, share):
                return Outcome.CHANGED
        return Outcome.RECORDED

    def _why_not(self, node: NodeName, pod: UnrecordedPod) -> Outcome | None:
        if self._cluster_ledger.why_other_unit(node):
            return Outcome.OTHER_UNIT
        if not self._cluster_ledger.kubelet_chooses(node):
            return None if pod.is_known else Outcome.UNKNOWN
        if pod.amount != WHOLE or not pod.devices:
            return Outcome.NOT_BY_KUBELET
        return None if len(self._gpus(node, pod)) == pod.devices else Outcome.NO_SLOT

    def _gpus(self, node: NodeName, pod: UnrecordedPod) -> Sequence[Gpu]:
        """What goes on Leases: its GPUs, or as many slots as the kubelet gave it GPUs."""
        if not self._cluster_ledger.kubelet_chooses(node):
            return pod.gpus
        entries = self._cluster_ledger.ledger.entries(node)
        own = [entry.gpu for entry in entries if pod.holder.uid in entry.shares]
        free = [entry.gpu for entry in entries if not self._cluster_ledger.has_lease(entry.gpu)]
        return [*own, *reversed(free)][: pod.devices]


def _adopted(node: NodeName, pod: UnrecordedPod, outcome: Outcome) -> AdoptedPod:
    return AdoptedPod(pod.holder, node, tuple(gpu.index for gpu in pod.gpus), str(pod.amount), outcome)
