"""Create, update and patch: from a body to a stored object, through defaults, admission and checks.

Admission may wait for a webhook; until then and after it nothing else runs in between. A write therefore looks again
before it stores: if the object changed while a webhook was asked, a patch starts over, and an update that named a
version is a conflict. No lock is held while anybody waits.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from carrel.adapters.memory import causes, objects, status
from carrel.adapters.memory.admission import Admission, Review
from carrel.adapters.memory.calls import Call, Target, decode_json
from carrel.adapters.memory.deletion import Deletion
from carrel.adapters.memory.kinds import NAMESPACES, Kind
from carrel.adapters.memory.patch import merge_keys_for, merge_patch, strategic_merge
from carrel.adapters.memory.rules import rules_of
from carrel.adapters.memory.store import Store, Stored, encode
from carrel.protocols import Malformed
from carrel.protocols.kubernetes import json_patch

Json = dict[str, Any]
Clock = Callable[[], datetime]

NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""What generated names end in: no vowels, so that no word comes out."""
LONGEST_PREFIX = 58
ATTEMPTS = 10

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def timestamp(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Writes:
    def __init__(
        self, store: Store, admission: Admission, deletion: Deletion, clock: Clock, chance: random.Random
    ) -> None:
        self._store = store
        self._admission = admission
        self._deletion = deletion
        self._clock = clock
        self._chance = chance

    def found_namespace(self, name: str) -> None:
        """One of the namespaces that are there from the start."""
        tree: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {}}
        objects.stamp_new(NAMESPACES, tree, name=name, uid=self._uid(), now=timestamp(self._clock()))
        rules_of(NAMESPACES).default(tree)
        self._store.write(NAMESPACES.storage, None, tree)

    async def create(self, call: Call) -> Stored:
        return await self._create(call, call.document())

    async def update(self, call: Call) -> Stored:
        body = call.document()
        if not isinstance(metadata := body.get("metadata"), dict) or not metadata.get("name"):
            raise status.bad_request("the object to update must have metadata.name")
        if metadata["name"] != call.target.name:
            raise status.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({call.target.name})"
            )
        if rules_of(call.kind).needs_version and not metadata.get("resourceVersion"):
            cause = causes.wrong("metadata.resourceVersion", 0, "must be specified for an update")
            raise status.invalid(call.kind, call.target.name, [cause])
        return await self._change(call, lambda live: body, anew=not metadata.get("resourceVersion"))

    async def patch(self, call: Call) -> Stored:
        match call.media_type:
            case "application/json-patch+json":
                operations = decode_json(call.body)
                return await self._change(call, lambda live: json_patch.apply(live, operations))
            case "application/merge-patch+json":
                document = _patch_document(call)
                return await self._change(call, lambda live: merge_patch(live, document))
            case "application/strategic-merge-patch+json" if not call.kind.custom:
                document = _patch_document(call)
                keys = merge_keys_for(call.kind.qualified_kind)
                return await self._change(call, lambda live: strategic_merge(live, document, keys))
        known = (
            [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
            if call.kind.custom
            else [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]
        )
        raise status.unsupported_media_type(call.media_type, ", ".join(known))

    async def _create(self, call: Call, body: Json) -> Stored:
        kind = call.kind
        tree = objects.read_body(call.target, body)
        objects.check_creatable(kind, tree)
        self._check_namespace(call.target, tree["metadata"].get("name", ""))
        rules = rules_of(kind)
        rules.default(tree)
        tree = await self._admission.mutate(Review("CREATE", call, tree, None))
        rules.default(tree)
        name = tree["metadata"].get("name") or self._free_name(call.target, tree["metadata"]["generateName"])
        objects.stamp_new(kind, tree, name=name, uid=self._uid(), now=timestamp(self._clock()))
        tree["apiVersion"] = kind.stored_api_version
        self._check(kind, tree, None)
        await self._admission.validate(Review("CREATE", call, tree, None))
        self._check_namespace(call.target, name)
        collection = self._store.collection(kind.storage)
        if collection.get(call.target.namespace, name) is not None:
            raise status.already_exists(kind, name)
        if call.dry_run:
            return Stored(tree, encode(tree), self._store.version)
        return self._store.write(kind.storage, None, tree)

    async def _change(self, call: Call, proposed: Callable[[Json], Json], anew: bool = True) -> Stored:
        """Writes what `proposed` makes of the live object; starts over if that changed while a webhook was asked."""
        target = call.target
        collection = self._store.collection(target.kind.storage)
        for _ in range(ATTEMPTS):
            live = collection.get(target.namespace, target.name)
            if live is None:
                raise status.not_found(target.kind, target.name)
            tree = await self._admitted(call, live, self._proposed(call, live, proposed))
            if collection.get(target.namespace, target.name) is live:
                return self._stored(call, live, tree)
            if not anew:
                break
        raise status.conflict(target.kind, target.name)

    def _proposed(self, call: Call, live: Stored, proposed: Callable[[Json], Json]) -> Json:
        target = call.target
        shown = live.tree
        if shown["apiVersion"] != target.kind.api_version:
            shown = {**shown, "apiVersion": target.kind.api_version}
        try:
            candidate = proposed(shown)
        except Malformed as error:
            raise status.ApiError(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
            ) from error
        if not isinstance(candidate, dict):
            raise status.bad_request("the patched object is no object any more")
        tree = objects.read_body(target, candidate)
        rules_of(target.kind).default(tree)
        return objects.merged_update(target, live.tree, tree)

    async def _admitted(self, call: Call, live: Stored, tree: Json) -> Json:
        mutated = await self._admission.mutate(Review("UPDATE", call, tree, live.tree))
        if mutated is not tree:
            rules_of(call.kind).default(mutated)
            tree = objects.merged_update(call.target, live.tree, mutated)
        tree["apiVersion"] = call.kind.stored_api_version
        self._check(call.kind, tree, live.tree)
        await self._admission.validate(Review("UPDATE", call, tree, live.tree))
        return tree

    def _stored(self, call: Call, live: Stored, tree: Json) -> Stored:
        if objects.same(live.tree, tree):
            return live
        if call.dry_run:
            return Stored(tree, encode(tree), live.version)
        stored = self._store.write(call.kind.storage, live, tree)
        return self._deletion.finish(call.kind.storage, stored)

    def _check(self, kind: Kind, tree: Json, live: Json | None) -> None:
        found = objects.metadata_causes(kind, tree, live) + rules_of(kind).check(tree, live)
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

    def _uid(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))

    def _free_name(self, target: Target, prefix: str) -> str:
        collection = self._store.collection(target.kind.storage)
        while True:
            name = prefix[:LONGEST_PREFIX] + "".join(self._chance.choices(NAME_LETTERS, k=5))
            if collection.get(target.namespace, name) is None:
                return name


def _patch_document(call: Call) -> Json:
    document = decode_json(call.body)
    if not isinstance(document, dict):
        raise status.bad_request(f"a patch of type {call.media_type} must be an object")
    return document
