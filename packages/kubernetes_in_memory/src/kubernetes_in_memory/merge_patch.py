"""Two of the patches that a Kubernetes API server takes: JSON merge patch (RFC 7386) and strategic merge patch.

Pure. Inputs are never changed; the result shares with them whatever stayed the same, so treat it as read-only.
A strategic merge differs from a merge patch in lists that have a merge key (see `merge_keys`), and in its directives:

    $patch: delete | replace            this map (or list) is emptied or replaced, this element is removed
    $retainKeys: [a, b]                 all other fields of this map are removed
    $deleteFromPrimitiveList/f: [x]     the elements x leave the list f
    $setElementOrder/f: [...]           the list f takes this order

Elements that a patch names come in the patch's order; those it does not name keep their place among their old
neighbours as far as possible. So a new element comes first: surprising, but the real server does the same.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.merge_keys import MergeKeys, merge_keys_for

Json = dict[str, Any]

__all__ = ["MergeKeys", "merge_keys_for", "merge_patch", "strategic_merge"]

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def merge_patch(target: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    merged = dict(target)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            below = merged.get(name)
            merged[name] = merge_patch(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


def strategic_merge(target: Mapping[str, Any], patch: Mapping[str, Any], keys: MergeKeys) -> Json:
    return _merged_map(target, patch, keys, "")


def _merged_map(target: Mapping[str, Any], patch: Mapping[str, Any], keys: MergeKeys, path: str) -> Json:
    match patch.get(_PATCH):
        case None:
            pass
        case "replace":
            return {
                name: _without_directives(value)
                for name, value in patch.items()
                if value is not None and not name.startswith("$")
            }
        case "delete":
            return {}
        case unknown:
            raise _malformed(f"{path}{_PATCH}", unknown, "replace or delete")
    merged = _retained(target, patch, path)
    for name in _named_fields(patch, path):
        value = _merged_field(merged.get(name), patch, name, keys.below(name), path)
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def _retained(target: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> Json:
    if _RETAIN not in patch:
        return dict(target)
    retained = patch[_RETAIN]
    given = [name for name, value in patch.items() if value is not None and not name.startswith("$")]
    if not isinstance(retained, list) or any(name not in retained for name in given):
        raise _malformed(f"{path}{_RETAIN}", retained, f"a list that names at least {given}")
    return {name: value for name, value in target.items() if name in retained}


def _named_fields(patch: Mapping[str, Any], path: str) -> Iterable[str]:
    """The fields that the patch changes, each once, whether named directly or in a directive."""
    fields: dict[str, None] = {}
    for name in patch:
        field = name.removeprefix(_DELETE_FROM).removeprefix(_ORDER)
        if not field.startswith("$"):
            fields[field] = None
        elif name not in (_PATCH, _RETAIN):
            raise _malformed(f"{path}{name}", patch[name], "a known directive")
    return fields


def _merged_field(current: Any, patch: Mapping[str, Any], name: str, keys: MergeKeys, path: str) -> Any:
    """The field's new value; None: it is removed."""
    place, before = f"{path}{name}", current
    if (leaving := patch.get(_DELETE_FROM + name)) is not None and isinstance(current, list):
        gone = _identities(leaving, MergeKeys(patch_set=True), f"{path}{_DELETE_FROM}{name}")
        current = [element for element in current if element not in gone]
    if name in patch:
        value = patch[name]
        if isinstance(value, Mapping):
            current = _merged_map(current if isinstance(current, Mapping) else {}, value, keys, f"{place}.")
        elif isinstance(value, list):
            current = _merged_list(current if isinstance(current, list) else [], value, keys, place)
        else:
            current = value
    if (order := patch.get(_ORDER + name)) is not None and isinstance(current, list):
        wanted = _identities(order, keys, f"{path}{_ORDER}{name}")
        kept = [element for element in patch.get(name) or () if not _has_directive(element)]
        remaining = iter(wanted)
        if not all(identity in remaining for identity in _identities(kept, keys, place)):
            raise _malformed(f"{path}{_ORDER}{name}", order, "the elements of the patch, in the same order")
        current = _ordered(current, wanted, before if isinstance(before, list) else [], keys, place)
    return current


