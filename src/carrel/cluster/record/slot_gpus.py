"""Which GPU is behind a slot, on nodes where the kubelet chooses; and how a bind waits until each slot has its GPU.

Where the kubelet chooses the GPUs, a bind writes on the slot's Lease that a reservation is wanted. The controller
creates the reservation pod, and records on the Lease which GPU it got. A bind that waits too long gives back what it
took; the reservation stays for a while, so that the next try finds it ready.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from carrel.cluster.record.cluster_ledger import ClusterLedger
from carrel.cluster.record.known_lease import KnownLease
from carrel.dialects import gpu_lease
from carrel.dialects.gpu_lease import read_lease_name
from carrel.ids import NO_GPU, GpuUuid, HolderId, NodeName
from carrel.kubernetes.objects.kinds import Lease
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal
from carrel.ledger.slots import Reservation, ReservationState


def gpu_used_by(cluster_ledger: ClusterLedger, node: NodeName, uid: HolderId) -> GpuUuid:
    """UUID of the one GPU that the kubelet gave to a pod, as the agent says; empty if it does not, or if its report
    has lost the UUIDs: a place in their stead would match no GPU when they are back."""
    reported = cluster_ledger.reported(node)
    gpus = [gpu for gpu in reported.gpus if uid in cluster_ledger.users_of(gpu)] if reported else []
    return gpus[0].uuid if len(gpus) == 1 and gpus[0].has_uuid else NO_GPU


def why_refused(cluster_ledger: ClusterLedger, placement: Placement) -> str:
    """Why the kubelet gives no GPU for one of these slots; empty if it may."""
    return next((each.refused for each in _reservations(cluster_ledger, placement) if each.refused), "")


def gpus_of_slots(cluster_ledger: ClusterLedger, placement: Placement) -> Placement | None:
    """The placement of slots with the GPUs behind them; None while one of them is not known."""
    reported = cluster_ledger.reported(placement.node)
    by_uuid = {gpu.uuid: gpu for gpu in reported.gpus} if reported else {}
    known = _reservations(cluster_ledger, placement)
    gpus = [by_uuid[each.gpu] for each in known if each.state is ReservationState.HELD and each.gpu in by_uuid]
    return replace(placement, gpus=tuple(gpus)) if len(gpus) == len(placement.gpus) else None


def indices_of(cluster_ledger: ClusterLedger, leases: Iterable[KnownLease], uid: HolderId) -> tuple[int, ...]:
    """The indices of the pod's GPUs on these Leases, as far as they are known: which one is behind a slot, its
    reservation pod says or, of a pod that asked the kubelet itself, the agent."""
    indices: set[int] = set()
    for record in (lease.record for lease in leases):
        reported = cluster_ledger.reported(record.node)
        if reported is None or not reported.kubelet_chooses:
            indices.add(record.index)
            continue
        uuid = record.reservation.gpu if record.reservation else ""
        for gpu in reported.gpus:
            if gpu.uuid == uuid if uuid else uid in cluster_ledger.users_of(gpu):
                indices.add(gpu.index)
    return tuple(sorted(indices))


def _reservations(cluster_ledger: ClusterLedger, placement: Placement) -> list[Reservation]:
    leases = [cluster_ledger.lease(gpu_lease.lease_name(slot.node, slot.index)) for slot in placement.gpus]
    return [lease.record.reservation for lease in leases if lease and lease.record.reservation]


class ReservationWaiter:
    def __init__(self, cluster_ledger: ClusterLedger, timeout_s: float) -> None:
        self._cluster_ledger = cluster_ledger
        self._timeout_s = timeout_s
        self._waiting: dict[str, set[asyncio.Event]] = {}  # node → the binds that wait there

    async def wait_reserved(self, placement: Placement) -> Refusal | None:
        changed = asyncio.Event()
        self._waiting.setdefault(placement.node, set()).add(changed)
        try:
            async with asyncio.timeout(self._timeout_s):
                while (found := gpus_of_slots(self._cluster_ledger, placement)) is None:
                    if refused := why_refused(self._cluster_ledger, placement):
                        return Refusal(refused)
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            asked = "a GPU" if len(placement.gpus) == 1 else f"{len(placement.gpus)} GPUs"
            return Refusal(f"the kubelet of {placement.node} has not handed over {asked} for a reservation pod yet")
        finally:
            self._waiting[placement.node].discard(changed)
            if not self._waiting[placement.node]:
                del self._waiting[placement.node]
        broken = next((gpu for gpu in found.gpus if gpu.unusable), None)
        if broken is not None:
            return Refusal(f"the kubelet gave {broken}, which is not in use: {broken.unusable}; another one is tried")
        return None

    def on_lease(self, old: Lease | None, new: Lease | None) -> None:
        """To be called after the ledger is updated."""
        lease = (new or old) if self._waiting else None
        place = read_lease_name(lease.metadata.name) if lease else None
        for changed in self._waiting.get(place[0], ()) if place else ():
            changed.set()
