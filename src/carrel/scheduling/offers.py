"""The nodes that `filter` has named to pods which are not bound yet.

kube-scheduler binds a pod while it asks about the next ones. So what a pod was offered counts as taken at once: its
GPUs are promised to it in the ledger of this process. Its bind takes their Leases; another replica, which does not know
of the promise, may be faster, and then the pod is placed anew.

An offer ends with the bind, with the pod, or after a while. A pod that asks again was not bound: something else than
GPUs failed on that node, and for a while it is offered others, as long as there are any. This is so for the members of
gangs too (`gangs`).
"""

from collections.abc import Collection
from dataclasses import dataclass

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.placement import Placement
from carrel.ledger.shares import Holder

OFFERED_S = 30.0
"""From filter to bind kube-scheduler takes milliseconds, unless the pod waits for its volumes. A bind without an offer
looks for GPUs again."""
GONE_S = 60.0
"""How long a pod that is gone is remembered: kube-scheduler may ask about it, because it learns of it later."""
AVOIDED_S = 30.0
"""How long a node is not offered again to a pod whose attempt failed there."""


@dataclass(frozen=True, slots=True)
class Offer:
    placement: Placement
    owner: str
    """Of the promise in the ledger."""
    until: float


class Offers:
    def __init__(self, state: ClusterState) -> None:
        self._cluster_ledger = state.cluster_ledger
        self._clock = state.options.clock
        self._pods = state.pods.store
        self._gone: dict[str, float] = {}  # uid → until when it is remembered
        self._offers: dict[str, Offer] = {}  # by the pod's uid
        self._avoided: dict[str, dict[str, float]] = {}  # uid → node → until when
        self._made = 0

    def make(self, placement: Placement, holder: Holder) -> None:
        """The ledger must have room. Nothing is offered to a pod that needs no offer any more: what would end it has
        happened already."""
        if self._is_over(holder.uid):
            return
        self._made += 1
        owner = f"offer #{self._made}"
        self._cluster_ledger.promise(placement, holder, owner)
        self._offers[holder.uid] = Offer(placement, owner, self._clock() + OFFERED_S)

    def _is_over(self, uid: str) -> bool:
        pod = self._pods.by_uid(uid)
        return uid in self._gone if pod is None else bool(pod.spec.node_name) or is_ending(pod)

    def placement_of(self, uid: str) -> Placement | None:
        """What the pod was offered."""
        offer = self._offers.get(uid)
        return offer.placement if offer is not None else None

    def cancel(self, uid: str) -> None:
        """What the pod was offered is not what it is bound with."""
        offer = self.take(uid)
        if offer is not None:
            self.end(uid, offer)

    def take(self, uid: str) -> Offer | None:
        """What the pod was offered, for its bind, which ends the promise by `end`."""
        return self._offers.pop(uid, None)

    def end(self, uid: str, offer: Offer) -> None:
        """The Leases of its GPUs say so now, or never will."""
        self._cluster_ledger.withdraw(uid, offer.owner)

    def failed(self, uid: str, node: str) -> None:
        """An attempt to bind the pod there has failed."""
        self._avoided.setdefault(uid, {})[node] = self._clock() + AVOIDED_S

    def asked_again(self, uid: str) -> None:
        """If the pod has an offer, its attempt there has failed."""
        offer = self.take(uid)
        if offer is not None:
            self.end(uid, offer)
            self.failed(uid, offer.placement.node)

    def avoided_by(self, uid: str) -> Collection[str]:
        """The nodes that the pod should not be offered now."""
        now = self._clock()
        return {node for node, until in self._avoided.get(uid, {}).items() if until > now}

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod that is bound, by whichever replica, or gone, needs no offer."""
        pod = new or old
        if pod is None or (new is not None and not new.spec.node_name and not is_ending(new)):
            return
        uid = pod.metadata.uid
        if new is None:
            self._gone[uid] = self._clock() + GONE_S
        self._avoided.pop(uid, None)
        self.cancel(uid)

    def expire(self) -> None:
        """To be called every few seconds."""
        now = self._clock()
        for uid, offer in tuple(self._offers.items()):
            if offer.until <= now:
                self.asked_again(uid)
        for uid, nodes in tuple(self._avoided.items()):
            if max(nodes.values()) <= now:
                del self._avoided[uid]
        self._gone = {uid: until for uid, until in self._gone.items() if until > now}
