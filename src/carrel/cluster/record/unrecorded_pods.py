"""Pods that are bound and have GPUs, but that no Lease names: they were there before Carrel, or another scheduler
placed them while Carrel was away. They hold their GPUs like all others, from the first answer on.

Which GPUs such a pod has is told, the most reliable first, by

    the kubelet          its list of devices, as the agent reports it in the GpuNodeStatus
    Carrel               the copy that a bind wrote on the pod; its Lease was deleted by somebody
    another scheduler    its annotation: the index that gpushare's extender writes, the UUIDs that HAMi's writes
    nobody               then it may be any GPU of the node: a part of a GPU is held on each of them, and for a whole
                         GPU no new pod comes to the node until the agent has said which one it is

A user could write annotations. So they say only *which* GPUs, and how memory is divided among them: *how much* comes
from the pod's own request, which the kubelet and the scheduler count too; and only pods that are bound and have not
finished are looked at. A pod whose request Carrel would refuse has the whole of each GPU that it was told.

`AllocatableGpus` keeps, for each node, which pods may have GPUs and how many GPUs its kubelet advertises; the
`cluster_ledger` asks it whenever something of a node has changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from carrel.cluster.pod_progress import FINISHED, holder_of
from carrel.cluster.watches import Watches
from carrel.dialects import gpushare, kai, mig, nvidia, registry, visible_devices
from carrel.dialects.gpuclaim_objects import GpuNodeStatus
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai_reservation import is_reservation
from carrel.dialects.options import DialectOptions
from carrel.dialects.registry import dialects_of, request_of
from carrel.ids import GpuUuid, HolderId, NodeName, PodUid
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import extended_resources, resource_asked
from carrel.kubernetes.objects.quantity import whole_quantity
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Amount, Memory
from carrel.ledger.shares import Holder, Share, ShareState
from carrel.ledger.slots import KubeletCapacity
from carrel.parsing import Malformed

RequestOf = Callable[[Pod], PodRequest | Refusal | None]
"""What a pod asks for. It may raise `Malformed`."""


@dataclass(frozen=True, slots=True)
class UnrecordedPod:
    """A pod that has GPUs without a Lease, and what is known of them."""

    holder: Holder
    amount: Amount
    """Of each GPU."""
    count: int
    """How many GPUs."""
    gpus: tuple[Gpu, ...] = ()
    """Which; empty: not known."""
    devices: int = 0
    """How many devices it asks the kubelet for, where the kubelet chooses the GPUs."""
    resource: str = nvidia.GPU
    """By which resource."""
    memory: Mapping[GpuUuid, MiB] = field(default_factory=dict)
    """UUID → how much of that GPU, where it is not the same of each."""

    @property
    def is_known(self) -> bool:
        return bool(self.gpus)

    def memory_on(self, gpu: Gpu) -> MiB | None:
        if self.amount == WHOLE:
            return None
        return self.memory.get(gpu.uuid) or self.amount.on(gpu.memory)

    def shares(self, gpus: Iterable[Gpu]) -> list[Share]:
        return [Share(self.holder, gpu.uuid, self.memory_on(gpu), ShareState.ASSIGNED) for gpu in gpus]


def may_have_gpus(pod: Pod) -> bool:
    """Whether a pod that no Lease names has to be looked at."""
    if not pod.spec.node_name or pod.status.phase in FINISHED:
        return False
    try:
        return is_reservation(pod) or bool(dialects_of(pod))
    except Malformed:
        return True


def users_by_gpu(status: GpuNodeStatus) -> dict[HolderId, list[int]]:
    """uid of a pod → the indices of the GPUs that the agent saw it with."""
    users: dict[HolderId, list[int]] = {}
    for device in status.status.devices:
        for uid in device.in_use_by:
            users.setdefault(uid, []).append(device.id)
    return users


def unrecorded_pods(
    node: Node, pods: Iterable[Pod], users: Mapping[HolderId, Iterable[int]], request_of: RequestOf
) -> list[UnrecordedPod]:
    """Of pods of the node that no Lease names. `node` has its real GPUs, also where there are slots."""
    listed = sorted(pods, key=lambda pod: pod.metadata.uid)
    groups = {group for pod in listed if is_reservation(pod) for group in kai.read_groups(pod.metadata.labels)}
    found = []
    for pod in listed:
        if not is_reservation(pod) and groups & set(kai.read_groups(pod.metadata.labels)):
            continue  # it shares the GPU of KAI's own reservation pod, which counts
        seen = _unrecorded(node, pod, frozenset(users.get(pod.metadata.uid, ())), request_of)
        if seen is not None:
            found.append(seen)
    return found


def _unrecorded(node: Node, pod: Pod, used: frozenset[int], request_of: RequestOf) -> UnrecordedPod | None:
    holder, by_kubelet = holder_of(pod), tuple(gpu for gpu in node.gpus if gpu.index in used)
    devices, counted, asked = 0, 0, None
    resource = next((word for word in sorted(extended_resources(pod)) if word.startswith(mig.PREFIX)), nvidia.GPU)
    try:
        devices, counted = resource_asked(pod, resource).total, resource_asked(pod, gpushare.GPU_COUNT).total
        asked = None if is_reservation(pod) else request_of(pod)
    except Malformed:
        pass  # what could be read counts
    if not isinstance(asked, PodRequest):
        # What it asks for cannot be read, or is only for the kubelet: what the kubelet gave counts, and what it owes.
        has = by_kubelet or (() if is_reservation(pod) else tuple(_told_by_peers(node, pod)))
        count = len(has) or devices or counted
        return UnrecordedPod(holder, WHOLE, count, has, devices, resource) if count else None
    request = asked.request
    if by_kubelet:
        return UnrecordedPod(holder, request.amount, len(by_kubelet), by_kubelet, devices, resource)
    by_carrel = visible_devices.bound_gpus(pod.metadata.annotations)
    told = tuple(gpu for gpu in node.gpus if gpu.uuid in by_carrel)
    if len(told) == request.gpus:
        return UnrecordedPod(holder, request.amount, request.gpus, told, devices, resource)
    parts = _told_by_peers(node, pod)
    if isinstance(request.amount, Memory) and parts and all(parts.values()):
        memory = _divided(MiB(request.amount.mib * request.gpus), parts)
        return UnrecordedPod(holder, request.amount, len(parts), tuple(parts), devices, resource, memory)
    has = tuple(parts) if len(parts) == request.gpus else ()
    return UnrecordedPod(holder, request.amount, request.gpus, has, devices, resource)


def _told_by_peers(node: Node, pod: Pod) -> dict[Gpu, int]:
    """Empty: no other scheduler says it, or what one says cannot be: it is not read, or the node has no such GPU."""
    for dialect in registry.ALL.dialects:
        try:
            told = dialect.told_gpus(pod)
        except Malformed:
            continue
        found = {gpu: told.get(gpu.index, told.get(gpu.uuid)) for gpu in node.gpus}
        parts = {gpu: part for gpu, part in found.items() if part is not None}
        if told and len(parts) == len(told):
            return parts
    return {}


def _divided(memory: MiB, parts: Mapping[Gpu, int]) -> dict[GpuUuid, MiB]:
    """UUID → its part, rounded up, so that a division never lowers what is held."""
    total = sum(parts.values())
    return {gpu.uuid: MiB(-(-memory * part // total)) for gpu, part in parts.items()}


def why_set_aside(pods: Iterable[UnrecordedPod], node: NodeName) -> str:
    """Why a node takes no new pods; empty if it does."""
    for pod in pods:
        if not pod.is_known and pod.amount == WHOLE:
            return (
                f"{pod.holder} was placed there without Carrel and has {_gpus(pod.count)} of {node};"
                " which, the agent has not said yet"
            )
    return ""


def _gpus(count: int) -> str:
    return "a GPU" if count == 1 else f"{count} GPUs"


Held = Mapping[GpuUuid, dict[HolderId, Share]]
"""GPU → uid → share."""


class AllocatableGpus:
    def __init__(self, watches: Watches, dialect_options: DialectOptions) -> None:
        self._watches = watches
        self._dialect_options = dialect_options
        # Node → allocatable devices, and all that its kubelet knows, each by resource.
        self._amounts: dict[NodeName, tuple[Mapping[str, int], Mapping[str, int]]] = {}
        self._pods: dict[NodeName, dict[PodUid, Pod]] = {}  # node → uid → pod that may have GPUs there

    # --- changes -----------------------------------------------------------------------------------------------------

    def on_node(self, node: NodeObject) -> bool:
        """Whether its kubelet advertises another number of GPUs than before."""
        amounts = (_amounts(node.status.allocatable), _amounts(node.status.capacity))
        is_new = self._amounts.get(node.metadata.name) != amounts
        self._amounts[node.metadata.name] = amounts
        return is_new

    def forget_node(self, name: NodeName) -> None:
        self._amounts.pop(name, None)

    def on_pod(
        self, old: Pod | None, new: Pod | None, report: GpuNodeStatus | None, is_recorded: Callable[[Pod], bool]
    ) -> set[NodeName]:
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

    # --- questions ---------------------------------------------------------------------------------------------------

    def unrecorded(
        self, node: Node, status: GpuNodeStatus, is_recorded: Callable[[Pod], bool]
    ) -> Sequence[UnrecordedPod]:
        """The pods of the node that have GPUs, and that no Lease names."""
        users = users_by_gpu(status)
        pods = dict(self._pods.get(node.name, {}))
        for uid in users.keys() - pods.keys():
            # It asks in no way that Carrel knows, and the kubelet gave it a GPU.
            pod = self._watches.pods.store.by_uid(uid)
            if pod is not None and pod.spec.node_name == node.name and pod.status.phase not in FINISHED:
                pods[pod.metadata.uid] = pod
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

    def capacity(self, node: NodeName, unrecorded: Sequence[UnrecordedPod], profile: str = "") -> KubeletCapacity:
        """Where the kubelet chooses the GPUs: what it has to give, and what these pods have of it. `profile`: of MIG
        slices."""
        resource = mig.resource_named(profile)
        known, theirs = self._amounts.get(node), [pod for pod in unrecorded if pod.resource == resource]
        return KubeletCapacity(
            known[0].get(resource, 0) if known is not None else None,
            known[1].get(resource, 0) if known is not None else 0,
            tuple(str(pod.holder) for pod in theirs),
            sum(pod.devices for pod in theirs),
            frozenset(gpu.uuid for pod in unrecorded for gpu in pod.gpus),
            sum(pod.count for pod in theirs if not pod.is_known),
        )

    def shares(self, node: Node, unrecorded: Iterable[UnrecordedPod]) -> Held:
        """What they hold, where Carrel gives the GPUs. Where the kubelet chooses, they only leave fewer slots."""
        held: dict[GpuUuid, dict[HolderId, Share]] = {}
        for pod in unrecorded if not node.kubelet_chooses else ():
            everywhere = () if pod.amount == WHOLE else node.gpus
            for share in pod.shares(pod.gpus or everywhere):
                held.setdefault(share.gpu, {})[pod.holder.uid] = share
        return held


def _amounts(amounts: Mapping[str, str]) -> dict[str, int]:
    return {word: _amount(text, word) for word, text in amounts.items() if mig.is_device(word)}


def _amount(text: str, resource: str) -> int:
    """What the kubelet cannot have written counts as nothing."""
    try:
        return max(0, whole_quantity(text, "the Node", resource))
    except Malformed:
        return 0


def _where(pod: Pod) -> tuple[NodeName, str]:
    return pod.spec.node_name, pod.status.phase
