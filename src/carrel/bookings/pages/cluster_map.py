"""Draws the cluster: nodes, their GPUs, and who holds how much of each GPU.

    fill      held memory, from the bottom up
    pattern   the tier: plain is covered by a booking, stripes are opportunistic, dots mean no tier
    outline   health: solid is healthy, dashed takes no new pods; a double line is kept for a booked pod
    mark      use, of a GPU that is held: a triangle is active, two bars are idle, a question mark is unknown
    bracket   GPUs of one NVLink island
    box       a GPU that is divided into MIG slices, which stand inside it

Pure: GPUs with their holders in, view models and markup out. Colours only repeat what the patterns show.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from markupsafe import Markup, escape

from carrel.bookings import wording
from carrel.bookings.capacity import is_unheld
from carrel.bookings.maintenance import Maintenance
from carrel.ids import HolderId, NodeName
from carrel.ledger.gpu_activity import GpuActivity
from carrel.ledger.gpus import Gpu, Node, memory_text, named
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.ledger.shares import Share, ShareState
from carrel.ledger.tiers import Tier

WIDTH, HEIGHT = 44, 64
"""The size of a GPU, in pixels."""

STATES = {
    ShareState.ASSUMED: "promised",
    ShareState.ASSIGNED: "running",
    ShareState.RELEASING: "terminating",
    ShareState.GONE: "gone",
}


@dataclass(frozen=True, slots=True)
class PodOnMap:
    """What the map shows of a pod."""

    tier: Tier | None
    """None: no booking covers the pod, and it does not have to make room for others."""
    user: str = ""
    coverage: str = ""
    """Which booking covers it and until when, or what it means that none does."""
    name: str = ""


PodOf = Callable[[HolderId], PodOnMap]
"""Finds a pod by its UID."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The maintenance that goes on now."""

    windows: Sequence[Maintenance] = ()
    at: Callable[[datetime], str] = str

    def words(self, node: NodeName, gpu: Gpu | None = None) -> str:
        """`under maintenance until Tue 24 Nov 14:00: new fans`, of a GPU or of a whole node; empty: it is not."""
        found = [each for each in self.windows if (each.closes(gpu) if gpu else node in each.nodes)]
        if not found:
            return ""
        last = max(found, key=lambda each: each.end)
        why = "; ".join(dict.fromkeys(each.why for each in found if each.why))
        return f"under maintenance until {self.at(last.end)}{f': {why}' if why else ''}"


NOTHING_CLOSED = Closed()


@dataclass(frozen=True, slots=True)
class UseOnMap:
    """What a GPU is used for, as far as the person who looks may see it."""

    activity: GpuActivity | None = None
    """None: nobody holds it."""
    line: str = ""
    """In words, with the figures that the person may see."""
    since: str = ""
    """Of an idle GPU: since when, in short."""
    of_holders: Mapping[HolderId, str] = field(default_factory=dict)
    """In words, of each that holds a part of it."""

    @property
    def state(self) -> str:
        return self.activity.state.value if self.activity is not None else ""


UNUSED = UseOnMap()
UseOf = Callable[[GpuEntry], UseOnMap]


def use_not_shown(entry: GpuEntry) -> UseOnMap:
    return UNUSED


@dataclass(frozen=True, slots=True)
class ShareOnMap:
    name: str
    pod: PodOnMap
    memory: int
    whole: bool
    state: str
    use: str = ""
    """In words."""

    @property
    def tier_name(self) -> str:
        return self.pod.tier.value if self.pod.tier else "no tier"

    @property
    def amount(self) -> str:
        return f"{'whole GPU, ' if self.whole else ''}{memory_text(self.memory)}"

    @property
    def description(self) -> str:
        facts = [self.tier_name, self.amount, self.state, *filter(None, [self.pod.coverage])]
        return f"{self.name} ({', '.join(facts)})"


@dataclass(frozen=True, slots=True)
class GpuOnMap:
    gpu: Gpu
    kept_for: str
    shares: tuple[ShareOnMap, ...]
    maintenance: str = ""
    """Until when it is under maintenance, and why; empty: it is not."""
    use: UseOnMap = UNUSED

    @property
    def held(self) -> int:
        return sum(share.memory for share in self.shares)

    @property
    def free(self) -> int:
        return max(self.gpu.memory - self.held, 0)

    @property
    def description(self) -> str:
        """Everything that the picture shows, as text."""
        held = ", ".join(each.description for each in self.shares)
        parts = [
            f"{self.gpu}, {wording.model(self.gpu.model)}",
            f"{memory_text(self.free)} of {memory_text(self.gpu.memory)} free",
            f"held by {held}" if held else "not held",
        ]
        parts += [self.use.line] if self.use.line else []
        parts += [f"kept for {self.kept_for}"] if self.kept_for else []
        parts += [f"takes no new pods: {self.gpu.unusable}"] if self.gpu.unusable else []
        parts += [self.maintenance] if self.maintenance else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """Neighbouring GPUs of a node that belong together."""

    gpus: tuple[GpuOnMap, ...]
    island: str = ""
    """Their NVLink island; empty: they have no links."""
    divided: str = ""
    """The GPU that they are slices of; empty: they are physical GPUs."""

    @property
    def title(self) -> str:
        if self.divided:
            return f"{self.divided}, divided into MIG slices"
        return f"NVLink island {self.island}" if self.island else ""


