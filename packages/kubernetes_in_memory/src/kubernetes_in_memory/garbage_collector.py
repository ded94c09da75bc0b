"""Deletes what depends on deleted objects: dependents of an owner, the content of a namespace, the objects of a CRD.

It records each change and works after the call that made it, like the controllers of a real cluster, only sooner. Work
is a list, not a recursion: its own deletions are recorded too.
"""

from collections import deque
from typing import Any

from kubernetes_in_memory.deletion import CRD_CLEANUP, FOREGROUND, ORPHAN, DeleteOptions, Deleter
from kubernetes_in_memory.kinds import CRDS, NAMESPACES, Kinds
from kubernetes_in_memory.store import Change, ObjectStore, Storage, StoredObject

Json = dict[str, Any]

NAMESPACE_CONTENT = "kubernetes"
BACKGROUND = DeleteOptions(propagation="Background")


class GarbageCollector:
    def __init__(self, store: ObjectStore, kinds: Kinds, deletion: Deleter) -> None:
        self._store = store
        self._kinds = kinds
        self._deletion = deletion
        self._noted: deque[Change] = deque()
        store.followers.append(self._note)

    def _note(self, change: Change) -> None:
        metadata = change.last.tree["metadata"]
        if change.after is None or "deletionTimestamp" in metadata or "ownerReferences" in metadata:
            self._noted.append(change)

    def work(self) -> None:
        while self._noted:
            change = self._noted.popleft()
            if change.after is None:
                self._after_removal(change)
            elif "deletionTimestamp" in change.last.tree["metadata"]:
                self._settle(change.last.uid)
            if "ownerReferences" in change.last.tree["metadata"]:
                self._drop_dangling(change.last.uid)

    def _after_removal(self, change: Change) -> None:
        gone = change.last
        for _, dependent in self._store.dependents(gone.uid):
            self._drop_dangling(dependent.uid)
        for owner in gone.tree["metadata"].get("ownerReferences", ()):
            self._settle(owner["uid"])
        namespace = self._store.collection(NAMESPACES.storage).get("", gone.key[0])
        if namespace is not None:
            self._settle(namespace.uid)
        group, plural = change.storage
        if definition := self._store.collection(CRDS.storage).get("", f"{plural}.{group}"):
            self._settle(definition.uid)

    def _settle(self, uid: str) -> None:
        """Continues the deletion of an owner, a namespace or a CRD as far as possible now."""
        found = self._store.by_uid(uid)
        if found is None or "deletionTimestamp" not in found[1].tree["metadata"]:
            return
        storage, stored = found
        finalizers = stored.tree["metadata"].get("finalizers", ())
        if ORPHAN in finalizers:
            for where, dependent in self._store.dependents(uid):
                self._drop_owners(where, dependent, {uid})
            self._deletion.drop_finalizer(storage, stored, ORPHAN)
        elif FOREGROUND in finalizers:
            self._settle_foreground(storage, stored)
        elif storage == NAMESPACES.storage and NAMESPACE_CONTENT in stored.tree["spec"].get("finalizers", ()):
            self._empty(storage, stored, self._content_of_namespace(stored.key[1]), NAMESPACE_CONTENT)
        elif storage == CRDS.storage and CRD_CLEANUP in finalizers:
            names = stored.tree["spec"]
            objects = self._store.collection((names["group"], names["names"]["plural"]))
            where = (names["group"], names["names"]["plural"])
            self._empty(storage, stored, [(where, item) for item in objects.items()], CRD_CLEANUP)

    def _settle_foreground(self, storage: Storage, owner: StoredObject) -> None:
        for where, dependent in self._store.dependents(owner.uid):
            if "deletionTimestamp" not in dependent.tree["metadata"]:
                deep = bool(self._store.dependents(dependent.uid))
                self._deletion.delete(where, dependent, DeleteOptions(propagation="Foreground") if deep else BACKGROUND)
        if not any(_blocks(dependent, owner.uid) for _, dependent in self._store.dependents(owner.uid)):
            self._deletion.drop_finalizer(storage, owner, FOREGROUND)

    def _empty(
        self, storage: Storage, stored: StoredObject, content: list[tuple[Storage, StoredObject]], finalizer: str
    ) -> None:
        for where, item in content:
            if "deletionTimestamp" not in item.tree["metadata"]:
                self._deletion.delete(where, item, BACKGROUND)
        if all(self._store.by_uid(item.uid) is None for _, item in content):
            self._deletion.drop_finalizer(storage, stored, finalizer)

    def _content_of_namespace(self, name: str) -> list[tuple[Storage, StoredObject]]:
        return [
            (where, item) for where, collection in self._store.collections() for item in list(collection.items(name))
        ]

    def _drop_dangling(self, uid: str) -> None:
        """Deletes an object if all its owners are deleted; otherwise removes the references to deleted owners."""
        found = self._store.by_uid(uid)
        if found is None:
            return
        storage, stored = found
        owners = stored.tree["metadata"].get("ownerReferences", ())
        gone = {owner["uid"] for owner in owners if not self._is_there(owner, stored)}
        if not gone:
            return
        if len(gone) < len({owner["uid"] for owner in owners}):
            self._drop_owners(storage, stored, gone)
        elif "deletionTimestamp" not in stored.tree["metadata"]:
            self._deletion.delete(storage, stored, BACKGROUND)

    def _is_there(self, owner: Json, dependent: StoredObject) -> bool:
        """Like the real garbage collector: the owner is looked up by its name, in the dependent's own namespace."""
        kind = self._kinds.of_object(owner["apiVersion"], owner["kind"])
        if kind is None:
            # An owner of a kind that is not served cannot be looked up: the dependent is kept.
            return True
        namespace = dependent.key[0] if kind.namespaced else ""
        found = self._store.collection(kind.storage).get(namespace, owner["name"])
        return found is not None and found.uid == owner["uid"]

    def _drop_owners(self, storage: Storage, stored: StoredObject, uids: set[str]) -> None:
        metadata = dict(stored.tree["metadata"])
        metadata["ownerReferences"] = [owner for owner in metadata["ownerReferences"] if owner["uid"] not in uids]
        if not metadata["ownerReferences"]:
            del metadata["ownerReferences"]
        self._store.write(storage, stored, {**stored.tree, "metadata": metadata})


def _blocks(dependent: StoredObject, owner_uid: str) -> bool:
    owners = dependent.tree["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == owner_uid and owner.get("blockOwnerDeletion") for owner in owners)
