"""The definition of GpuNodeStatus as an older release brought it, and as it is now."""

from carrel.manifests import crds
from carrel.ports.cluster import Cluster, Json, MergePatch
from carrel.protocols.kubernetes.resources import CRDS, GPU_NODE_STATUSES


async def forget_field(cluster: Cluster, field: str) -> None:
    """The cluster does not know this field of a node's status."""
    definition = _definition()
    for version in definition["spec"]["versions"]:
        del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][field]
    await _define(cluster, definition)


async def define_anew(cluster: Cluster) -> None:
    await _define(cluster, _definition())


def _definition() -> Json:
    return next(each for each in crds() if each["spec"]["names"]["kind"] == GPU_NODE_STATUSES.kind)


async def _define(cluster: Cluster, definition: Json) -> None:
    versions = MergePatch({"spec": {"versions": definition["spec"]["versions"]}})
    await cluster.patch(CRDS, definition["metadata"]["name"], versions)
