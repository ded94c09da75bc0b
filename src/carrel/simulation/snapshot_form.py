"""The fields of a snapshot, with the limits of each.

Hours count from the moment of the snapshot: what was before it is negative.
"""

from typing import Annotated

import msgspec

from carrel.ids import NO_NODE, NO_PERSON, NodeName, PersonId, PodUid
from carrel.ledger.requests import GpuPolicy, TopologyMode
from carrel.simulation.idle_pods import FOUR_WEEKS_H

FORM = "carrel-snapshot/3"
MOST = 1 << 60
"""As `machines.ENOUGH`: larger amounts of CPU, memory and GPUs need not be told apart."""
MOST_GPU_MEMORY = 16 * 1024 * 1024
CENTURY_H = 100 * 365.25 * 24
"""No date that a simulation counts with leaves the calendar."""

_TEXT = msgspec.Meta(min_length=1)
Text = Annotated[str, _TEXT]
Index = Annotated[int, msgspec.Meta(ge=0, le=9999)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
GpuMemory = Annotated[int, msgspec.Meta(ge=1, le=MOST_GPU_MEMORY)]
Hours = Annotated[float, msgspec.Meta(ge=-CENTURY_H, le=CENTURY_H)]
Length = Annotated[float, msgspec.Meta(gt=0, le=CENTURY_H)]
IdleTime = Annotated[float, msgspec.Meta(ge=0, le=CENTURY_H)]
PastHour = Annotated[int, msgspec.Meta(ge=-FOUR_WEEKS_H, le=-1)]
GpuHours = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
"""Within one hour."""
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
    name: Annotated[NodeName, _TEXT]
    gpus: Annotated[list[SavedGpu], msgspec.Meta(min_length=1)]
    cpu_milli: Size | None = None
    """Of CPU and memory: both, or none is known."""
    memory_mib: Size | None = msgspec.field(name="memoryMiB", default=None)


class SavedNodeSet(SavedPart):
    """The nodes on which some pods may run, by labels, affinity and taints."""

    name: Text
    nodes: list[NodeName]


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
    name: Annotated[PodUid, _TEXT]
    arrives_hours: Hours
    owner: PersonId = NO_PERSON
    lasts_hours: Length | None = None
    """None: for ever."""
    cpu_milli: Size = 0
    memory_mib: Size = msgspec.field(name="memoryMiB", default=0)
    request: SavedRequest | None = None
    """None: it asks for no GPU."""
    node: NodeName = NO_NODE
    """Where it runs; empty: it waits."""
    held: tuple[Index, ...] = ()
    """The indexes of the GPUs that it holds there."""
    idle_hours: IdleTime | None = None
    """For how long these have been idle; 0: they are active. None: nobody knows."""


class SavedBooking(SavedPart):
    user: PersonId
    model: str
    gpus: Count
    asked_hours: Hours
    start_hours: Hours
    lasts_hours: Length


class SavedUse(SavedPart):
    """What a person's pods did with GPUs of one model in the last four weeks, hour by hour."""

    user: PersonId
    model: str
    first_hour: PastHour
    """-1 is the last whole hour before the snapshot."""
    held: Annotated[list[GpuHours], msgspec.Meta(min_length=1)]
    """In GPU hours; the others say of it what is known."""
    active: list[GpuHours]
    idle: list[GpuHours]


class SavedSnapshot(SavedPart):
    form: str
    taken: str
    nodes: list[SavedNode]
    pods: list[SavedPod]
    bookings: list[SavedBooking]
    node_sets: list[SavedNodeSet] = []
    use: list[SavedUse] = []
