"""Compares what the kubelet has allocated with what Leases say, and finds out which pod uses which GPU.

A container that reads its GPUs from the pod's annotation sees those that it was promised, whatever its devices are.
Another container sees what the plugin answered, which may have been meant for a pod of equal size that was promised
another GPU. Such a mismatch is reported by an Event, and its GPUs are excluded from scheduling while it lasts; nothing
is rewritten. An annotation that no Lease confirms is a mismatch too: its pod bypassed the scheduler, and has devices
that were meant for an equal pod.

Where memory is advertised on the Node, the kubelet does not ask a plugin, and admits pods that bypassed the scheduler.
Then the pod's manifest says which GPUs it can see: those that no Lease gives it are excluded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from carrel.cluster.pod_progress import FINISHED
from carrel.dialects import gpushare, mig, nvidia, registry, visible_devices
from carrel.dialects.visible_devices import gpus_seen
from carrel.ids import GpuUuid, HolderId, PodUid
from carrel.kubernetes.cluster import Cluster, ClusterError, Json
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.isolation import Isolation, title
from carrel.kubernetes.objects.events import WARNING, Note, event_name
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, resource_asked
from carrel.kubernetes.objects.resources import PODS
from carrel.node.device_names import DeviceInventory, uuids_named
from carrel.node.interfaces import AllocatedDevices
from carrel.node.lease_check import LeaseCheck
from carrel.parsing import Malformed

OTHER_GPU = "OtherGPUHandedOver"
TWO_HOLDERS = "GPUHandedOverTwice"
NOT_PROMISED = "GPUNotPromised"
COMPONENT = "carrel-agent"
"""Who writes the Events of the agent."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A pod that has, or sees, other GPUs than Leases give it."""

    pod: Pod
    gpus: frozenset[GpuUuid]
    """No new pod may get one of these."""
    words: str
    note: Note
    """For the people who look at the pod: the same, and what helps."""


def wrong_devices(
    pod: Pod, container: str, named: frozenset[GpuUuid], allocated: frozenset[GpuUuid], *, is_promised: bool
) -> Mismatch:
    """`named`: by the pod's annotation. `is_promised`: whether Leases say the same."""
    had, cure = "which was promised no GPU", "record it with `carrel adopt`, or delete the pod"
    if named:
        had = (
            f"which was promised {_joined(named)}"
            if is_promised
            else f"whose annotation names {_joined(named)}, but no Lease"
        )
        cure = "delete the pod"
    words = f"the kubelet gave {_joined(allocated)} to container {container} of {title(pod)}, {had}"
    return Mismatch(pod, named | allocated, words, Note(OTHER_GPU, f"{words}; {cure}", WARNING))


def unpromised_access(pod: Pod, gpus: frozenset[GpuUuid], promised: frozenset[GpuUuid]) -> Mismatch:
    """Describe a pod that holds memory and sees GPUs that no Lease gives it."""
    had = f"is promised {_joined(promised)} only" if promised else "is promised no GPU by any Lease"
    words = f"{title(pod)} holds {gpushare.GPU_MEM}, {had}, and can see {_joined(gpus)}"
    cure = "delete the pod, and create it again while Carrel's webhook runs, without a nodeName"
    return Mismatch(pod, gpus, words, Note(NOT_PROMISED, f"{words}; {cure}", WARNING))


def two_holders(pod: Pod, others: Iterable[str], gpus: frozenset[GpuUuid]) -> Mismatch:
    """The kubelet's own list has one GPU with several pods: its plugin shared GPUs when they started, or still does."""
    words = f"the kubelet has given {_joined(gpus)} to {title(pod)} and to {', '.join(others)}"
    cure = "delete all but one of them; GPU sharing of NVIDIA's device plugin must be off beside Carrel"
    return Mismatch(pod, gpus, words, Note(TWO_HOLDERS, f"{words}; {cure}", WARNING))


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    in_use_by: Mapping[GpuUuid, Sequence[HolderId]] = field(default_factory=dict)
    """UUID of a GPU → uids of the pods that use it."""
    mismatches: tuple[Mismatch, ...] = ()
    unsure: str = ""
    """Why not everything could be compared."""

    def excluded(self) -> dict[GpuUuid, str]:
        """UUID → why no new pod may get the GPU."""
        return {uuid: each.words for each in self.mismatches for uuid in each.gpus}


