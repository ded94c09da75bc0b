"""Objects, their versions and their history. No rules: what may be written is decided above.

Invariants:
- one counter gives every write its resourceVersion, so versions of all kinds are in one order;
- a stored tree is never changed again: writers make a new one, readers share it, its bytes are encoded once;
- each collection remembers its last changes, oldest first; `forgotten` says up to where they are not remembered.

An older state is not kept: it is found by undoing the remembered changes. Paging and stale reads stand on that.
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


class Forgotten(Exception):
    """The asked version is older than the history."""

    def __init__(self, asked: int, oldest: int) -> None:
        self.asked = asked
        self.oldest = oldest
        super().__init__(f"too old resource version: {asked} ({oldest})")


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
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
    before: Stored | None
    after: Stored | None
    """None: the object is gone."""
    last: Stored
    """What a watcher is shown: `after`, or the last state of a gone object, with the version of its removal."""


@dataclass(slots=True)
class Collection:
    """All objects of one storage, by namespace and name, and the last changes to them."""

    remembered: int
    objects: dict[str, dict[str, Stored]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    forgotten: int = 0
    """The newest version whose change is no longer remembered."""
    listeners: set[asyncio.Event] = field(default_factory=set)

    def get(self, namespace: str, name: str) -> Stored | None:
        return self.objects.get(namespace, {}).get(name)

    def items(self, namespace: str = "") -> Iterable[Stored]:
        """Of one namespace or, without one, of all; in no order."""
        if namespace:
            return self.objects.get(namespace, {}).values()
        return (stored for names in self.objects.values() for stored in names.values())

    def items_at(self, version: int, namespace: str = "") -> list[Stored]:
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
            raise Forgotten(version, self.forgotten)
        return self.changes[bisect_right(self.changes, version, key=_version_of) :]

    def forget_up_to(self, version: int) -> None:
        """As a compaction does: older versions can no longer be listed or watched from."""
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
            # A quarter at a time, so that forgetting costs nothing per write.
            cut = len(self.changes) - self.remembered
            self.forgotten = self.changes[cut - 1].version
            del self.changes[:cut]
        for listener in self.listeners:
            listener.set()


class Store:
    def __init__(self, remembered_changes: int = 10_000) -> None:
        self.version = 1
        self.followers: list[Callable[[Change], None]] = []
        """Called after each write, in order. A follower may write: its changes come after."""
        self._remembered = remembered_changes
        self._collections: dict[Storage, Collection] = {}
        self._by_uid: dict[str, tuple[Storage, Stored]] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def collection(self, storage: Storage) -> Collection:
        found = self._collections.get(storage)
        if found is None:
            # Nothing was there before; as on a real server, nobody can look back further than the collection is old.
            found = self._collections[storage] = Collection(self._remembered, forgotten=self.version)
        return found

    def collections(self) -> list[tuple[Storage, Collection]]:
        return list(self._collections.items())

    def by_uid(self, uid: str) -> tuple[Storage, Stored] | None:
        return self._by_uid.get(uid)

    def dependents(self, owner_uid: str) -> list[tuple[Storage, Stored]]:
        """The objects whose ownerReferences name this uid."""
        return [self._by_uid[uid] for uid in self._dependents.get(owner_uid, ())]

    def write(self, storage: Storage, before: Stored | None, tree: Json) -> Stored:
        """Stores a new tree over `before`. The tree belongs to the store from now on."""
        self.version += 1
        tree["metadata"]["resourceVersion"] = str(self.version)
        after = Stored(tree, encode(tree), self.version)
        self._commit(Change(self.version, storage, before, after, after))
        return after

    def remove(self, storage: Storage, before: Stored) -> Stored:
        """Removes an object. Gives its last state, with the version of the removal, as watchers see it."""
        self.version += 1
        tree = {**before.tree, "metadata": {**before.tree["metadata"], "resourceVersion": str(self.version)}}
        last = Stored(tree, encode(tree), self.version)
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

    def _index(self, storage: Storage, stored: Stored) -> None:
        self._by_uid[stored.uid] = (storage, stored)
        for owner in stored.tree["metadata"].get("ownerReferences", ()):
            self._dependents.setdefault(owner["uid"], {})[stored.uid] = None

    def _unindex(self, stored: Stored) -> None:
        self._by_uid.pop(stored.uid, None)
        for owner in stored.tree["metadata"].get("ownerReferences", ()):
            uids = self._dependents.get(owner["uid"])
            if uids is not None:
                uids.pop(stored.uid, None)
                if not uids:
                    del self._dependents[owner["uid"]]
