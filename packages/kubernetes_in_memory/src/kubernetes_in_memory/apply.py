"""Server-side apply: the manager that applies a document owns its fields, and no other changes them by accident.

Pure; inputs are never changed, and results may share parts with them.
- Fields that this manager applied before and leaves out now are removed, unless another manager owns them too.
- A field that another manager owns and that would get another value is a conflict, unless the apply is forced.
- Applying the same document twice changes nothing, not even a time.

Limit, on purpose: ownership is recorded from the first apply on. An object that was never applied has no
`managedFields`, so that ordinary writes cost nothing; on its first apply all its fields belong to `before-first-apply`,
as on a real server for objects that are older than server-side apply.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes_in_memory.causes import Cause
from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.merge_keys import MergeKeys
from kubernetes_in_memory.ownership import (
    Difference,
    OwnedFields,
    Owner,
    Owners,
    Path,
    difference,
    element_of,
    fields_v1,
    keys_below,
    owned_paths,
    parts_of,
    read_owners,
    shown,
    written_owners,
)

Json = dict[str, Any]

_BEFORE = "before-first-apply"


@dataclass(frozen=True, slots=True)
class FieldConflict:
    owner: Owner
    path: Path

    @property
    def cause(self) -> Cause:
        return Cause(shown(self.path), "FieldManagerConflict", f"conflict with {self.owner}")


class ApplyConflict(Exception):
    """Other managers own fields that this apply would change. The message and the causes are those of a 409."""

    def __init__(self, conflicts: Sequence[FieldConflict]) -> None:
        self.conflicts = conflicts
        super().__init__(_conflict_message(conflicts))

    @property
    def causes(self) -> list[Cause]:
        return [conflict.cause for conflict in self.conflicts]


def server_side_apply(
    live: Json | None,
    applied: Json,
    *,
    manager: str,
    force: bool,
    keys: MergeKeys,
    now: str,
    subresource: str = "",
) -> Json:
    """The live object (None: there is none) after an apply, with its `managedFields`."""
    if (applied.get("metadata") or {}).get("managedFields"):
        raise _malformed("metadata.managedFields", applied["metadata"]["managedFields"], "nothing")
    before = live or {}
    me = Owner(manager, "Apply", str(applied.get("apiVersion", "")), subresource)
    owners = _owners_of(before, keys, now)
    others = {owner: holding for owner, holding in owners.items() if not _is_same(owner, me)}
    mine = frozenset[Path]().union(*(owners[owner].paths for owner in owners.keys() - others.keys()))
    wanted = owned_paths(applied, keys)
    doomed = fields_v1(_abandoned(mine - wanted, wanted, others))
    merged = _merged(_without(before, doomed, keys), applied, keys, "")
    found = difference(before, merged, keys) if others else Difference()
    conflicts = [
        FieldConflict(owner, path)
        for owner, holding in others.items()
        for path in sorted(found.changed)
        if holding.holds(path)
    ]
    if conflicts and not force:
        raise ApplyConflict(conflicts)
    remaining = _after_write(others, found, now)
    remaining[me] = owners[me] if me in owners and mine == wanted else OwnedFields(fields_v1(wanted), now)
    metadata = {**(merged.get("metadata") or {}), "managedFields": written_owners(remaining)}
    return {**merged, "metadata": metadata}


def track_update(
    before: Json | None, after: Json, *, manager: str, now: str, keys: MergeKeys, subresource: str = ""
) -> list[Json]:
    """The `managedFields` after a write that is not an apply: its manager owns what it changed, and the others no more.

    Costs almost nothing as long as the object was never applied; then it depends on how much the write changed.
    """
    given = after["metadata"].get("managedFields")
    entries = given if given is not None or before is None else before["metadata"].get("managedFields")
    if not entries:
        return []
    owners = read_owners(entries)
    if not owners:
        return []  # they were reset
    found = difference(before or {}, after, keys)
    me = Owner(manager, "Update", str(after.get("apiVersion", "")), subresource)
    remaining = _after_write(owners, found, now)
    remaining[me] = owners.get(me, OwnedFields({}, now)).after(now, lost=found.removed, won=found.changed)
    return written_owners(remaining)


def _owners_of(live: Json, keys: MergeKeys, now: str) -> Owners:
    entries = (live.get("metadata") or {}).get("managedFields")
    if live and not entries:
        return {
            Owner(_BEFORE, "Update", str(live.get("apiVersion", ""))): OwnedFields(
                fields_v1(owned_paths(live, keys)), now
            )
        }
    return read_owners(entries)


def _is_same(owner: Owner, me: Owner) -> bool:
    """A manager stays the same when it applies in another version of the API."""
    return (owner.manager, owner.operation, owner.subresource) == (me.manager, me.operation, me.subresource)


def _after_write(owners: Owners, found: Difference, now: str) -> Owners:
    touched = found.changed | found.removed
    return {owner: holding.after(now, lost=touched) for owner, holding in owners.items()}


def _abandoned(dropped: frozenset[Path], wanted: frozenset[Path], others: Owners) -> set[Path]:
    """Of the paths that their owner dropped, those that no manager keeps, in whole or in part."""
    if not dropped:
        return set()
    kept = wanted.union(*(holding.paths for holding in others.values()))
    needed = {path[:length] for path in kept for length in range(1, len(path) + 1)}
    return {path for path in dropped if path not in needed}


def _merged(live: Any, applied: Any, keys: MergeKeys, place: str) -> Any:
    if isinstance(applied, dict) and not keys.atomic:
        merged = dict(live) if isinstance(live, dict) else {}
        for name, value in applied.items():
            merged[name] = _merged(merged.get(name), value, keys.below(name), f"{place}.{name}")
        return merged
    if isinstance(applied, list) and (keys.apply_keys or keys.apply_set):
        return _merged_list(live if isinstance(live, list) else [], applied, keys, place)
    return applied


def _merged_list(live: Sequence[Any], applied: Sequence[Any], keys: MergeKeys, place: str) -> list[Any]:
    """Applied elements in their own order; other live elements stay before the element that they preceded."""
    known = {element_of(element, keys): element for element in live}
    wanted = {_checked_element(element, keys, place): element for element in applied}
    if len(wanted) < len(applied):
        raise _malformed(place, applied, "every element once")
    order: list[str] = []
    pending = deque(wanted)
    shared = deque(identity for identity in wanted if identity in known)
    for identity in known:
        if identity not in wanted:
            order.append(identity)
        elif identity == shared[0]:
            shared.popleft()
            while identity not in order:
                order.append(pending.popleft())
    return [
        _merged(known.get(identity), wanted[identity], keys, f"{place}{shown((identity,))}")
        if identity in wanted
        else known[identity]
        for identity in [*order, *pending]
    ]


def _checked_element(element: Any, keys: MergeKeys, place: str) -> str:
    for key in keys.apply_keys:
        if not isinstance(element, dict) or (key not in element and key not in keys.defaults):
            raise _malformed(place, element, f"an object with a {key}: the list is merged by it")
    if keys.apply_set and isinstance(element, dict | list):
        raise _malformed(place, element, "a scalar")
    return element_of(element, keys)


def _without(value: Any, doomed: Json, keys: MergeKeys) -> Any:
    """Without the paths of a tree (see `fields_v1`), and without the maps and lists that this leaves empty."""
    parts = parts_of(value, keys)
    if parts is None or not doomed:
        return value
    kept = {}
    for element, below in parts.items():
        doom = doomed.get(element)
        # An element that remains keeps its merge keys.
        if doom is None or (isinstance(value, dict) and element[2:] in keys.apply_keys):
            kept[element] = below
        elif doom and "." not in doom:
            rest = _without(below, doom, keys_below(keys, element))
            if rest not in ({}, []):
                kept[element] = rest
    return {name[2:]: below for name, below in kept.items()} if isinstance(value, dict) else list(kept.values())


def _conflict_message(conflicts: Sequence[FieldConflict]) -> str:
    if len(conflicts) == 1:
        return f"Apply failed with 1 conflict: {conflicts[0].cause.message}: {shown(conflicts[0].path)}"
    lines = []
    for owner in sorted({conflict.owner for conflict in conflicts}, key=str):
        lines.append(f"conflicts with {owner}:")
        lines += [f"- {shown(conflict.path)}" for conflict in conflicts if conflict.owner == owner]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def _malformed(field: str, value: object, expected: str) -> MalformedInput:
    return MalformedInput("applied configuration", field, value, expected)
