"""Keeps the ledger equal to what the cluster says.

    which cards there are         GpuNodeStatus, and the labels of the Node
    who holds them                the Leases in Carrel's own namespace, and nothing else
    how far each holder is        the Pods: running, or going

Every handler takes (old, new) as a reflector tells it, and may be told the same thing twice. A card of which the books
are not sure is set aside with the reason: nobody new gets it, and nobody loses it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from carrel.core.gpus import Gpu, Node
from carrel.core.ledger import Ledger
from carrel.core.placement import Placement
from carrel.core.shares import Holder, Share, ShareState
from carrel.protocols import Malformed, carrel, gpuclaim
from carrel.protocols.carrel import CardRecord
from carrel.protocols.kubernetes.shapes import GpuNodeStatus, Lease, NodeObject, Pod
from carrel.protocols.kubernetes.time import seconds

PodByUid = Callable[[str], Pod | None]

STALE_AFTER = timedelta(seconds=120)
"""How old an agent's last word may be: it reports every 30 s, so three in a row were lost."""

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class KnownLease:
    """A Lease as it was last seen or written."""

    name: str
    uid: str
    version: str
    record: CardRecord
    written_at: str = ""
    """As the Lease says it; who needs the instant reads it."""


class Books:
    def __init__(self, pod_by_uid: PodByUid) -> None:
        self.ledger = Ledger()
        self._pod_by_uid = pod_by_uid
        self._statuses: dict[str, GpuNodeStatus] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._stale: dict[str, str] = {}  # node → why its agent is not believed
        self._leases: dict[str, KnownLease] = {}
        self._unreadable: dict[tuple[str, int], str] = {}  # card → why its Lease cannot be read
        self._lease_of: dict[str, str] = {}  # GPU → the Lease that records it
        self._promised: dict[str, dict[str, Share]] = {}  # GPU → uid → what is being written on its Lease now

    # --- cards -------------------------------------------------------------------------------------------------------

    def see_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        for status in (old, new):
            if status is not None:
                name = status.spec.node_name or status.metadata.name
                if status is new:
                    self._statuses[name] = status
                else:
                    self._statuses.pop(name, None)
                    self._stale.pop(name, None)
                if status is new or new is None:
                    self._refresh(name)

    def see_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if new is not None:
            name = new.metadata.name
            if self._labels.get(name) != new.metadata.labels:
                self._labels[name] = new.metadata.labels
                self._refresh(name)
        elif old is not None:
            self._labels.pop(old.metadata.name, None)

    def look_for_silent_agents(self, now: datetime) -> None:
        """To be called every few seconds: a node whose agent is silent takes no new pods."""
        for name, status in self._statuses.items():
            why = _silence(status, now)
            if why != self._stale.get(name, ""):
                self._stale[name] = why
                self._refresh(name)

    def _refresh(self, name: str) -> None:
        status = self._statuses.get(name)
        if status is None:
            self.ledger.remove_node(name)
            return
        labels = self._labels.get(name, {})
        try:
            node = gpuclaim.node_of(status, labels)
        except Malformed as malformed:
            node = Node(name, (), labels, unusable=str(malformed))
        gpus = tuple(replace(gpu, unusable=gpu.unusable or self._doubt(gpu)) for gpu in node.gpus)
        self.ledger.set_node(replace(node, gpus=gpus, unusable=node.unusable or self._stale.get(name, "")))

    def _doubt(self, gpu: Gpu) -> str:
        """Why the books are not sure of a card."""
        unreadable = self._unreadable.get((gpu.node, gpu.index))
        if unreadable:
            return unreadable
        name = gpuclaim.lease_name(gpu.node, gpu.index)
        here, recorded = self._leases.get(name), self._lease_of.get(gpu.uuid, name)
        if here is not None and here.record.gpu != gpu.uuid:
            return f"Lease {name} still records another card, {here.record.gpu or 'of unknown identity'}"
        if recorded != name:
            return f"it is still recorded on Lease {recorded}: its index has changed"
        return ""

    # --- who holds them ----------------------------------------------------------------------------------------------

    def see_lease(self, old: Lease | None, new: Lease | None) -> None:
        if new is None:
            known = self._leases.get(old.metadata.name) if old is not None else None
            # By uid: after a deletion another replica, or we, may have made a new Lease of that name already.
            if old is not None and (known is None or known.uid == old.metadata.uid):
                self._forget_lease(old.metadata.name)
            return
        name = new.metadata.name
        known = self._leases.get(name)
        if known is not None and _number(new.metadata.resource_version) <= _number(known.version):
            return
        place = gpuclaim.read_lease_name(name)
        if place is None:
            return
        try:
            record = carrel.read_lease(new)
        except Malformed as malformed:
            self._forget_lease(name)
            self._unreadable[place] = str(malformed)
            self._refresh(place[0])
            return
        assert record is not None, "a name that can be read is the name of a card's Lease"
        self._know(KnownLease(name, new.metadata.uid, new.metadata.resource_version, record, new.spec.renew_time))

    def lease(self, name: str) -> KnownLease | None:
        return self._leases.get(name)

    def leases(self) -> Iterable[KnownLease]:
        return tuple(self._leases.values())

    def leases_of(self, uid: str) -> Sequence[KnownLease]:
        """The Leases that give a pod its shares."""
        known = (self._leases.get(self._lease_of.get(gpu, "")) for gpu in self.ledger.shares_of(uid))
        return [lease for lease in known if lease and any(share.holder.uid == uid for share in lease.record.shares)]

    def _know(self, lease: KnownLease) -> None:
        before = self._leases.get(lease.name)
        self._leases[lease.name] = lease
        self._unreadable.pop((lease.record.node, lease.record.index), None)
        if before is not None and before.record.gpu != lease.record.gpu:
            self._unrecord(before)
        self._lease_of[lease.record.gpu] = lease.name
        self._tell_ledger(lease.record.gpu)
        self._settle_doubts(lease)

    def _forget_lease(self, name: str) -> None:
        lease = self._leases.pop(name, None)
        place = gpuclaim.read_lease_name(name)
        if place is not None and self._unreadable.pop(place, ""):
            self._refresh(place[0])
        if lease is not None:
            self._unrecord(lease)
            self._settle_doubts(lease)

    def _unrecord(self, lease: KnownLease) -> None:
        if self._lease_of.get(lease.record.gpu) == lease.name:
            del self._lease_of[lease.record.gpu]
            self._tell_ledger(lease.record.gpu)

    def _tell_ledger(self, gpu: str) -> None:
        """All that is held of a card: what its Lease records, and what is being written on it right now."""
        lease = self._leases.get(self._lease_of.get(gpu, ""))
        recorded = {share.holder.uid: share for share in lease.record.shares} if lease else {}
        shares = {**self._promised.get(gpu, {}), **recorded}
        kept_for = lease.record.kept_for if lease else None
        self.ledger.set_card(gpu, [replace(share, state=self._progress(share)) for share in shares.values()], kept_for)

    def _settle_doubts(self, lease: KnownLease) -> None:
        """A Lease whose card is elsewhere, or that was in doubt until now, changes which cards are set aside."""
        record = lease.record
        cards = self.ledger.cards(record.node)
        at_home = [card for card in cards if card.gpu.uuid == record.gpu and card.gpu.index == record.index]
        if not at_home or at_home[0].gpu.unusable:
            self._refresh(record.node)

    # --- how far the holders are -------------------------------------------------------------------------------------

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod that is gone still holds its cards in the books, until its share is taken off the Lease."""
        pod = new or old
        if pod is not None and self.ledger.shares_of(pod.metadata.uid):
            if new is None or is_going(new):
                self.ledger.release(pod.metadata.uid)
            elif new.status.phase == "Running":
                self.ledger.assign(pod.metadata.uid)

    def _progress(self, share: Share) -> ShareState:
        pod = self._pod_by_uid(share.holder.uid)
        if pod is None:
            return share.state
        if is_going(pod):
            return ShareState.RELEASING
        return ShareState.ASSIGNED if pod.status.phase == "Running" else share.state

    # --- what we are writing -----------------------------------------------------------------------------------------

    def promise(self, placement: Placement, holder: Holder) -> None:
        """The cards are taken from now on, though their Leases do not say so yet. Raises if there is no room."""
        has = self.ledger.shares_of(holder.uid)
        for share in placement.shares(holder):
            known = has.get(share.gpu)
            if known is None or known.memory != share.memory:
                self.ledger.hold(share)
            self._promised.setdefault(share.gpu, {})[holder.uid] = share

    def keep_promise(self, uid: str) -> None:
        """The Leases say so now, or never will: from here on only they count."""
        for gpu, promised in tuple(self._promised.items()):
            if promised.pop(uid, None):
                if not promised:
                    del self._promised[gpu]
                self._tell_ledger(gpu)

    def wrote(self, lease: KnownLease) -> None:
        """We wrote this Lease: no need to wait until the watch says so."""
        self._know(lease)

    def erased(self, name: str, uid: str) -> None:
        """There is no such Lease any more."""
        known = self._leases.get(name)
        if known is not None and known.uid == uid:
            self._forget_lease(name)


def _silence(status: GpuNodeStatus, now: datetime) -> str:
    try:
        heard = gpuclaim.heartbeat_of(status)
    except Malformed as malformed:
        return str(malformed)
    if heard is None or now - heard <= STALE_AFTER:
        return ""  # an agent that gives no heartbeat is believed as long as its object is there
    # The instant, not the age: a reason that changes by itself would be told to everybody who waits, again and again.
    return f"the agent's last heartbeat was at {seconds(heard)}"


def is_going(pod: Pod) -> bool:
    return bool(pod.metadata.deletion_timestamp) or pod.status.phase in FINISHED


def _number(version: str) -> int:
    """Versions count up: Kubernetes promises it since 1.35 and has always kept it."""
    return int(version) if version.isdecimal() else 0
