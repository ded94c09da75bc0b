"""The form of a snapshot, with the limits of each field. `snapshot` checks what several fields say together.

Hours count from the moment of the snapshot: what was before it is negative.
"""

from typing import Annotated

import msgspec

from carrel.ledger.requests import GpuPolicy, TopologyMode

FORM = "carrel-snapshot/2"
MOST = 1 << 60
"""As `machines.ENOUGH`: larger amounts of CPU, memory and GPUs need not be told apart."""
MOST_GPU_MEMORY = 16 * 1024 * 1024
CENTURY_H = 100 * 365.25 * 24
"""No date that a simulation counts with leaves the calendar."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
Index = Annotated[int, msgspec.Meta(ge=0, le=9999)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
GpuMemory = Annotated[int, msgspec.Meta(ge=1, le=MOST_GPU_MEMORY)]
Hours = Annotated[float, msgspec.Meta(ge=-CENTURY_H, le=CENTURY_H)]
Length = Annotated[float, msgspec.Meta(gt=0, le=CENTURY_H)]
Policy = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(each.value for each in GpuPolicy)})$")]
Mode = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(each.value for each in TopologyMode)})$")]


class SavedPart(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A part of the file. What is at its default is not written."""


class SavedGpu(SavedPart):
    index: Index
    model: str
    memory_mib: GpuMemory = msgspec.field(name="memoryMiB")
    island: str = ""
    bandwidth_gbps: Size = msgspec.field(name="bandwidthGBps", default=0)
    usable: bool = True


class SavedNode(SavedPart):
    name: Text
    gpus: Annotated[list[SavedGpu], msgspec.Meta(min_length=1)]
    cpu_milli: Size | None = None
    """Of CPU and memory: both, or none is known."""
    memory_mib: Size | None = msgspec.field(name="memoryMiB", default=None)


class SavedNodeSet(SavedPart):
    """The nodes on which some pods may run, by labels, affinity and taints."""

    name: Text
    nodes: list[str]


class SavedRequest(SavedPart):
    gpus: Count
    part: str = ""
    """Of each GPU, as a fraction; "1" is the whole GPU."""
    memory_mib: Count | None = msgspec.field(name="memoryMiB", default=None)
    """Of each GPU; in place of `part`."""
    model: str = ""
    models: tuple[str, ...] = ()
    """One of these is in the name of the model. Empty: any model."""
    not_models: tuple[str, ...] = ()
    policy: Policy = GpuPolicy.PACK.value
    prefer_ids: tuple[Size, ...] = ()
    topology: Mode = TopologyMode.PREFERRED.value
    min_bandwidth_gbps: Size = msgspec.field(name="minBandwidthGBps", default=0)
    node_set: str = ""
    """Empty: it may run on every node."""


class SavedPod(SavedPart):
    name: Text
    arrives_hours: Hours
    owner: str = ""
    lasts_hours: Length | None = None
    """None: for ever."""
    cpu_milli: Size = 0
    memory_mib: Size = msgspec.field(name="memoryMiB", default=0)
    request: SavedRequest | None = None
    """None: it asks for no GPU."""
    node: str = ""
    """Where it runs; empty: it waits."""
    held: tuple[Index, ...] = ()
    """The indexes of the GPUs that it holds there."""


class SavedBooking(SavedPart):
    user: str
    model: str
    gpus: Count
    asked_hours: Hours
    start_hours: Hours
    lasts_hours: Length


class SavedSnapshot(SavedPart):
    form: str
    taken: str
    nodes: list[SavedNode]
    pods: list[SavedPod]
    bookings: list[SavedBooking]
    node_sets: list[SavedNodeSet] = []
