"""Names that the kubelet and the agent share: the kubelet's sockets and files, and the agent's devices.

    aliyun.com/gpu-mem    one device per unit of memory: `k3f9` + `2s` (the GPU, then a number, both in base 36)
    nvidia.com/gpu        one device per GPU: its UUID, as NVIDIA's own plugin and other tools name it
    nvidia.com/mig-…      the same of MIG slices, by their profile

The kubelet takes the whole list in one message of at most 4 MiB, so the names of memory devices are as short as
possible: eight characters allow some 180,000 of them. A name belongs to a GPU's UUID, not to its index: the kubelet
remembers names over a reboot, after which an index may belong to another GPU.

    kubelet_internal_checkpoint   {"Data": {"PodDeviceEntries": [{"ResourceName": …}], "RegisteredDevices": {…: […]}}}
                                  what it remembers of plugins; it keeps a resource five minutes after its plugin ended
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from carrel.dialects import gpushare, mig
from carrel.dialects.options import Unit
from carrel.ids import GpuUuid
from carrel.ledger.gpus import Gpu, total_of
from carrel.parsing.fields import Field

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
CHECKPOINT = "kubelet_internal_checkpoint"
"""In the plugins' folder. Internal to the kubelet, but nothing else says which plugins it remembers."""
NVIDIA_SOCKETS = "nvidia*.sock"
"""What NVIDIA's own plugin calls its sockets in that folder."""

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
LONGEST_MESSAGE = 4 * 1024 * 1024
"""The default limit of Go's gRPC, which the kubelet does not change."""

_VERSION = re.compile(r"v1\.(\d{1,4})(\D.*)?")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_GPU_DIGITS = 4
_AROUND_A_NAME = 15
"""Bytes of a device in the message besides its name: three tags with lengths, and the longer health word."""


@dataclass(frozen=True, slots=True)
class PluginDevice:
    id: str
    is_healthy: bool


