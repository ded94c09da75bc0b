"""People, in the demo: pods come, stay a while and go. Which and how long is drawn from a seed."""

import asyncio
import copy
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import yaml

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.cluster import AlreadyExists, Cluster, ClusterError, NotFound
from carrel.kubernetes.objects.resources import NAMESPACES, PODS
from carrel.parsing import Malformed

Json = dict[str, Any]

KINDS = {resource.kind: resource for resource in (PODS, GPU_CLAIMS)}


def read_manifests(text: str, source: str) -> list[Json]:
    """Pods and GpuClaims, in the order they are written."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else "the file"
        raise Malformed(source, line, getattr(error, "problem", str(error)), "YAML") from None
    for number, document in enumerate(documents, 1):
        kind = document.get("kind") if isinstance(document, dict) else document
        if kind not in KINDS:
            raise Malformed(source, f"kind of document {number}", kind, " or ".join(KINDS))
        if not isinstance(document.get("metadata"), dict):
            raise Malformed(
                source, f"metadata of document {number}", document.get("metadata"), "a name and a namespace"
            )
    if not any(document["kind"] == PODS.kind for document in documents):
        raise Malformed(source, "the documents", len(documents), "at least one Pod")
    return documents


class Workload:
    def __init__(
        self, cluster: Cluster, manifests: Iterable[Json], chance: Random, tell: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._manifests = list(manifests)
        self._chance = chance
        self._tell = tell

    def owners(self) -> list[str]:
        """Each namespace is a person's: whose pods those are, says the webhook."""
        return [_owner(namespace) for namespace in self._namespaces()]

    async def prepare(self) -> None:
        """Namespaces and claims, which stay."""
        for name in self._namespaces():
            metadata = {"name": name, "annotations": {"owner": _owner(name)}}
            await self._create_once(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        for manifest in self._manifests:
            if manifest["kind"] == GPU_CLAIMS.kind:
                await self._create_once(GPU_CLAIMS, manifest, manifest["metadata"].get("namespace", "default"))

    async def run(self, every_s: float, stay_s: float, limit: int) -> None:
        """A new pod every so often, each staying about as long; never more than the limit at once."""
        pods = [manifest for manifest in self._manifests if manifest["kind"] == PODS.kind]
        room = asyncio.Semaphore(limit)
        async with asyncio.TaskGroup() as tasks:
            while True:
                # Every dialect is seen in each round, in an order of its own.
                for manifest in self._chance.sample(pods, len(pods)):
                    await room.acquire()
                    stay = tasks.create_task(self._one_pod(manifest, stay_s * self._chance.uniform(0.5, 1.5)))
                    stay.add_done_callback(lambda _: room.release())
                    await asyncio.sleep(every_s * self._chance.uniform(0.5, 1.5))

    async def _one_pod(self, manifest: Json, stay_s: float) -> None:
        try:
            pod = await self._cluster.create(
                PODS, copy.deepcopy(manifest), manifest["metadata"].get("namespace", "default")
            )
        except AlreadyExists:
            return  # a manifest with a fixed name whose pod is still there
        except ClusterError as error:
            self._tell(f"refused: {error.message}")
            return
        await asyncio.sleep(stay_s)
        try:
            await self._cluster.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        except NotFound:
            return

    def _namespaces(self) -> list[str]:
        return sorted({manifest["metadata"].get("namespace", "default") for manifest in self._manifests})

    async def _create_once(self, resource: Any, body: Json, namespace: str = "") -> None:
        try:
            await self._cluster.create(resource, body, namespace)
        except AlreadyExists:
            return
        except ClusterError as error:
            name = body["metadata"].get("name")
            raise Malformed(f"{body['kind']} {name}", "the manifest", name, error.message) from None


def _owner(namespace: str) -> str:
    return f"{namespace}@lab.example"