@dataclass(frozen=True, slots=True)
class AllocationMode:
    kubelet_chooses: bool = False
    """Then it decides itself which whole GPUs it allocates, and only those count as used."""
    memory_on_node: bool = False
    """Memory is a number on the Node, and the kubelet asks no plugin for it."""
    by_others: bool = False
    """Other plugins hand the GPUs over, and Carrel only reports: nothing can be handed over wrongly by its rules."""


class Comparison:
    def __init__(
        self,
        cluster: Cluster,
        lease_check: LeaseCheck,
        now: Callable[[], datetime],
        isolation: Isolation | None = None,
    ) -> None:
        self._cluster = cluster
        self._isolation = isolation or Isolation()
        self._lease_check = self._leases_now = lease_check
        self._events = EventRecorder(cluster, COMPONENT, now)
        self._unsure = ""
        self._event_names: set[str] = set()
        self._manifests: dict[PodUid, Json] = {}  # by uid
        self._promised: set[tuple[PodUid, frozenset[GpuUuid]]] = set()  # uid of the pod, GPUs

    async def compare(
        self,
        pods: Iterable[Pod],
        allocated_devices: Sequence[AllocatedDevices],
        inventory: DeviceInventory,
        how: AllocationMode,
    ) -> ComparisonResult:
        running = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods if pod.status.phase not in FINISHED}
        self._unsure, self._leases_now = "", self._lease_check.reading_once()
        uses: dict[PodUid, set[GpuUuid]] = {}
        mismatches: list[Mismatch] = []
        for each in allocated_devices:
            pod = running.get((each.namespace, each.pod))
            if pod is None or not (each.resource in registry.ALL.advertises or mig.is_device(each.resource)):
                continue
            named = frozenset(_named(pod, inventory, each.container))
            has, _ = inventory.gpus_of(each.resource, each.devices)
            if how.kubelet_chooses and mig.is_device(each.resource):
                uses.setdefault(pod.metadata.uid, set()).update(has)
                continue
            if not named and await self._is_promised(pod, has, inventory):
                named = has  # another scheduler placed it, and its GPUs were recorded later
            is_promised = await self._is_promised(pod, named, inventory)
            if not how.kubelet_chooses:
                uses.setdefault(pod.metadata.uid, set()).update(named if is_promised else has)
            sees_others = has != named and not await self._sees_named(pod, each.container)
            if has and (sees_others or not is_promised) and not how.by_others:
                mismatches.append(wrong_devices(pod, each.container, named, has, is_promised=is_promised))
        for pod in running.values():
            # Pods with claims or fractions ask the kubelet for no devices, so it does not list them.
            named = frozenset(_named(pod, inventory))
            is_running = pod.status.phase == "Running" and not how.kubelet_chooses
            if is_running and await self._is_promised(pod, named, inventory):
                uses.setdefault(pod.metadata.uid, set()).update(named)
            if how.memory_on_node and (sees := await self._unpromised(pod, inventory)) is not None:
                mismatches.append(sees)
        if how.kubelet_chooses:
            mismatches += _given_twice(uses, running.values())
        self._forget_all_but({pod.metadata.uid for pod in running.values()})
        self._event_names &= {event_name(each.pod, each.note) for each in mismatches}
        in_use = {gpu.uuid: sorted(uid for uid, gpus in uses.items() if gpu.uuid in gpus) for gpu in inventory.gpus}
        return ComparisonResult(in_use, tuple(mismatches), self._unsure)

    async def _unpromised(self, pod: Pod, inventory: DeviceInventory) -> Mismatch | None:
        asking = _asking(pod)
        manifest = await self._manifest(pod) if asking else None
        if manifest is None:
            return None  # it holds no memory; or its manifest could not be read, and the next run tries again
        # As it was at first and as it is now, so that changing an annotation hides nothing.
        changed = {"metadata": {"annotations": pod.metadata.annotations}, "spec": manifest.get("spec")}

        def gpus(_: Pod) -> set[GpuUuid]:
            versions = [(container, version) for container in asking for version in (manifest, changed)]
            return {gpu for container, version in versions for gpu in gpus_seen(version, container, inventory.gpus)}

        # A manifest that cannot be understood sets nothing aside: its author could stop the whole node by it.
        seen = self._isolation.ask("comparison", pod, gpus, set[GpuUuid]())
        promised = {gpu for gpu in sorted(seen) if await self._is_promised(pod, frozenset({gpu}), inventory)}
        return unpromised_access(pod, frozenset(seen - promised), frozenset(promised)) if seen - promised else None

    async def write_events(self, mismatches: Iterable[Mismatch]) -> None:
        """One on each pod."""

        async def write(mismatch: Mismatch) -> None:
            name = event_name(mismatch.pod, mismatch.note)
            if name not in self._event_names:
                await self._events.record(mismatch.pod, mismatch.note)
                self._event_names.add(name)

        await self._isolation.each("mismatch", mismatches, write, lambda each: title(each.pod))

    async def _sees_named(self, pod: Pod, container: str) -> bool:
        manifest = await self._manifest(pod)
        if manifest is None:
            return True  # not known; the next run asks again
        reads = self._isolation.ask("comparison", pod, lambda _: reads_own_gpus(manifest, container), False)
        return reads and bool(_read_devices(pod, container))

    async def _manifest(self, pod: Pod) -> Json | None:
        """The whole manifest: our own view of a pod has no environment. None if it could not be read."""
        uid = pod.metadata.uid
        if uid not in self._manifests:
            try:
                manifest = await self._cluster.get(PODS, pod.metadata.name, pod.metadata.namespace)
            except ClusterError as error:
                self._unsure = str(error)
                return None
            if manifest["metadata"]["uid"] != uid:
                return None  # it was replaced by another of its name; the next run knows that one
            self._manifests[uid] = manifest
        return self._manifests[uid]

    async def _is_promised(self, pod: Pod, gpus: frozenset[GpuUuid], inventory: DeviceInventory) -> bool:
        """A pod keeps what it was promised, so a yes is remembered as long as the pod exists."""
        key = (pod.metadata.uid, gpus)
        if gpus and key not in self._promised:
            try:
                promised = await self._leases_now.confirms(*key, inventory.gpus)
            except ClusterError as error:
                self._unsure = str(error)
                return True  # not known; the next run asks again
            if promised:
                self._promised.add(key)
        return key in self._promised

    def _forget_all_but(self, uids: set[PodUid]) -> None:
        self._promised = {key for key in self._promised if key[0] in uids}
        self._manifests = {uid: manifest for uid, manifest in self._manifests.items() if uid in uids}


