"""Where a request goes: on which GPUs of a node, or why on none.

Order of choice, the same for every dialect; ties go to the lowest index:
1. GPUs that may be given at all: usable, not kept for another, of the model, with enough free memory and bandwidth;
2. for several GPUs: one NVLink island, if it is required or preferred; of these the smallest that has room,
   so that large islands stay whole;
3. the policy: the fullest GPU that fits (pack), the emptiest (spread), neighbours (contiguous), named ids (preferIds).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.ids import NO_BOOKING, NO_POD, BookingId, HolderId, NodeName, PodUid
from carrel.ledger.gpus import UNKNOWN_MEMORY, Gpu, MiB, Node, total_of
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.ledger.node_room import able, fit_test
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ANY_GPU, WHOLE, GpuPolicy, GpuSelector, Request, TopologyMode, are_dealt_out
from carrel.ledger.shares import Coverage, Holder, Share

Apart = tuple[int, int, int]
"""How far GPUs are from what a request prefers, the most important first: GPUs with less bandwidth than it asks for,
further islands, indices between them. Less is better."""
AS_PREFERRED: Apart = (0, 0, 0)
NO_KNOWN_GPU = "no GPU that Carrel knows of"
LACKS_FIELDS = "if Carrel's agent runs there, the cluster has another product's definition of GpuNodeStatus"


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits for GPUs, and the nodes where it may run by everything that is not about GPUs, best first."""

    holder: Holder
    request: Request
    nodes: tuple[NodeName, ...]
    booking: BookingId = NO_BOOKING
    """The booking that covers it; empty: none."""
    settled: datetime | None = None
    """From when others may lose GPUs to it. None: always."""

    def __str__(self) -> str:
        return str(self.holder)

    def keeper(self, ledger: Ledger) -> HolderId:
        """In whose name it gets what is kept for it."""
        return keeper_of(ledger, self.holder.uid, self.booking)


