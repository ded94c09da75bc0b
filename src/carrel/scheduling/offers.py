"""The nodes that `filter` has named to pods which are not bound yet, and when it names all that have room instead.

kube-scheduler binds a pod while it asks about the next ones. So what a pod was offered counts as taken at once: its
GPUs are promised to it in the ledger of this process. Its bind takes their Leases; another replica, which does not know
of the promise, may be faster, and then the pod is placed anew.

An offer ends with the bind, with the pod, or after a while. A pod that asks again was not bound: something else than
GPUs failed on that node, and for a while it is offered others, as long as there are any. This is so for the members of
gangs too (`gangs`).

Where `filter` names a single node, kube-scheduler skips its own scores. So it gets all nodes that have room if a
preference that only it weighs may decide: the pod states one among nodes (affinity, spread), or some of the nodes with
GPUs would rather not have it (taints). What is given up otherwise is in `decisions/0042` and `decisions/0057`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.ids import HolderId, NodeName
from carrel.kubernetes.objects.affinity import tolerates
from carrel.kubernetes.objects.kinds import NodeObject, Pod, Taint
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement
from carrel.ledger.shares import Holder

OFFERED_S = 30.0
"""From filter to bind kube-scheduler takes milliseconds, unless the pod waits for its volumes. A bind without an offer
looks for GPUs again."""
GONE_S = 60.0
"""How long a pod that is gone is remembered: kube-scheduler may ask about it, because it learns of it later."""
AVOIDED_S = 30.0
"""How long a node is not offered again to a pod whose attempt failed there."""

AS_PREFERENCE = "PreferNoSchedule"
ANYWAY = "ScheduleAnyway"


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
        self._gone: dict[HolderId, float] = {}  # uid → until when it is remembered
        self._offers: dict[HolderId, Offer] = {}  # by the pod's uid
        self._avoided: dict[HolderId, dict[NodeName, float]] = {}  # uid → node → until when
        self._made = 0

    def make(self, placement: Placement, holder: Holder) -> None:
        """The ledger must have room. Nothing is offered to a pod that needs no offer any more: what would end it has
        happened already."""
        pod = self._pods.by_uid(holder.uid)
        if holder.uid in self._gone if pod is None else pod.spec.node_name or is_ending(pod):
            return
        self._made += 1
        owner = f"offer #{self._made}"
        self._cluster_ledger.promise(placement, holder, owner)
        self._offers[holder.uid] = Offer(placement, owner, self._clock() + OFFERED_S)

    def cancel(self, uid: HolderId) -> None:
        """What the pod was offered is not what it is bound with."""
        offer = self.take(uid)
        if offer is not None:
            self.end(uid, offer)

    def take(self, uid: HolderId) -> Offer | None:
        """What the pod was offered, for its bind, which ends the promise by `end`."""
        return self._offers.pop(uid, None)

    def end(self, uid: HolderId, offer: Offer) -> None:
        """The Leases of its GPUs say so now, or never will."""
        self._cluster_ledger.withdraw(uid, offer.owner)

    def failed(self, uid: HolderId, node: NodeName) -> None:
        """An attempt to bind the pod there has failed."""
        self._avoided.setdefault(uid, {})[node] = self._clock() + AVOIDED_S

    def asked_again(self, uid: HolderId) -> None:
        """If the pod has an offer, its attempt there has failed."""
        offer = self._offers.pop(uid, None)
        if offer is not None:
            self.end(uid, offer)
            self.failed(uid, offer.placement.node)

    def avoided_by(self, uid: HolderId) -> Collection[NodeName]:
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


class NodePreferences:
    """Follows which nodes are tainted as a preference: mostly none."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reluctant: dict[NodeName, Sequence[Taint]] = {}  # node → its taints that are a preference

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if old is not None:
            self._reluctant.pop(old.metadata.name, None)
        if new is not None and (taints := [each for each in new.spec.taints if each.effect == AS_PREFERENCE]):
            self._reluctant[new.metadata.name] = taints

    def matter(self, pod: Pod, nodes: Sequence[NodeName]) -> bool:
        """Whether the pod says which nodes it prefers, though it would run on others; or a node prefers other pods."""
        affinity, tolerated = pod.spec.affinity, pod.spec.tolerations
        if (
            affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
            or affinity.pod_affinity.preferred_during_scheduling_ignored_during_execution
            or affinity.pod_anti_affinity.preferred_during_scheduling_ignored_during_execution
            or any(each.when_unsatisfiable == ANYWAY for each in pod.spec.topology_spread_constraints)
        ):
            return True
        # There are thousands of nodes, and mostly none of them is tainted: then they need not even be read.
        unwilling = {
            name
            for name, taints in self._reluctant.items()
            if self._ledger.node(name) is not None and not all(tolerates(tolerated, taint) for taint in taints)
        }
        return bool(unwilling and not unwilling.isdisjoint(nodes))