@dataclass(frozen=True)
class DeviceInventory:
    """The devices that a node advertises, and which GPU each belongs to."""

    gpus: tuple[Gpu, ...] = ()
    unit: Unit = Unit.MIB
    _names: Mapping[GpuUuid, str] = field(init=False, repr=False, compare=False)
    _by_digits: Mapping[str, Gpu] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = _short_names(gpu.uuid for gpu in self.gpus)
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_by_digits", {names[gpu.uuid]: gpu for gpu in self.gpus})

    @property
    def fits(self) -> bool:
        """Whether all the memory in this unit fits into one message to the kubelet."""
        return sum(_size(total_of(gpu.memory) // self.unit.mib) for gpu in self.gpus) <= LONGEST_MESSAGE

    @property
    def smallest_unit(self) -> Unit:
        """The smallest unit in which it fits."""
        return next(unit for unit in Unit if unit is Unit.GIB or DeviceInventory(self.gpus, unit).fits)

    @property
    def units(self) -> dict[GpuUuid, int]:
        """Units of memory of each GPU, by UUID: one device each, where a plugin advertises them."""
        return {gpu.uuid: total_of(gpu.memory) // self.unit.mib for gpu in self.gpus}

    def memory_devices(self) -> list[PluginDevice]:
        amounts = self.units
        numbers = [_in_base_36(number) for number in range(max(amounts.values(), default=0))]
        return [
            PluginDevice(self._names[gpu.uuid] + number, not gpu.unusable)
            for gpu in self.gpus
            for number in numbers[: amounts[gpu.uuid]]
        ]

    def gpu_devices(self, resource: str) -> list[PluginDevice]:
        of_it = (gpu for gpu in self.gpus if mig.resource_of(gpu) == resource)
        return [PluginDevice(gpu.uuid, not gpu.unusable) for gpu in of_it]

    def gpu_of(self, resource: str, device: str) -> Gpu | None:
        """None if unknown. NVIDIA's plugin may name a GPU by its index, or a replica of it by a suffix."""
        if resource == gpushare.GPU_MEM:
            gpu = self._by_digits.get(device[:_GPU_DIGITS])
            number = _from_base_36(device[_GPU_DIGITS:])
            return gpu if gpu and 0 <= number < total_of(gpu.memory) // self.unit.mib else None
        name = device.partition("::")[0]
        return next((gpu for gpu in self.gpus if name in (gpu.uuid, gpu.label)), None)

    def split_by_gpu(
        self, resource: str, devices: Sequence[str], uuids: Iterable[GpuUuid]
    ) -> tuple[list[str], list[str]]:
        """The devices that belong to those GPUs, and the others. Fast: there may be a hundred thousand of them."""
        names = {self._names.get(uuid, uuid) if resource == gpushare.GPU_MEM else uuid for uuid in uuids}
        length = _GPU_DIGITS if resource == gpushare.GPU_MEM else None
        own = [device for device in devices if device[:length] in names]
        return own, [device for device in devices if device[:length] not in names]

    def gpus_of(self, resource: str, devices: Sequence[str]) -> tuple[frozenset[GpuUuid], tuple[str, ...]]:
        """The UUIDs of the GPUs that the devices belong to, and the unknown devices."""
        owners = {device: self.gpu_of(resource, device) for device in devices}
        known = frozenset(gpu.uuid for gpu in owners.values() if gpu is not None)
        return known, tuple(device for device, gpu in owners.items() if gpu is None)


def socket_of(resource: str) -> str:
    """What our plugin for a resource calls its socket."""
    return f"carrel-{resource.partition('/')[2]}.sock"


def uuids_named(names: Iterable[str], gpus: Iterable[Gpu]) -> tuple[GpuUuid, ...]:
    """The GPUs that a pod names: by their UUIDs, or by their indices where the cluster's GpuNodeStatus has no UUIDs,
    because another product's definition of that kind drops them."""
    by_index = {str(gpu.index): gpu.uuid for gpu in gpus}
    return tuple(by_index.get(name) or GpuUuid(name) for name in names)


def minor_of(version: str) -> int | None:
    """37 of `v1.37.1`, `v1.37.1+k3s1` or `v1.37.1-eks-1a2b3c4`; None if it is not a version."""
    found = _VERSION.fullmatch(version)
    return int(found[1]) if found else None


def remembered_resources(checkpoint: str, where: str) -> frozenset[str]:
    """The resources that a kubelet believes a plugin manages: registered, or allocated to a pod."""
    data = Field.parse(checkpoint, where, "$")["Data"]
    given = {entry["ResourceName"].text() for entry in data["PodDeviceEntries"].items()}
    return frozenset(given | data["RegisteredDevices"].entries().keys())


def _short_names(uuids: Iterable[GpuUuid]) -> dict[GpuUuid, str]:
    """A GPU keeps its name when others appear or disappear, except in about one of ten thousand machines."""
    names: dict[GpuUuid, str] = {}
    for uuid in sorted(uuids):
        salt = 0
        while (name := _digest(f"{uuid}{salt or ''}")) in names.values():
            salt += 1
        names[uuid] = name
    return names


def _digest(text: str) -> str:
    number = int.from_bytes(sha256(text.encode()).digest()[:8]) % len(_DIGITS) ** _GPU_DIGITS
    return _in_base_36(number).rjust(_GPU_DIGITS, "0")


def _size(devices: int) -> int:
    longest = _GPU_DIGITS + len(_in_base_36(max(devices - 1, 0)))
    return devices * (longest + _AROUND_A_NAME)


def _in_base_36(number: int) -> str:
    text = ""
    while True:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
        if not number:
            return text


def _from_base_36(text: str) -> int:
    """−1 if it is not a number as we write it."""
    if not text or len(text) > 8 or any(digit not in _DIGITS for digit in text) or (text[0] == "0" and text != "0"):
        return -1
    return int(text, len(_DIGITS))