def keeper_of(ledger: Ledger, uid: HolderId, booking: BookingId) -> HolderId:
    """In whose name a pod gets what is kept for it: its own, or its booking's if a GPU is kept for that."""
    return booking if booking and ledger.kept_for(booking) and not ledger.kept_for(uid) else uid


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs of one node that serve a request, in the order in which the pod's containers get them."""

    node: NodeName
    gpus: tuple[Gpu, ...]
    request: Request
    coverage: Coverage | None = None
    """To be recorded with the shares."""
    memory: tuple[MiB | None, ...] = ()
    """Of each of the GPUs, where the request does not say it for all of them: what somebody else has decided."""
    for_pod: PodUid = NO_POD
    """Of a ResourceClaim: the uid of the pod that uses it."""

    def shares(self, holder: Holder) -> tuple[Share, ...]:
        if self.memory:
            parts = zip(self.gpus, self.memory, strict=True)
            return tuple(
                Share(holder, gpu.uuid, part, coverage=self.coverage, for_pod=self.for_pod) for gpu, part in parts
            )
        amount = self.request.amount
        return tuple(
            Share(holder, gpu.uuid, None if amount == WHOLE else amount.on(gpu.memory), coverage=self.coverage)
            for gpu in self.gpus
        )

    def by_container(self) -> dict[str, tuple[Gpu, ...]]:
        """Which container sees which GPUs. Whole GPUs are assigned in the order of the containers.

        An init container ends before the others start, so it sees the GPUs that they will have, except those of the
        sidecars before it, which are running by then. The kubelet does the same with the devices that it hands over.
        """
        seen: dict[str, tuple[Gpu, ...]] = {}
        dealt, is_dealt_out = 0, are_dealt_out(self.request.containers)
        for need in self.request.containers:
            first = dealt if is_dealt_out else 0
            seen[need.container] = self.gpus[first : first + need.gpus]
            dealt += 0 if need.init else need.gpus
        return seen


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes that have room for a request, and those that have none. `place` says why they have none."""

    fitting: list[NodeName]
    refused: list[NodeName]


def candidates(ledger: Ledger, request: Request, nodes: Sequence[NodeName], pod: HolderId = NO_POD) -> Candidates:
    """Which of the nodes have room for the request. `pod` is the uid of who asks: GPUs may be kept for it."""
    fits = fit_test(request)
    rooms = map(ledger.rooms.get, nodes)
    fitting = [name for name, room in zip(nodes, rooms, strict=True) if room is not None and fits(room)]
    if request.node_labels or request.is_limited:
        fitting = [name for name in fitting if request.selects(ledger.node(name))]
    kept = {entry.gpu.node for entry in map(ledger.entry, ledger.kept_for(pod)) if entry is not None}
    if kept:  # summaries leave kept GPUs out: on these few nodes, look at the GPUs themselves
        found = set(fitting).union(name for name in kept if isinstance(place(ledger, request, name, pod), Placement))
        fitting = [name for name in nodes if name in found]
    if len(fitting) == len(nodes):
        return Candidates(fitting, [])
    found = set(fitting)
    return Candidates(fitting, [name for name in nodes if name not in found])


def place(ledger: Ledger, request: Request, node: NodeName, pod: HolderId = NO_POD) -> Placement | Refusal:
    """The GPUs of the node that the request gets, or why it gets none there."""
    there = ledger.node(node)
    if there is None:
        return Refusal(f"{node} has {NO_KNOWN_GPU}")
    if there.unusable:
        return Refusal(f"{node} takes no new GPU pods: {there.unusable}")
    if not request.selects(there):
        return Refusal(f"{node} {_why_not_selected(there, request)}")
    able = able_entries(ledger, request, node, pod)
    chosen = choose(able, request) if len(able) >= request.gpus else None
    if chosen is None:
        return _refusal(node, ledger.entries(node), able, request, pod)
    return Placement(node, tuple(entry.gpu for entry in chosen), request)


def held_placement(ledger: Ledger, request: Request, holder: Holder) -> Placement | None:
    """The GPUs that the pod holds already, if they are just what it asks for; None if not."""
    held = ledger.shares_of(holder.uid)
    gpus = [entry.gpu for entry in map(ledger.entry, held) if entry is not None]
    if len(gpus) != request.gpus or len({gpu.node for gpu in gpus}) != 1:
        return None
    placement = Placement(gpus[0].node, tuple(sorted(gpus, key=lambda gpu: gpu.index)), request)
    wanted = {share.gpu: share.memory for share in placement.shares(holder)}
    return placement if wanted == {gpu: share.memory for gpu, share in held.items()} else None


def left_by_another_bind(ledger: Ledger, request: Request, holder: Holder) -> Placement | Refusal | None:
    """GPUs that are recorded for a pod that is not bound: all that it needs, or why they must be waited for."""
    if not ledger.shares_of(holder.uid):
        return None
    return held_placement(ledger, request, holder) or Refusal(
        f"some GPUs are still recorded for an earlier bind of {holder}; they are freed within a minute or two"
    )


# --- which GPUs may be given ----------------------------------------------------------------------------------------


def able_entries(ledger: Ledger, request: Request, node: NodeName, pod: HolderId) -> list[GpuEntry]:
    """The GPUs of the node that would do, each by itself."""
    need = request.amount.on
    return [
        entry for entry in ledger.entries(node) if entry.free >= need(entry.gpu.memory) and suits(entry, request, pod)
    ]


def suits(entry: GpuEntry, request: Request, pod: HolderId) -> bool:
    """Whether the pod might have the GPU if nobody held a part of it."""
    gpu, kept_for = entry.gpu, entry.kept_for
    return not gpu.unusable and (kept_for is None or kept_for.uid == pod) and allows(gpu, request)


def allows(gpu: Gpu, request: Request) -> bool:
    """Whether the request may have the GPU, whoever holds it, and even if it is not in order."""
    topology = request.topology
    return (
        (not request.model or gpu.model == request.model)
        and ((gpu.slice is None and not request.slices) or request.allows_slice(gpu.slice))
        and (request.selector is ANY_GPU or request.selector.allows(gpu))
        and (topology.mode is not TopologyMode.REQUIRED or gpu.bandwidth_gbps >= topology.min_bandwidth_gbps)
    )


# --- which of them are taken -----------------------------------------------------------------------------------------


def choose(able: list[GpuEntry], request: Request) -> list[GpuEntry] | None:
    """The best `request.gpus` of the GPUs, in the order of their indices; None if no island has as many."""
    if request.gpus == 1:
        return [min(able, key=_order(request, {}))]
    picks = [(_pick(pool, request), len(pool)) for pool in pools(able, request)]
    return min(picks, key=lambda pick: _rank(pick[0], pick[1], request))[0] if picks else None


def pools(able: list[GpuEntry], request: Request) -> list[list[GpuEntry]]:
    """The sets of GPUs out of which all of the request's GPUs must come; any of them will do."""
    mode, wanted = request.topology.mode, request.gpus
    anywhere = [able] if len(able) >= wanted else []
    if wanted == 1 or mode is TopologyMode.IGNORE:
        return anywhere
    # Who spreads, or names the GPUs, has said something stronger than a preference for one island.
    if request.policy in (GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS) and mode is not TopologyMode.REQUIRED:
        return anywhere
    islands = [entries for island, entries in by_island(able).items() if island and len(entries) >= wanted]
    if islands or mode is TopologyMode.REQUIRED:
        return islands
    return anywhere


