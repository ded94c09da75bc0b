"""The binder's side of reservations: it waits until each slot that was taken has its card.

Where the kubelet chooses the cards, a bind writes on the slot's Lease that a reservation is wanted; the controller
makes the reservation pod, and records on the Lease which card that was given (`reservations`). A bind that waits in
vain gives back what it took; the reservation stays for a while, so that the next try finds it ready.
"""

import asyncio

from carrel.dialects.gpuclaim import read_lease_name
from carrel.kubernetes.objects.kinds import Lease
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal

RESERVE_S = 15.0
"""How long a bind waits. Together with the Binding well below the collector's patience."""


class ReservationWaiter:
    def __init__(self, cluster_ledger: ClusterLedger, patience_s: float = RESERVE_S) -> None:
        self._cluster_ledger = cluster_ledger
        self._patience_s = patience_s
        self._waiting: dict[str, set[asyncio.Event]] = {}  # node → who waits there

    def needs_reservation(self, placement: Placement) -> bool:
        return self._cluster_ledger.kubelet_chooses(placement.node) and not placement.request.by_kubelet

    async def wait_reserved(self, placement: Placement) -> Refusal | None:
        heard = asyncio.Event()
        self._waiting.setdefault(placement.node, set()).add(heard)
        try:
            async with asyncio.timeout(self._patience_s):
                while self._cluster_ledger.cards_behind(placement) is None:
                    heard.clear()
                    await heard.wait()
        except TimeoutError:
            slots = ", ".join(str(slot) for slot in placement.gpus)
            return Refusal(f"the kubelet of {placement.node} has not handed over a card for {slots} yet")
        finally:
            self._waiting[placement.node].discard(heard)
            if not self._waiting[placement.node]:
                del self._waiting[placement.node]
        return None

    def see_lease(self, old: Lease | None, new: Lease | None) -> None:
        """To be told after the books."""
        lease = new or old
        place = read_lease_name(lease.metadata.name) if lease else None
        for heard in self._waiting.get(place[0], ()) if place else ():
            heard.set()
