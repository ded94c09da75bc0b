"""What a bind does about reservations: it waits until each slot that it took has its GPU.

Where the kubelet chooses the GPUs, a bind writes on the slot's Lease that a reservation is wanted. The controller
creates the reservation pod, and records on the Lease which GPU it got. A bind that waits too long gives back what it
took; the reservation stays for a while, so that the next try finds it ready.
"""

import asyncio

from carrel.dialects.gpuclaim import read_lease_name
from carrel.kubernetes.objects.kinds import Lease
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.slot_gpus import gpus_of_slots, why_refused
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal

RESERVE_S = 15.0
"""How long a bind waits. Together with the Binding well below the collector's `TIME_TO_BIND_S`."""


class ReservationWaiter:
    def __init__(self, cluster_ledger: ClusterLedger, timeout_s: float = RESERVE_S) -> None:
        self._cluster_ledger = cluster_ledger
        self._timeout_s = timeout_s
        self._waiting: dict[str, set[asyncio.Event]] = {}  # node → the binds that wait there

    def needs_reservation(self, placement: Placement) -> bool:
        return self._cluster_ledger.kubelet_chooses(placement.node) and not placement.request.by_kubelet

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
