"""Where a request goes: on which GPUs of a node, or why on none.

Order of choice, the same for every dialect; ties go to the lowest index:
1. GPUs that may be given at all: usable, not kept for another, of the model, with enough free memory and bandwidth;
2. for several GPUs: one NVLink island, if it is required or preferred; of these the smallest that has room,
   so that large islands stay whole;
3. the policy: the fullest GPU that fits (pack), the emptiest (spread), neighbours (contiguous), named ids (preferIds).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.ledger.gpu_choice import by_island, choose
from carrel.ledger.gpus import UNKNOWN_MEMORY, Gpu, MiB, Node
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.ledger.node_room import able, fit_test
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ANY_GPU, WHOLE, GpuSelector, Request, TopologyMode, are_dealt_out
from carrel.ledger.shares import Coverage, Holder, Share

NO_KNOWN_GPU = "no GPU that Carrel knows of"
LACKS_FIELDS = "if Carrel's agent runs there, the cluster has another product's definition of GpuNodeStatus"


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits for GPUs, and the nodes where it may run by everything that is not about GPUs, best first."""

    holder: Holder
    request: Request
    nodes: tuple[str, ...]
    booking: str = ""
    """The booking that covers it; empty: none."""
    settled: datetime | None = None
    """From when others may lose GPUs to it. None: always."""

    def keeper(self, ledger: Ledger) -> str:
        """In whose name it gets what is kept for it."""
        return keeper_of(ledger, self.holder.uid, self.booking)


def keeper_of(ledger: Ledger, uid: str, booking: str) -> str:
    """In whose name a pod gets what is kept for it: its own, or its booking's if a GPU is kept for that."""
    return booking if booking and ledger.kept_for(booking) and not ledger.kept_for(uid) else uid


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs of one node that serve a request, in the order in which the pod's containers get them."""

    node: str
    gpus: tuple[Gpu, ...]
    request: Request
    coverage: Coverage | None = None
    """To be recorded with the shares."""
    memory: tuple[MiB | None, ...] = ()
    """Of each of the GPUs, where the request does not say it for all of them: what somebody else has decided."""
    for_pod: str = ""
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

    fitting: list[str]
    refused: list[str]


def candidates(ledger: Ledger, request: Request, nodes: Sequence[str], pod: str = "") -> Candidates:
    """Which of the nodes have room for the request. `pod` is the uid of who asks: GPUs may be kept for it."""
    fits = fit_test(request)
    rooms = map(ledger.rooms.get, nodes)
    fitting = [name for name, room in zip(nodes, rooms, strict=True) if room is not None and fits(room)]
    if request.node_labels:
        fitting = [name for name in fitting if selected(ledger.node(name), request)]
    kept = {entry.gpu.node for entry in map(ledger.entry, ledger.kept_for(pod)) if entry is not None}
    if kept:  # summaries leave kept GPUs out: on these few nodes, look at the GPUs themselves
        found = set(fitting).union(name for name in kept if isinstance(place(ledger, request, name, pod), Placement))
        fitting = [name for name in nodes if name in found]
    if len(fitting) == len(nodes):
        return Candidates(fitting, [])
    found = set(fitting)
    return Candidates(fitting, [name for name in nodes if name not in found])


def place(ledger: Ledger, request: Request, node: str, pod: str = "") -> Placement | Refusal:
    """The GPUs of the node that the request gets, or why it gets none there."""
    there = ledger.node(node)
    if there is None:
        return Refusal(f"{node} has {NO_KNOWN_GPU}")
    if there.unusable:
        return Refusal(f"{node} takes no new GPU pods: {there.unusable}")
    if not selected(there, request):
        missing = _missing_labels(there, request)
        return Refusal(f"{node} does not have the label{'s' * (missing.count(',') > 0)} {missing}")
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


def selected(node: Node | None, request: Request) -> bool:
    return node is not None and request.node_labels <= node.labels.items()


