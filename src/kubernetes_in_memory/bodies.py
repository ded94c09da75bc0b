"""From the body of a write to a tree that the rules may trust: the right kind, the right types, known fields only.

A field that nobody knows is refused, told in a Warning header, or dropped in silence: `fieldValidation` says which.
"""

from typing import Any

from kubernetes_in_memory import status
from kubernetes_in_memory.calls import Call
from kubernetes_in_memory.fields import Noted, reader
from kubernetes_in_memory.kinds import Kind
from kubernetes_in_memory.schema import prune

Json = dict[str, Any]


def read_body(call: Call, document: Json) -> Json:
    """A new tree; the document is left as it is, though parts of it may be shared."""
    tree = typed(call, document)
    metadata = tree["metadata"]
    namespace = metadata.get("namespace", "")
    if namespace and namespace != call.target.namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request: "
            f'"{namespace}" is not {repr(call.target.namespace) if call.target.namespace else "the cluster scope"}'
        )
    if call.kind.namespaced:
        metadata["namespace"] = call.target.namespace
    return tree


def typed(call: Call, document: Json) -> Json:
    """The document as a typed server would decode it, and write it again."""
    kind = call.kind
    for field, expected, word in (("apiVersion", kind.api_version, "API version"), ("kind", kind.kind, "kind")):
        given = document.get(field, expected)
        if given != expected:
            raise status.bad_request(
                f"the {word} in the data ({given}) does not match the expected {word} ({expected})"
            )
    noted = Noted()
    tree: Json = {"apiVersion": kind.api_version, "kind": kind.kind}
    tree |= _custom(kind, document, noted) if kind.custom else reader(kind.fields_type)(document, "", noted)
    tree.setdefault("metadata", {})
    _judge(call, noted)
    return tree


def read_as(call: Call, name: str) -> Json:
    """The body as a message that is no object of the kind in the URL: a Binding, DeleteOptions …"""
    noted = Noted()
    message: Json = reader(name)(call.document(), "", noted)
    if noted.wrong:
        raise status.bad_request(f"the body cannot be handled as {name}: {'; '.join(noted.wrong)}")
    return message


def _custom(kind: Kind, document: Json, noted: Noted) -> Json:
    """Only the metadata has a type that is known here; the schema judges the rest, later."""
    pruned: Json = prune(kind.schema or {}, document)
    noted.unknown.extend(_gone(document, pruned))
    metadata = document.get("metadata")
    pruned["metadata"] = {} if metadata is None else reader("ObjectMeta")(metadata, "metadata", noted)
    return pruned


def _judge(call: Call, noted: Noted) -> None:
    named = f'{call.kind.kind} in version "{call.kind.version}" cannot be handled as a {call.kind.kind}'
    if noted.wrong:
        raise status.bad_request(f"{named}: {'; '.join(noted.wrong)}")
    if not noted.unknown:
        return
    wish = call.query.get("fieldValidation") or "Warn"
    told = [f'unknown field "{path}"' for path in noted.unknown]
    if wish == "Strict":
        raise status.bad_request(f"{named}: strict decoding error: {', '.join(told)}")
    if wish == "Warn":
        call.warnings.extend(told)


def _gone(before: Any, after: Any, path: str = "") -> list[str]:
    """The fields that pruning took away."""
    if isinstance(before, list) and isinstance(after, list):
        pairs = zip(before, after, strict=True)
        return [found for at, (old, new) in enumerate(pairs) for found in _gone(old, new, f"{path}[{at}]")]
    if not isinstance(before, dict) or not isinstance(after, dict) or before == after:
        return []
    found: list[str] = []
    for name, value in before.items():
        place = f"{path}.{name}" if path else name
        found += _gone(value, after[name], place) if name in after else [place]
    return found
