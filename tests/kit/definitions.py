"""The definition of GpuNodeStatus of an older release, and of this one; and that of any kind of another product."""

from typing import Any

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import Cluster, Json, MergePatch
from carrel.kubernetes.objects.resources import CRDS, Resource
from carrel.manifests import crds


def definition(resource: Resource[Any]) -> Json:
    """Of a kind of another product, which takes whatever fields come."""
    name = resource.plural.removesuffix("s")
    names = {"plural": resource.plural, "singular": name, "kind": resource.kind, "listKind": f"{resource.kind}List"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": CRDS.api_version,
        "kind": CRDS.kind,
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": names,
            "versions": [{"name": resource.version, "served": True, "storage": True, "schema": schema}],
        },
    }


CLAIM_SCHEDULERS_FIELDS = {"id", "inUseBy", "health", "bandwidthGBps", "island"}


async def forget_field(cluster: Cluster, *path: str) -> None:
    """The cluster does not know this field of a node's status: `mode`, or `devices items uuid`."""
    definition = _definition()
    for version in definition["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
        for step in path[:-1]:
            schema = schema[step] if step == "items" else schema["properties"][step]
        del schema["properties"][path[-1]]
        schema["required"] = [name for name in schema.get("required", ()) if name != path[-1]]
    await _define(cluster, definition)


async def loosen_field(cluster: Cluster, name: str) -> None:
    """The cluster takes whatever is in this list of a node's status."""
    definition = _definition()
    for version in definition["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        status[name]["items"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await _define(cluster, definition)


async def define_anew(cluster: Cluster) -> None:
    await _define(cluster, _definition())


def _definition() -> Json:
    return next(each for each in crds() if each["spec"]["names"]["kind"] == GPU_NODE_STATUSES.kind)


async def _define(cluster: Cluster, definition: Json) -> None:
    versions = MergePatch({"spec": {"versions": definition["spec"]["versions"]}})
    await cluster.patch(CRDS, definition["metadata"]["name"], versions)


async def define_as_the_claim_scheduler(cluster: Cluster) -> None:
    """The GpuClaim scheduler's own definition of a node's status, which knows none of Carrel's fields."""
    definition = _definition()
    for version in definition["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        device = status["devices"]["items"]["properties"]
        for fields, theirs in ((status, {"total", "devices"}), (device, CLAIM_SCHEDULERS_FIELDS)):
            for name in fields.keys() - theirs:
                del fields[name]
    await _define(cluster, definition)
