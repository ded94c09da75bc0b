"""PURE. What must always hold between Leases, pods, GpuNodeStatus objects and bookings, counted again from them alone.

It shares no count with the ledger or with `ledger.coverage`: a mistake there must not hide itself. What is found is a
defect of Carrel, or the work of somebody who changed its objects by hand. The controller counts it every minute
(`carrel_invariant_violations`), and `carrel doctor` shows it.

Some states break a rule for a moment: a pod is gone, and its share is still on the Lease until its node confirms the
end. Such a finding counts only if it lasts longer than `TOLERATED` says.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from carrel.cluster.pod_progress import FINISHED, holder_of, is_ending
from carrel.cluster.record.silent_agents import why_silent
from carrel.dialects import gpu_lease, gpuclaim, visible_devices
from carrel.dialects.booking_objects import BookingObject, read_entitlement
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.gpuclaim_objects import GpuNodeStatus
from carrel.ids import NO_GPU, BookingId, GpuUuid, HolderId, NodeName
from carrel.kubernetes.objects.kinds import Lease, NodeObject, Pod
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import Gpu, Node, named, total_of
from carrel.ledger.shares import Share
from carrel.parsing import Malformed


class Invariant(Enum):
    """A rule, by the name of what breaks it: the label of the metric."""

    MEMORY_EXCEEDED = "memory_exceeded"
    """The shares of a GPU are never more than its memory."""
    WHOLE_GPU_SHARED = "whole_gpu_shared"
    """Who holds a whole GPU holds it alone."""
    GPU_ON_TWO_LEASES = "gpu_on_two_leases"
    """One Lease records who holds a GPU."""
    LEASE_UNREADABLE = "lease_unreadable"
    """Every Lease of a GPU can be read."""
    HOLDER_GONE = "holder_gone"
    """Who holds a GPU is a pod that exists and has not finished, on the GPU's node; or a ResourceClaim that exists."""
    POD_WITHOUT_LEASE = "pod_without_lease"
    """The GPUs that a pod was bound with are on Leases that name it."""
    GPU_USED_WITHOUT_SHARE = "gpu_used_without_share"
    """A pod that Carrel placed, or a ResourceClaim, uses only GPUs whose Leases name it."""
    BOOKING_OVERUSED = "booking_overused"
    """The GPUs that are recorded as covered by a booking are never more than were booked."""
    COVERED_WITHOUT_BOOKING = "covered_without_booking"
    """A share is recorded as covered only while that booking runs."""


TOLERATED = {
    Invariant.MEMORY_EXCEEDED: timedelta(),
    Invariant.WHOLE_GPU_SHARED: timedelta(),
    Invariant.GPU_ON_TWO_LEASES: timedelta(minutes=1),
    Invariant.LEASE_UNREADABLE: timedelta(minutes=1),
    Invariant.HOLDER_GONE: timedelta(minutes=3),  # two reports of the agent, then the collection
    Invariant.POD_WITHOUT_LEASE: timedelta(minutes=2),  # caches of two kinds, and the adoption of such pods
    Invariant.GPU_USED_WITHOUT_SHARE: timedelta(minutes=2),
    Invariant.BOOKING_OVERUSED: timedelta(minutes=1),  # corrected within 10 s
    Invariant.COVERED_WITHOUT_BOOKING: timedelta(minutes=5),  # the pod is being ended, or told that it is not covered
}
"""How long each may last before it counts."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One finding."""

    invariant: Invariant
    where: str
    """The GPU, pod, Lease or booking: with the invariant it identifies the finding."""
    words: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What the cluster says at one moment."""

    nodes: Collection[Node]
    """With their real GPUs, as they report them; a node whose report cannot be read is left out."""
    statuses: Mapping[NodeName, GpuNodeStatus]
    leases: Collection[LeaseRecord]
    unreadable: Mapping[str, str]
    """Lease → why it cannot be read."""
    pods: Mapping[HolderId, Pod]
    """By uid."""
    bookings: Mapping[BookingId, Entitlement]
    """By id."""
    now: datetime
    resource_claims: Collection[str] | None = None
    """The uids of the ResourceClaims; None: nobody reads them."""


def observe(
    statuses: Iterable[GpuNodeStatus],
    nodes: Iterable[NodeObject],
    leases: Iterable[Lease],
    pods: Iterable[Pod],
    bookings: Iterable[BookingObject],
    now: datetime,
) -> Observed:
    """From objects as the API server lists them."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    by_name = {status.metadata.name: status for status in statuses}
    records, unreadable = [], {}
    for lease in leases:
        try:
            record = gpu_lease.read_lease(lease)
        except Malformed as malformed:
            unreadable[lease.metadata.name] = str(malformed)
        else:
            records += [record] if record is not None else []
    return Observed(
        nodes=[node for status in by_name.values() if (node := _node_of(status, labels)) is not None],
        statuses=by_name,
        leases=records,
        unreadable=unreadable,
        pods={pod.metadata.uid: pod for pod in pods},
        bookings={each.booking: each for each in filter(None, map(_entitlement_of, bookings))},
        now=now,
    )


