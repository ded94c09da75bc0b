"""Objects, their versions and their history. No rules: what may be written is decided above.

Invariants:
- one counter gives every write its resourceVersion, so versions of all kinds are in one order;
- a stored tree is never changed again: writers make a new one, readers share it, its bytes are encoded once;
- each collection keeps its last changes, oldest first; `forgotten` is the version up to which they are dropped.

Older states are not kept: they are computed by undoing the kept changes. Paging and stale reads depend on that.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec

Json = dict[str, Any]
Storage = tuple[str, str]
"""Group and plural: where a kind's objects are, whatever the version they are read in."""

encode = msgspec.json.Encoder().encode
_version_of = attrgetter("version")


class HistoryExpired(Exception):
    """The requested version is older than the history."""

    def __init__(self, asked: int, oldest: int) -> None:
        self.asked = asked
        self.oldest = oldest
        super().__init__(f"too old resource version: {asked} ({oldest})")


@dataclass(frozen=True, slots=True, eq=False)
class StoredObject:
    tree: Json
    raw: bytes
    version: int

    @property
    def key(self) -> tuple[str, str]:
        metadata = self.tree["metadata"]
        return metadata.get("namespace", ""), metadata["name"]

    @property
    def uid(self) -> str:
        uid: str = self.tree["metadata"]["uid"]
        return uid


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    version: int
    storage: Storage
    before: StoredObject | None
    after: StoredObject | None
    """None: the object was removed."""
    last: StoredObject
    """What a watcher sees: `after`, or the last state of a removed object, with the version of its removal."""


@dataclass(slots=True)
class Collection:
    """All objects of one storage, by namespace and name, and the last changes to them."""

    remembered: int
    objects: dict[str, dict[str, StoredObject]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    forgotten: int = 0
    """The newest version whose change is no longer kept."""
    listeners: set[asyncio.Event] = field(default_factory=set)

    def get(self, namespace: str, name: str) -> StoredObject | None:
        return self.objects.get(namespace, {}).get(name)

    def items(self, namespace: str = "") -> Iterable[StoredObject]:
        """Of one namespace or, without one, of all; in no order."""
        if namespace:
            return self.objects.get(namespace, {}).values()
        return (stored for names in self.objects.values() for stored in names.values())

    def items_at(self, version: int, namespace: str = "") -> list[StoredObject]:
        """As they were at a version, in the order of namespace and name."""
        items = {stored.key: stored for stored in self.items(namespace)}
        for change in reversed(self.changes_after(version)):
            key = change.last.key
            if namespace and key[0] != namespace:
                continue
            if change.before is None:
                del items[key]
            else:
                items[key] = change.before
        return [items[key] for key in sorted(items)]

    def changes_after(self, version: int) -> list[Change]:
        if version < self.forgotten:
            raise HistoryExpired(version, self.forgotten)
        return self.changes[bisect_right(self.changes, version, key=_version_of) :]

    def forget_up_to(self, version: int) -> None:
        """Like a compaction: older versions can no longer be listed or watched from."""
        self.changes = self.changes_after(max(version, self.forgotten))
        self.forgotten = max(version, self.forgotten)

    def record(self, change: Change) -> None:
        namespace, name = change.last.key
        if change.after is None:
            names = self.objects[namespace]
            del names[name]
            if not names:
                del self.objects[namespace]
        else:
            self.objects.setdefault(namespace, {})[name] = change.after
        self.changes.append(change)
        if len(self.changes) > self.remembered + self.remembered // 4:
            # A quarter at a time, so that it costs almost nothing per write.
            cut = len(self.changes) - self.remembered
            self.forgotten = self.changes[cut - 1].version
            del self.changes[:cut]
        for listener in self.listeners:
            listener.set()


class ObjectStore:
    def __init__(self, remembered_changes: int = 10_000) -> None:
        self.version = 1
        self.followers: list[Callable[[Change], None]] = []
        """Called after each write, in order. A follower may write: its changes follow."""
        self._remembered = remembered_changes
        self._collections: dict[Storage, Collection] = {}
        self._by_uid: dict[str, tuple[Storage, StoredObject]] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def collection(self, storage: Storage) -> Collection:
        found = self._collections.get(storage)
        if found is None:
            # It was empty before; as on a real server, no version before its creation can be read.
            found = self._collections[storage] = Collection(self._remembered, forgotten=self.version)
        return found

    def collections(self) -> list[tuple[Storage, Collection]]:
        return list(self._collections.items())

    def by_uid(self, uid: str) -> tuple[Storage, StoredObject] | None:
        return self._by_uid.get(uid)

    def dependents(self, owner_uid: str) -> list[tuple[Storage, StoredObject]]:
        """The objects whose ownerReferences name this uid."""
        return [self._by_uid[uid] for uid in self._dependents.get(owner_uid, ())]

    def write(self, storage: Storage, before: StoredObject | None, tree: Json) -> StoredObject:
        """Stores a new tree over `before`. The tree belongs to the store from now on."""
        self.version += 1
        tree["metadata"]["resourceVersion"] = str(self.version)
        after = StoredObject(tree, encode(tree), self.version)
        self._commit(Change(self.version, storage, before, after, after))
        return after

    def remove(self, storage: Storage, before: StoredObject) -> StoredObject:
        """Removes an object. Returns its last state, with the version of the removal, as watchers see it."""
        self.version += 1
        tree = {**before.tree, "metadata": {**before.tree["metadata"], "resourceVersion": str(self.version)}}
        last = StoredObject(tree, encode(tree), self.version)
        self._commit(Change(self.version, storage, before, None, last))
        return last

    def _commit(self, change: Change) -> None:
        self.collection(change.storage).record(change)
        if change.before is not None:
            self._unindex(change.before)
        if change.after is not None:
            self._index(change.storage, change.after)
        for follower in self.followers:
            follower(change)

    def _index(self, storage: Storage, stored: StoredObject) -> None:
        self._by_uid[stored.uid] = (storage, stored)
        for owner in stored.tree["metadata"].get("ownerReferences", ()):
            self._dependents.setdefault(owner["uid"], {})[stored.uid] = None

    def _unindex(self, stored: StoredObject) -> None:
        self._by_uid.pop(stored.uid, None)
        for owner in stored.tree["metadata"].get("ownerReferences", ()):
            uids = self._dependents.get(owner["uid"])
            if uids is not None:
                uids.pop(stored.uid, None)
                if not uids:
                    del self._dependents[owner["uid"]]