def _given_twice(uses: Mapping[PodUid, set[GpuUuid]], running: Iterable[Pod]) -> list[Mismatch]:
    """One for each pod that has a GPU together with another."""
    pods = {pod.metadata.uid: pod for pod in running}
    found = []
    for uid in sorted(uses):
        others = sorted(other for other in uses if other != uid and uses[other] & uses[uid])
        if others:
            names = [title(pods[each]) for each in others]
            shared = frozenset(gpu for other in others for gpu in uses[other] & uses[uid])
            found.append(two_holders(pods[uid], names, shared))
    return found


def reads_own_gpus(pod: Json, container: str) -> bool:
    """Whether a container reads its GPUs from the pod's annotation, through the downward API."""
    keys = {annotation_field(visible_devices.devices_key(name)) for name in ("", container)}
    spec = pod.get("spec", {})
    return any(
        variable.get("name") == nvidia.VISIBLE_DEVICES
        and ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") in keys
        for each in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        if each.get("name") == container
        for variable in each.get("env") or ()
    )


def _asking(pod: Pod) -> list[str]:
    """The containers that hold memory; if that cannot be read, all."""
    try:
        return [ask.container for ask in resource_asked(pod, gpushare.GPU_MEM).containers]
    except Malformed:
        return [each.name for each in (*pod.spec.init_containers, *pod.spec.containers)]


def _named(pod: Pod, inventory: DeviceInventory, container: str = "") -> tuple[GpuUuid, ...]:
    return uuids_named(_read_devices(pod, container), inventory.gpus)


def _read_devices(pod: Pod, container: str) -> tuple[GpuUuid, ...]:
    try:
        return visible_devices.read_devices(pod, container) or visible_devices.read_devices(pod)
    except Malformed:
        return ()


def _joined(uuids: Iterable[GpuUuid]) -> str:
    return ", ".join(sorted(uuids))