def violations(observed: Observed) -> list[Violation]:
    """All findings, also those that may be over in a moment."""
    return [
        *_of_gpus(observed),
        *_of_leases(observed),
        *_of_holders(observed),
        *_of_pods(observed),
        *_of_users(observed),
        *_of_bookings(observed),
    ]


class LastingViolations:
    """Remembers since when something was found, so that what is over in a moment does not count."""

    def __init__(self) -> None:
        self._since: dict[tuple[Invariant, str], datetime] = {}

    def add(self, found: Iterable[Violation], now: datetime) -> list[Violation]:
        """The findings that have lasted too long. `found` are all of this moment."""
        seen = {(each.invariant, each.where): each for each in found}
        self._since = {key: self._since.get(key, now) for key in seen}
        return [each for key, each in seen.items() if now - self._since[key] >= TOLERATED[each.invariant]]


# --- GPUs ------------------------------------------------------------------------------------------------------------


def _of_gpus(observed: Observed) -> Iterator[Violation]:
    """Shares are added up over all Leases that record the same GPU."""
    reported = {gpu.uuid: gpu for node in observed.nodes for gpu in node.gpus}
    slots = {
        node.name: min(node.gpus, key=lambda gpu: gpu.memory)
        for node in observed.nodes
        if node.kubelet_chooses and node.gpus
    }
    on_leases: dict[GpuUuid, list[LeaseRecord]] = {}
    for lease in observed.leases:
        if lease.shares:
            on_leases.setdefault(_gpu_of(lease), []).append(lease)
    for uuid, leases in on_leases.items():
        if len(leases) > 1:
            names = ", ".join(sorted(_name_of(lease) for lease in leases))
            yield Violation(Invariant.GPU_ON_TWO_LEASES, uuid, f"GPU {uuid} is recorded on the Leases {names}")
        first = leases[0]
        gpu = reported.get(uuid) or slots.get(first.node)
        yield from _of_shares(first, {share.holder.uid: share for lease in leases for share in lease.shares}, gpu)


def _of_shares(lease: LeaseRecord, shares: Mapping[HolderId, Share], gpu: Gpu | None) -> Iterator[Violation]:
    """`gpu`: None if no node reports it now; then nobody knows its memory."""
    where = f"{named(lease.index)} of {lease.node}"
    whole = [share for share in shares.values() if share.memory is None]
    if whole and len(shares) > 1:
        others = ", ".join(sorted(str(share.holder) for share in shares.values() if share is not whole[0]))
        words = f"{where} is held whole by {whole[0].holder}, and also by {others}"
        yield Violation(Invariant.WHOLE_GPU_SHARED, _name_of(lease), words)
        return
    held = sum(share.memory or 0 for share in shares.values())
    # With what its driver keeps: pods that had shared that too stay when memory.capacity is changed.
    if gpu is not None and not whole and held > total_of(gpu.memory):
        words = f"{where} has {total_of(gpu.memory)} MiB, and {held} MiB are promised"
        yield Violation(Invariant.MEMORY_EXCEEDED, _name_of(lease), words)


def _of_leases(observed: Observed) -> Iterator[Violation]:
    for name, why in observed.unreadable.items():
        yield Violation(Invariant.LEASE_UNREADABLE, name, f"Lease {name} cannot be read: {why}")


# --- pods ------------------------------------------------------------------------------------------------------------


def _of_holders(observed: Observed) -> Iterator[Violation]:
    for lease in observed.leases:
        for share in lease.shares:
            why = _why_not_there(observed, share, lease.node)
            if why and not _may_still_run(observed, share, lease.node):
                name = _name_of(lease)
                words = f"Lease {name} gives a GPU to {share.holder}, {why}"
                yield Violation(Invariant.HOLDER_GONE, f"{name} {share.holder.uid}", words)


def _why_not_there(observed: Observed, share: Share, node: NodeName) -> str:
    """Empty if the holder may have the GPU. A pod that is not bound yet may: the Lease is written first."""
    uid, pod = share.holder.uid, observed.pods.get(share.holder.uid)
    if share.holder.is_claim:
        known = observed.resource_claims
        return "" if known is None or uid in known else "which does not exist"
    if pod is None:
        return "which does not exist"
    if pod.status.phase in FINISHED:
        return "which has finished"
    return f"which runs on {pod.spec.node_name}" if pod.spec.node_name not in ("", node) else ""


