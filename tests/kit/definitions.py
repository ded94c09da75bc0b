"""The definition of GpuNodeStatus of an older release, and of this one."""

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import Cluster, Json, MergePatch
from carrel.kubernetes.objects.resources import CRDS
from carrel.manifests import crds


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


async def define_anew(cluster: Cluster) -> None:
    await _define(cluster, _definition())


def _definition() -> Json:
    return next(each for each in crds() if each["spec"]["names"]["kind"] == GPU_NODE_STATUSES.kind)


async def _define(cluster: Cluster, definition: Json) -> None:
    versions = MergePatch({"spec": {"versions": definition["spec"]["versions"]}})
    await cluster.patch(CRDS, definition["metadata"]["name"], versions)
