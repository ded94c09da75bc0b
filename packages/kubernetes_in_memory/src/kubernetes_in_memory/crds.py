"""CustomResourceDefinitions: adds and removes served kinds.

A definition that passes its checks is established at once: all of its served versions, with one storage. Versions are
not converted: they share their objects, and only the apiVersion differs.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from kubernetes_in_memory import crd_validation
from kubernetes_in_memory.causes import Cause, prohibited
from kubernetes_in_memory.kinds import BUILT_IN, CRDS, Kind, Kinds
from kubernetes_in_memory.store import Change, ObjectStore
from kubernetes_in_memory.times import timestamp

Json = dict[str, Any]


def default(definition: Json) -> Json:
    spec = definition.get("spec")
    if not isinstance(spec, dict):
        return definition
    names = spec.get("names")
    if isinstance(names, dict) and isinstance(names.get("kind"), str):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")
    spec.setdefault("conversion", {"strategy": "None"})
    return definition


def check(definition: Json, live: Json | None) -> list[Cause]:
    causes = crd_validation.check_schema(definition)
    group = (definition.get("spec") or {}).get("group")
    if any(kind.group == group for kind in BUILT_IN):
        causes.append(prohibited("spec.group", f"{group} is served by the API itself"))
    if live is not None and not causes:
        causes += [
            prohibited(f"spec.{path}", "field is immutable")
            for path in ("group", "scope")
            if definition["spec"][path] != live["spec"][path]
        ]
    return causes


class Definitions:
    """Keeps the served kinds equal to the stored definitions."""

    def __init__(self, store: ObjectStore, kinds: Kinds, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._kinds = kinds
        self._clock = clock
        store.followers.append(self._follow)

    def _follow(self, change: Change) -> None:
        if change.storage != CRDS.storage:
            return
        definition = change.last.tree
        self._kinds.withdraw(definition["spec"]["group"], definition["spec"]["names"]["plural"])
        if change.after is None:
            return
        self._kinds.serve(kinds_of(definition))
        established = self._established(definition)
        if established != definition.get("status"):
            self._store.write(
                CRDS.storage,
                change.after,
                {**definition, "metadata": dict(definition["metadata"]), "status": established},
            )

    def _established(self, definition: Json) -> Json:
        known = definition.get("status", {})
        names = definition["spec"]["names"]
        conditions = known.get("conditions") or [
            self._condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            self._condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ]
        storing = [version["name"] for version in definition["spec"]["versions"] if version["storage"]]
        stored = list(dict.fromkeys([*known.get("storedVersions", ()), *storing]))
        return {**known, "conditions": conditions, "acceptedNames": names, "storedVersions": stored}

    def _condition(self, name: str, reason: str, message: str) -> Json:
        return {
            "type": name,
            "status": "True",
            "lastTransitionTime": timestamp(self._clock()),
            "reason": reason,
            "message": message,
        }


def kinds_of(definition: Json) -> list[Kind]:
    """The kinds that a definition serves, one for each of its served versions; the most stable version first."""
    spec = definition["spec"]
    names = spec["names"]
    storing = next(version["name"] for version in spec["versions"] if version["storage"])
    served = sorted(
        (version for version in spec["versions"] if version["served"]), key=lambda version: _stability(version["name"])
    )
    return [
        Kind(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            spec["scope"] == "Namespaced",
            tuple(names.get("shortNames", ())),
            tuple(name for name in ("status",) if name in version.get("subresources", {})),
            counts_generations=True,
            categories=tuple(names.get("categories", ())),
            singular=names["singular"],
            list_kind=names["listKind"],
            storage_version=storing,
            schema=version.get("schema", {}).get("openAPIV3Schema", {}),
            printer_columns=tuple(version.get("additionalPrinterColumns", ())),
            selectable=tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields", ())),
            custom=True,
        )
        for version in served
    ]


def _stability(version: str) -> tuple[int, int, int, str]:
    """Orders v2 before v1 before v1beta1 before v1alpha1, as discovery prefers them."""
    stem, _, tail = version.removeprefix("v").partition("beta")
    level = 1
    if not tail and "alpha" in stem:
        stem, _, tail = stem.partition("alpha")
        level = 2
    elif "beta" not in version:
        level = 0
    if not stem.isdecimal():
        return (3, 0, 0, version)
    return (level, -int(stem), -int(tail) if tail.isdecimal() else 0, version)