def _merged_list(current: Sequence[Any], patch: Sequence[Any], keys: MergeKeys, place: str) -> list[Any]:
    if keys.patch_key:
        return _merged_elements(current, patch, keys, place)
    if keys.patch_set:
        merged = list(dict.fromkeys([*_identities(current, keys, place), *_identities(patch, keys, place)]))
        return _ordered(merged, patch, current, keys, place)
    return [_without_directives(element) for element in patch if not _has_directive(element)]


def _merged_elements(current: Sequence[Any], patch: Sequence[Any], keys: MergeKeys, place: str) -> list[Any]:
    given, replace, gone = [], False, []
    for element in patch:
        match element.get(_PATCH) if isinstance(element, Mapping) else None:
            case None:
                given.append(element)
            case "replace":
                replace = True
            case "delete":
                gone.append(element)
            case unknown:
                raise _malformed(f"{place}.{_PATCH}", unknown, "replace or delete")
    removed = _identities(gone, keys, place)
    merged = [
        (identity, element)
        for identity, element in zip(_identities(current, keys, place), current, strict=True)
        if not replace and identity not in removed
    ]
    wanted = _identities(given, keys, place)
    for identity, element in zip(wanted, given, strict=True):
        # The live list may have one identity twice (one port, two protocols): the patch changes the first.
        at = next((at for at, (known, _) in enumerate(merged) if known == identity), len(merged))
        live = merged[at][1] if at < len(merged) else {}
        merged[at : at + 1] = [(identity, _merged_map(live, element, keys, f"{place}."))]
    return _ordered([element for _, element in merged], wanted, current, keys, place)


def _ordered(
    elements: Sequence[Any], wanted: Sequence[Any], before: Sequence[Any], keys: MergeKeys, place: str
) -> list[Any]:
    """Named elements in the wanted order; each other one before the first named one that it stood before."""
    rank = {identity: at for at, identity in reversed(list(enumerate(wanted)))}
    old = {identity: at for at, identity in reversed(list(enumerate(_identities(before, keys, place))))}
    pairs = list(zip(_identities(elements, keys, place), elements, strict=True))
    named = sorted((pair for pair in pairs if pair[0] in rank), key=lambda pair: rank[pair[0]])
    others = deque(pair for pair in pairs if pair[0] not in rank)
    ordered = []
    for identity, element in named:
        while others and old.get(others[0][0], len(old)) < old.get(identity, 0):
            ordered.append(others.popleft()[1])
        ordered.append(element)
    return ordered + [element for _, element in others]


def _identities(elements: Any, keys: MergeKeys, place: str) -> list[Any]:
    """What makes elements of a list the same element: the value of the merge key, or a scalar itself."""
    if not isinstance(elements, Sequence) or isinstance(elements, str):
        raise _malformed(place, elements, "a list")
    if not keys.patch_key and not keys.patch_set:
        raise _malformed(place, elements, "no directive: this list is replaced as a whole")
    identities = []
    for element in elements:
        identity = element
        if keys.patch_key:
            identity = element.get(keys.patch_key) if isinstance(element, Mapping) else None
        if identity is None or isinstance(identity, Mapping | list):
            expected = f"an object with a {keys.patch_key}" if keys.patch_key else "a scalar"
            raise _malformed(f"an element of {place}", element, expected)
        identities.append(identity)
    return identities


def _has_directive(element: Any) -> bool:
    return isinstance(element, Mapping) and _PATCH in element


def _without_directives(value: Any) -> Any:
    """A value that replaces what was there. Nothing in it can be deleted, so nulls and directives are dropped."""
    if isinstance(value, Mapping):
        return {
            name: _without_directives(below)
            for name, below in value.items()
            if below is not None and not name.startswith("$")
        }
    if isinstance(value, list):
        return [_without_directives(element) for element in value if not _has_directive(element)]
    return value


def _malformed(field: str, value: object, expected: str) -> MalformedInput:
    return MalformedInput("strategic merge patch", field, value, expected)
