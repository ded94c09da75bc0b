"""crds.md: each field of the custom resources, from their definitions."""

from collections.abc import Iterator
from typing import Any

from carrel.manifests import crds
from tools.reference import Page, code, document, table


def page() -> Page:
    parts, missing = [], []
    for definition in crds():
        names, spec = definition["spec"]["names"], definition["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            title = f"## {names['kind']} ({spec['group']}/{version['name']})"
            short = ", ".join(code(name) for name in names.get("shortNames", ()))
            about = [
                schema.get("description", ""),
                f"{spec['scope']}; {code(names['plural'])}",
                short and f"short: {short}",
            ]
            rows = list(_fields(schema, ""))
            parts.append(
                f"{title}\n\n{'; '.join(filter(None, about))}.\n\n" + table(["field", "type", "meaning"], rows)
            )
            missing += [f"{names['kind']} {row[0]} has no description" for row in rows if not row[2]]
    introduction = "Defined in `src/carrel/manifests/crds.yaml`. A pod names its GpuClaim in an annotation."
    return Page("crds.md", document("Custom resources", introduction, *parts), tuple(missing))


def _fields(schema: dict[str, Any], above: str) -> Iterator[list[str]]:
    """The fields that have a value of their own; an object is described by its fields."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{above}.{name}" if above else name
        inner = field["items"] if field.get("type") == "array" else field
        is_group = bool(inner.get("properties"))
        if not is_group or field.get("description"):
            yield [code(path), _type(field, is_required=name in required), field.get("description", "")]
        if is_group:
            yield from _fields(inner, f"{path}[]" if inner is not field else path)


def _type(field: dict[str, Any], *, is_required: bool) -> str:
    kind = str(field.get("type", "any"))
    if kind == "array":
        kind = f"list of {field['items'].get('type', 'any')}"
    elif isinstance(field.get("additionalProperties"), dict):
        kind = f"map of {field['additionalProperties'].get('type', 'any')}"
    words = [kind]
    if "enum" in field:
        words = [", ".join(code(str(each)) for each in field["enum"])]
    if "minimum" in field:
        words.append(f"at least {field['minimum']}")
    if "default" in field:
        words.append(f"default {code(str(field['default']))}")
    if is_required:
        words.append("required")
    return "; ".join(words)
