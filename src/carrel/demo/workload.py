"""Simulated users: they create pods and delete them after a while. Order and lifetimes are random, from a seed."""

import asyncio
import copy
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import yaml

from carrel.cluster_file import yaml_errors
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.ids import PersonId
from carrel.kubernetes.cluster import AlreadyExists, Cluster, ClusterError, NotFound
from carrel.kubernetes.objects.resources import NAMESPACES, PODS
from carrel.parsing import Malformed

Json = dict[str, Any]

KINDS = {resource.kind: resource for resource in (PODS, GPU_CLAIMS)}


def read_manifests(text: str, source: str) -> list[Json]:
    """Pods and GpuClaims, in the order of the file."""
    with yaml_errors(text, source):
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    for number, document in enumerate(documents, 1):
        kind = document.get("kind") if isinstance(document, dict) else document
        if kind not in KINDS:
            raise Malformed(source, f"kind of document {number}", kind, f"{' or '.join(KINDS)}, which the demo creates")
        if document.get("apiVersion") != KINDS[kind].api_version:
            version = document.get("apiVersion")
            raise Malformed(source, f"apiVersion of document {number}", version, KINDS[kind].api_version)
        if not isinstance(document.get("metadata"), dict):
            raise Malformed(
                source, f"metadata of document {number}", document.get("metadata"), "a name and a namespace"
            )
    if not any(document["kind"] == PODS.kind for document in documents):
        raise Malformed(source, "the documents", len(documents), "at least one Pod")
    return documents


class Workload:
    def __init__(self, cluster: Cluster, manifests: Iterable[Json], random: Random, log: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._manifests = list(manifests)
        self._random = random
        self._log = log

    def owners(self) -> list[str]:
        """One for each namespace: the webhook reads the owner of a pod from its namespace."""
        return [owner_of(namespace) for namespace in self._namespaces()]

    async def prepare(self) -> None:
        """Creates namespaces and claims, which are not deleted."""
        for name in self._namespaces():
            await create_namespace(self._cluster, name)
        for manifest in self._manifests:
            if manifest["kind"] == GPU_CLAIMS.kind:
                await _create_once(
                    self._cluster, GPU_CLAIMS, manifest, manifest["metadata"].get("namespace", "default")
                )

    async def run(self, create_every_s: float, lifetime_s: float, limit: int) -> None:
        """Times are averages. Never more pods than the limit at once."""
        pods = [manifest for manifest in self._manifests if manifest["kind"] == PODS.kind]
        room = asyncio.Semaphore(limit)
        async with asyncio.TaskGroup() as tasks:
            while True:
                # Every dialect is in each round, in a random order.
                for manifest in self._random.sample(pods, len(pods)):
                    await room.acquire()
                    pod = tasks.create_task(self._run_pod(manifest, lifetime_s * self._random.uniform(0.5, 1.5)))
                    pod.add_done_callback(lambda _: room.release())
                    await asyncio.sleep(create_every_s * self._random.uniform(0.5, 1.5))

    async def _run_pod(self, manifest: Json, lifetime_s: float) -> None:
        try:
            pod = await self._cluster.create(
                PODS, copy.deepcopy(manifest), manifest["metadata"].get("namespace", "default")
            )
        except AlreadyExists:
            return  # the manifest has a fixed name, and its pod still exists
        except ClusterError as error:
            self._log(f"refused: {error.message}")
            return
        await asyncio.sleep(lifetime_s)
        try:
            await self._cluster.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        except NotFound:
            return

    def _namespaces(self) -> list[str]:
        return sorted({manifest["metadata"].get("namespace", "default") for manifest in self._manifests})


def owner_of(namespace: str) -> PersonId:
    return PersonId(f"{namespace}@lab.example")


async def create_namespace(cluster: Cluster, name: str) -> None:
    metadata = {"name": name, "annotations": {"owner": owner_of(name)}}
    await _create_once(cluster, NAMESPACES, {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": metadata})


async def _create_once(cluster: Cluster, resource: Any, body: Json, namespace: str = "") -> None:
    try:
        await cluster.create(resource, body, namespace)
    except AlreadyExists:
        return
    except ClusterError as error:
        name = body["metadata"].get("name")
        raise Malformed(f"{body['kind']} {name}", "the manifest", name, error.message) from None