@dataclass(frozen=True, slots=True)
class NodeOnMap:
    name: str
    unusable: str
    gpus: tuple[GpuOnMap, ...]
    maintenance: str = ""
    """Until when the whole node is under maintenance, and why."""

    @property
    def unheld(self) -> int:
        """GPUs of which no pod holds a part and that a new pod may get."""
        return sum(not (each.shares or each.gpu.unusable or each.kept_for or self.unusable) for each in self.gpus)

    @property
    def models(self) -> Sequence[str]:
        return sorted({each.gpu.model for each in self.gpus})

    @property
    def groups(self) -> Sequence[GpuGroup]:
        """Neighbours by island, and slices by the GPU that they are a part of."""
        return [GpuGroup(tuple(gpus), *key) for key, gpus in groupby(self.gpus, key=_belongs_to)]


def _belongs_to(shown: GpuOnMap) -> tuple[str, str]:
    part = shown.gpu.slice
    return shown.gpu.island, named(part.parent_index) if part else ""


@dataclass(frozen=True, slots=True)
class Totals:
    gpus: int
    unheld: int
    held: int
    """Those of which pods hold a part."""
    out_of_use: int
    """Unhealthy, or of a node that takes no pods: neither free nor to be had."""
    held_memory: int
    memory: int

    @property
    def held_percent(self) -> int:
        return round(100 * self.held_memory / self.memory) if self.memory else 0


def node_on_map(
    name: NodeName,
    node: Node | None,
    entries: Iterable[GpuEntry],
    pod_of: PodOf,
    closed: Closed = NOTHING_CLOSED,
    use_of: UseOf = use_not_shown,
) -> NodeOnMap:
    gpus = tuple(gpu_on_map(entry, pod_of, closed, use_of) for entry in entries)
    return NodeOnMap(name, node.out_of_use if node else "the node is gone", gpus, closed.words(name))


def gpu_on_map(
    entry: GpuEntry, pod_of: PodOf, closed: Closed = NOTHING_CLOSED, use_of: UseOf = use_not_shown
) -> GpuOnMap:
    use = use_of(entry)

    def share_on_map(share: Share) -> ShareOnMap:
        pod = pod_of(share.holder.uid)
        name = f"{share.holder} of {pod.name}" if share.holder.is_claim and pod.name else str(share.holder)
        told = use.of_holders.get(share.holder.uid, "")
        return ShareOnMap(name, pod, entry.held(share), share.memory is None, STATES[share.state], told)

    shares = tuple(share_on_map(share) for _, share in sorted(entry.shares.items()))
    kept_for = str(entry.kept_for) if entry.kept_for else ""
    return GpuOnMap(entry.gpu, kept_for, shares, closed.words(entry.gpu.node, entry.gpu), use)


def totals(ledger: Ledger, entries_of: Callable[[NodeName], Iterable[GpuEntry]]) -> Totals:
    """Sums up the whole cluster. It is computed at every change, so it reads only the GPUs, not the pods."""
    nodes = [ledger.node(name) for name in ledger.nodes]
    entries = [(node, entry) for node in nodes if node for entry in entries_of(node.name)]
    return Totals(
        gpus=len(entries),
        unheld=sum(is_unheld(entry, node) for node, entry in entries),
        held=sum(bool(entry.shares) for _, entry in entries),
        out_of_use=sum(bool(node.out_of_use or entry.gpu.unusable) for node, entry in entries),
        held_memory=sum(entry.gpu.memory - max(entry.free, 0) for _, entry in entries),
        memory=sum(entry.gpu.memory for _, entry in entries),
    )


def draw(shown: GpuOnMap, *, node_unusable: bool = False) -> Markup:
    """The picture of a GPU: it fills from the bottom."""
    state = "unhealthy" if shown.gpu.unusable or node_unusable else "kept" if shown.kept_for else "healthy"
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [
        f'<svg class="gpu {state}" {size} aria-hidden="true">'
        f'<rect class="empty" x="1.5" y="1.5" width="{WIDTH - 3}" height="{HEIGHT - 3}" rx="3"/>'
    ]
    room = HEIGHT - 6
    y = float(HEIGHT - 3)
    for share in shown.shares:
        height = room * share.memory / max(shown.gpu.memory, shown.held, 1)
        y -= height
        terminating = " terminating" if share.state == STATES[ShareState.RELEASING] else ""
        place = f'x="3" y="{y:.1f}" width="{WIDTH - 6}" height="{max(height - 0.75, 1):.1f}"'
        parts.append(f'<rect class="share {escape(share.tier_name.replace(" ", "-"))}{terminating}" {place}/>')
    parts.append(f'<rect class="outline" x="1.5" y="1.5" width="{WIDTH - 3}" height="{HEIGHT - 3}" rx="3"/>')
    if state == "kept":
        parts.append(f'<rect class="inner" x="4.5" y="4.5" width="{WIDTH - 9}" height="{HEIGHT - 9}" rx="2"/>')
    if state == "unhealthy":
        parts.append(f'<path class="cross" d="M{WIDTH / 2 - 6} {HEIGHT / 2 - 6}l12 12m0-12l-12 12"/>')
    parts.append(mark(shown.use.state))
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 # user input is escaped above


MARKS = {
    "active": '<path d="M-2.2 -3.6l6 3.6l-6 3.6z"/>',
    "idle": '<path d="M-3.4 -3.6h2.4v7.2h-2.4zM1 -3.6h2.4v7.2h-2.4z"/>',
    "unknown": '<path class="line" d="M-2.4 -1.6a2.4 2.2 0 1 1 2.4 2.4v1.2"/><circle cy="4" r="1"/>',
}
"""The shape within the mark's disc, by the state of use. A GPU that was just taken has none."""


def mark(state: str, x: float = WIDTH - 12, y: float = 12) -> Markup:
    """The mark of use around this point; empty for a state without one."""
    shape = MARKS.get(state, "")
    text = f'<g class="use {state}" transform="translate({x} {y})"><circle class="disc" r="8"/>{shape}</g>'
    return Markup(text if shape else "")  # noqa: S704 # made of constant words
