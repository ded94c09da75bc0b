"""Advertises the memory of this node's GPUs: chooses the mode (`node.memory_mode_decision`) and what the Node shows.

After each start it finds out the mode until then: from the kubelet's allocations, else from the last report. Where
neither can be read, nothing is advertised yet: to leave a mode takes the kubelet minutes, because it remembers a plugin
that has ended, advertises nothing for it, and refuses pods that ask for its resource.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from carrel.cluster.pod_progress import FINISHED
from carrel.dialects import visible_devices
from carrel.dialects.gpushare import GPU_MEM
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import resource_asked
from carrel.node.device_names import DeviceInventory, minor_of
from carrel.node.interfaces import AllocatedDevices
from carrel.node.memory_mode_decision import UNDECIDED, MemoryMode, ModeInputs, PodMemory, decide_mode, units_advertised
from carrel.parsing import Malformed

MEMORY_MODES = {mode.value: mode for mode in MemoryMode}
NOTHING: Mapping[str, int | None] = {}


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What is known of the node when the mode is chosen."""

    inventory: DeviceInventory
    pods: Sequence[Pod] | None
    """Of this node. None: neither they nor the Node are in the cache yet."""
    allocated_devices: Sequence[AllocatedDevices]
    remembered: frozenset[str] | None
    """The resources that the kubelet believes a plugin manages. None: not known."""
    node: NodeObject | None

    @property
    def is_managed_by_plugin(self) -> bool:
        """Whether the kubelet would ask a plugin for memory."""
        return self.remembered is not None and GPU_MEM in self.remembered


class AdvertisedMemory:
    def __init__(self, setting: MemoryMode | None, recorded: Callable[[], Awaitable[str]]) -> None:
        """`setting`: None is whatever is safe. `recorded`: the mode in the last report; it may raise `ClusterError`."""
        self._setting = setting
        self._recorded = recorded
        self._decision = UNDECIDED
        self._is_started = False

    @property
    def mode(self) -> MemoryMode | None:
        return self._decision.mode

    async def choose(self, snapshot: NodeSnapshot) -> None:
        """Raises `ClusterError` if the mode until now cannot be read."""
        before = self.mode
        if not self._is_started:
            if _has_devices(snapshot):
                before = MemoryMode.PLUGIN
            elif snapshot.pods is None:
                return
            else:
                before = MEMORY_MODES.get(await self._recorded()) or _shown_mode(snapshot)
            self._is_started = True
        self._decision = decide_mode(
            ModeInputs(
                setting=self._setting,
                devices=sum(snapshot.inventory.units.values()),
                fits=snapshot.inventory.fits,
                kubelet_minor=minor_of(snapshot.node.status.node_info.kubelet_version) if snapshot.node else None,
                holders=None if snapshot.pods is None else len(_holders(snapshot.pods)),
                before=before,
            )
        )

    def amounts(self, snapshot: NodeSnapshot, *, is_registered: bool) -> Mapping[str, int | None]:
        """What the Node must show; None: remove the resource. `is_registered`: the kubelet knows our plugin."""
        if self.mode is MemoryMode.NODE and not snapshot.is_managed_by_plugin and snapshot.pods is not None:
            usable = {gpu.uuid for gpu in snapshot.inventory.gpus if not gpu.unusable}
            return {GPU_MEM: units_advertised(snapshot.inventory.units, usable, _holders(snapshot.pods))}
        if (
            self.mode is MemoryMode.PLUGIN
            and not is_registered
            and snapshot.remembered is not None
            and not snapshot.is_managed_by_plugin
        ):
            return {GPU_MEM: None}  # left over from the other mode; the kubelet writes its own number later
        return NOTHING

    def message(self, snapshot: NodeSnapshot) -> str:
        """What an admin should know; empty: nothing."""
        if self.mode is MemoryMode.NODE and snapshot.is_managed_by_plugin:
            return (
                f"{GPU_MEM} is not advertised yet: the kubelet remembers a device plugin for it, and would refuse "
                "pods; it forgets a plugin five minutes after the plugin has ended"
            )
        parts = []
        if self.mode is MemoryMode.PLUGIN and not snapshot.inventory.fits:
            parts.append(_too_many_devices(snapshot.inventory))
        if self._decision.later is not None and self.mode is not None:
            holders = len(_holders(snapshot.pods)) if snapshot.pods is not None else 0
            parts.append(
                f"{GPU_MEM} is advertised by '{self.mode.value}', and will be advertised by "
                f"'{self._decision.later.value}' as soon as no pod of this node holds any (pods that do: {holders})"
            )
        return "; ".join(parts)


def holds_memory(pod: Pod) -> bool:
    try:
        return resource_asked(pod, GPU_MEM).total > 0
    except Malformed:
        return True


def _holders(pods: Sequence[Pod]) -> list[PodMemory]:
    return [_holding(pod) for pod in pods if pod.status.phase not in FINISHED and holds_memory(pod)]


def _holding(pod: Pod) -> PodMemory:
    try:
        return PodMemory(resource_asked(pod, GPU_MEM).total, frozenset(visible_devices.read_devices(pod)))
    except Malformed:
        return PodMemory(0, frozenset())


def _has_devices(snapshot: NodeSnapshot) -> bool:
    return any(each.resource == GPU_MEM for each in snapshot.allocated_devices)


def _shown_mode(snapshot: NodeSnapshot) -> MemoryMode | None:
    """The mode, where no report says it: after an update, or if the report was deleted."""
    if snapshot.is_managed_by_plugin:
        return MemoryMode.PLUGIN
    shown = snapshot.node.status.capacity.get(GPU_MEM, "0") if snapshot.node else "0"
    return MemoryMode.NODE if shown != "0" else None


def _too_many_devices(inventory: DeviceInventory) -> str:
    return (
        f"{GPU_MEM} is not advertised: so much memory in {inventory.unit.value} is more than the kubelet accepts in "
        "one message; an admin writes memory.resource: node into the configuration, or "
        f"memory.unit: {inventory.smallest_unit.value}"
    )