def apart(gpus: Sequence[Gpu], request: Request) -> Apart:
    """Of GPUs that were chosen for the request."""
    slow = sum(gpu.bandwidth_gbps < request.topology.min_bandwidth_gbps for gpu in gpus)
    further_islands = gaps = 0
    if len(gpus) > 1 and request.policy not in (GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS):
        if request.topology.mode is not TopologyMode.IGNORE:
            further_islands = len({gpu.island or gpu.uuid for gpu in gpus}) - 1
        if request.policy is GpuPolicy.CONTIGUOUS:
            indices = [gpu.index for gpu in gpus]
            gaps = max(indices) - min(indices) + 1 - len(indices)
    return (slow, further_islands, gaps)


def by_island(entries: Iterable[GpuEntry]) -> dict[str, list[GpuEntry]]:
    islands: dict[str, list[GpuEntry]] = {}
    for entry in entries:
        islands.setdefault(entry.gpu.island, []).append(entry)
    return islands


def _order(request: Request, island_sizes: Mapping[str, int]) -> Callable[[GpuEntry], tuple[int, ...]]:
    """The key by which single GPUs are preferred: the smallest first."""
    slow = request.topology.min_bandwidth_gbps
    fullest = -1 if request.policy in (GpuPolicy.SPREAD, GpuPolicy.EMPTIEST) else 1
    wish = (
        {index: rank for rank, index in enumerate(request.prefer_ids)} if request.policy is GpuPolicy.PREFER_IDS else {}
    )

    def key(entry: GpuEntry) -> tuple[int, ...]:
        gpu = entry.gpu
        return (
            entry.kept_for is None,  # what was freed for this pod, it should take
            gpu.bandwidth_gbps < slow,
            wish.get(gpu.index, len(wish)),
            -island_sizes.get(gpu.island, 0),  # over as few islands as possible
            fullest * entry.free,
            gpu.index,
        )

    return key


def _pick(pool: list[GpuEntry], request: Request) -> list[GpuEntry]:
    """The best GPUs of one pool by the policy, in the order of their indices."""
    wanted, policy = request.gpus, request.policy
    if policy is GpuPolicy.CONTIGUOUS:
        best = min(_windows(pool, wanted), key=lambda window: (_gap(window), _run_left(window, pool)))
    elif policy is GpuPolicy.SPREAD:
        best = _alternate(sorted(pool, key=_order(request, {})), wanted)
    else:
        best = sorted(pool, key=_order(request, _island_sizes(pool, request)))[:wanted]
    return sorted(best, key=lambda entry: entry.gpu.index)


def _island_sizes(pool: Iterable[GpuEntry], request: Request) -> dict[str, int]:
    if request.topology.mode is TopologyMode.IGNORE:
        return {}
    return {island: len(entries) if island else 1 for island, entries in by_island(pool).items()}


def _windows(pool: list[GpuEntry], wanted: int) -> list[list[GpuEntry]]:
    """Every run of that many GPUs that follow each other in the pool, which is in the order of indices."""
    return [pool[start : start + wanted] for start in range(len(pool) - wanted + 1)]


def _gap(entries: Sequence[GpuEntry]) -> int:
    """How many indices lie between the GPUs without belonging to them. Zero: they are neighbours."""
    return entries[-1].gpu.index - entries[0].gpu.index + 1 - len(entries)


