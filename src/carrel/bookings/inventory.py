"""Which GPUs can be booked: those that the cluster reports, or those of a file where there is no cluster."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from carrel.bookings.capacity import ModelCapacity, capacity_of, is_unheld
from carrel.bookings.maintenance import HeldPod, Maintenance
from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.cluster.state import ClusterState
from carrel.dialects.tier import person_of
from carrel.ids import BookingId, GpuUuid, HolderId, NodeName
from carrel.ledger.gpus import Gpu, Node
from carrel.ledger.ledger import Ledger


class GpuInventory:
    """The GPUs of a file, in the form of `carrel demo --cluster`, which is read once. Of pods it knows nothing."""

    def __init__(self, nodes: Collection[Node]) -> None:
        self._nodes = {node.name: node.gpus for node in nodes}
        self._stock = capacity_of(nodes)

    @property
    def is_known(self) -> bool:
        """False until the cluster has been read once: nothing can be booked before."""
        return True

    def stock(self) -> Mapping[str, ModelCapacity]:
        """The healthy GPUs now, by model."""
        return self._stock

    def nodes(self) -> Collection[NodeName]:
        """Those that have GPUs, also if these cannot be booked."""
        return self._nodes.keys()

    def gpus_of(self, node: NodeName) -> Sequence[Gpu]:
        """The GPUs of a node, as people number them."""
        return self._nodes.get(node, ())

    def pods_on(self, window: Maintenance) -> Sequence[HeldPod]:
        """The pods that hold GPUs which the window names, nodes included."""
        return ()

    def pods_of(self, person: str) -> Sequence[HeldPod]:
        """Their pods that hold a GPU now."""
        return ()

    def is_used(self, booking: BookingId) -> bool:
        """Whether the booking covers a pod that holds a GPU now. What cannot be seen counts as unused."""
        return False

    def unheld(self) -> Mapping[str, int] | None:
        """How many healthy GPUs of each model no pod holds a part of now. None without a cluster: it is not known."""
        return None

    def next_unheld(self) -> Mapping[str, datetime]:
        """For models of which pods hold all: when the first booking ends whose pods hold a GPU. A model is not in it if
        that is not known."""
        return {}


RECOUNT_S = 5.0
"""Which pods keep their GPUs also depends on namespaces, so it is looked at again without a change of the ledger."""


@dataclass(frozen=True, slots=True)
class _Counted:
    ledger_moment: int = -1
    at: float = 0.0
    stock: Mapping[str, ModelCapacity] = field(default_factory=dict)
    unheld: Mapping[str, int] = field(default_factory=dict)


class ClusterInventory(GpuInventory):
    """The GPUs of the ledger, counted again when it has changed."""

    def __init__(self, carrel: ClusterState, clock: Callable[[], float] = time.monotonic) -> None:
        self._carrel = carrel
        self._ledger = carrel.ledger
        self._clock = clock
        self._counted = _Counted()

    @property
    def is_known(self) -> bool:
        return self._carrel.informers.is_synced

    def nodes(self) -> Collection[NodeName]:
        return self._ledger.nodes

    def gpus_of(self, node: NodeName) -> Sequence[Gpu]:
        return [entry.gpu for entry in shown_gpus(self._carrel.cluster_ledger, node)]

    def pods_on(self, window: Maintenance) -> Sequence[HeldPod]:
        return self._held(window.nodes if not window.single else self._ledger.nodes, window.closes)

    def pods_of(self, person: str) -> Sequence[HeldPod]:
        return [pod for pod in self._held(self._ledger.nodes, lambda gpu: True) if pod.person == person]

    def _held(self, nodes: Collection[NodeName], is_meant: Callable[[Gpu], bool]) -> list[HeldPod]:
        found: dict[HolderId, HeldPod] = {}
        for node in nodes:
            for entry in shown_gpus(self._carrel.cluster_ledger, node):
                if is_meant(entry.gpu):
                    found |= {uid: pod for uid in entry.shares if (pod := self._held_pod(uid)) is not None}
        return sorted(found.values(), key=lambda pod: pod.name)

    def _held_pod(self, uid: HolderId) -> HeldPod | None:
        pod = self._carrel.holders.pod_of(uid)
        if pod is None:
            return None
        covered = self._carrel.covered_pods.of(uid)
        name, right = f"{pod.metadata.namespace}/{pod.metadata.name}", covered.entitlement if covered else None
        return HeldPod(name, person_of(pod), right.booking if right else None, right.ends if right else None)

    def is_used(self, booking: BookingId) -> bool:
        return bool(self._carrel.covered_pods.covered_by(booking))

    def stock(self) -> Mapping[str, ModelCapacity]:
        return self._count().stock

    def unheld(self) -> Mapping[str, int]:
        return self._count().unheld

    def next_unheld(self) -> Mapping[str, datetime]:
        return next_unheld_gpus(self._carrel, {model for model, unheld in self.unheld().items() if not unheld})

    def _count(self) -> _Counted:
        moment, now = self._ledger.version, self._clock()
        if self._counted.ledger_moment != moment or now >= self._counted.at + RECOUNT_S:
            nodes = (node for name in self._ledger.nodes if (node := self._ledger.node(name)) is not None)
            self._counted = _Counted(moment, now, capacity_of(nodes, self._set_aside()), unheld_gpus(self._ledger))
        return self._counted

    def _set_aside(self) -> set[GpuUuid]:
        """The GPUs of which a pod holds a part that no booking can displace."""
        entries = (entry for name in self._ledger.nodes for entry in self._ledger.entries(name) if entry.shares)
        return {entry.gpu.uuid for entry in entries if any(map(self._keeps_its_gpus, entry.shares))}

    def _keeps_its_gpus(self, uid: HolderId) -> bool:
        pod = self._carrel.holders.pod_of(uid)
        return pod is not None and self._carrel.covered_pods.tier(pod) is None


def next_unheld_gpus(carrel: ClusterState, models: Collection[str]) -> dict[str, datetime]:
    """Return for each model when the first GPU is free of all pods that hold a part of it. When a pod ends that no
    booking covers, nobody knows."""
    ledger = carrel.ledger
    found: dict[str, datetime] = {}
    for name in ledger.nodes:
        node = ledger.node(name)
        for entry in ledger.entries(name) if models else ():
            model = entry.gpu.model
            if model in models and entry.shares and not entry.gpu.unusable and not (node and node.out_of_use):
                covered = [each for each in map(carrel.covered_pods.of, entry.shares) if each is not None]
                if len(covered) == len(entry.shares):
                    ends = max(each.entitlement.ends for each in covered)
                    found[model] = min(ends, found.get(model, ends))
    return found


def unheld_gpus(ledger: Ledger) -> dict[str, int]:
    """Count the healthy GPUs of each model that no pod holds a part of, and that are kept for no booked pod."""
    found: dict[str, int] = {}
    for name in ledger.nodes:
        node = ledger.node(name)
        for entry in ledger.entries(name):
            found[entry.gpu.model] = found.get(entry.gpu.model, 0) + is_unheld(entry, node)
    return dict(sorted(found.items()))
