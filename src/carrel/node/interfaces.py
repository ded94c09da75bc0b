"""What the agent needs of its machine and of the kubelet, and what the kubelet may ask of the agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from carrel.ids import GpuUuid
from carrel.ledger.gpu_usage import GpuSample
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.refusals import Refusal

NOTHING_KEPT = MiB(0)


@dataclass(frozen=True, slots=True)
class GpuDetails:
    """What NVIDIA's library says besides, by which claims may choose. Empty: it does not say it."""

    product_name: str = ""
    """As NVIDIA writes it, with blanks."""
    compute_capability: tuple[int, int] | None = None
    address: str = ""
    """On the PCI bus."""
    driver_version: str = ""
    cuda_version: str = ""
    kept: MiB = NOTHING_KEPT
    """What the driver keeps of the GPU's memory for itself. None of it: the driver does not say."""


NO_DETAILS = GpuDetails()


@dataclass(frozen=True, slots=True)
class MachineState:
    """The GPUs of a machine at one moment."""

    gpus: tuple[Gpu, ...]
    trouble: str = ""
    """Why there may be GPUs that are missing here, for an admin. Empty: none are missing."""
    processes: Mapping[GpuUuid, int] = field(default_factory=dict)
    """UUID of a GPU → number of processes that compute on it."""
    details: Mapping[GpuUuid, GpuDetails] = field(default_factory=dict)
    """By the UUID of a GPU."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A container on one of its GPUs."""

    gpu: GpuUuid
    path: str
    """The full path of its folder below the root of the control groups."""


class Machine(Protocol):
    """The GPUs of this machine: from NVIDIA's library, or simulated from a file."""

    async def read_state(self) -> MachineState: ...

    async def sample(self) -> Mapping[GpuUuid, GpuSample]:
        """What its GPUs do now. One that does not answer is missing, and holds up no other."""
        ...

    async def memory_limits(self, groups: Sequence[ControlGroup]) -> Mapping[ControlGroup, MiB | None]:
        """How much of a GPU the driver lets a control group have; None: as much as it likes. Those of which it does not
        say it are missing."""
        ...

    async def wait_changed(self) -> None:
        """Until the state may have changed. It may return without a change, and need never return."""
        ...


class KubeletUnreachable(Exception):
    """The kubelet does not answer: it is restarting, or its socket is elsewhere."""


@dataclass(frozen=True, slots=True)
class AllocatedDevices:
    """Devices that the kubelet has allocated to a container."""

    namespace: str
    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]


class PodResources(Protocol):
    """What the kubelet has allocated: read from its socket, or from the simulated kubelet of the demo."""

    async def allocated_devices(self) -> Sequence[AllocatedDevices]:
        """Raises `KubeletUnreachable`."""
        ...


class DeviceAllocator(Protocol):
    """What the device plugins ask when the kubelet calls them. `node.allocation` implements it, and a fake in tests."""

    async def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """Which of the devices the kubelet should allocate; empty: any."""
        ...

    async def allocate(self, resource: str, devices: Sequence[str]) -> Mapping[str, str] | Refusal:
        """The environment of the container that gets the devices."""
        ...
