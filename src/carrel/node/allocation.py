"""Allocates devices to containers. The kubelet says how many devices it needs, but not for which container.

The extender has already given every bound pod its GPUs: they are in the pod's annotations, which are a copy, and on the
Leases, which count. So the container is found among the pods of this node that do not run yet
(`candidates_in_order`), and is served only if a Lease names its pod. If none is found, the call is refused: a
container never gets a GPU that no Lease gives it.

Which devices of a resource the kubelet takes does not matter, only how many. Where it could not follow our preference,
the container still gets the GPU that it was promised; `node.comparison` checks whether it sees that one.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.cluster.pod_progress import holder_of, is_ending
from carrel.dialects import gpushare, mig, nvidia, visible_devices
from carrel.dialects.options import CudaDevices
from carrel.ids import GpuUuid, HolderId
from carrel.kubernetes.cluster import Cluster, ClusterError, MergePatch, Selection
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import ContainerAsk, annotation_field, resource_asked, subject
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder
from carrel.node.device_names import DeviceInventory, uuids_named
from carrel.node.interfaces import AllocatedDevices
from carrel.node.lease_check import LeaseCheck
from carrel.node.settings import AgentOptions
from carrel.parsing import Malformed
from carrel.parsing.time import instant


@dataclass(frozen=True, slots=True)
class WaitingContainer:
    """One container of a pod that was placed on this node and does not run yet."""

    holder: Holder
    container: str
    position: int
    """In the pod: the kubelet serves its containers in order."""
    amount: int
    """Devices: units of memory, or GPUs."""
    gpus: tuple[GpuUuid, ...]
    """UUIDs of the GPUs that the container was promised."""
    since_ns: int
    """When they were promised."""
    is_answered: bool = False


def candidates_in_order(
    waiting: Iterable[WaitingContainer], amount: int, gpus: Collection[GpuUuid] = ()
) -> list[WaitingContainer]:
    """Return whom a call for so many devices may be for, the likeliest first. `gpus`: UUIDs of the devices' GPUs.

    Only containers that need as many devices are candidates. Among them the one whose GPUs the devices belong to comes
    first, then the one that was promised its GPUs first. A container that was already answered comes last, but stays a
    candidate: the kubelet may have died before it recorded the answer.
    """

    def order(each: WaitingContainer) -> tuple[bool, bool, int, str, int]:
        is_elsewhere = bool(gpus) and set(each.gpus) != set(gpus)
        return each.is_answered, is_elsewhere, each.since_ns, each.holder.uid, each.position

    return sorted((each for each in waiting if each.amount == amount), key=order)


API_WAIT_S = 20.0
"""How long a call waits for an API server that does not answer: a pod that is refused fails for good, but the kubelet
admits no other pod meanwhile."""
RETRY_S = 0.25


class DeviceAllocation:
    """For all device plugins of one node."""

    def __init__(
        self,
        cluster: Cluster,
        options: AgentOptions,
        lease_check: LeaseCheck,
        pods: Iterable[Pod],
        now: Callable[[], datetime],
        *,
        clock: Callable[[], float] = time.monotonic,
        isolation: Isolation | None = None,
        when_answered: Callable[[], None] = lambda: None,
    ) -> None:
        """`pods`: those of this node, as the cache has them at any time. `clock`: seconds; only differences count."""
        self._cluster = cluster
        self._node = options.node_name
        self._cuda_devices = options.cuda_devices
        self._lease_check = lease_check
        self._pods = pods
        self._now = now
        self._clock = clock
        self._isolation = isolation or Isolation()
        self._when_answered = when_answered
        self._inventory = DeviceInventory()
        self._labels: Mapping[str, str] = {}
        # Both by the uid of the pod and the container: what we have answered, and what the kubelet has recorded.
        self._answered: set[tuple[str, str]] = set()
        self._recorded: set[tuple[str, str]] = set()
        self._owners: dict[AllocatedDevices, str] = {}  # uid of the pod that a record of the kubelet is about
        self._one_at_a_time = asyncio.Lock()

    def update(
        self,
        inventory: DeviceInventory,
        allocated_devices: Sequence[AllocatedDevices],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Take over what the machine has, what the kubelet has allocated so far, and the labels of the Node."""
        self._inventory, self._labels = inventory, labels or {}
        uids = {(pod.metadata.namespace, pod.metadata.name): pod.metadata.uid for pod in self._pods}
        alive = set(uids.values())
        self._answered = {key for key in self._answered if key[0] in alive}
        self._recorded = {
            (uids[each.namespace, each.pod], each.container)
            for each in self.without_replaced_pods(allocated_devices)
            if (each.resource == gpushare.GPU_MEM or mig.is_device(each.resource))
            and (each.namespace, each.pod) in uids
        }

    def without_replaced_pods(self, allocated_devices: Sequence[AllocatedDevices]) -> list[AllocatedDevices]:
        """The kubelet's records name a pod by its name. A pod that replaced another one of that name does not have its
        devices: a record is the old pod's, even if it arrives later, until the new pod has been answered."""
        uids = {(pod.metadata.namespace, pod.metadata.name): pod.metadata.uid for pod in self._pods}
        owners: dict[AllocatedDevices, str] = {}
        for each in allocated_devices:
            uid = uids.get((each.namespace, each.pod), "")
            is_its_own = (uid, each.container) in self._answered
            owners[each] = uid if is_its_own else self._owners.get(each) or uid
        self._owners = owners
        return [each for each, owner in owners.items() if owner == uids.get((each.namespace, each.pod))]

    # --- what the kubelet asks ---------------------------------------------------------------------------------------

    async def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        found = await self._find(resource, size, frozenset())
        if isinstance(found, Refusal):
            return ()  # `allocate` gives the reason
        _, waiting = found
        musts = frozenset(must)
        free = [device for device in available if device not in musts]
        own, others = self._inventory.split_by_gpu(resource, free, waiting.gpus)
        return [*must, *own, *others][:size]

    async def allocate(self, resource: str, devices: Sequence[str]) -> Mapping[str, str] | Refusal:
        gpus, unknown = self._inventory.gpus_of(resource, devices)
        if not devices or unknown:
            what = f"{len(unknown)} unknown ones, such as {unknown[0]!r:.60}" if unknown else "none"
            return Refusal(f"{len(devices)} devices of {resource} are requested, {what}: this node does not have them")
        if len(set(devices)) != len(devices):
            return Refusal(f"some of the {len(devices)} devices of {resource} are named twice")
        async with self._one_at_a_time:
            found = await self._find(resource, len(devices), gpus)
            answer = found if isinstance(found, Refusal) else self._answer(resource, *found)
        self._when_answered()
        return answer

    def _answer(self, resource: str, pod: Pod, waiting: WaitingContainer) -> Mapping[str, str] | Refusal:
        broken = [gpu for gpu in self._inventory.gpus if gpu.uuid in waiting.gpus and gpu.unusable]
        if broken:
            return Refusal(
                f"{waiting.holder} was promised {broken[0]}, which has become unusable: {broken[0].unusable}"
            )
        try:
            environment = self._environment(resource, pod, waiting)
        except Malformed as malformed:
            return Refusal(str(malformed))
        self._answered.add((waiting.holder.uid, waiting.container))
        return environment

    async def _find(
        self, resource: str, amount: int, gpus: frozenset[GpuUuid]
    ) -> tuple[Pod, WaitingContainer] | Refusal:
        """The pod and the container that the call is for. The kubelet may know a pod a moment before our cache does."""
        deadline, pods = self._clock() + API_WAIT_S, tuple(self._pods)
        while True:
            try:
                found = await self._confirmed(resource, amount, gpus, pods)
                if not isinstance(found, Refusal) and not found[1].is_answered:
                    return found  # one that was answered is more likely an equal pod that is not in our cache yet
                here = Selection(fields=f"spec.nodeName={self._node}")
                fresh = (await self._cluster.list(PODS, here)).items
                # Leases are written before the Binding, so what the API server says now is final.
                return await self._confirmed(resource, amount, gpus, tuple(fresh))
            except ClusterError as error:
                if self._clock() >= deadline:
                    return Refusal(f"which pod the {amount} of {resource} are for cannot be looked up: {error}")
                await asyncio.sleep(RETRY_S)

    async def _confirmed(
        self, resource: str, amount: int, gpus: frozenset[GpuUuid], pods: Sequence[Pod]
    ) -> tuple[Pod, WaitingContainer] | Refusal:
        by_uid: dict[HolderId, Pod] = {pod.metadata.uid: pod for pod in pods}
        waiting = candidates_in_order(self._waiting(resource, pods), amount, gpus)
        for each in waiting:
            if await self._lease_check.confirms(each.holder.uid, each.gpus, self._inventory.gpus):
                return by_uid[each.holder.uid], each
        names = ", ".join(sorted({each.holder.full_name for each in waiting}))
        why = f"no Lease gives {names} its GPUs" if waiting else self._why_nobody_waits(resource, amount, pods)
        return Refusal(f"{amount} of {resource} on {self._node}: {why}")

    def _why_nobody_waits(self, resource: str, amount: int, pods: Sequence[Pod]) -> str:
        """Another scheduler may have placed a pod that asks for so many."""
        for pod in pods:
            if pod.spec.node_name != self._node or pod.status.phase not in ("", "Pending") or is_ending(pod):
                continue
            try:
                amounts = [ask.amount for _, ask in self._unserved(resource, pod)]
                is_told = bool(visible_devices.read_devices(pod))
            except Malformed:
                continue
            if amount in amounts and not is_told:
                by = f" ({pod.spec.scheduler_name})" if pod.spec.scheduler_name else ""
                which = self._told_by_peer(pod)
                return f"{holder_of(pod)} was placed by another scheduler{by}: no Lease promises it {which}"
        return "no pod of this node waits for so many"

    def _told_by_peer(self, pod: Pod) -> str:
        try:
            told = gpushare.told_gpus(pod)
        except Malformed:
            told = {}
        return f"GPU {', '.join(map(str, told))}" if told else "a GPU"

    # --- who waits ---------------------------------------------------------------------------------------------------

    def _waiting(self, resource: str, pods: Iterable[Pod]) -> list[WaitingContainer]:
        def containers(pod: Pod) -> list[WaitingContainer]:
            is_here = pod.spec.node_name == self._node and not is_ending(pod)
            try:
                return list(self._containers(resource, pod)) if is_here and pod.status.phase in ("", "Pending") else []
            except Malformed:
                return []  # the extender did not write this, so no Lease gives it a GPU

        listed = self._isolation.found("allocation", pods, containers)
        return [container for each in listed for container in each]

    def _containers(self, resource: str, pod: Pod) -> Iterable[WaitingContainer]:
        holder = holder_of(pod)
        for position, ask in self._unserved(resource, pod):
            named = visible_devices.read_devices(pod, ask.container) or visible_devices.read_devices(pod)
            gpus = uuids_named(named, self._inventory.gpus)
            if gpus:
                is_answered = (holder.uid, ask.container) in self._answered
                yield WaitingContainer(holder, ask.container, position, ask.amount, gpus, _since_ns(pod), is_answered)

    def _unserved(self, resource: str, pod: Pod) -> Iterable[tuple[int, ContainerAsk]]:
        """The containers after the last recorded one: they are served in order, and the kubelet's records do not show
        init containers."""
        asks = tuple(enumerate(resource_asked(pod, resource).containers))
        served = [at for at, ask in asks if (pod.metadata.uid, ask.container) in self._recorded]
        return asks[served[-1] + 1 :] if served else asks

    # --- what they get -----------------------------------------------------------------------------------------------

    def _environment(self, resource: str, pod: Pod, waiting: WaitingContainer) -> dict[str, str]:
        visible = ",".join(waiting.gpus)
        environment = {nvidia.VISIBLE_DEVICES: visible, nvidia.CUDA_VISIBLE_DEVICES: visible}
        if self._cuda_devices is CudaDevices.INDEX:
            indices = {gpu.uuid: visible_devices.cuda_index(gpu) for gpu in self._inventory.gpus}
            environment[nvidia.CUDA_VISIBLE_DEVICES] = ",".join(indices[gpu] for gpu in waiting.gpus)
        if resource == gpushare.GPU_MEM:
            assumption = gpushare.read_assumption(pod)
            if assumption is None:
                raise Malformed(subject(pod.metadata), annotation_field(gpushare.INDEX), None, "the index of its GPU")
            environment |= gpushare.environment(assumption, waiting.amount)
        if self._labels.get(gpushare.NO_ISOLATION_LABEL) == "true":
            environment[gpushare.NO_ISOLATION] = "true"
        return environment

    # --- what is written on the pod ----------------------------------------------------------------------------------

    async def mark_assigned(self) -> None:
        """Writes on each pod that it has its share, for gpushare's tools. A copy: what fails now is written later."""
        ask = self._isolation.ask
        due = [pod for pod in self._pods if ask("assigned", pod, self._is_to_be_marked, False)]
        await self._isolation.each("assigned", due, self._mark)

    async def _mark(self, pod: Pod) -> None:
        now_ns = int(self._now().timestamp() * 1_000_000_000)
        patch = MergePatch({"metadata": {"uid": pod.metadata.uid, "annotations": gpushare.assigned(now_ns)}})
        await self._cluster.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace)

    def _is_to_be_marked(self, pod: Pod) -> bool:
        if pod.metadata.annotations.get(gpushare.ASSIGNED) != "false" or is_ending(pod):
            return False
        try:
            left = self._unserved(gpushare.GPU_MEM, pod)
        except Malformed:
            return False
        return pod.status.phase == "Running" or all(
            (pod.metadata.uid, ask.container) in self._answered for _, ask in left
        )


def _since_ns(pod: Pod) -> int:
    """When a pod was promised its GPUs; where its dialect does not say, when it was created."""
    if pod.metadata.annotations.get(gpushare.ASSUME_TIME):
        assumption = gpushare.read_assumption(pod)
        if assumption is not None:
            return assumption.assumed_at_ns
    made = instant(pod.metadata.creation_timestamp, subject(pod.metadata), "metadata.creationTimestamp")
    return int(made.timestamp()) * 1_000_000_000
