"""What is simulated: machines with GPUs, pods that want them, and bookings that people wish for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from carrel.ids import NO_NODE, NO_PERSON, GpuUuid, NodeName, PersonId, PodUid
from carrel.ledger.gpus import Node
from carrel.ledger.machines import NOTHING, MachineRoom
from carrel.ledger.requests import Memory, Request


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    name: PodUid
    """A run knows a pod by its name alone."""
    request: Request | None
    """None: it asks for no GPU."""
    machine: MachineRoom = NOTHING
    owner: PersonId = NO_PERSON
    arrives_s: float = 0.0
    lasts_s: float | None = None
    """None: it never ends."""
    node: NodeName = NO_NODE
    """Where it runs when the run begins; empty: it has to be placed."""
    held: tuple[GpuUuid, ...] = ()
    """The UUIDs of the GPUs that it holds there."""
    idle_s: float | None = None
    """For how long these have been idle when the run begins; 0: they are active. None: nobody knows."""

    def gpus(self, gpu_memory: int = 0) -> float:
        """How much it asks for, in GPUs of that size."""
        if self.request is None:
            return 0.0
        amount = self.request.amount
        if isinstance(amount, Memory):
            return self.request.gpus * amount.mib / gpu_memory if gpu_memory else float(self.request.gpus)
        return self.request.gpus * float(amount.part)


@dataclass(frozen=True, slots=True)
class BookingWish:
    """A person would like GPUs of a model from some time on; the rules say when they get them."""

    user: PersonId
    model: str
    gpus: int
    asked_s: float
    start_s: float
    lasts_s: float
    is_made: bool = False
    """It exists, and stays as it is, whatever the rules say now."""


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    nodes: tuple[Node, ...]
    machines: dict[NodeName, MachineRoom] = field(default_factory=dict)
    """What pods may have of each node. A node that is not here has enough of everything."""
    labels_of_added: Mapping[str, str] = field(default_factory=dict)
    """Of nodes that are added: with these, every pod may run there."""

    @property
    def gpus(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class PastUse:
    """What a person's pods did with GPUs of one model, by hours that follow one another. In GPU hours."""

    person: PersonId
    model: str
    first_hour: int
    """Counted from the beginning of the run: the last one before it is -1."""
    held: tuple[float, ...]
    active: tuple[float, ...]
    idle: tuple[float, ...]
    """Of the rest of what was held, nobody knows what it was used for."""


@dataclass(frozen=True, slots=True)
class Trace:
    pods: tuple[SimulatedPod, ...]
    wishes: tuple[BookingWish, ...] = ()
    past_use: tuple[PastUse, ...] = ()
    begins_s: float | None = None
    """When the run begins; what came before is there then. None: with the first event."""
    books_again_until_s: float | None = None
    """Until then, people wish for the same booking again as soon as they have used it, and then the run ends; None:
    they do not, and it ends with the last event."""


HOUR_S = 3600.0
