"""What a GPU and its node are. A GPU is known by its UUID: indices may change when a machine is rebooted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NewType

from carrel.ids import GpuUuid, NodeName

MiB = NewType("MiB", int)
"""Memory of a GPU, in mebibytes. The only unit of memory in the core."""

UNKNOWN_MEMORY = MiB(1)
"""Of a GPU whose size nobody reports: it can be had whole, and no share of it fits."""


LIMITS_NOT_SAID = "its agent does not say that it can"


class _Shareable(int):
    """Memory that pods may share of a GPU whose driver keeps some for itself. A plain number wherever it is counted.

    Two GPUs that differ in what they have in all are not alike, although as much of them can be shared. What is written
    as JSON is `int(memory)`.
    """

    total: int

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) and (not isinstance(other, _Shareable) or other.total == self.total)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


@lru_cache(maxsize=1024)  # one object for each kind of GPU: comparing them is then comparing identities
def shareable(mib: int, total: int) -> MiB:
    """Return the memory of a GPU that has `total` and of which pods may share `mib`."""
    if mib >= total:
        return MiB(total)
    memory = _Shareable(mib)
    memory.total = total
    return MiB(memory)


def total_of(memory: int) -> MiB:
    """Return what a GPU has in all, given its memory: with what its driver keeps."""
    return MiB(memory.total if isinstance(memory, _Shareable) else memory)


def memory_text(mib: int) -> str:
    """`48 GiB`, `7.9 GiB`, `512 MiB`: as people speak of a GPU. Programs get MiB."""
    return f"{mib:,} MiB" if mib < 1024 else f"{mib / 1024:,.1f}".removesuffix(".0") + " GiB"


def place_name(node: NodeName, index: int) -> GpuUuid:
    """What stands for a UUID where there is none: of a slot, and of a GPU whose node does not report it."""
    return GpuUuid(f"{node}/{index}")


def is_place_name(uuid: GpuUuid) -> bool:
    node, slash, index = uuid.rpartition("/")
    return bool(slash) and index.isdecimal() and node == node.lower()  # a MIG slice of an old driver: MIG-GPU-…/1/0


FIRST_SLICE = 1_000
MOST_SLICES = 10
"""Per GPU; NVIDIA's have seven at most."""


def slice_index(gpu: int, number: int) -> int:
    """The index of a MIG slice on its node: 1003 is slice 3 of GPU 0, 1012 slice 2 of GPU 1."""
    return FIRST_SLICE + MOST_SLICES * gpu + number


def physical_index(index: int) -> int:
    """The index of the physical GPU: of a slice, the one that it is a part of."""
    return (index - FIRST_SLICE) // MOST_SLICES if index >= FIRST_SLICE else index


def label_of(index: int) -> str:
    """An index as people read it: `3`, and `0:3` of slice 3 of GPU 0."""
    return f"{physical_index(index)}:{index % MOST_SLICES}" if index >= FIRST_SLICE else str(index)


def index_named(text: str) -> int | None:
    """The index that people wrote; None: it is none."""
    if text.isascii() and text.isdecimal():
        return int(text)
    gpu, colon, number = text.partition(":")
    is_slice = bool(colon) and text.isascii() and gpu.isdecimal() and number.isdecimal() and int(number) < MOST_SLICES
    return slice_index(int(gpu), int(number)) if is_slice else None


def named(index: int) -> str:
    """`GPU 3`, `MIG slice 0:3`."""
    return f"{'MIG slice' if index >= FIRST_SLICE else 'GPU'} {label_of(index)}"


@dataclass(frozen=True, slots=True)
class MigSlice:
    """What a GPU of the ledger is that is no physical GPU: a slice of one that its admin has divided."""

    profile: str
    """Its kind, as in `nvidia.com/mig-1g.10gb`."""
    parent: GpuUuid
    """UUID of the GPU that it is a part of."""
    parent_index: int
    parent_memory: MiB
    is_gpu: bool = False
    """Its node advertises its slices as plain GPUs (`nvidia.com/gpu`): who asks for a GPU may get it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of one node, with its model, memory and links: a physical one, or a MIG slice. GPUs of one node may differ
    in every field."""

    uuid: GpuUuid
    node: NodeName
    index: int
    model: str
    memory: MiB
    """What pods may have of it. Where its driver keeps some, `total_of` says what it has in all."""
    island: str = ""
    """GPUs of one NVLink island reach each other fast. Empty: the GPU has no link, it is an island of its own."""
    bandwidth_gbps: int = 0
    """Gigabytes per second over the links inside the island, as GpuNodeStatus reports it."""
    unusable: str = ""
    """Why no new pod may have this GPU ("unhealthy: XID 79"). Pods that hold it keep it. Empty: usable."""
    numa_node: int | None = None
    """Which processors and memory of the machine it is next to. None: unknown, or the machine has only one."""
    may_be: frozenset[GpuUuid] = frozenset()
    """Of a slot: the UUIDs of the GPUs that it may turn out to be. Empty: the GPU is the one that `uuid` names."""
    number: int | None = None
    """Of a slot: the index of its GPU, once that is known. People never see the number of a slot."""
    slice: MigSlice | None = None
    """None: it is a physical GPU."""

    @property
    def has_uuid(self) -> bool:
        """Whether its node reports its UUID; else its place stands for it."""
        return self.uuid != place_name(self.node, self.index)

    @property
    def possible_uuids(self) -> frozenset[GpuUuid]:
        return self.may_be or frozenset((self.uuid,))

    @property
    def shown_index(self) -> int | None:
        """Its number for people; None of a slot whose GPU is not known yet."""
        return self.number if self.may_be else self.index

    @property
    def kind(self) -> str:
        """The profile, of a slice that only who asks for it may get; empty: it may be had as a GPU."""
        return "" if self.slice is None or self.slice.is_gpu else self.slice.profile

    @property
    def part(self) -> float:
        """How much of a physical GPU it is, by its memory: all of it, unless it is a MIG slice."""
        of = self.slice.parent_memory if self.slice is not None else 0
        return min(self.memory / of, 1.0) if of else 1.0

    @property
    def label(self) -> str:
        """Its number as people read it; empty of a slot whose GPU is not known."""
        return "" if self.shown_index is None else label_of(self.shown_index)

    def __str__(self) -> str:
        if self.shown_index is None:
            return f"a {'MIG slice' if self.slice else 'GPU'} of {self.node}"
        return (
            f"GPU {self.shown_index} of {self.node}" if self.slice is None else f"MIG slice {self.label} of {self.node}"
        )


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with its GPUs, and the labels by which a claim may select it."""

    name: NodeName
    gpus: tuple[Gpu, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    unusable: str = ""
    """Why no new pod may have any GPU here ("the agent's last heartbeat is 95 s old"). Empty: usable."""
    closed: str = ""
    """Why pods in general cannot come here ("cordoned (kubectl uncordon n1)"): only a pod that tolerates it may have a
    GPU here, and who sends pods to nodes sees to that. Empty: they can."""
    why_no_limits: str = LIMITS_NOT_SAID
    """Why the memory of a container cannot be limited here: pods that were admitted with a limit cannot start. Empty:
    it can."""
    kubelet_chooses: bool = False
    """NVIDIA's own plugin hands the GPUs over, and nobody can say which: see `slots`."""

    @property
    def out_of_use(self) -> str:
        """Why its GPUs do not count as available; empty if they do."""
        return self.closed or self.unusable
