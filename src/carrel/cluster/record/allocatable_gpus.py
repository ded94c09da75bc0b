"""What each node has to give besides what Leases say: how many GPUs its kubelet advertises, and which pods have GPUs
without a Lease. `cluster_ledger` asks whenever something of a node has changed."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from carrel.cluster.pod_progress import FINISHED
from carrel.cluster.record.unrecorded_pods import (
    UnrecordedPod,
    kubelet_capacity_of,
    may_have_gpus,
    unrecorded_pods,
    users_by_gpu,
)
from carrel.cluster.watches import Watches
from carrel.dialects import nvidia
from carrel.dialects.gpuclaim_objects import GpuNodeStatus
from carrel.dialects.interface import PodRequest
from carrel.dialects.options import DialectOptions
from carrel.dialects.registry import request_of
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.quantity import whole_quantity
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE
from carrel.ledger.shares import Share
from carrel.ledger.slots import KubeletCapacity
from carrel.parsing import Malformed

Held = Mapping[str, dict[str, Share]]
"""GPU → uid → share."""


class AllocatableGpus:
    def __init__(self, watches: Watches, dialect_options: DialectOptions) -> None:
        self._watches = watches
        self._dialect_options = dialect_options
        self._amounts: dict[str, tuple[int, int]] = {}  # node → allocatable GPUs, and all that its kubelet knows
        self._pods: dict[str, dict[str, Pod]] = {}  # node → uid → pod that may have GPUs there

    # --- changes -----------------------------------------------------------------------------------------------------

    def on_node(self, node: NodeObject) -> bool:
        """Whether its kubelet advertises another number of GPUs than before."""
        amounts = (_amount(node.status.allocatable), _amount(node.status.capacity))
        is_new = self._amounts.get(node.metadata.name) != amounts
        self._amounts[node.metadata.name] = amounts
        return is_new

    def forget_node(self, name: str) -> None:
        self._amounts.pop(name, None)

    def on_pod(
        self, old: Pod | None, new: Pod | None, report: GpuNodeStatus | None, is_recorded: Callable[[Pod], bool]
    ) -> set[str]:
        """The nodes whose pods may have other GPUs than before, without a Lease. `report`: of the pod's node."""
        changed = set()
        is_here = new is not None and may_have_gpus(new)
        if old is not None and not (is_here and new is not None and new.spec.node_name == old.spec.node_name):
            gone = self._pods.get(old.spec.node_name, {}).pop(old.metadata.uid, None)
            if gone is not None and not is_recorded(gone):
                changed.add(old.spec.node_name)
        if is_here and new is not None:
            pods = self._pods.setdefault(new.spec.node_name, {})
            before = pods.get(new.metadata.uid)
            pods[new.metadata.uid] = new
            is_new = before is None or before.metadata != new.metadata
            if is_new and not is_recorded(new):
                changed.add(new.spec.node_name)
        if report is not None and not (old and new and _where(old) == _where(new)):
            # The kubelet may have given it GPUs although it asks in no way that Carrel knows.
            pod = new or old
            if pod is not None and pod.metadata.uid in users_by_gpu(report) and not is_recorded(pod):
                changed.add(pod.spec.node_name)
        return changed

    def has_pods(self, node: str) -> bool:
        return bool(self._pods.get(node))

    # --- questions ---------------------------------------------------------------------------------------------------

    def unrecorded(
        self, node: Node, status: GpuNodeStatus, is_recorded: Callable[[Pod], bool]
    ) -> Sequence[UnrecordedPod]:
        """The pods of the node that have GPUs, and that no Lease names."""
        users = users_by_gpu(status)
        pods = dict(self._pods.get(node.name, {}))
        for uid in users.keys() - pods.keys():
            pod = self._watches.pods.store.by_uid(
                uid
            )  # it asks in no way that Carrel knows, and the kubelet gave it a GPU
            if pod is not None and pod.spec.node_name == node.name and pod.status.phase not in FINISHED:
                pods[uid] = pod
        left = [pod for pod in pods.values() if not is_recorded(pod)]
        return unrecorded_pods(node, left, users, self._request_of) if left else ()

    def count_of(self, pod: Pod) -> int:
        """How many GPUs a pod asks for; 0 if that cannot be read."""
        try:
            asked = self._request_of(pod)
        except Malformed:
            return 0
        return asked.request.gpus if isinstance(asked, PodRequest) else 0

    def _request_of(self, pod: Pod) -> PodRequest | Refusal | None:
        """What the pod asks for in a dialect: the GPUs of its ResourceClaims are held by these. Raises `Malformed`."""
        return request_of(pod, self._watches.claim_named, dialect_options=self._dialect_options)

    def capacity(self, node: str, unrecorded: Iterable[UnrecordedPod]) -> KubeletCapacity:
        """Of a node where the kubelet chooses the GPUs."""
        allocatable, capacity = self._amounts.get(node, (None, 0))
        return kubelet_capacity_of(unrecorded, allocatable, capacity)

    def shares(self, node: Node, unrecorded: Iterable[UnrecordedPod]) -> Held:
        """What they hold, where Carrel gives the GPUs. Where the kubelet chooses, they only leave fewer slots."""
        held: dict[str, dict[str, Share]] = {}
        for pod in unrecorded if not node.kubelet_chooses else ():
            everywhere = () if pod.amount == WHOLE else node.gpus
            for share in pod.shares(pod.gpus or everywhere):
                held.setdefault(share.gpu, {})[pod.holder.uid] = share
        return held


def _amount(amounts: Mapping[str, str]) -> int:
    """What the kubelet cannot have written counts as nothing."""
    try:
        return max(0, whole_quantity(amounts.get(nvidia.GPU, "0"), "the Node", nvidia.GPU))
    except Malformed:
        return 0


def _where(pod: Pod) -> tuple[str, str]:
    return pod.spec.node_name, pod.status.phase