def _run_left(window: Sequence[GpuEntry], pool: Iterable[GpuEntry]) -> int:
    """How many free neighbours the window would leave behind: small runs are used up before long ones are broken."""
    free = {entry.gpu.index for entry in pool}
    low, high = window[0].gpu.index, window[-1].gpu.index
    left = 0
    while low - 1 in free:
        low, left = low - 1, left + 1
    while high + 1 in free:
        high, left = high + 1, left + 1
    return left


def _alternate(ordered: Iterable[GpuEntry], wanted: int) -> list[GpuEntry]:
    """Takes one GPU of each island in turn, in the given order. A GPU without links is an island of its own."""
    turns: dict[str, int] = {}
    dealt = []
    for place_in_line, entry in enumerate(ordered):
        island = entry.gpu.island or entry.gpu.uuid
        turns[island] = turn = turns.get(island, 0) + 1
        dealt.append((turn, place_in_line, entry))
    dealt.sort(key=lambda place: place[:2])
    return [entry for _, _, entry in dealt[:wanted]]


def _rank(pick: list[GpuEntry], pool_size: int, request: Request) -> tuple[int, ...]:
    """By which the best of several islands is chosen: the smallest first."""
    slow, wishes = request.topology.min_bandwidth_gbps, request.prefer_ids
    return (
        sum(entry.kept_for is None for entry in pick),
        sum(entry.gpu.bandwidth_gbps < slow for entry in pick),
        -sum(entry.gpu.index in wishes for entry in pick) if request.policy is GpuPolicy.PREFER_IDS else 0,
        _gap(pick) if request.policy is GpuPolicy.CONTIGUOUS else 0,
        -sum(entry.free for entry in pick) if request.policy is GpuPolicy.EMPTIEST else 0,
        pool_size,
        pick[0].gpu.index,
    )


# --- why not ---------------------------------------------------------------------------------------------------------


def why_not(ledger: Ledger, request: Request, node: NodeName, pod: HolderId = NO_POD) -> str:
    """Why a node that was found to have no room has none, briefly and without its name.

    kube-scheduler counts nodes that are refused in the same words: "0/50 nodes are available: 48 room on 0 of 8 GPUs".
    What was asked for is not repeated: there may be thousands of nodes.
    """
    there = ledger.node(node)
    if there is None:
        return NO_KNOWN_GPU
    if there.unusable:
        return f"no new GPU pods: {there.unusable}"
    if not request.selects(there):
        missing = missing_labels(there, request)
        return f"not labelled {missing}" if missing else there.why_no_limits
    gpus = len(ledger.entries(node))
    # A summary leaves out what is kept, for whomever: only who has something kept for it looks at the GPUs themselves.
    count = len(able_entries(ledger, request, node, pod)) if ledger.kept_for(pod) else able(ledger.rooms[node], request)
    if count >= request.gpus:
        best = _most_together(able_entries(ledger, request, node, pod))
        return f"room on {count} of {gpus} GPUs, on {best} in one NVLink island"
    return f"room on {count} of {gpus} GPUs"


def _refusal(
    node: NodeName, entries: Sequence[GpuEntry], able: Sequence[GpuEntry], request: Request, pod: HolderId
) -> Refusal:
    details = tuple(f"{entry.gpu} {_obstacle(entry, request, pod) or 'would do'}" for entry in entries)
    if len(able) >= request.gpus:
        best = _most_together(able)
        return Refusal(
            f"{node} has {len(able)} GPUs that would do, but at most {best} of them in one NVLink island;"
            f" {request.gpus} in one island are asked",
            details,
        )
    if not entries:
        return Refusal(f"{node} has no GPU")
    if len(entries) < request.gpus:
        return Refusal(f"{node} has {len(entries)} GPU{'s' * (len(entries) > 1)} in all; {request} asked", details)
    if len(entries) == 1:
        return Refusal(details[0])
    found = f"only {len(able)} of" if able else "none of"
    # A GPU that is not in use is more than a matter of waiting: somebody has to know why.
    unusable = next((f"; {entry.gpu.unusable}" for entry in entries if entry.gpu.unusable), "")
    return Refusal(f"{node} has no room for {request}: {found} its {len(entries)} GPUs would do{unusable}", details)