def _may_still_run(observed: Observed, share: Share, node: NodeName) -> bool:
    """Its node has to confirm the end of a pod that is gone: it is silent, or says that containers still run."""
    status = observed.statuses.get(node)
    if share.holder.is_claim and status is not None:
        return any(share.holder.uid in device.in_use_by for device in status.status.devices)
    if share.holder.uid in observed.pods or status is None or status.status.orphans is None:
        return False
    if share.holder.uid in status.status.orphans:
        return True
    return bool(why_silent(status, observed.now, UTC))


def _of_pods(observed: Observed) -> Iterator[Violation]:
    recorded = _recorded(observed)
    for uid, pod in observed.pods.items():
        if not pod.spec.node_name or not pod.metadata.annotations or pod.status.phase in FINISHED:
            continue
        missing = visible_devices.bound_gpus(pod.metadata.annotations) - recorded.get(uid, set())
        if missing:
            words = f"pod {holder_of(pod)} runs with {', '.join(sorted(missing))}, and no Lease says so"
            yield Violation(Invariant.POD_WITHOUT_LEASE, uid, words)


def _of_users(observed: Observed) -> Iterator[Violation]:
    """Where the kubelet chooses the GPU, a Lease names a slot; there the agent compares them itself."""
    recorded = _recorded(observed)
    uuids = {
        (gpu.node, gpu.index): gpu.uuid for node in observed.nodes if not node.kubelet_chooses for gpu in node.gpus
    }
    for name, status in observed.statuses.items():
        for device in status.status.devices:
            for uid in device.in_use_by:
                pod, uuid = observed.pods.get(uid), uuids.get((name, device.id))
                if uuid is not None and uid in status.status.prepared_claims and uuid not in recorded.get(uid, ()):
                    words = f"ResourceClaim {uid} uses GPU {device.id} of {name}, and no Lease gives it to this claim"
                    yield Violation(Invariant.GPU_USED_WITHOUT_SHARE, f"{name}/{device.id} {uid}", words)
                if pod is None or uuid is None or is_ending(pod) or uuid in recorded.get(uid, ()):
                    continue
                if visible_devices.bound_gpus(pod.metadata.annotations):
                    words = f"pod {holder_of(pod)} uses GPU {device.id} of {name}, and no Lease gives it to this pod"
                    yield Violation(Invariant.GPU_USED_WITHOUT_SHARE, f"{name}/{device.id} {uid}", words)


def _recorded(observed: Observed) -> dict[HolderId, set[GpuUuid]]:
    """uid → the GPUs, or slots, whose Leases name the pod."""
    found: dict[HolderId, set[GpuUuid]] = {}
    for lease in observed.leases:
        for share in lease.shares:
            found.setdefault(share.holder.uid, set()).add(lease.gpu)
    return found


# --- bookings --------------------------------------------------------------------------------------------------------


def _of_bookings(observed: Observed) -> Iterator[Violation]:
    covered: dict[BookingId, set[GpuUuid]] = {}
    for lease in observed.leases:
        for share in lease.shares:
            if share.coverage is None:
                continue
            booking, pod = share.coverage.booking, observed.pods.get(share.holder.uid)
            entitlement = observed.bookings.get(booking)
            if entitlement is not None and entitlement.runs_at(observed.now):
                covered.setdefault(booking, set()).add(_gpu_of(lease))
            elif pod is not None and not is_ending(pod):
                words = f"{share.holder} is recorded as covered by booking {booking}, which does not run"
                yield Violation(Invariant.COVERED_WITHOUT_BOOKING, f"{_name_of(lease)} {share.holder.uid}", words)
    for booking, gpus in covered.items():
        if len(gpus) > (most := observed.bookings[booking].gpus):
            words = f"booking {booking} is for {most} GPUs, and {len(gpus)} are recorded as covered by it"
            yield Violation(Invariant.BOOKING_OVERUSED, booking, words)


# --- reading ---------------------------------------------------------------------------------------------------------


def _gpu_of(lease: LeaseRecord) -> GpuUuid:
    """The GPU; or the slot, as long as nobody knows which GPU is behind it."""
    return (lease.reservation.gpu if lease.reservation else NO_GPU) or lease.gpu or GpuUuid(_name_of(lease))


def _name_of(lease: LeaseRecord) -> str:
    return gpu_lease.lease_name(lease.node, lease.index)


def _node_of(status: GpuNodeStatus, labels: Mapping[NodeName, Mapping[str, str]]) -> Node | None:
    try:
        return gpuclaim.node_of(status, labels.get(status.metadata.name, {}))
    except Malformed:
        return None


def _entitlement_of(booking: BookingObject) -> Entitlement | None:
    try:
        return read_entitlement(booking)
    except Malformed:
        return None
