"""Which GPU is behind a slot, on nodes where the kubelet chooses."""

from collections.abc import Iterable
from dataclasses import replace

from carrel.dialects import gpuclaim
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.known_lease import KnownLease
from carrel.ledger.placement import Placement
from carrel.ledger.slots import Reservation, ReservationState


def card_used_by(cluster_ledger: ClusterLedger, node: str, uid: str) -> str:
    """UUID of the one GPU that the kubelet gave to a pod, as the agent says; empty if it does not, or if its report
    has lost the UUIDs: a place in their stead would match no GPU when they are back."""
    reported = cluster_ledger.reported(node)
    gpus = [gpu for gpu in reported.gpus if uid in cluster_ledger.users_of(gpu)] if reported else []
    return gpus[0].uuid if len(gpus) == 1 and gpus[0].has_uuid else ""


def why_refused(cluster_ledger: ClusterLedger, placement: Placement) -> str:
    """Why the kubelet gives no GPU for one of these slots; empty if it may."""
    return next((each.refused for each in _reservations(cluster_ledger, placement) if each.refused), "")


def gpus_of_slots(cluster_ledger: ClusterLedger, placement: Placement) -> Placement | None:
    """The placement with the GPUs behind its slots; None while one of them is not known."""
    reported = cluster_ledger.reported(placement.node)
    if reported is None or not reported.kubelet_chooses:
        return placement
    cards = {gpu.uuid: gpu for gpu in reported.gpus}
    known = _reservations(cluster_ledger, placement)
    gpus = [cards[each.card] for each in known if each.state is ReservationState.HELD and each.card in cards]
    return replace(placement, gpus=tuple(gpus)) if len(gpus) == len(placement.gpus) else None


def indices_of(cluster_ledger: ClusterLedger, leases: Iterable[KnownLease], uid: str) -> tuple[int, ...]:
    """The indices of the pod's GPUs on these Leases, as far as they are known: which one is behind a slot, its
    reservation pod says or, of a pod that asked the kubelet itself, the agent."""
    indices: set[int] = set()
    for record in (lease.record for lease in leases):
        reported = cluster_ledger.reported(record.node)
        if reported is None or not reported.kubelet_chooses:
            indices.add(record.index)
            continue
        card = record.reservation.card if record.reservation else ""
        for gpu in reported.gpus:
            if gpu.uuid == card if card else uid in cluster_ledger.users_of(gpu):
                indices.add(gpu.index)
    return tuple(sorted(indices))


def _reservations(cluster_ledger: ClusterLedger, placement: Placement) -> list[Reservation]:
    leases = [cluster_ledger.lease(gpuclaim.lease_name(slot.node, slot.index)) for slot in placement.gpus]
    return [lease.record.reservation for lease in leases if lease and lease.record.reservation]
