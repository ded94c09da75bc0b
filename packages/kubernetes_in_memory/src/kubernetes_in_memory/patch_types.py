"""The four kinds of patch, chosen by the media type of the body, applied to the live object."""

from collections.abc import Callable
from typing import Any

from kubernetes_in_memory import json_patch, status
from kubernetes_in_memory.apply import ApplyConflict, server_side_apply
from kubernetes_in_memory.body_decoding import typed
from kubernetes_in_memory.causes import required
from kubernetes_in_memory.crd_validation import merge_keys_of
from kubernetes_in_memory.kinds import Kind
from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.merge_patch import MergeKeys, merge_keys_for, merge_patch, strategic_merge
from kubernetes_in_memory.request_info import Call, decode_json

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def keys_of(kind: Kind) -> MergeKeys:
    """How lists of this kind are merged: by which keys, if by any."""
    return merge_keys_of(kind.schema or {}) if kind.custom else merge_keys_for(kind.qualified_kind)


def patch_of(call: Call) -> Callable[[Json], Json]:
    """What the patch in the body does to an object."""
    patch = _read(call)

    def patched(live: Json) -> Json:
        try:
            result = patch(live)
        except MalformedInput as error:
            raise _unprocessable(call, error) from error
        if not isinstance(result, dict):
            raise status.bad_request(f"after the patch the object is no object any more but {result!r}")
        return result

    return patched


def _read(call: Call) -> Callable[[Json], Any]:
    if call.media_type == JSON_PATCH:
        operations = decode_json(call.body)
        return lambda live: json_patch.apply(live, operations)
    if call.media_type == MERGE_PATCH:
        document = _document(call)
        return lambda live: merge_patch(live, document)
    if call.media_type == STRATEGIC_PATCH and not call.kind.custom:
        document = _document(call)
        keys = keys_of(call.kind)
        return lambda live: strategic_merge(live, document, keys)
    known = (JSON_PATCH, MERGE_PATCH, *(() if call.kind.custom else (STRATEGIC_PATCH,)), APPLY_PATCH)
    raise status.unsupported_media_type(call.media_type, ", ".join(known))


def _document(call: Call) -> Json:
    document = decode_json(call.body)
    if not isinstance(document, dict):
        raise status.bad_request(f"a patch of type {call.media_type} must be an object")
    return document


def _unprocessable(call: Call, error: MalformedInput) -> status.ApiError:
    about = {"name": call.target.name, "kind": call.kind.plural}
    message = f"the server rejected our request due to an error in our request: {error}"
    return status.ApiError(422, "Invalid", message, about)


class ServerSideApply:
    """A server-side apply: the document, and who applies it."""

    def __init__(self, call: Call, now: str) -> None:
        if not call.query.get("fieldManager"):
            raise status.bad_request(
                "PatchOptions is invalid: fieldManager: Required value: is required for apply patch"
            )
        self._call = call
        self._now = now
        self._document = call.document()
        causes = [required(field) for field in ("apiVersion", "kind") if not self._document.get(field)]
        if causes:
            raise status.invalid(call.kind, call.target.name, causes)
        self._document = typed(call, self._document)
        if (given := self._document["metadata"].get("name")) != call.target.name:
            raise status.bad_request(
                f"the name of the object ({given}) does not match the name on the URL ({call.target.name})"
            )

    def to(self, live: Json | None) -> Json:
        """The object after the apply. Raises a conflict if it takes another manager's field without force."""
        call = self._call
        try:
            return server_side_apply(
                live,
                self._document,
                manager=call.query["fieldManager"],
                force=call.flag("force"),
                keys=keys_of(call.kind),
                now=self._now,
                subresource=call.target.subresource,
            )
        except MalformedInput as error:
            raise _unprocessable(call, error) from error
        except ApplyConflict as error:
            causes = [{"reason": one.reason, "message": one.message, "field": one.field} for one in error.causes]
            raise status.ApiError(409, "Conflict", str(error), {"causes": causes}) from error
