"""What can be booked: how many healthy GPUs there are of each model, without those that pods keep in any case."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from carrel.bookings.rules import Booking
from carrel.dialects import mig
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.refusals import Refusal

MOST_REASONS = 3
"""That are named in one sentence."""


@dataclass(frozen=True, slots=True)
class NodeStock:
    """The GPUs of one model that can be booked on one node."""

    gpus: int = 0
    uuids: frozenset[GpuUuid] = frozenset()
    """Where the kubelet chooses the GPUs: which they may be."""


@dataclass(frozen=True, slots=True)
class ModelCapacity:
    """The healthy GPUs of one model that can be booked."""

    model: str
    gpus: int
    memory: MiB
    """The memory of the GPU that has the least."""
    set_aside: int = 0
    """Further healthy GPUs, which cannot be booked: pods use them that no booking can displace."""
    out_of_use: tuple[str, ...] = ()
    """For each further GPU: which node or GPU is unhealthy, cordoned or not ready, and why."""
    by_node: Mapping[NodeName, NodeStock] = field(default_factory=dict, compare=False)
    """Where those are that can be booked."""
    part: float = 1.0
    """How much of a physical GPU each is, for GPU hours: less than one for MIG slices."""

    @property
    def total(self) -> int:
        """All that there are, also those that cannot be booked now."""
        return self.gpus + self.set_aside + len(self.out_of_use)

    @property
    def why_set_aside(self) -> str:
        """Why the others cannot be booked, in words; empty: all can be."""
        parts = (
            (self.set_aside, "used by pods that no booking can displace"),
            (len(self.out_of_use), self.why_out_of_use),
        )
        return "; ".join(
            f"{count} of {self.total} {'is' if count == 1 else 'are'} {why}" for count, why in parts if count
        )

    @property
    def why_out_of_use(self) -> str:
        reasons = list(dict.fromkeys(self.out_of_use))
        more = f" and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
        return f"out of use: {', '.join(reasons[:MOST_REASONS])}{more}" if reasons else ""


def capacity_of(nodes: Iterable[Node], set_aside: Collection[str] = ()) -> dict[str, ModelCapacity]:
    """Count the GPUs of each model, in the order of their names. If all are unhealthy, it is listed with zero.

    `set_aside` are the UUIDs of GPUs that cannot be booked, because pods keep them whatever is booked.
    """
    found: dict[str, _Counting] = {}
    for node in nodes:
        for gpu in node.gpus:
            model = found.setdefault(gpu.model, _Counting(gpu.memory))
            model.memory, model.part = min(model.memory, gpu.memory), min(model.part, gpu.part)
            why = f"{node.name} is {node.closed}" if node.closed else f"{node.name}: {node.unusable}"
            if out := why if node.out_of_use else f"{gpu}: {gpu.unusable}" if gpu.unusable else "":
                model.out_of_use.append(out)
            elif gpu.uuid in set_aside:
                model.set_aside += 1
            else:
                model.by_node.setdefault(node.name, []).append(gpu)
    return {name: found[name].capacity(name) for name in sorted(found)}


@dataclass(slots=True)
class _Counting:
    memory: MiB
    part: float = 1.0
    set_aside: int = 0
    out_of_use: list[str] = field(default_factory=list)
    by_node: dict[NodeName, list[Gpu]] = field(default_factory=dict)

    def capacity(self, model: str) -> ModelCapacity:
        by_node = {
            node: NodeStock(len(gpus), frozenset().union(*(gpu.possible_uuids for gpu in gpus)))
            for node, gpus in self.by_node.items()
        }
        count = sum(stock.gpus for stock in by_node.values())
        return ModelCapacity(model, count, self.memory, self.set_aside, tuple(self.out_of_use), by_node, self.part)


def is_unheld(entry: GpuEntry, node: Node | None) -> bool:
    """Whether a new pod may get the whole GPU: it is healthy, no pod holds a part of it, and it is kept for none."""
    return not (entry.shares or entry.kept_for or entry.gpu.unusable or (node and node.out_of_use))


def model_named(word: str, models: Collection[str]) -> str | Refusal:
    """People write `a6000`, the driver `NVIDIA-RTX-A6000`: a part of the name is enough if it means one model."""
    if word in models:
        return word
    meant = [model for model in models if _plain(word) and _plain(word) in _plain(model)]
    # Who does not say MIG means a GPU: the model of a slice begins with that of its GPU.
    meant = [model for model in meant if (mig.IN_A_MODEL in model) == ("mig" in _plain(word))] or meant
    exact = [model for model in meant if _plain(word) == _plain(model)]
    if len(meant) == 1 or len(exact) == 1:
        return (exact or meant)[0]
    some = sorted(meant) or sorted(models)
    return Refusal(
        f"“{word}” may be {' or '.join(some)}; give the full name."
        if meant
        else f"There is no model “{word}”. There are: {', '.join(some) or 'none'}."
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


class BookedTime(NamedTuple):
    """What usage needs of a booking. Its times are seconds since 1970: there are thousands in a year."""

    user: str
    group: str
    model: str
    start_s: float
    ends_s: float
    gpus: int = 1
    share: bool = False


def booked_gpus(booking: Booking | BookedTime, shares_per_gpu: int) -> float:
    """How many GPUs a booking counts for: a share counts as its part of one GPU."""
    return 1 / shares_per_gpu if booking.share else booking.gpus
