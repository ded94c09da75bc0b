"""Which version a list or a watch asks for, and whether a watch begins with all objects. Contradictions are refused.

The rules are those of kube-apiserver 1.37, which serves streaming lists: a watch that begins with every object as
ADDED, and marks the end of them with a bookmark.
"""

from dataclasses import dataclass

from kubernetes_in_memory import status
from kubernetes_in_memory.causes import Cause, prohibited, unsupported
from kubernetes_in_memory.request_info import Call

EXACT, NOT_OLDER = "Exact", "NotOlderThan"


@dataclass(frozen=True, slots=True)
class WatchStart:
    """Where a watch begins."""

    version: int
    """0: none was given, or any is acceptable."""
    initial: bool
    """Send all existing objects first, as ADDED."""


def watch_start(call: Call) -> WatchStart:
    match = call.query.get("resourceVersionMatch", "")
    initial = _flag(call, "sendInitialEvents")
    causes: list[Cause] = []
    if initial is not None and match != NOT_OLDER:
        why = f"sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER}"
        causes.append(prohibited("resourceVersionMatch", why))
    if match:
        if initial is None:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            causes.append(prohibited("resourceVersionMatch", why))
        if match != NOT_OLDER:
            causes.append(unsupported("resourceVersionMatch", match, (NOT_OLDER,)))
        if call.query.get("continue"):
            causes.append(prohibited("resourceVersionMatch", _NOT_WITH_CONTINUE))
    if causes:
        raise status.invalid_options(causes)
    version = call.number("resourceVersion") or 0
    # A watch without a version has always begun with all existing objects.
    return WatchStart(version, not version if initial is None else initial)


def list_version(call: Call) -> tuple[int, bool]:
    """The version that a list without a continue token names (0: none), and whether it must be exactly that one."""
    match = call.query.get("resourceVersionMatch", "")
    version = call.number("resourceVersion") or 0
    causes: list[Cause] = []
    if match:
        if not call.query.get("resourceVersion"):
            why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            causes.append(prohibited("resourceVersionMatch", why))
        if call.query.get("continue"):
            causes.append(prohibited("resourceVersionMatch", _NOT_WITH_CONTINUE))
        if match not in (EXACT, NOT_OLDER):
            causes.append(unsupported("resourceVersionMatch", match, (EXACT, NOT_OLDER, "")))
        if match == EXACT and call.query.get("resourceVersion") == "0":
            why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            causes.append(prohibited("resourceVersionMatch", why))
    if _flag(call, "sendInitialEvents") is not None:
        causes.append(prohibited("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if causes:
        raise status.invalid_options(causes)
    return version, match == EXACT or (not match and bool(version) and bool(call.number("limit")))


_NOT_WITH_CONTINUE = "resourceVersionMatch is forbidden when continue is provided"


def _flag(call: Call, name: str) -> bool | None:
    return call.flag(name) if name in call.query else None
