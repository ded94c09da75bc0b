"""Keeps the ledger equal to what the cluster says.

    which GPUs there are          GpuNodeStatus; labels, taints and readiness of the Node
    who holds them                the Leases in Carrel's own namespace; and pods that have GPUs without a Lease
    how far each holder is        the Pods: running, or ending

Every handler takes (old, new) from a reflector, and may be called twice with the same change. A GPU whose records
contradict each other is unusable, with the reason: no new pod gets it, and no pod loses it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from carrel.cluster.eligible_nodes import ClosedNodes
from carrel.cluster.options import ClusterOptions
from carrel.cluster.pod_progress import is_ending, slot_of, state_of
from carrel.cluster.record.divided_gpus import why_divided_anew
from carrel.cluster.record.gpu_nodes import GpuNodes
from carrel.cluster.record.known_lease import KnownLease, slots_in_use
from carrel.cluster.record.silent_agents import why_silent
from carrel.cluster.record.unrecorded_pods import AllocatableGpus, UnrecordedPod, users_by_gpu, why_set_aside
from carrel.cluster.watches import Watches
from carrel.dialects import gpu_lease, gpuclaim, visible_devices
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.gpuclaim_objects import GpuNodeStatus
from carrel.dialects.kai_reservation import is_reservation
from carrel.ids import NO_NODE, GpuUuid, HolderId, NodeName
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Lease, NodeObject, Pod
from carrel.ledger.gpus import FIRST_SLICE, Gpu, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement
from carrel.ledger.shares import Holder, Share
from carrel.ledger.slots import as_slots
from carrel.parsing import Malformed

WHILE_RENUMBERED = "; that Lease is moved within seconds, or goes when its holders have ended"
NOT_UNDERSTOOD = "what is known of it cannot be understood; Carrel's log says why"


@dataclass(frozen=True, slots=True)
class _Promise:
    share: Share
    owner: str


class ClusterLedger:
    def __init__(
        self,
        ledger: Ledger,
        watches: Watches,
        closed_nodes: ClosedNodes,
        options: ClusterOptions,
        isolation: Isolation,
    ) -> None:
        self.ledger = ledger
        self._watches = watches
        self._pods = watches.pods.store
        self._gpu_holders = watches.holders
        self._closed_nodes = closed_nodes
        self._memory_unit = options.dialect_options.memory_unit
        self._isolation = isolation
        self._kubelets = AllocatableGpus(watches, options.dialect_options)
        self._zone = options.zone
        self._gpu_nodes = GpuNodes(watches, self._is_recorded_on)
        self._statuses: dict[NodeName, GpuNodeStatus] = {}
        self._reported: dict[NodeName, Node] = {}  # with its real GPUs, also where the ledger has slots
        self._stale: dict[NodeName, str] = {}  # node → why its report is too old
        self._leases: dict[str, KnownLease] = {}
        self._unreadable: dict[tuple[NodeName, int], str] = {}  # node and index → why the Lease cannot be read
        self._recorded_on: dict[GpuUuid, set[str]] = {}  # GPU → the Leases that record it: one, if all is well
        # What is about to be written on the Lease of a GPU, by uid.
        self._promised: dict[GpuUuid, dict[HolderId, _Promise]] = {}
        self._had_slices: set[NodeName] = set()  # the nodes with a Lease of a MIG slice
        self._unrecorded: dict[GpuUuid, dict[HolderId, Share]] = {}  # GPU → uid → what a pod holds without a Lease
        self._held_on: dict[NodeName, Mapping[GpuUuid, dict[HolderId, Share]]] = {}  # the same by node
        self._to_refresh: set[NodeName] = set()
        self._when_shares_change: list[Callable[[Iterable[HolderId]], None]] = []

    def on_shares(self, handler: Callable[[Iterable[HolderId]], None]) -> None:
        """The handler is called with the uids of pods that hold other shares than before, or whose GPUs are reported
        differently."""
        self._when_shares_change.append(handler)

    def _tell_shares(self, uids: Iterable[HolderId]) -> None:
        for handler in self._when_shares_change:
            handler(uids)

    # --- GPUs --------------------------------------------------------------------------------------------------------

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        status = new or old
        name = status.metadata.name if status else NO_NODE
        if new is None or new.spec.node_name not in ("", name):
            # An object that names another node could replace the report of that node's own agent.
            self._statuses.pop(name, None)
            self._stale.pop(name, None)
        else:
            self._statuses[name] = new
        self._refresh(name)
        if old and new and self.kubelet_chooses(name) and users_by_gpu(old) != users_by_gpu(new):
            self.ledger.touch(name)  # which GPU is behind a slot

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if new is not None:
            name, labels = new.metadata.name, new.metadata.labels
            is_new, there = self._kubelets.on_node(new), self.ledger.node(name)
            as_known = there is not None and (there.labels, there.closed) == (labels, self._closed_nodes.why(name))
            if is_new or not as_known:
                self._refresh(*{name} | (self._gpu_nodes.on_node(name) if old is None else set()))
        elif old is not None:
            self._kubelets.forget_node(old.metadata.name)
            self._refresh(*{old.metadata.name} | self._gpu_nodes.on_node(old.metadata.name))

    def _labels_of(self, node: NodeName) -> Mapping[str, str]:
        known = self._watches.nodes.store.get(node)
        return known.metadata.labels if known is not None else {}

    def mark_silent_agents(self, now: datetime) -> None:
        """To be called every few seconds: a node whose agent does not report takes no new pods."""
        for name, status in self._statuses.items():
            why = why_silent(status, now, self._zone)
            if why != self._stale.get(name, ""):
                self._stale[name] = why
                self._refresh(name)

    def why_silent(self, node: NodeName) -> str:
        """Why the node's report is too old; empty if it is not."""
        return self._stale.get(node, "")

    def why_other_unit(self, node: NodeName) -> str:
        """Why the node's agent and this process mean different amounts by a number on a pod; empty if they do not."""
        status = self._statuses.get(node)
        return gpuclaim.why_other_unit(status, self._memory_unit) if status is not None else ""

    def _refresh(self, *names: NodeName) -> None:
        """A node whose report, pods or Leases cannot be understood takes no new pods; the others are not concerned."""
        for name in sorted(names):
            if not self._isolation.ask("node", name, self._is_read, False):
                self.ledger.set_node(Node(name, (), self._labels_of(name), unusable=NOT_UNDERSTOOD))

    def _is_read(self, name: NodeName) -> bool:
        """Sets the node in the ledger, as it is known now."""
        status = self._statuses.get(name)
        if status is None:
            if name not in self._reported and self.ledger.node(name) is None:
                return True  # nothing is known of its GPUs, as of all nodes while a process starts
            self._reported.pop(name, None)
            self._hold_unrecorded(name, {})
            holders = self._holders_on(name)
            self.ledger.remove_node(name)
            self._tell_shares(holders)
            self._refresh(*self._gpu_nodes.forget(name))
            return True
        labels = self._labels_of(name)
        try:
            node = gpuclaim.node_of(status, labels)
        except Malformed as malformed:
            node = Node(name, (), labels, unusable=str(malformed))
        others = self._gpu_nodes.report(name, (gpu.uuid for gpu in node.gpus), status.metadata.creation_timestamp)
        own = tuple(map(self._gpu_nodes.as_own, node.gpus))
        node = node if own == node.gpus else replace(node, gpus=own)
        self._reported[name] = node
        if not self._watches.are_holders_read:
            self._to_refresh.add(name)  # who uses its GPUs without a Lease is not known yet
        unrecorded = self.unrecorded(name)
        self._hold_unrecorded(name, self._kubelets.shares(node, unrecorded))
        set_aside = ""
        if node.kubelet_chooses:
            in_use = slots_in_use(node, self._leases, self.users_of)
            profiles = {gpu.kind for gpu in node.gpus if gpu.kind}
            of_slices = {profile: self._kubelets.capacity(name, unrecorded, profile) for profile in profiles}
            node = as_slots(node, in_use, self._kubelets.capacity(name, unrecorded), of_slices)
        else:
            set_aside = why_set_aside(unrecorded, name)
        gpus = tuple(
            replace(gpu, unusable=why) if not gpu.unusable and (why := self._why_unsure(gpu)) else gpu
            for gpu in node.gpus
        )
        unusable = node.unusable or self._stale.get(name, "") or self.why_other_unit(name) or set_aside
        node = replace(node, gpus=gpus, unusable=unusable, closed=self._closed_nodes.why(name))
        if node != self.ledger.node(name):  # most reports are only a heartbeat
            holders = self._holders_on(name)
            self.ledger.set_node(node)
            self._tell_shares(holders | self._holders_on(name))
        self._refresh(*others)
        return True

    def _is_recorded_on(self, uuid: GpuUuid, node: NodeName) -> bool:
        return any(lease.record.node == node and lease.record.shares for lease in self._leases_with(uuid))

    def _holders_on(self, node: NodeName) -> set[HolderId]:
        return {uid for entry in self.ledger.entries(node) for uid in entry.shares}

    def _why_unsure(self, gpu: Gpu) -> str:
        """Why the records of a GPU contradict each other; empty if they do not."""
        unreadable = self._unreadable.get((gpu.node, gpu.index))
        if unreadable:
            return unreadable
        name = gpu_lease.lease_name(gpu.node, gpu.index)
        here, elsewhere = self._leases.get(name), self._recorded_on.get(gpu.uuid, set()) - {name}
        if here is not None and here.record.gpu != gpu.uuid:
            other = here.record.gpu or "of unknown identity"
            return f"Lease {name} still records another GPU, {other}{WHILE_RENUMBERED}"
        if elsewhere:
            return f"it is still recorded on Lease {min(elsewhere)}: its index has changed{WHILE_RENUMBERED}"
        may_be_divided_anew = not gpu.may_be and (gpu.slice is not None or gpu.node in self._had_slices)
        divided = why_divided_anew(gpu, self._leases.get, self._is_reported) if may_be_divided_anew else ""
        return divided or self._why_in_use(gpu)

    def _is_reported(self, lease: KnownLease) -> bool:
        reported = self._reported.get(lease.record.node)
        return reported is not None and any(gpu.uuid == lease.record.gpu for gpu in reported.gpus)

    def _why_in_use(self, gpu: Gpu) -> str:
        """Why a GPU may be in use by a pod that has ended as far as the API server knows, or by a ResourceClaim that no
        Lease names, because somebody deleted it; empty if it is not."""
        status = self._statuses[gpu.node].status
        shares = {share.holder.uid: share for lease in self._leases_with(gpu.uuid) for share in lease.record.shares}
        if status.orphans is not None:
            pods = {uid: self._pods.by_uid(uid) for uid in sorted(shares) if not shares[uid].holder.is_claim}
            ending = [shares[uid] for uid, pod in pods.items() if pod is None or is_ending(pod)]
            if ending and self._stale.get(gpu.node):
                may_run = f"the pod {ending[0].holder.full_name} may still run there"
                return f"node {gpu.node} has not reported since {status.heartbeat}; {may_run}"
            for share in ending:
                if share.holder.uid in status.orphans and share.memory is None:
                    return f"the pod {share.holder.full_name} is gone, but its containers still run on {gpu.node}"
        claims = status.prepared_claims
        users = (uid for uid in self.users_of(gpu) if uid in claims and uid not in shares) if claims else iter(())
        found = next(users, None)
        return f"{self._gpu_holders.name_of(found)} uses it, and no Lease says so" if found else ""

    # --- pods without a Lease ----------------------------------------------------------------------------------------

    def unrecorded(self, node: NodeName) -> Sequence[UnrecordedPod]:
        """The pods of the node that have GPUs, and that no Lease names."""
        status, reported = self._statuses.get(node), self._reported.get(node)
        if status is None or reported is None or not self._watches.are_holders_read:
            return ()
        return self._kubelets.unrecorded(reported, status, self._is_recorded)

    def on_complete(self) -> None:
        """All pods, claims and Leases may be here now. To be called before the first answer."""
        self._refresh_if_complete(())

    def _refresh_if_complete(self, nodes: Iterable[NodeName]) -> None:
        self._to_refresh.update(nodes)
        if self._to_refresh and self._watches.are_holders_read:
            due, self._to_refresh = self._to_refresh, set()
            self._refresh(*due)

    def _is_recorded(self, pod: Pod) -> bool:
        if leases := self.leases_of(pod.metadata.uid):
            # Some of its Leases may be missing: one was deleted by somebody, or `adoption` has not written it yet.
            told = visible_devices.bound_gpus(pod.metadata.annotations)
            return told <= {each.record.gpu for each in leases} if told else len(leases) >= self._kubelets.count_of(pod)
        lease = self._leases.get(slot_of(pod)) if is_reservation(pod) else None
        return lease is not None and lease.record.reservation is not None

    def _hold_unrecorded(self, node: NodeName, held: Mapping[GpuUuid, dict[HolderId, Share]]) -> None:
        """Sets what pods of the node hold without a Lease: GPU → uid → share."""
        before = self._held_on.pop(node, {})
        if held:
            self._held_on[node] = held
        for gpu in before.keys() | held.keys():
            if before.get(gpu) != held.get(gpu):
                if gpu in held:
                    self._unrecorded[gpu] = held[gpu]
                elif self._unrecorded.get(gpu) == before[gpu]:  # else the GPU is another node's now
                    del self._unrecorded[gpu]
                self._update_ledger(gpu)

    # --- slots, where the kubelet chooses the GPUs -------------------------------------------------------------------

    def kubelet_chooses(self, node: NodeName) -> bool:
        return node in self._reported and self._reported[node].kubelet_chooses

    def reported(self, node: NodeName) -> Node | None:
        """The node with the GPUs that it reports; the ledger may have slots instead."""
        return self._reported.get(node)

    def reported_nodes(self) -> Sequence[Node]:
        """All nodes, in the same way."""
        return tuple(self._reported.values())

    def users_of(self, gpu: Gpu) -> Sequence[HolderId]:
        """The uids of the pods that have the GPU, as the kubelet said when its agent last looked."""
        devices = self._statuses[gpu.node].status.devices if gpu.node in self._statuses else ()
        return next((device.in_use_by for device in devices if device.id == gpu.index), ())

    def users_on(self, record: LeaseRecord) -> Sequence[str]:
        """The same of the GPU of a Lease, with the uids of claims that are prepared there."""
        status = self._statuses.get(record.node)
        return gpuclaim.users_on(status, record.gpu, record.index) if status is not None else ()

    # --- who holds them ----------------------------------------------------------------------------------------------

    def on_lease(self, old: Lease | None, new: Lease | None) -> None:
        if new is None:
            known = self._leases.get(old.metadata.name) if old is not None else None
            # By uid: after a deletion another replica, or this one, may have created a new Lease of that name already.
            if old is not None and (known is None or known.uid == old.metadata.uid):
                self._remove_lease(old.metadata.name)
            return
        name = new.metadata.name
        known = self._leases.get(name)
        if self._watches.leases.has_deleted(new.metadata.uid):
            return  # what was read before the deletion came after it
        if known is not None and not known.is_before(new.metadata.resource_version):
            return
        try:
            record = gpu_lease.read_lease(new)
        except Malformed as malformed:
            self._remove_lease(name)
            if place := gpu_lease.read_lease_name(name):
                self._unreadable[place] = str(malformed)
                self._refresh(place[0])
            return
        if record is None:
            return  # not the Lease of a GPU
        self._set_lease(KnownLease(name, new.metadata.uid, new.metadata.resource_version, record))

    def lease(self, name: str) -> KnownLease | None:
        return self._leases.get(name)

    def has_lease(self, gpu: Gpu) -> bool:
        return gpu_lease.lease_name(gpu.node, gpu.index) in self._leases

    def unreadable_leases(self) -> Mapping[str, str]:
        """Lease → why it cannot be read."""
        return {gpu_lease.lease_name(*place): why for place, why in self._unreadable.items()}

    def leases(self) -> Sequence[KnownLease]:
        return tuple(self._leases.values())

    def kept_leases(self) -> Sequence[KnownLease]:
        """Of the GPUs that are kept for booked pods: a few of thousands."""
        return [lease for gpu in sorted(self.ledger.kept) for lease in self._leases_with(gpu)]

    def leases_of(self, uid: HolderId) -> Sequence[KnownLease]:
        """The Leases that give a pod its shares."""
        known = (lease for gpu in self.ledger.shares_of(uid) for lease in self._leases_with(gpu))
        return [lease for lease in known if any(share.holder.uid == uid for share in lease.record.shares)]

    def _leases_with(self, gpu: GpuUuid) -> list[KnownLease]:
        return [self._leases[name] for name in sorted(self._recorded_on.get(gpu, ()))]

    def _set_lease(self, lease: KnownLease) -> None:
        before = self._leases.get(lease.name)
        self._leases[lease.name] = lease
        if lease.record.index >= FIRST_SLICE:
            self._had_slices.add(lease.record.node)
        self._unreadable.pop((lease.record.node, lease.record.index), None)
        if before is not None and before.record.gpu != lease.record.gpu:
            self._unrecord(before)
            self._refresh_if_unsure(before)
        self._recorded_on.setdefault(lease.record.gpu, set()).add(lease.name)
        self._update_ledger(lease.record.gpu)
        self._refresh_named(before.record if before else None, lease.record)
        self._refresh(*self._gpu_nodes.on_lease(lease.record.gpu))
        self._refresh_if_unsure(lease)

    def _remove_lease(self, name: str) -> None:
        lease = self._leases.pop(name, None)
        place = gpu_lease.read_lease_name(name)
        if place is not None and self._unreadable.pop(place, ""):
            self._refresh(place[0])
        if lease is not None:
            self._unrecord(lease)
            self._refresh_named(lease.record, None)
            self._refresh_if_unsure(lease)

    def _refresh_named(self, before: LeaseRecord | None, after: LeaseRecord | None) -> None:
        """A pod that a Lease names for the first time holds by it what it held without one; and the reverse."""
        had = {share.holder.uid for share in before.shares} if before else set()
        has = {share.holder.uid for share in after.shares} if after else set()
        pods = filter(None, map(self._pods.by_uid, had ^ has))
        self._refresh_if_complete({pod.spec.node_name for pod in pods if pod.spec.node_name})

    def _unrecord(self, lease: KnownLease) -> None:
        names = self._recorded_on.get(lease.record.gpu, set())
        names.discard(lease.name)
        if not names:
            self._recorded_on.pop(lease.record.gpu, None)
        self._update_ledger(lease.record.gpu)
        self._refresh(*self._gpu_nodes.on_lease(lease.record.gpu))

    def _update_ledger(self, gpu: GpuUuid) -> None:
        """Sets all shares of a GPU: those recorded on any Lease, and those about to be written."""
        records = [lease.record for lease in self._leases_with(gpu)]
        shares = dict(self._unrecorded.get(gpu, {}))
        shares |= {uid: promise.share for uid, promise in self._promised.get(gpu, {}).items()}
        shares |= {share.holder.uid: share for record in records for share in record.shares}
        kept_for = next((record.kept_for for record in records if record.kept_for), None)
        now = [share.in_state(state_of(share, self._gpu_holders.pod_of(share.holder.uid))) for share in shares.values()]
        if changed := self.ledger.set_entry(gpu, now, kept_for):
            self._tell_shares(changed)

    def _refresh_if_unsure(self, lease: KnownLease) -> None:
        """A Lease of a GPU that moved, or whose records contradicted each other, changes which GPUs are unusable."""
        record, entries = lease.record, self.ledger.entries(lease.record.node)
        matching = [entry for entry in entries if entry.gpu.uuid == record.gpu and entry.gpu.index == record.index]
        is_unsure = not matching or matching[0].gpu.unusable or len(self._recorded_on.get(record.gpu, ())) > 1
        status = self._statuses.get(record.node)
        is_unsure = is_unsure or (status is not None and bool(status.status.prepared_claims))
        # The GPU behind one slot limits which GPU may be behind another.
        if is_unsure or self.kubelet_chooses(record.node):
            self._refresh(record.node)
        # A GPU that was moved to another node may not be used there while a Lease of its old place records it.
        entry = self.ledger.entry(record.gpu)
        if entry is not None and entry.gpu.node != record.node:
            self._refresh(entry.gpu.node)

    # --- how far the holders are -------------------------------------------------------------------------------------

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod that is gone still holds its GPUs in the ledger, until its share is removed from the Lease."""
        pod = new or old
        report = self._statuses.get(pod.spec.node_name) if pod is not None else None
        self._refresh_if_complete(self._kubelets.on_pod(old, new, report, self._is_recorded))
        if pod is not None and self.ledger.shares_of(pod.metadata.uid):
            if new is None or is_ending(new):
                self.ledger.release(pod.metadata.uid)
                if self._stale.get(pod.spec.node_name):
                    self._refresh(pod.spec.node_name)  # why its GPU is set aside
            elif new.status.phase == "Running":
                self.ledger.assign(pod.metadata.uid)
        for uid in self._gpu_holders.used_by(pod) if pod is not None else ():
            self.on_other_holder(uid)

    def on_other_holder(self, uid: HolderId) -> None:
        """A ResourceClaim is as far as its pods are."""
        for gpu in tuple(self.ledger.shares_of(uid)):
            self._update_ledger(gpu)

    # --- what this process is writing --------------------------------------------------------------------------------

    def promise(self, placement: Placement, holder: Holder, owner: str) -> None:
        """Takes the GPUs in the ledger, although their Leases do not say so yet. Raises, and promises nothing, if
        there is no room. Only `owner` may withdraw the promise: a later one may have been made for the same pod.
        """
        has = {gpu: share.memory for gpu, share in self.ledger.shares_of(holder.uid).items()}
        shares = placement.shares(holder)
        new = [share for share in shares if share.gpu not in has or has[share.gpu] != share.memory]
        if len(new) > 1:  # one share is held, or refused, as a whole
            with self.ledger.what_if():
                self.ledger.hold(*new)
        self.ledger.hold(*new)
        for share in shares:
            self._promised.setdefault(share.gpu, {})[holder.uid] = _Promise(share, owner)
        # Whatever a listener does: who promised it must learn that it is promised, or nobody would ever withdraw it.
        self._isolation.ask("promise", [holder.uid], self._tell_shares, None, ", ".join)

    def withdraw(self, uid: HolderId, owner: str) -> None:
        """The Leases say so now, or never will: from now on only they count."""
        for gpu in tuple(self.ledger.shares_of(uid)):
            promised = self._promised.get(gpu, {})
            if uid in promised and promised[uid].owner == owner:
                del promised[uid]
                if not promised:
                    del self._promised[gpu]
                # If a Lease of the GPU names the pod, that counted before the promise already.
                if not any(share.holder.uid == uid for each in self._leases_with(gpu) for share in each.record.shares):
                    self._isolation.ask("promise", gpu, self._update_ledger, None)

    def lease_written(self, lease: KnownLease) -> None:
        """This process wrote the Lease: no need to wait for the watch, which may have shown a later change already, or
        its deletion."""
        known = self._leases.get(lease.name)
        is_newer = known is None or known.is_before(lease.version)
        if is_newer and not self._watches.leases.has_deleted(lease.uid):
            self._set_lease(lease)

    def lease_deleted(self, name: str, uid: str) -> None:
        """The Lease does not exist any more."""
        known = self._leases.get(name)
        if known is not None and known.uid == uid:
            self._remove_lease(name)
