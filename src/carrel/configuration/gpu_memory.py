"""The section about the memory of GPUs: how it is counted, and how much of it pods may share."""

from dataclasses import dataclass
from enum import Enum

from carrel.configuration.fields import Change, entry
from carrel.dialects.options import Unit


class MemoryResource(Enum):
    AUTO = "auto"
    PLUGIN = "plugin"
    NODE = "node"


class Capacity(Enum):
    AUTO = "auto"
    USABLE = "usable"
    TOTAL = "total"


class Limits(Enum):
    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of GPUs."""

    unit: Unit = entry(Unit.MIB, "What one unit of gpushare's memory resource is.", change=Change.WHEN_FREE)
    """A number on a pod means nothing without it. MiB is the finest; on machines with more memory than the kubelet can
    count in MiB, the agent says which unit to use."""
    resource: MemoryResource = entry(
        MemoryResource.AUTO,
        "How gpushare's memory resource is advertised: as devices of a plugin, as a number on the Node's status, or"
        " (auto) by a plugin if the kubelet can handle so many devices.",
        change=Change.WHEN_FREE,
    )
    """A kubelet of 1.36 and newer stalls for minutes on tens of thousands of devices."""
    capacity: Capacity = entry(
        Capacity.AUTO,
        "How much of a GPU pods may share: what its driver leaves them (usable), or all that is written on the GPU"
        " (total). By default usable, and total on nodes where gpushare's plugin serves or served (its label"
        ' gpushare: "true").',
    )
    """The driver keeps some hundred MiB for itself. Counted as room, two halves of a GPU need not fit beside each
    other. gpushare counts them, and its users know the number of all MiB by heart."""
    limits: Limits = entry(
        Limits.AUTO,
        "Whether the driver limits the memory of pods that share a GPU: never (off); always, so that parts of GPUs are"
        " given only on nodes that can limit them (required); or always from the moment on when every node with GPUs"
        " can (auto).",
    )
    """A pod that takes more than its part makes its neighbours fail. From driver 615 on NVIDIA limits the memory of
    containers; an older one starts no container with a limit. Once auto has begun to limit it does not stop by itself:
    one old node that joins gets no parts, and nobody else loses the limits."""
