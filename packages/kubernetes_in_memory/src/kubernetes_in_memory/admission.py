"""Admission webhooks: which are called for a write, in which order, and what their answers mean.

Mutating webhooks are called one after the other, in the order of their names, each with the object as the earlier ones
changed it; those with `IfNeeded` are called again if a later one changed it. Then all validating webhooks are called.
Limits: matchConditions are refused on configuration (nothing here evaluates CEL); matchPolicy is always Exact.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from kubernetes_in_memory import json_patch
from kubernetes_in_memory.kinds import MUTATING_WEBHOOKS, NAMESPACES, VALIDATING_WEBHOOKS, Kind
from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.request_info import Call
from kubernetes_in_memory.selectors import label_selector_of
from kubernetes_in_memory.status import ApiError
from kubernetes_in_memory.store import ObjectStore, StoredObject
from kubernetes_in_memory.webhook_client import CallFailed, WebhookClient

Json = dict[str, Any]

OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
NEVER_REVIEWED = (MUTATING_WEBHOOKS.storage, VALIDATING_WEBHOOKS.storage)
"""A broken webhook must not be able to prevent its own removal."""


@dataclass(frozen=True, slots=True)
class Review:
    """One write that webhooks review."""

    operation: str
    call: Call
    tree: Json | None
    """The object as it would be; None on DELETE."""
    live: Json | None
    """The object as it is; None on CREATE."""
    dry_run: bool = False

    @property
    def some_tree(self) -> Json:
        return self.tree or self.live or {}


class AdmissionWebhooks:
    def __init__(self, store: ObjectStore, caller: WebhookClient, new_uid: Callable[[], str]) -> None:
        self._store = store
        self._caller = caller
        self._new_uid = new_uid

    async def mutate(self, review: Review) -> Json:
        """The object after all mutating webhooks; the same tree if none changed it."""
        tree = review.some_tree
        left_as: list[tuple[Json, Json]] = []
        for webhook in self._concerned(MUTATING_WEBHOOKS, review):
            # A webhook before this one may have changed the labels that this one selects by.
            if _selects_object(webhook, review):
                tree = await self._mutated(webhook, review, tree)
                review = replace(review, tree=tree if review.tree is not None else None)
                left_as.append((webhook, tree))
        for webhook, left in left_as:
            if webhook["reinvocationPolicy"] == "IfNeeded" and left is not tree:
                tree = await self._mutated(webhook, review, tree)
                review = replace(review, tree=tree)
        return tree

    async def validate(self, review: Review) -> None:
        webhooks = [one for one in self._concerned(VALIDATING_WEBHOOKS, review) if _selects_object(one, review)]
        answers = await asyncio.gather(*(self._ask(webhook, review) for webhook in webhooks), return_exceptions=True)
        # All were called; the first refusal in the order of their names is reported.
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def validate_deletion(self, call: Call, live: StoredObject, dry_run: bool) -> None:
        review = Review("DELETE", call, None, live.tree, dry_run)
        await self.mutate(review)
        await self.validate(review)

    def _concerned(self, configurations: Kind, review: Review) -> list[Json]:
        if review.call.kind.storage in NEVER_REVIEWED:
            return []
        stored = self._store.collection(configurations.storage).items()
        ordered = sorted(stored, key=lambda one: one.key)
        return [
            webhook
            for configuration in ordered
            for webhook in configuration.tree.get("webhooks", ())
            if any(_rule_matches(rule, review) for rule in webhook.get("rules", ()))
            and self._selects_namespace(webhook, review)
        ]

    def _selects_namespace(self, webhook: Json, review: Review) -> bool:
        selector = webhook["namespaceSelector"]
        if not selector:
            return True
        if review.call.kind.storage == NAMESPACES.storage:
            labels = review.some_tree["metadata"].get("labels", {})
        elif review.call.kind.namespaced:
            namespace = self._store.collection(NAMESPACES.storage).get("", review.call.target.namespace)
            labels = namespace.tree["metadata"].get("labels", {}) if namespace else {}
        else:
            return True
        return label_selector_of(selector).matches(labels)

    async def _mutated(self, webhook: Json, review: Review, tree: Json) -> Json:
        response = await self._ask(webhook, review)
        if not response or not response.get("patch") or review.tree is None:
            return tree
        try:
            operations = _operations(response)
            changed: Json = json_patch.apply(tree, operations)
        except (MalformedInput, CallFailed) as error:
            raise _internal_error(
                f'webhook "{webhook["name"]}" gave a patch that cannot be applied: {error}'
            ) from error
        return tree if changed == tree else changed

    async def _ask(self, webhook: Json, review: Review) -> Json | None:
        """The answer, if it allows the write. None: the webhook failed and its failure is ignored."""
        question = _question(review, self._new_uid())
        try:
            response = await self._caller.ask(webhook, question)
        except CallFailed as error:
            if webhook["failurePolicy"] == "Ignore":
                return None
            raise _internal_error(
                f'failed calling webhook "{webhook["name"]}": failed to call webhook: {error}'
            ) from error
        review.call.warnings.extend(text for text in response.get("warnings") or () if isinstance(text, str))
        if response.get("allowed") is not True:
            raise _denied(webhook["name"], response.get("status") or {})
        return response


def _rule_matches(rule: Json, review: Review) -> bool:
    call = review.call
    kind = call.kind
    scope = "Namespaced" if kind.namespaced else "Cluster"
    return (
        _listed(rule["operations"], review.operation)
        and _listed(rule["apiGroups"], kind.group)
        and _listed(rule["apiVersions"], kind.version)
        and rule["scope"] in ("*", scope)
        and any(_resource_matches(pattern, kind.plural, call.target.subresource) for pattern in rule["resources"])
    )


def _listed(wanted: list[str], given: str) -> bool:
    return "*" in wanted or given in wanted


def _resource_matches(pattern: str, plural: str, subresource: str) -> bool:
    """`pods` is not `pods/status`: a subresource has to be named, or be covered by `pods/*`, `*/status` or `*/*`."""
    wanted, _, wanted_part = pattern.partition("/")
    if wanted not in ("*", plural):
        return False
    return wanted_part == "*" or wanted_part == subresource


def _selects_object(webhook: Json, review: Review) -> bool:
    selector = webhook["objectSelector"]
    if not selector:
        return True
    wanted = label_selector_of(selector)
    trees = [tree for tree in (review.tree, review.live) if tree is not None]
    return any(wanted.matches(tree["metadata"].get("labels", {})) for tree in trees)


def _question(review: Review, uid: str) -> Json:
    call = review.call
    target = call.target
    body_group, _, body_version = review.some_tree["apiVersion"].rpartition("/")
    kind = {"group": body_group, "version": body_version, "kind": review.some_tree["kind"]}
    resource = {"group": target.kind.group, "version": target.kind.version, "resource": target.kind.plural}
    request: Json = {"uid": uid, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource}
    if target.subresource:
        request |= {"subResource": target.subresource, "requestSubResource": target.subresource}
    request["name"] = target.name or review.some_tree["metadata"].get("name", "")
    if target.namespace:
        request["namespace"] = target.namespace
    options = {"kind": OPTIONS[review.operation], "apiVersion": "meta.k8s.io/v1"}
    request |= {
        "operation": review.operation,
        "userInfo": call.user.as_json(),
        "object": review.tree,
        "oldObject": review.live,
        "dryRun": review.dry_run,
        "options": options | ({"dryRun": ["All"]} if review.dry_run else {}),
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _operations(response: Json) -> list[Json]:
    if response.get("patchType") != "JSONPatch":
        raise CallFailed(f"patchType must be JSONPatch, not {response.get('patchType')!r}")
    try:
        operations = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
    except (binascii.Error, ValueError, TypeError) as error:
        raise CallFailed(f"the patch is not JSON in base64: {error}") from error
    if not isinstance(operations, list):
        raise CallFailed("the patch is not a list of operations")
    return operations


def _denied(name: str, status: Json) -> ApiError:
    why = status.get("message") or status.get("reason")
    message = f'admission webhook "{name}" denied the request' + (f": {why}" if why else " without explanation")
    # A refusal is never answered with a success code, whatever the webhook says.
    code = status.get("code")
    return ApiError(
        code if isinstance(code, int) and code >= 400 else 400,
        status.get("reason") or "",
        message,
        status.get("details"),
    )


def _internal_error(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
