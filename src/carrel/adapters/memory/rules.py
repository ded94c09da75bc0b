"""What holds for one kind only: its defaults and its checks, as a table.

Defaults change the tree that they are given (it belongs to the write that is going on). Checks report all that is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from carrel.adapters.memory import pods
from carrel.adapters.memory.causes import Cause
from carrel.adapters.memory.kinds import Kind
from carrel.adapters.memory.store import Storage

Json = dict[str, Any]


def _nothing(tree: Json) -> None:
    pass


def _fine(tree: Json, live: Json | None) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True)
class Rules:
    default: Callable[[Json], None] = _nothing
    check: Callable[[Json, Json | None], list[Cause]] = _fine
    """Called with the new tree and the live one (None on create)."""
    needs_version: bool = False
    """An update (PUT) has to name the resourceVersion that it replaces."""


def _default_namespace(namespace: Json) -> None:
    metadata = namespace["metadata"]
    if "name" in metadata:
        metadata["labels"] = {**metadata.get("labels", {}), "kubernetes.io/metadata.name": metadata["name"]}
    if not metadata.get("deletionTimestamp"):
        namespace.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        namespace.setdefault("status", {}).setdefault("phase", "Active")


_PLAIN = Rules()
_RULES: dict[Storage, Rules] = {
    ("", "pods"): Rules(pods.default, pods.check),
    ("", "namespaces"): Rules(_default_namespace),
    ("coordination.k8s.io", "leases"): Rules(needs_version=True),
}


def rules_of(kind: Kind) -> Rules:
    return _RULES.get(kind.storage, _PLAIN)
