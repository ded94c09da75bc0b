"""From the body of a write to a tree that the rules may trust: the right kind, the right types, known fields only.

A field that nobody knows is refused, told in a Warning header, or dropped in silence: `fieldValidation` says which.
"""

from typing import Any

from carrel.adapters.memory import fields, status
from carrel.adapters.memory.calls import Call
from carrel.adapters.memory.kinds import Kind
from carrel.adapters.memory.quantities import quantity_text
from carrel.adapters.memory.schema import prune, validate

Json = dict[str, Any]

QUANTITIES = frozenset({"limits", "requests", "capacity", "allocatable", "overhead", "allocatedResources"})
"""Maps from a resource to a quantity, wherever they are."""


def read_body(call: Call, document: Json) -> Json:
    """A new tree; the document is left as it is, though parts of it may be shared."""
    kind = call.kind
    for field, expected, word in (("apiVersion", kind.api_version, "API version"), ("kind", kind.kind, "kind")):
        given = document.get(field, expected)
        if given != expected:
            raise status.bad_request(
                f"the {word} in the data ({given}) does not match the expected {word} ({expected})"
            )
    tree = {"apiVersion": kind.api_version, "kind": kind.kind, **(document if kind.custom else as_typed(document))}
    tree["metadata"] = as_typed({} if tree.get("metadata") is None else tree["metadata"])
    _check_types(kind, tree)
    tree = _known_fields(call, tree)
    _place(call, tree["metadata"])
    return tree


def as_typed(value: Any, quantities: bool = False) -> Any:
    """As a typed server would write it: a field that is null is not there, and `cpu: 2` is `cpu: "2"`."""
    if isinstance(value, dict):
        return {
            key: as_typed(inner, key in QUANTITIES and isinstance(inner, dict))
            if isinstance(inner, dict | list)
            else (quantity_text(inner) if quantities else inner)
            for key, inner in value.items()
            if inner is not None
        }
    if isinstance(value, list):
        return [as_typed(inner) for inner in value]
    return value


def _check_types(kind: Kind, tree: Json) -> None:
    """What a typed server could not even decode. A custom resource is checked by its schema, later."""
    causes = validate(fields.object_meta(), tree["metadata"], "metadata")
    if not kind.custom:
        causes += validate(fields.schema_of(kind), tree)
    if causes:
        told = "; ".join(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
        raise status.bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {told}')


def _known_fields(call: Call, tree: Json) -> Json:
    known: Json = prune(fields.schema_of(call.kind), tree)
    known["metadata"] = prune(fields.object_meta(), tree["metadata"], root=False)
    if known == tree:
        return known
    wish = call.query.get("fieldValidation") or "Warn"
    told = [f'unknown field "{path}"' for path in fields.unknown(tree, known)]
    if wish == "Strict":
        raise status.bad_request(
            f'{call.kind.kind} in version "{call.kind.version}" cannot be handled as a {call.kind.kind}: '
            f"strict decoding error: {', '.join(told)}"
        )
    if wish == "Warn":
        call.warnings.extend(told)
    return known


def _place(call: Call, metadata: Json) -> None:
    namespace = metadata.get("namespace", "")
    if namespace and namespace != call.target.namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request: "
            f'"{namespace}" is not {repr(call.target.namespace) if call.target.namespace else "the cluster scope"}'
        )
    if call.kind.namespaced:
        metadata["namespace"] = call.target.namespace