def able_entries(ledger: Ledger, request: Request, node: str, pod: str) -> list[GpuEntry]:
    """The GPUs of the node that would do, each by itself."""
    need = request.amount.on
    return [
        entry for entry in ledger.entries(node) if entry.free >= need(entry.gpu.memory) and suits(entry, request, pod)
    ]


def suits(entry: GpuEntry, request: Request, pod: str) -> bool:
    """Whether the pod might have the GPU if nobody held a part of it."""
    return (entry.kept_for is None or entry.kept_for.uid == pod) and suits_by_nature(entry.gpu, request)


def suits_by_nature(gpu: Gpu, request: Request) -> bool:
    """Whether the request may have the GPU, whoever holds it and whomever it is kept for."""
    return not gpu.unusable and allows(gpu, request)


def allows(gpu: Gpu, request: Request) -> bool:
    """The same, as if the GPU were in order."""
    topology = request.topology
    return (
        (not request.model or gpu.model == request.model)
        and (request.selector is ANY_GPU or request.selector.allows(gpu))
        and (topology.mode is not TopologyMode.REQUIRED or gpu.bandwidth_gbps >= topology.min_bandwidth_gbps)
    )


# --- why not ---------------------------------------------------------------------------------------------------------


def why_not(ledger: Ledger, request: Request, node: str, pod: str = "") -> str:
    """Why a node that was found to have no room has none, briefly and without its name.

    kube-scheduler counts nodes that are refused in the same words: "0/50 nodes are available: 48 room on 0 of 8 GPUs".
    What was asked for is not repeated: there may be thousands of nodes.
    """
    there = ledger.node(node)
    if there is None:
        return NO_KNOWN_GPU
    if there.unusable:
        return f"no new GPU pods: {there.unusable}"
    if not selected(there, request):
        return f"not labelled {_missing_labels(there, request)}"
    gpus = len(ledger.entries(node))
    # A summary leaves out what is kept, for whomever: only who has something kept for it looks at the GPUs themselves.
    count = len(able_entries(ledger, request, node, pod)) if ledger.kept_for(pod) else able(ledger.rooms[node], request)
    if count >= request.gpus:
        best = _most_together(able_entries(ledger, request, node, pod))
        return f"room on {count} of {gpus} GPUs, on {best} in one NVLink island"
    return f"room on {count} of {gpus} GPUs"


def _refusal(node: str, entries: Sequence[GpuEntry], able: Sequence[GpuEntry], request: Request, pod: str) -> Refusal:
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


def _missing_labels(node: Node, request: Request) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(request.node_labels - node.labels.items()))


def _most_together(able: Sequence[GpuEntry]) -> int:
    return max(len(found) if island else 1 for island, found in by_island(able).items())


def _obstacle(entry: GpuEntry, request: Request, pod: str) -> str:
    """What keeps the pod from having this GPU, in words; empty if nothing does."""
    gpu, topology, need = entry.gpu, request.topology, request.amount.on(entry.gpu.memory)
    if gpu.unusable:
        return f"is not in use: {gpu.unusable}"
    if entry.kept_for is not None and entry.kept_for.uid != pod:
        return f"is kept for {entry.kept_for}"
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
        return f"has {gpu.memory:,} MiB in all, {need:,} MiB asked"
    if entry.free < need:
        return f"has {max(entry.free, 0):,} MiB free, {need:,} MiB asked; held by {_held_by(entry)}"
    return ""


def why_not_on(ledger: Ledger, gpu: Gpu, request: Request, pod: str = "") -> Refusal | None:
    """Why this one GPU, which somebody else has chosen, cannot be had; None if it can."""
    there, entry = ledger.node(gpu.node), ledger.entry(gpu.uuid)
    if there is None or entry is None:
        return Refusal(f"{gpu} is none that Carrel knows of")
    if there.unusable:
        return Refusal(f"{gpu.node} takes no new GPU pods: {there.unusable}")
    obstacle = _obstacle(entry, request, pod)
    return Refusal(f"{entry.gpu} {obstacle}") if obstacle else None


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
