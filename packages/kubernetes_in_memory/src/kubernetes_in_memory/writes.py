"""Create, update and patch: from a body to a stored object, through defaults, admission and checks.

Only calls of admission webhooks wait; before and after them nothing else runs in between. Therefore a write reads the
object again before it stores: if it changed while a webhook was called, a patch starts again, and an update with a
version is a conflict. No lock is held while a write waits.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from kubernetes_in_memory import causes, objects, pod_subresources, pods, status
from kubernetes_in_memory.admission import AdmissionWebhooks, Review
from kubernetes_in_memory.apply import track_update
from kubernetes_in_memory.body_decoding import read_body
from kubernetes_in_memory.built_in_rules import SYSTEM_PRIORITIES
from kubernetes_in_memory.deletion import Deleter
from kubernetes_in_memory.kind_rules import rules_of
from kubernetes_in_memory.kinds import NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from kubernetes_in_memory.name_generator import NameGenerator
from kubernetes_in_memory.patch_types import APPLY_PATCH, ServerSideApply, keys_of, patch_of
from kubernetes_in_memory.request_info import Call, Target
from kubernetes_in_memory.store import ObjectStore, StoredObject, encode
from kubernetes_in_memory.times import timestamp

Json = dict[str, Any]
Clock = Callable[[], datetime]

ATTEMPTS = 10


class Writes:
    def __init__(
        self, store: ObjectStore, admission: AdmissionWebhooks, deletion: Deleter, clock: Clock, names: NameGenerator
    ) -> None:
        self._store = store
        self._admission = admission
        self._deletion = deletion
        self._clock = clock
        self._names = names

    def create_namespace(self, name: str) -> None:
        """One of the namespaces that exist from the start."""
        tree: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {}}
        objects.stamp_new(NAMESPACES, tree, name=name, uid=self._names.uid(), now=timestamp(self._clock()))
        self._store.write(NAMESPACES.storage, None, rules_of(NAMESPACES).default(tree))

    async def create(self, call: Call) -> StoredObject:
        return await self._create(call, call.document())

    async def update(self, call: Call) -> tuple[StoredObject, bool]:
        """The updated object, and whether it is new."""
        body = call.document()
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or metadata.get("name") != call.target.name:
            given = metadata.get("name") if isinstance(metadata, dict) else None
            raise status.bad_request(
                f"the name of the object ({given}) does not match the name on the URL ({call.target.name})"
            )
        rules = rules_of(call.kind)
        if rules.creates_on_update and self._live(call.target) is None:
            return await self._create_by_update(call, body, metadata), True
        if rules.needs_version and not metadata.get("resourceVersion"):
            cause = causes.wrong("metadata.resourceVersion", 0, "must be specified for an update")
            raise status.invalid(call.kind, call.target.name, [cause])
        return await self._change(call, lambda live: body, anew=not metadata.get("resourceVersion")), False

    async def _create_by_update(self, call: Call, body: Json, metadata: Json) -> StoredObject:
        if uid := metadata.get("uid"):
            raise status.conflict(call.kind, call.target.name, status.failed_precondition("UID", uid, ""))
        kept = {key: value for key, value in metadata.items() if key != "resourceVersion"}
        return await self._create(call, {**body, "metadata": kept})

    async def patch(self, call: Call) -> tuple[StoredObject, bool]:
        """The patched object, and whether it is new: only an apply creates one."""
        if call.media_type == APPLY_PATCH:
            return await self._apply(call)
        return await self._change(call, patch_of(call)), False

    async def _apply(self, call: Call) -> tuple[StoredObject, bool]:
        applied = ServerSideApply(call, timestamp(self._clock()))
        if self._live(call.target) is None and not call.target.subresource:
            return await self._create(call, applied.to(None)), True
        return await self._change(call, applied.to), False

    async def _create(self, call: Call, body: Json) -> StoredObject:
        kind = call.kind
        tree = read_body(call, body)
        objects.check_creatable(kind, tree)
        self._check_namespace(call.target, tree["metadata"].get("name", ""))
        if kind.has_status and kind.storage != NODES.storage:
            # A new object has no status, except a Node, whose kubelet sends it.
            tree.pop("status", None)
        rules = rules_of(kind)
        tree = rules.default(tree)
        mutated = await self._admission.mutate(Review("CREATE", call, tree, None, call.dry_run))
        if mutated is not tree:
            tree = rules.default(read_body(call, mutated))
        if kind.storage == PODS.storage:
            pods.admit(tree, self._priority_class)
        name = tree["metadata"].get("name") or self._free_name(call.target, tree["metadata"]["generateName"])
        objects.stamp_new(kind, tree, name=name, uid=self._names.uid(), now=timestamp(self._clock()))
        tree = kind.as_stored(tree)
        self._check(call.target, tree, None)
        await self._admission.validate(Review("CREATE", call, tree, None, call.dry_run))
        self._check_namespace(call.target, name)
        collection = self._store.collection(kind.storage)
        if collection.get(call.target.namespace, name) is not None:
            raise status.already_exists(kind, name)
        if call.dry_run:
            return StoredObject(tree, encode(tree), self._store.version)
        return self._store.write(kind.storage, None, tree)

    async def _change(self, call: Call, proposed: Callable[[Json], Json], anew: bool = True) -> StoredObject:
        """Writes what `proposed` returns for the live object; starts again if that changed during a webhook call."""
        target = call.target
        for _ in range(ATTEMPTS):
            live = self._live(target)
            if live is None:
                raise status.not_found(target.kind, target.name)
            tree = await self._admitted(call, live, self._proposed(call, live, proposed))
            if self._live(target) is live:
                return self._stored(call, live, tree)
            if not anew:
                break
        raise status.conflict(target.kind, target.name)

    def _live(self, target: Target) -> StoredObject | None:
        return self._store.collection(target.kind.storage).get(target.namespace, target.name)

    def _proposed(self, call: Call, live: StoredObject, proposed: Callable[[Json], Json]) -> Json:
        target = call.target
        tree = read_body(call, proposed(target.kind.as_shown(live.tree)))
        return self._merged(target, live, rules_of(target.kind).default(tree))

    @staticmethod
    def _merged(target: Target, live: StoredObject, tree: Json) -> Json:
        if target.subresource in pod_subresources.PARTS:
            tree = pod_subresources.with_part(target.subresource, live.tree, tree)
        return objects.merged_update(target, live.tree, tree)

    async def _admitted(self, call: Call, live: StoredObject, tree: Json) -> Json:
        mutated = await self._admission.mutate(Review("UPDATE", call, tree, live.tree, call.dry_run))
        if mutated is not tree:
            tree = self._merged(call.target, live, rules_of(call.kind).default(read_body(call, mutated)))
        tree = call.kind.as_stored(tree)
        self._check(call.target, tree, live.tree)
        await self._admission.validate(Review("UPDATE", call, tree, live.tree, call.dry_run))
        return tree

    def _stored(self, call: Call, live: StoredObject, tree: Json) -> StoredObject:
        if call.media_type == APPLY_PATCH:
            # An apply that changes no value may still change who owns it.
            if tree == live.tree:
                return live
        elif objects.same(live.tree, tree):
            return live
        elif live.tree["metadata"].get("managedFields"):
            tree["metadata"]["managedFields"] = self._owned(call, live.tree, tree)
        if call.dry_run:
            return StoredObject(tree, encode(tree), live.version)
        stored = self._store.write(call.kind.storage, live, tree)
        return self._deletion.finish(call.kind.storage, stored)

    def _owned(self, call: Call, before: Json, after: Json) -> list[Json]:
        return track_update(
            before,
            after,
            manager=call.manager,
            now=timestamp(self._clock()),
            keys=keys_of(call.kind),
            subresource=call.target.subresource,
        )

    def _check(self, target: Target, tree: Json, live: Json | None) -> None:
        kind = target.kind
        found = objects.metadata_causes(kind, tree, live)
        if live is not None and target.subresource in pod_subresources.PARTS:
            found += pod_subresources.check(target.subresource, tree, live)
        else:
            found += rules_of(kind).check(tree, live)
        if found:
            raise status.invalid(kind, tree["metadata"]["name"], found)

    def _check_namespace(self, target: Target, name: str) -> None:
        if not target.kind.namespaced:
            return
        if not target.namespace:
            raise status.method_not_allowed()
        namespace = self._store.collection(NAMESPACES.storage).get("", target.namespace)
        if namespace is None:
            raise status.not_found(NAMESPACES, target.namespace)
        if namespace.tree["metadata"].get("deletionTimestamp"):
            raise status.forbidden(
                target.kind,
                name,
                f"unable to create new content in namespace {target.namespace} because it is being terminated",
                [
                    {
                        "reason": "NamespaceTerminating",
                        "message": f"namespace {target.namespace} is being terminated",
                        "field": "metadata.namespace",
                    }
                ],
            )

    def _priority_class(self, name: str) -> Json | None:
        """The class of that name; without a name, the one that is the default, if there is one."""
        classes = self._store.collection(PRIORITY_CLASSES.storage)
        if name:
            found = classes.get("", name)
            return found.tree if found else SYSTEM_PRIORITIES.get(name)
        return next((item.tree for item in classes.items() if item.tree.get("globalDefault")), None)

    def _free_name(self, target: Target, prefix: str) -> str:
        collection = self._store.collection(target.kind.storage)
        while True:
            name = self._names.generated(prefix)
            if collection.get(target.namespace, name) is None:
                return name
