"""Turns the body of a write into a tree that the rules can rely on: the right kind, the right types, known fields only.

An unknown field is refused, reported in a Warning header, or dropped without notice: `fieldValidation` says which.
"""

from typing import Any

from kubernetes_in_memory import status
from kubernetes_in_memory.fields import ReadProblems, reader
from kubernetes_in_memory.kinds import Kind
from kubernetes_in_memory.object_validation import prune
from kubernetes_in_memory.request_info import Call

Json = dict[str, Any]


def read_body(call: Call, document: Json) -> Json:
    """A new tree; the document is not changed, but the tree may share parts with it."""
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
    """The document as a typed server would decode and encode it."""
    kind = call.kind
    for field, expected, word in (("apiVersion", kind.api_version, "API version"), ("kind", kind.kind, "kind")):
        given = document.get(field, expected)
        if given != expected:
            raise status.bad_request(
                f"the {word} in the data ({given}) does not match the expected {word} ({expected})"
            )
    problems = ReadProblems()
    tree: Json = {"apiVersion": kind.api_version, "kind": kind.kind}
    tree |= _custom(kind, document, problems) if kind.custom else reader(kind.fields_type)(document, "", problems)
    tree.setdefault("metadata", {})
    _report_problems(call, problems)
    return tree


def read_as(call: Call, name: str) -> Json:
    """The body as a message that is not an object of the kind in the URL: a Binding, DeleteOptions …"""
    problems = ReadProblems()
    message: Json = reader(name)(call.document(), "", problems)
    if problems.wrong:
        raise status.bad_request(f"the body cannot be handled as {name}: {'; '.join(problems.wrong)}")
    return message


def _custom(kind: Kind, document: Json, problems: ReadProblems) -> Json:
    """Only the metadata has a known type; the rest is validated against the schema later."""
    pruned: Json = prune(kind.schema or {}, document)
    problems.unknown.extend(_pruned_fields(document, pruned))
    metadata = document.get("metadata")
    pruned["metadata"] = {} if metadata is None else reader("ObjectMeta")(metadata, "metadata", problems)
    return pruned


def _report_problems(call: Call, problems: ReadProblems) -> None:
    named = f'{call.kind.kind} in version "{call.kind.version}" cannot be handled as a {call.kind.kind}'
    if problems.wrong:
        raise status.bad_request(f"{named}: {'; '.join(problems.wrong)}")
    if not problems.unknown:
        return
    wish = call.query.get("fieldValidation") or "Warn"
    messages = [f'unknown field "{path}"' for path in problems.unknown]
    if wish == "Strict":
        raise status.bad_request(f"{named}: strict decoding error: {', '.join(messages)}")
    if wish == "Warn":
        call.warnings.extend(messages)


def _pruned_fields(before: Any, after: Any, path: str = "") -> list[str]:
    """The fields that pruning removed."""
    if isinstance(before, list) and isinstance(after, list):
        pairs = zip(before, after, strict=True)
        return [found for at, (old, new) in enumerate(pairs) for found in _pruned_fields(old, new, f"{path}[{at}]")]
    if not isinstance(before, dict) or not isinstance(after, dict) or before == after:
        return []
    found: list[str] = []
    for name, value in before.items():
        place = f"{path}.{name}" if path else name
        found += _pruned_fields(value, after[name], place) if name in after else [place]
    return found
