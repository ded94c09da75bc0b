"""The two parts of a pod's spec that can change after its creation, each through a subresource of its own.

`ephemeralcontainers` adds containers for debugging; `resize` changes the cpu and memory of the containers.
Nothing acts on them here: there is no kubelet. Pure.
"""

from typing import Any

from kubernetes_in_memory import pod_checks
from kubernetes_in_memory.causes import Cause, prohibited, wrong
from kubernetes_in_memory.pods import quality_of

Json = dict[str, Any]

EPHEMERAL, RESIZE = "ephemeralcontainers", "resize"
PARTS = (EPHEMERAL, RESIZE)
RESIZED_LISTS = ("initContainers", "containers")
ONLY = "only cpu and memory resources are mutable"


def with_part(part: str, live: Json, candidate: Json) -> Json:
    """The live pod with this part of the candidate. Of the candidate's metadata only uid and version are used."""
    meant = {
        key: candidate["metadata"][key] for key in ("name", "uid", "resourceVersion") if candidate["metadata"].get(key)
    }
    spec, given = dict(live["spec"]), candidate["spec"]
    if part == EPHEMERAL:
        spec["ephemeralContainers"] = given.get("ephemeralContainers", [])
    else:
        spec |= {place: _resized(spec[place], given.get(place, [])) for place in RESIZED_LISTS if place in spec}
        if "resources" in given:
            spec["resources"] = given["resources"]
    return {**live, "metadata": {**live["metadata"], **meant}, "spec": spec}


def _resized(live: list[Json], given: list[Json]) -> list[Json]:
    if [one.get("name") for one in given] != [one["name"] for one in live]:
        # Containers were added, removed or renamed: the checks report it.
        return given
    parts = ("resources", "resizePolicy")
    kept = ({key: value for key, value in old.items() if key not in parts} for old in live)
    return [old | {key: new[key] for key in parts if key in new} for old, new in zip(kept, given, strict=True)]


def check(part: str, pod: Json, live: Json) -> list[Cause]:
    causes = pod_checks.check(pod)
    return causes + (_ephemeral_causes(pod, live) if part == EPHEMERAL else _resize_causes(pod, live))


def _ephemeral_causes(pod: Json, live: Json) -> list[Cause]:
    there = {one.get("name"): one for one in pod["spec"].get("ephemeralContainers", ())}
    causes = []
    for old in live["spec"].get("ephemeralContainers", ()):
        new = there.get(old["name"])
        if new != old:
            word = "removed" if new is None else "changed"
            why = f'existing ephemeral containers "{old["name"]}" may not be {word}'
            causes.append(prohibited("spec.ephemeralContainers", why))
    return causes


def _resize_causes(pod: Json, live: Json) -> list[Cause]:
    causes = []
    if quality_of(pod) != live["status"].get("qosClass"):
        causes.append(wrong("spec", quality_of(pod), "Pod QOS Class may not change as a result of resizing"))
    for place in RESIZED_LISTS:
        new, old = pod["spec"].get(place, []), live["spec"].get(place, [])
        if [one.get("name") for one in new] != [one["name"] for one in old]:
            causes.append(prohibited(f"spec.{place}", "containers may not be added, removed, reordered or renamed"))
            continue
        for index, (one, other) in enumerate(zip(new, old, strict=True)):
            causes += _container_causes(one.get("resources", {}), other.get("resources", {}), f"spec.{place}[{index}]")
    return causes


def _container_causes(new: Json, old: Json, path: str) -> list[Cause]:
    causes = []
    for part in ("requests", "limits"):
        if any(name not in new.get(part, {}) for name in old.get(part, {})):
            causes.append(prohibited(f"{path}.resources.{part}", f"resource {part} cannot be removed"))
    if _fixed(new) != _fixed(old):
        causes.append(prohibited("spec", ONLY))
    return causes


def _fixed(resources: Json) -> Json:
    return {
        part: {name: amount for name, amount in amounts.items() if name not in ("cpu", "memory")}
        for part, amounts in resources.items()
        if part in ("requests", "limits")
    }
