"""Maintenance: which GPUs cannot be booked for a while, how many of a model at each instant, and whom it hits. Pure.

A window closes all GPUs of some nodes, single GPUs, or a number of GPUs of a model, whichever these are. Nodes are
known by their names and GPUs by their UUIDs, so a GPU that got another number, or another machine, stays closed. Only
GPUs that can be booked are counted, each once: not those of a node that is gone or cordoned, and not twice if two
windows close them. A window stops no pod.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.rules import Booking
from carrel.ids import BookingId, GpuUuid, NodeName
from carrel.ledger.gpus import Gpu, place_name
from carrel.ledger.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Maintenance:
    """GPUs that cannot be booked for a while."""

    model: str
    """Empty: those of `nodes` and `single` are closed."""
    start: datetime
    end: datetime
    gpus: int = 0
    """How many of the model, whichever; 0 without a model."""
    why: str = ""
    created_by: str = ""
    id: str = ""
    nodes: tuple[NodeName, ...] = ()
    """All GPUs of these."""
    single: Mapping[GpuUuid, str] = field(default_factory=dict)
    """Single GPUs, and what each was called when the window was set: `gpu-1/3`."""

    @property
    def uuids(self) -> Collection[GpuUuid]:
        return self.single.keys()

    def is_on(self, now: datetime) -> bool:
        return self.start <= now < self.end

    def closes(self, gpu: Gpu) -> bool:
        """Whether it names this GPU, or its node."""
        return gpu.node in self.nodes or gpu.uuid in self.uuids

    def gpus_of(self, stock: ModelCapacity) -> int:
        """How many of the model's GPUs that can be booked it closes."""
        return _closed([self], stock)

    @property
    def places(self) -> tuple[str, ...]:
        """The nodes and GPUs that it names: `gpu-1`, `gpu-2/3`; empty: it names a model."""
        return (*self.nodes, *self.single.values())


@dataclass(frozen=True, slots=True)
class Closing:
    """A stretch of time in which the same windows close so many GPUs of one model."""

    start: datetime
    end: datetime
    gpus: int
    windows: tuple[Maintenance, ...] = ()


def closings(windows: Iterable[Maintenance], stock: ModelCapacity) -> list[Closing]:
    """What is closed of one model, in order and without overlaps; a GPU that several windows close is counted once."""
    theirs = [window for window in windows if window.model == stock.model or (not window.model and window.places)]
    instants = sorted({instant.astimezone(UTC) for each in theirs for instant in (each.start, each.end)})
    found = []
    for start, end in pairwise(instants):
        now = tuple(each for each in theirs if each.start <= start and end <= each.end)
        if gpus := _closed(now, stock):
            found.append(Closing(start, end, gpus, now))
    return found


def _closed(windows: Iterable[Maintenance], stock: ModelCapacity) -> int:
    nodes: set[NodeName] = set()
    uuids: set[GpuUuid] = set()
    count = 0
    for window in windows:
        nodes.update(window.nodes)
        uuids.update(window.uuids)
        count += window.gpus if window.model == stock.model else 0
    count += sum(stock.by_node[node].gpus for node in nodes if node in stock.by_node)
    if uuids:
        others = (here for node, here in stock.by_node.items() if node not in nodes)
        count += sum(min(here.gpus, len(uuids & here.uuids)) for here in others)
    return min(count, stock.gpus)


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod that holds one of the GPUs now."""

    name: str
    """`lab/train-0`."""
    person: str
    """Empty: it is nobody's."""
    booking: BookingId | None = None
    """The one that covers it."""
    ends: datetime | None = None
    """When its booking ends, and with it the pod's right to the GPU."""


@dataclass(frozen=True, slots=True)
class HitBooking:
    booking: Booking
    held: tuple[HeldPod, ...] = ()
    """Its pods that hold one of the GPUs now. In a group they may be of others than who booked."""
    lacks_gpus: bool = False
    """More is booked during the maintenance than is left."""

    @property
    def pods(self) -> tuple[str, ...]:
        return tuple(pod.name for pod in self.held)


@dataclass(frozen=True, slots=True)
class Hit:
    """Whom a maintenance hits, as far as it can be known before."""

    models: Mapping[str, int]
    """How many GPUs that can be booked it closes, by model."""
    bookings: tuple[HitBooking, ...] = ()
    pods: tuple[HeldPod, ...] = ()
    """Those that hold one of the GPUs and that none of these bookings covers: they may still run by then."""

    @property
    def people(self) -> list[str]:
        """Everybody who is to be told."""
        persons = {each.booking.user for each in self.bookings} | {pod.person for pod in self.every_pod}
        return sorted(persons - {""})

    @property
    def every_pod(self) -> list[HeldPod]:
        """Those that a booking covers, and the others."""
        return [pod for each in self.bookings for pod in each.held] + [*self.pods]


def hit_by(
    window: Maintenance, models: Mapping[str, int], bookings: Iterable[Booking], lacking: Collection[str],
    pods: Sequence[HeldPod],
) -> Hit:  # fmt: skip
    """`bookings` are those in its time; `lacking` has the ids of those for which too few GPUs are left."""
    hit = []
    for booking in bookings:
        held = tuple(pod for pod in pods if pod.booking == booking.id)
        if held or booking.id in lacking:
            hit.append(HitBooking(booking, held, booking.id in lacking))
    covered = {each.booking.id for each in hit}
    others = [pod for pod in pods if pod.booking not in covered and (pod.ends is None or pod.ends > window.start)]
    return Hit(models, tuple(hit), tuple(others))


@dataclass(frozen=True, slots=True)
class NamedPlaces:
    nodes: tuple[NodeName, ...]
    single: Mapping[GpuUuid, str]
    unknown: tuple[Refusal, ...]


def places_named(
    words: Collection[str], nodes: Collection[NodeName], gpus: Callable[[NodeName], Iterable[Gpu]]
) -> NamedPlaces:
    """Find nodes by their names, and GPUs that are written `gpu-1/3` or as their UUIDs."""
    known = sorted(nodes)
    whole = [node for node in known if node in words]
    wanted = set(words).difference(whole)
    single: dict[GpuUuid, str] = {}
    for gpu in (gpu for node in known if wanted for gpu in gpus(node)):
        place = place_name(gpu.node, gpu.index)
        if names := wanted & {gpu.uuid, place}:
            single[gpu.uuid] = place
            wanted -= names
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    there = f"{', '.join(known[:MOST_NAMED])}{more}" if known else "none"
    why = "“{}” is no node with GPUs, and no GPU such as gpu-1/3. The nodes are: {}."
    return NamedPlaces(tuple(whole), single, tuple(Refusal(why.format(word, there)) for word in sorted(wanted)))


MOST_NAMED = 12
"""Nodes in one sentence."""
