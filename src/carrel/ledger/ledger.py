"""The ledger: who holds which part of which GPU. Requests of all dialects are counted here together.

Invariants
- per GPU, the sum of its shares never exceeds its memory through `hold`; a whole-GPU holder excludes all others;
- a pod has at most one share of a GPU;
- a GPU's shares stay when the GPU or its node disappears: the pods may still run there, and the GPU may come back;
- every state has a version, also each state that is only tried: who remembers an answer remembers its version.

What the cluster says is recorded as it is (`set_node`, `restore`), even where it contradicts itself; then a GPU has
less than zero MiB free, and no new pod gets it. What Carrel decides goes through `hold`, which keeps all rules.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType

from carrel.ids import GpuUuid, HolderId, NodeName
from carrel.ledger.gpus import Gpu, Node
from carrel.ledger.node_room import NO_ROOM, NodeRoom, summarise
from carrel.ledger.shares import LIFE, Holder, Share, ShareEvent, ShareState


class LedgerError(Exception):
    """An attempt of Carrel itself to break a rule of the ledger: a defect of ours, not an error of a user."""


class GpuEntry:
    """A GPU that a node reports, with the shares that are held of it. Only the ledger changes it."""

    __slots__ = ("free", "gpu", "kept_for", "shares")

    def __init__(self, gpu: Gpu, shares: dict[HolderId, Share], kept_for: Holder | None) -> None:
        self.gpu = gpu
        self.shares = shares
        """By the holder's uid."""
        self.kept_for = kept_for
        """A booked pod that will get this GPU; nobody else may take what becomes free on it."""
        self.free: int = gpu.memory - sum(map(self.held, shares.values()))
        """MiB. Below zero if the cluster says that more is held than there is."""

    def held(self, share: Share) -> int:
        return int(self.gpu.memory) if share.memory is None else share.memory

    def less(self, mib: int) -> "GpuEntry":
        """The same, with so much less of it free."""
        copy = GpuEntry.__new__(GpuEntry)
        copy.gpu, copy.shares, copy.kept_for, copy.free = self.gpu, self.shares, self.kept_for, self.free - mib
        return copy


def room_on(entries: Iterable[GpuEntry]) -> NodeRoom:
    """The room on the GPUs of a node that is usable."""
    return summarise((entry.gpu, entry.free) for entry in entries if not entry.kept_for and not entry.gpu.unusable)


@dataclass(slots=True)
class _NodeRecord:
    """A node and its GPUs, as the ledger records them."""

    node: Node
    entries: tuple[GpuEntry, ...]


