"""Who owns which field of an object: field paths, and the `managedFields` in which they are written.

Pure. A path is a tuple of elements as FieldsV1 spells them: `f:name` a field, `k:{"name":"a"}` an element of a list
whose elements are known by keys, `v:"x"` an element of a set. An owner owns leaves (scalars, empty maps, and maps and
lists that are merged as one) and elements of lists. What only the server writes has no owner.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes_in_memory.merge_keys import MergeKeys

Json = dict[str, Any]

Path = tuple[str, ...]

_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode

_SERVER_FIELDS = ("uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields")
_NOBODYS: frozenset[Path] = frozenset(
    [
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(("f:metadata", f"f:{name}") for name in ("name", "namespace", *_SERVER_FIELDS)),
    ]
)


@dataclass(frozen=True, slots=True)
class Owner:
    manager: str
    operation: str
    """`Apply`, or `Update` for every other write."""
    api_version: str
    subresource: str = ""

    def __str__(self) -> str:
        name = json.dumps(self.manager)
        if self.subresource:
            name += f" with subresource {json.dumps(self.subresource)}"
        return name if self.operation == "Apply" else f"{name} using {self.api_version}"


@dataclass(frozen=True, slots=True)
class OwnedFields:
    """The fields of one owner, and since when. Kept as the tree that is written, because most writes change none."""

    fields: Json
    time: str

    @property
    def paths(self) -> frozenset[Path]:
        return frozenset(_paths_of(self.fields, ()))

    def holds(self, path: Path) -> bool:
        node = self.fields
        for element in path:
            if element not in node:
                return False
            node = node[element]
        return not node or "." in node

    def after(self, now: str, *, lost: Iterable[Path] = (), won: Iterable[Path] = ()) -> "OwnedFields":
        """The same object if nothing is lost or gained."""
        leaving = [path for path in lost if self.holds(path)]
        coming = [path for path in won if not self.holds(path)]
        if not leaving and not coming:
            return self
        return OwnedFields(fields_v1(self.paths.difference(leaving).union(coming)), now)


Owners = dict[Owner, OwnedFields]


@dataclass(slots=True)
class Difference:
    changed: set[Path] = field(default_factory=set)
    """Paths that have a new value, or are new."""
    removed: set[Path] = field(default_factory=set)


def owned_paths(document: Mapping[str, Any], keys: MergeKeys) -> frozenset[Path]:
    """The paths that the writer of this document owns."""
    paths: set[Path] = set()
    _collect(document, keys, (), paths)
    return frozenset(paths - _NOBODYS)


def difference(before: Mapping[str, Any], after: Mapping[str, Any], keys: MergeKeys) -> Difference:
    found = Difference()
    _compare(before, after, keys, (), found)
    found.changed -= _NOBODYS
    found.removed -= _NOBODYS
    return found


def element_of(value: Any, keys: MergeKeys) -> str:
    """What identifies an element of a list."""
    if keys.apply_set:
        return "v:" + _compact(value)
    known = value if isinstance(value, dict) else {}
    return "k:" + _compact({key: known.get(key, keys.defaults.get(key)) for key in keys.apply_keys})


def shown(path: Path) -> str:
    """As a conflict shows it: `.spec.containers[name="a"].image`."""
    text = ""
    for element in path:
        kind, value = element[:2], element[2:]
        if kind == "f:":
            text += f".{value}"
        elif kind == "v:":
            text += f"[={value}]"
        else:
            text += "[" + ",".join(f"{key}={_compact(each)}" for key, each in sorted(json.loads(value).items())) + "]"
    return text


def parts_of(value: Any, keys: MergeKeys) -> dict[str, Any] | None:
    """The parts of a map or list that have owners of their own, by path element. None: it is owned as one."""
    if isinstance(value, dict):
        return {f"f:{name}": below for name, below in value.items()} if value and not keys.atomic else None
    if isinstance(value, list) and (keys.apply_keys or keys.apply_set):
        return {element_of(element, keys): element for element in value}
    return None


def keys_below(keys: MergeKeys, element: str) -> MergeKeys:
    """A list's keys already describe the fields of its elements."""
    return keys.below(element[2:]) if element.startswith("f:") else keys


def _collect(value: Any, keys: MergeKeys, path: Path, paths: set[Path]) -> None:
    parts = parts_of(value, keys)
    if parts is None or (path and not path[-1].startswith("f:")):
        paths.add(path)
    for element, below in (parts or {}).items():
        _collect(below, keys_below(keys, element), (*path, element), paths)


def _compare(before: Any, after: Any, keys: MergeKeys, path: Path, found: Difference) -> None:
    if before is after or before == after:
        return
    old, new = parts_of(before, keys), parts_of(after, keys)
    if old is None or new is None:
        gone: set[Path] = set()
        _collect(before, keys, path, gone)
        _collect(after, keys, path, found.changed)
        found.removed |= gone - found.changed - {path}
        if old is None and before != {}:
            # A scalar that became a map has changed; an empty map that was filled has not.
            found.changed.add(path)
        return
    for element in old.keys() | new.keys():
        here, below = (*path, element), keys_below(keys, element)
        if element not in new:
            _collect(old[element], below, here, found.removed)
        elif element not in old:
            _collect(new[element], below, here, found.changed)
        else:
            _compare(old[element], new[element], below, here, found)


def fields_v1(paths: Iterable[Path]) -> Json:
    """The paths as a tree. A path that has others below it is marked with a dot."""
    tree: Json = {}
    nodes = []
    for path in sorted(paths):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        nodes.append(node)
    for node in nodes:
        if node:
            node["."] = {}
    return tree


def _paths_of(tree: Json, path: Path) -> Iterable[Path]:
    for element, below in tree.items():
        if element == ".":
            yield path
        elif below:
            yield from _paths_of(below, (*path, element))
        else:
            yield (*path, element)


def read_owners(entries: Any) -> Owners:
    """From `metadata.managedFields`. An entry that names no manager or no fields owns nothing: `[{}]` resets all."""
    owners: Owners = {}
    for entry in entries or ():
        if isinstance(entry, dict) and isinstance(entry.get("fieldsV1"), dict):
            words = (entry.get(word, "") for word in ("manager", "operation", "apiVersion", "subresource"))
            owners[Owner(*words)] = OwnedFields(entry["fieldsV1"], entry.get("time", ""))
    return owners


def written_owners(owners: Owners) -> list[Json]:
    entries = []
    for owner, holding in sorted(owners.items(), key=lambda pair: (pair[0].operation, pair[1].time, pair[0].manager)):
        if holding.fields:
            entry: Json = {
                "manager": owner.manager,
                "operation": owner.operation,
                "apiVersion": owner.api_version,
                "time": holding.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": holding.fields,
            }
            entries.append(entry | {"subresource": owner.subresource} if owner.subresource else entry)
    return entries
