"""Decides how a node advertises the memory of its GPUs: as devices of a plugin, or as one number on the Node. Pure.

A plugin lists every unit of memory as a device. A kubelet of 1.36 or newer compares each device that is new or changed
with all allocated ones, and does nothing else meanwhile. So many devices are advertised as a number instead.
The mode changes only while no pod holds any of the memory: after a reboot the kubelet cannot admit a pod with devices
where no plugin advertises them, nor one without devices where a plugin does.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from carrel.ids import GpuUuid

COMPARES_SINCE = 36
"""The first minor version of the kubelet that compares."""
SAFE_DEVICES = 2048
"""Up to here the worst case, all compared with all, takes the kubelet half a second (some 100 ns for each pair): eight
GPUs of 256 GiB in GiB. On a machine with six times the load, six times as long was measured."""


class MemoryMode(Enum):
    PLUGIN = "plugin"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class ModeInputs:
    setting: MemoryMode | None
    """The admin's choice; None: whatever is safe."""
    devices: int
    """Number of devices that the memory of all GPUs would be."""
    fits: bool
    """Whether the kubelet accepts so many in one message."""
    kubelet_minor: int | None
    """Of its version 1.x; None: not known."""
    holders: int | None
    """How many pods hold some of the memory; None: not known."""
    before: MemoryMode | None
    """The mode until now."""


@dataclass(frozen=True, slots=True)
class ModeDecision:
    mode: MemoryMode | None = None
    """None: not known yet, so nothing is advertised."""
    later: MemoryMode | None = None
    """The mode that it changes to once no pod holds any memory. None: no change is due."""


UNDECIDED = ModeDecision()


def decide_mode(inputs: ModeInputs) -> ModeDecision:
    wanted, before = _wanted(inputs), inputs.before
    if wanted is None or wanted is before:
        return ModeDecision(before)
    if before is None:
        return ModeDecision(wanted)
    return ModeDecision(wanted) if inputs.holders == 0 else ModeDecision(before, later=wanted)


def _wanted(inputs: ModeInputs) -> MemoryMode | None:
    if inputs.setting is not None:
        return inputs.setting
    if not inputs.devices or inputs.kubelet_minor is None:
        return None  # GPUs may appear late after a boot, and to leave a mode takes the kubelet minutes
    is_safe = inputs.kubelet_minor < COMPARES_SINCE or inputs.devices <= SAFE_DEVICES
    return MemoryMode.PLUGIN if inputs.fits and is_safe else MemoryMode.NODE


@dataclass(frozen=True, slots=True)
class PodMemory:
    """What one pod of the node holds."""

    units: int
    gpus: frozenset[GpuUuid]
    """The GPUs it was promised, by UUID. Empty: not known."""


def units_advertised(gpus: Mapping[GpuUuid, int], usable: Collection[GpuUuid], pods: Iterable[PodMemory]) -> int:
    """The amount on the Node. `gpus`: the units of each GPU, by UUID.

    Pods keep what they hold of an unusable GPU. That much is added; otherwise it would be missing for pods that ask for
    the other GPUs. The amount is never less than what is held, because a restarted kubelet admits its running pods
    again, and ends those that do not fit.
    """
    held, stranded = 0, 0
    for pod in pods:
        held += pod.units
        if not pod.gpus or not pod.gpus <= set(usable):
            stranded += pod.units
    return max(held, stranded + sum(units for uuid, units in gpus.items() if uuid in usable))
