"""What a card and its node are. Identity is the UUID: indices change when a machine is rebooted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

MiB = NewType("MiB", int)
"""Memory of a card, in mebibytes. The only unit of memory in the core."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical card. Cards of one node may differ in every field."""

    uuid: str
    node: str
    index: int
    model: str
    memory: MiB
    island: str = ""
    """Cards of one NVLink island reach each other fast. Empty: the card has no link, it is an island of its own."""
    bandwidth_gbps: int = 0
    """Gigabytes per second over the links inside the island, as GpuNodeStatus reports it."""
    unusable: str = ""
    """Why no new pod may have this card ("unhealthy: XID 79"). Pods that hold it keep it. Empty: usable."""
    numa_node: int | None = None
    """Which processors and memory of the machine it is next to. None: unknown, or the machine has only one."""
    may_be: frozenset[str] = frozenset()
    """Of a slot: the UUIDs of the GPUs that it may turn out to be. Empty: the GPU is the one that `uuid` names."""

    @property
    def possible_uuids(self) -> frozenset[str]:
        return self.may_be or frozenset((self.uuid,))

    def __str__(self) -> str:
        return f"GPU {self.index} of {self.node}"


@dataclass(frozen=True, slots=True)
class Node:
    """The cards of one machine, and the labels by which a claim may select it."""

    name: str
    gpus: tuple[Gpu, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    unusable: str = ""
    """Why no new pod may have any card here ("the agent's last heartbeat is 95 s old"). Empty: usable."""
    kubelet_chooses: bool = False
    """NVIDIA's own plugin hands the cards over, and nobody can say which: see `slots`."""