def _why_not_selected(node: Node, request: Request) -> str:
    if missing := missing_labels(node, request):
        return f"does not have the label{'s' * (missing.count(',') > 0)} {missing}"
    return f"takes no parts of GPUs, because it cannot limit their memory: {node.why_no_limits}"


def missing_labels(node: Node, request: Request) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(request.node_labels - node.labels.items()))


def _most_together(able: Sequence[GpuEntry]) -> int:
    return max(len(found) if island else 1 for island, found in by_island(able).items())


def _obstacle(entry: GpuEntry, request: Request, pod: HolderId) -> str:
    """What keeps the pod from having this GPU, in words; empty if nothing does."""
    gpu, topology, need = entry.gpu, request.topology, request.amount.on(entry.gpu.memory)
    if gpu.unusable:
        return f"is not in use: {gpu.unusable}"
    if entry.kept_for is not None and entry.kept_for.uid != pod:
        return f"is kept for {entry.kept_for}"
    if (gpu.slice is not None or request.slices) and not request.allows_slice(gpu.slice):
        if gpu.slice is not None and request.is_limited:
            return "is a MIG slice, in which nothing limits memory, and the pod was admitted with a limit"
        return f"is {_kind(gpu)}, {request} asked"
    if request.model and gpu.model != request.model:
        return f"is a {gpu.model or 'GPU of unknown model'}, {request.model} asked"
    if not request.selector.allows_model(gpu.model):
        wanted = request.selector.without_uuids()
        return f"is a {gpu.model or 'GPU of unknown model'}, a GPU{wanted} asked"
    if not request.selector.allows_uuid(gpu):
        return _why_not_this_uuid(gpu, request.selector)
    if topology.mode is TopologyMode.REQUIRED and gpu.bandwidth_gbps < topology.min_bandwidth_gbps:
        return f"has links of {gpu.bandwidth_gbps} GB/s, {topology.min_bandwidth_gbps} GB/s asked"
    if need > gpu.memory and gpu.memory == UNKNOWN_MEMORY:
        return f"has an unknown amount of memory, {need:,} MiB asked: its node does not report it; {LACKS_FIELDS}"
    if need > gpu.memory:
        return f"has {total_of(gpu.memory):,} MiB in all, {need:,} MiB asked"
    if entry.free < 0:
        more = f"has {gpu.memory:,} MiB for pods, and {_held_by(entry)} hold {-entry.free:,} MiB more"
        return f"{more}: they keep it, and it takes no new pods until they end"
    if entry.free < need:
        return f"has {max(entry.free, 0):,} MiB free, {need:,} MiB asked; held by {_held_by(entry)}"
    return ""


def why_not_on(ledger: Ledger, gpu: Gpu, request: Request, pod: HolderId = NO_POD) -> Refusal | None:
    """Why this one GPU, which somebody else has chosen, cannot be had; None if it can."""
    there, entry = ledger.node(gpu.node), ledger.entry(gpu.uuid)
    if there is None or entry is None:
        return Refusal(f"{gpu} is none that Carrel knows of")
    if there.unusable:
        return Refusal(f"{gpu.node} takes no new GPU pods: {there.unusable}")
    obstacle = _obstacle(entry, request, pod)
    return Refusal(f"{entry.gpu} {obstacle}") if obstacle else None


def _kind(gpu: Gpu) -> str:
    if gpu.slice is None:
        return "not divided into MIG slices"
    return f"a MIG slice {gpu.slice.profile}" + (", advertised as a GPU there" if gpu.slice.is_gpu else "")


def _why_not_this_uuid(gpu: Gpu, selector: GpuSelector) -> str:
    if selector.only and gpu.uuid not in selector.only:
        return "is none of the GPUs that its booking covers"
    if gpu.uuid in selector.not_on:
        return "is partly used by another booking, which has the rest as well"
    if gpu.possible_uuids == {gpu.uuid}:
        return f"is {gpu.uuid}, which the pod does not allow"
    return "may turn out to be a GPU that the pod does not allow: the kubelet chooses GPUs on this node"


def _held_by(entry: GpuEntry, shown: int = 3) -> str:
    holders = sorted(str(share.holder) for share in entry.shares.values())
    return ", ".join(holders[:shown]) + (f" and {len(holders) - shown} more" if len(holders) > shown else "")
