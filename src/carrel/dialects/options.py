"""What the cluster's admin decides about the dialects."""

from dataclasses import dataclass
from enum import Enum


class Unit(Enum):
    """What one `aliyun.com/gpu-mem` is. All nodes of a cluster must agree, so it is a setting and never a guess.

    The units between MiB and GiB are for machines whose memory in MiB is too large a number for the kubelet
    (`decisions/0008`).
    """

    MIB = "MiB"
    MIB_2 = "2MiB"
    MIB_4 = "4MiB"
    MIB_8 = "8MiB"
    MIB_16 = "16MiB"
    MIB_32 = "32MiB"
    MIB_64 = "64MiB"
    MIB_128 = "128MiB"
    MIB_256 = "256MiB"
    MIB_512 = "512MiB"
    GIB = "GiB"

    def __init__(self, word: str) -> None:
        self.mib = 1024 if word == "GiB" else int(word.removesuffix("MiB") or 1)
        """Memory is rounded down to units: a GPU of 16276 MiB has 15 GiB to give."""


SCHEDULER = "gpu-scheduler"
"""The GpuClaim scheduler's name, which is the profile of Carrel's too."""


class WhenFull(Enum):
    """What becomes of a pod that finds no GPU."""

    CPU = "cpu"
    WAIT = "wait"
    DEFAULT = "default"
    """On CPU if a hub made it or it carries MAIA's mark; else it waits."""


LONGEST_GRACE_S = 300
"""Five minutes: so long may a GPU pod take to end after it was told to."""


class HideFrom(Enum):
    """Which containers are told to see no GPU, besides those of GPU pods that ask for none themselves."""

    GPU_PODS = "gpu-pods"
    """No others."""
    NVIDIA_PODS = "nvidia-pods"
    """Those of pods that ask for no GPU, and by their manifest may get NVIDIA's runtime to show them one."""
    ALL_PODS = "all-pods"
    """Those of every pod that asks for no GPU: where NVIDIA's runtime is the default one, an image alone may."""


class DeviceList(Enum):
    """How a container is told its GPUs, so that the container runtime lets them in."""

    VARIABLE = "variable"
    """By `NVIDIA_VISIBLE_DEVICES`, which the webhook sets."""
    MOUNTS = "mounts"
    """By volume mounts that the kubelet adds: for runtimes that ignore the variable of unprivileged containers."""
    CDI = "cdi"
    """By names of the Container Device Interface that the kubelet passes on."""


class DraDriver(Enum):
    """The driver whose devices ResourceClaims get. NVIDIA's are whole GPUs, and its own plugin hands
    them over; they are only counted."""

    CARREL = "gpu.carrel.dev"
    NVIDIA = "gpu.nvidia.com"


class CudaDevices(Enum):
    """The names by which `CUDA_VISIBLE_DEVICES` tells a container its GPUs."""

    UUID = "uuid"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class DialectOptions:
    """What the cluster's admin decides about the dialects."""

    memory_unit: Unit = Unit.MIB
    """What one `aliyun.com/gpu-mem` is."""
    shared_claims_per_gpu: int = 4
    """How many shared GpuClaims that name no memory fit on one GPU."""
    gang_settle_s: float = 5.0
    """A gang whose size nothing says is as large as it is when no pod has come for so many seconds."""
    cuda_devices: CudaDevices = CudaDevices.UUID
    """UUIDs are right whatever a container sees. Indices of the node, as the GpuClaim scheduler writes them, are right
    only in a container that sees all GPUs of its node: CUDA numbers those that it sees from 0."""


DEFAULT_DIALECT_OPTIONS = DialectOptions()