class Ledger:
    """The record of who holds which part of which GPU, in the memory of one process.

    It is rebuilt from the Leases, which are the truth.
    """

    def __init__(self, nodes: Iterable[Node] = (), shares: Iterable[Share] = ()) -> None:
        self._nodes: dict[NodeName, _NodeRecord] = {}
        self._rooms: dict[NodeName, NodeRoom] = {}
        self._entries: dict[GpuUuid, GpuEntry] = {}
        self._unreported: dict[GpuUuid, dict[HolderId, Share]] = {}  # GPU that no node reports → uid → share
        self._shares: dict[HolderId, dict[GpuUuid, Share]] = {}  # uid → GPU → share, wherever the GPU is
        self._kept: dict[GpuUuid, Holder] = {}  # GPU → the pod it is kept for
        self._kept_of: dict[HolderId, set[GpuUuid]] = {}  # the same the other way round: uid → GPUs
        self._undo: list[Callable[[], None]] | None = None  # the steps back
        self.is_what_if = False
        """Whether somebody is trying something."""
        self.version = self._last_version = 0  # the last: the highest so far
        """A number for what is recorded now. It is never the same for two states; after a what-if it is as before."""
        self.inventory_version = 0
        """The same for the nodes and which GPUs they have, whoever holds them: it counts the changes."""
        self._changed_at: dict[
            NodeName, int
        ] = {}  # node → the version since when it is as it is, the latest at the end
        self._removed_at = 0
        self._not_summed_up: dict[NodeName, None] = {}
        for node in nodes:
            self.set_node(node)
        self.restore(shares)

    # --- what is there -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[NodeName]:
        return tuple(self._nodes)

    def node(self, name: NodeName) -> Node | None:
        record = self._nodes.get(name)
        return record.node if record else None

    def entries(self, node: NodeName) -> Sequence[GpuEntry]:
        """In the order of their indices."""
        record = self._nodes.get(node)
        return record.entries if record else ()

    def entry(self, uuid: GpuUuid) -> GpuEntry | None:
        return self._entries.get(uuid)

    @property
    def rooms(self) -> Mapping[NodeName, NodeRoom]:
        """How much room each node has. A node that has changed is summed up when this is next asked for: who keeps the
        mapping does not see later changes."""
        if self._not_summed_up:
            for name in self._not_summed_up:
                record = self._nodes[name]
                self._rooms[name] = NO_ROOM if record.node.unusable else room_on(record.entries)
            self._not_summed_up = {}
        return self._rooms

    def changed_since(self, version: int) -> Sequence[NodeName] | None:
        """The nodes that may differ from what they were at that version, the latest first; None if nodes have gone
        since: then all must be looked at."""
        if version < self._removed_at:
            return None
        later = takewhile(lambda change: change[1] > version, reversed(self._changed_at.items()))
        return [name for name, _ in later] if version != self.version else ()

    def shares_of(self, uid: HolderId) -> Mapping[GpuUuid, Share]:
        """A pod's shares by GPU, also of GPUs that no node reports at the moment."""
        return MappingProxyType(self._shares.get(uid, {}))

    def nodes_held_by(self, uid: HolderId) -> set[NodeName]:
        """Where it holds something of a GPU that a node reports."""
        return {self._entries[gpu].gpu.node for gpu in self._shares.get(uid, ()) if gpu in self._entries}

    def holders(self) -> AbstractSet[HolderId]:
        """The uids of all pods that hold something; it changes with the ledger."""
        return self._shares.keys()

    @property
    def kept(self) -> AbstractSet[GpuUuid]:
        """The GPUs that are kept for a pod."""
        return self._kept.keys()

    def kept_for(self, uid: HolderId) -> frozenset[GpuUuid]:
        """The GPUs kept for a pod."""
        return frozenset(self._kept_of.get(uid, ()))

    # --- the inventory -----------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """Records what a node reports: new, changed, renumbered or lost GPUs. Shares follow the GPU's UUID."""
        self._refuse_in_what_if()
        if len({gpu.uuid for gpu in node.gpus}) < len(node.gpus):
            raise LedgerError(f"node {node.name} reports a GPU more than once")
        self._detach(node.name)
        self.inventory_version += 1
        for gpu in node.gpus:
            elsewhere = self._entries.get(gpu.uuid)
            if elsewhere is not None:  # the GPU was moved to this machine
                self._take_off(elsewhere)
        entries = [
            GpuEntry(gpu, self._unreported.pop(gpu.uuid, {}), self._kept.get(gpu.uuid))
            for gpu in sorted(node.gpus, key=lambda gpu: gpu.index)
        ]
        self._entries.update((entry.gpu.uuid, entry) for entry in entries)
        self._nodes[node.name] = _NodeRecord(node, tuple(entries))
        self._note_change(node.name)

    def remove_node(self, name: NodeName) -> None:
        """The node is gone. What is held there stays recorded until the pods are gone too."""
        self._refuse_in_what_if()
        if name in self._nodes:
            self._detach(name)
            del self._changed_at[name]
            self.inventory_version += 1
            self.version = self._last_version = self._removed_at = self._last_version + 1

    def _detach(self, name: NodeName) -> None:
        record = self._nodes.pop(name, None)
        self._rooms.pop(name, None)
        self._not_summed_up.pop(name, None)
        for gpu in record.entries if record else ():
            self._lose(gpu)

    def _take_off(self, entry: GpuEntry) -> None:
        record = self._nodes[entry.gpu.node]
        record.entries = tuple(other for other in record.entries if other is not entry)
        record.node = replace(record.node, gpus=tuple(other.gpu for other in record.entries))
        self._note_change(entry.gpu.node)
        self._lose(entry)

    def _lose(self, entry: GpuEntry) -> None:
        del self._entries[entry.gpu.uuid]
        if entry.shares:
            self._unreported[entry.gpu.uuid] = entry.shares

    def _refuse_in_what_if(self) -> None:
        if self._undo is not None:
            raise LedgerError("the inventory cannot change inside a what-if")

    # --- who holds what ----------------------------------------------------------------------------------------------

    def hold(self, *shares: Share) -> None:
        """Takes shares that were decided on. Their GPUs must be there and have the room."""
        for share in shares:
            who, entry = share.holder, self._entries.get(share.gpu)
            if entry is None:
                raise LedgerError(f"{who} cannot hold a part of {share.gpu}: no node reports this GPU")
            if who.uid in entry.shares:
                raise LedgerError(f"{who} holds a part of {entry.gpu} already")
            if entry.kept_for is not None and not share.may_have(entry.kept_for):
                raise LedgerError(f"{who} cannot hold {entry.gpu}: it is kept for {entry.kept_for}")
            if not 0 < (part := entry.held(share)) <= entry.free:
                raise LedgerError(f"{who} cannot hold {part} MiB of {entry.gpu}: {entry.free} MiB are free")
            if share.state is ShareState.GONE:
                raise LedgerError(f"{who} cannot hold a share that is gone")
            self._set_share(share.gpu, who.uid, share)

    def restore(self, shares: Iterable[Share]) -> None:
        """Records shares as the Leases tell them, after a restart or from another replica: they are the truth."""
        for share in shares:
            if share.state is ShareState.GONE:
                raise LedgerError(f"a share of {share.holder} that is gone cannot be restored")
            self._set_share(share.gpu, share.holder.uid, share)

    def set_entry(self, uuid: GpuUuid, shares: Iterable[Share], kept_for: Holder | None = None) -> Collection[HolderId]:
        """Records all that is held of one GPU, as its Lease tells it; what it does not tell is gone. Returns the uids
        of those for whom something is different now: not for whom it was promised before the Lease was written."""
        entry = self._entries.get(uuid)
        before = entry.shares if entry is not None else self._unreported.get(uuid, {})
        told = {share.holder.uid: share for share in shares}
        gone = [uid for uid in before if uid not in told]
        new = [uid for uid, share in told.items() if (known := before.get(uid)) is not share and known != share]
        is_kept_as_before = self._kept.get(uuid) == kept_for
        if not gone and not new and is_kept_as_before:
            before.update(told)  # the same, but then these very objects are told again, and need not be compared
            return ()
        for uid in gone:
            self._set_share(uuid, uid, None)
        self.restore([told[uid] for uid in new])
        if not is_kept_as_before:
            self._set_kept(uuid, kept_for)
        return (*gone, *new) if is_kept_as_before else (*gone, *told)

    def assign(self, uid: HolderId) -> None:
        """The node has handed the pod's GPUs over."""
        self._advance(uid, ShareEvent.ASSIGN)

    def release(self, uid: HolderId) -> None:
        """The pod was told to go; it holds its GPUs until it is gone."""
        self._advance(uid, ShareEvent.RELEASE)

    def give_back(self, uid: HolderId) -> None:
        """The pod could not be bound: what it held is free again. What is kept for it stays kept."""
        self._advance(uid, ShareEvent.LEAVE)

    def forget(self, uid: HolderId) -> None:
        """The pod is gone: what it held is free, and nothing is kept for it."""
        self.give_back(uid)
        self.keep_no_more(uid)

    def _advance(self, uid: HolderId, event: ShareEvent) -> None:
        for share in tuple(self._shares.get(uid, {}).values()):
            if (state := LIFE[share.state, event]) is not share.state:  # pods change often, their shares three times
                self._set_share(share.gpu, uid, None if state is ShareState.GONE else share.in_state(state))

    # --- keeping a GPU for a booked pod -----------------------------------------------------------------------------

    def keep(self, uuid: GpuUuid, holder: Holder) -> None:
        """Nobody but this pod may take what is, or becomes, free on the GPU."""
        other = self._kept.get(uuid)
        if other is not None and other.uid != holder.uid:
            raise LedgerError(f"{uuid} cannot be kept for {holder}: it is kept for {other}")
        self._set_kept(uuid, holder)

    def keep_no_more(self, uid: HolderId) -> None:
        """The pod has its GPUs, or no longer wants them."""
        for uuid in self.kept_for(uid):
            self._set_kept(uuid, None)

    # --- what if -----------------------------------------------------------------------------------------------------

    @contextmanager
    def what_if(self) -> Iterator["Ledger"]:
        """Try something: whatever happens in the block, the ledger is afterwards as it was before."""
        outer, version = self._undo, self.version
        undo: list[Callable[[], None]] = []
        self._undo, self.is_what_if = undo, True
        try:
            yield self
        finally:
            self._undo = None  # the steps back must not be remembered
            for step in reversed(undo):
                step()
            self._undo, self.is_what_if, self.version = outer, outer is not None, version

    # --- the only writers --------------------------------------------------------------------------------------------

    def _set_share(self, gpu: GpuUuid, uid: HolderId, share: Share | None) -> None:
        """What the pod holds of the GPU from now on. None: nothing."""
        entry = self._entries.get(gpu)
        on_gpu = entry.shares if entry is not None else self._unreported.setdefault(gpu, {})
        of_pod = self._shares.setdefault(uid, {})
        before = on_gpu.get(uid)
        if self._undo is not None:
            self._undo.append(lambda: self._set_share(gpu, uid, before))
        if share is not None:
            on_gpu[uid] = of_pod[gpu] = share
        else:
            on_gpu.pop(uid, None)
            of_pod.pop(gpu, None)
        if not of_pod:
            del self._shares[uid]
        if entry is not None:
            entry.free += entry.held(before) if before is not None else 0
            entry.free -= entry.held(share) if share is not None else 0
            self._note_change(entry.gpu.node)
        elif not on_gpu:
            del self._unreported[gpu]

    def _set_kept(self, uuid: GpuUuid, holder: Holder | None) -> None:
        if self._undo is not None:
            before = self._kept.get(uuid)
            self._undo.append(lambda: self._set_kept(uuid, before))
        old = self._kept.pop(uuid, None)
        if old is not None:
            self._kept_of[old.uid].discard(uuid)
            if not self._kept_of[old.uid]:
                del self._kept_of[old.uid]
        if holder is not None:
            self._kept[uuid] = holder
            self._kept_of.setdefault(holder.uid, set()).add(uuid)
        entry = self._entries.get(uuid)
        if entry is not None and entry.kept_for != holder:
            entry.kept_for = holder
            self._note_change(entry.gpu.node)

    def _note_change(self, node: NodeName) -> None:
        self.version = self._last_version = self._last_version + 1
        self._changed_at.pop(node, None)
        self._changed_at[node] = self.version
        self._not_summed_up[node] = None

    def touch(self, node: NodeName) -> None:
        """Counts as a change: something else that people see of the node has changed."""
        if node in self._nodes:
            self._note_change(node)

    # --- self-check ---------------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Counts everything again from the shares alone; raises if the ledger contradicts itself."""
        wrong = []
        for name, record in self._nodes.items():
            fresh = Ledger([record.node])
            for entry in record.entries:
                fresh.restore(entry.shares.values())
                if entry.kept_for is not None:
                    fresh.keep(entry.gpu.uuid, entry.kept_for)
            for entry in record.entries:
                again = fresh._entries[entry.gpu.uuid]
                if entry.free != again.free:
                    wrong.append(f"{entry.gpu} shows {entry.free} MiB free, its shares leave {again.free}")
            if self.rooms[name] != fresh.rooms[name]:
                wrong.append(f"node {name} shows {self.rooms[name]}, its GPUs have {fresh.rooms[name]}")
        by_gpu = [share for entry in self._entries.values() for share in entry.shares.values()]
        by_gpu += [share for shares in self._unreported.values() for share in shares.values()]
        by_pod = [share for shares in self._shares.values() for share in shares.values()]
        wrong += [f"{uuid} is remembered for nobody" for uuid, shares in self._unreported.items() if not shares]
        if Counter(by_gpu) != Counter(by_pod):
            wrong.append(f"the GPUs know {Counter(by_gpu)}, the pods {Counter(by_pod)}")
        if wrong:
            raise LedgerError("; ".join(wrong))
