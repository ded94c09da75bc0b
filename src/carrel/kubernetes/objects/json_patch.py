"""The difference of two JSON documents as a JSON Patch (RFC 6902): a webhook makes the pod it wants and sends this."""

from itertools import islice
from typing import Any

MOST_CHANGED = 100
"""If more items of a list change in a row, the whole list is replaced: for each operation the API server
moves all later items."""
_ABSENT = object()


def escape(token: str) -> str:
    """One step of a JSON pointer (RFC 6901): `carrel.dev/tier` is spelled `carrel.dev~1tier`."""
    return token.replace("~", "~0").replace("/", "~1") if "/" in token or "~" in token else token


def diff(before: Any, after: Any) -> list[dict[str, Any]]:
    """Operations that turn one document into the other. Lists are compared by position, between equal head and tail."""
    found: list[dict[str, Any]] = []
    _diff(before, after, "", found)
    return found


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0 (RFC 6902 §4.6), and `true` is not 1, as it is in Python."""
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _diff(before: Any, after: Any, at: str, found: list[dict[str, Any]]) -> None:
    # Into a list that is passed down: a generator within a generator would hand each operation up step by step.
    if isinstance(before, dict) and isinstance(after, dict):
        if not before.keys() <= after.keys():
            found += ({"op": "remove", "path": f"{at}/{escape(key)}"} for key in before if key not in after)
        for key, value in after.items():
            old = before.get(key, _ABSENT)
            if old is value:
                continue  # most of a document is shared with what it was made from
            if old is _ABSENT:
                found.append({"op": "add", "path": f"{at}/{escape(key)}", "value": value})
            else:
                _diff(old, value, f"{at}/{escape(key)}", found)
    elif isinstance(before, list) and isinstance(after, list):
        _diff_lists(before, after, at, found)
    elif not same(before, after):
        found.append({"op": "replace", "path": at, "value": after})


def _diff_lists(before: list[Any], after: list[Any], at: str, found: list[dict[str, Any]]) -> None:
    if len(before) == len(after) <= MOST_CHANGED:
        for i, (old_item, new_item) in enumerate(zip(before, after, strict=True)):
            if old_item is not new_item:
                _diff(old_item, new_item, f"{at}/{i}", found)
        return
    shorter = min(len(before), len(after))
    head = tail = 0
    for old_item, new_item in zip(before, after, strict=False):
        if old_item is not new_item and not same(old_item, new_item):
            break
        head += 1
    for old_item, new_item in islice(zip(reversed(before), reversed(after), strict=False), shorter - head):
        if old_item is not new_item and not same(old_item, new_item):
            break
        tail += 1
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if max(len(old), len(new)) > MOST_CHANGED:
        found.append({"op": "replace", "path": at, "value": after})
        return
    both = min(len(old), len(new))
    for i in range(both):
        _diff(old[i], new[i], f"{at}/{head + i}", found)
    for i in reversed(range(both, len(old))):
        found.append({"op": "remove", "path": f"{at}/{head + i}"})
    for i in range(both, len(new)):
        found.append({"op": "add", "path": f"{at}/{head + i}", "value": new[i]})
