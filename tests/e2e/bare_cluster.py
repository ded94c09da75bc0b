"""A real API server with nodes and GPUs that are only objects: for extenders that are called directly.

Nothing else runs: pods are bound but never started. The checks use Leases and Pods alone.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from carrel.cluster.options import ClusterOptions
from carrel.cluster.state import ClusterState
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.ids import NodeName
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import DeleteOptions, Selection
from carrel.kubernetes.config import access_to
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.objects.resources import CRDS, LEASES, NAMESPACES, PODS
from carrel.kubernetes.reflector import Informers
from carrel.ledger.gpus import Node
from carrel.lifecycle.assembly import collector_on
from carrel.manifests import crds
from testbed.control_plane import api_server as start_api_server
from testbed.fixtures import shown_run
from testbed.kubelets import SimulatedKubelets

OURS = "carrel"
NOTHING: Mapping[str, str] = {}
Json = dict[str, Any]


@contextmanager
def bare_api_server(name: str) -> Iterator[Path]:
    """The administrator's kubeconfig."""
    with shown_run(name) as run, start_api_server(run) as api:
        for crd in crds():
            api.call("POST", CRDS.path(), crd)
        for namespace in (OURS, "lab"):
            api.call("POST", NAMESPACES.path(), {"metadata": {"name": namespace}})
        yield api.kubeconfig


class BareCluster:
    def __init__(self, kubeconfig: Path, nodes: Sequence[Node]) -> None:
        self.kubeconfig = kubeconfig
        self.client = Client(HttpTransport(access_to(kubeconfig, {})))
        self.nodes = {node.name: node for node in nodes}
        self._seconds = 0.0
        self._later = ClusterState(self.client, ClusterOptions(clock=lambda: self._seconds))
        self._collector = collector_on(self._later)
        """A replica whose clock the test moves, so that what is freed after a while is freed now."""

    async def announce(self, *names: str) -> None:
        nodes = [self.nodes[NodeName(name)] for name in names or self.nodes]
        await SimulatedKubelets(
            self.client, nodes, Informers(self.client).watch(PODS), lambda: datetime.now(UTC)
        ).announce()

    async def remove_report(self, node: str) -> None:
        """Deletes the report of the node's agent, as after the node itself was removed."""
        await self.client.delete(GPU_NODE_STATUSES, node)

    async def pod(self, name: str, limits: Mapping[str, str] = NOTHING, notes: Mapping[str, str] = NOTHING) -> Json:
        container = {"name": "main", "image": "work", "resources": {"limits": dict(limits)}}
        # The API server taints new nodes until their kubelet is ready; these have none.
        tolerations = [{"operator": "Exists"}]
        spec = {"schedulerName": "gpu-scheduler", "containers": [container], "tolerations": tolerations}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": dict(notes)}, "spec": spec}
        return await self.client.create(PODS, body, "lab")

    async def pods(self) -> dict[str, Json]:
        """By name, as the API server has them now."""
        names = [pod.metadata.name for pod in (await self.client.list(PODS, Selection("lab"))).items]
        return {name: await self.client.get(PODS, name, "lab") for name in names}

    async def bound(self) -> dict[str, str]:
        """Name → node."""
        pods = (await self.client.list(PODS, Selection("lab"))).items
        return {pod.metadata.name: pod.spec.node_name for pod in pods if pod.spec.node_name}

    async def held(self) -> dict[str, dict[str, int | None]]:
        """GPU (`n1-0`) → uid → MiB, None for the whole GPU, from nothing but the Leases."""
        leases = (await self.client.list(LEASES, Selection(OURS))).items
        shares = {each.metadata.name: each.metadata.annotations.get("carrel.dev/shares", "{}") for each in leases}
        return {
            name.removeprefix("gpu-"): {uid: share.get("mib") for uid, share in json.loads(text).items()}
            for name, text in shares.items()
            if name.startswith("gpu-")
        }

    async def check(self, *, at_rest: bool = True) -> None:
        """No GPU is oversubscribed, and every pod has the GPUs in its annotation; at rest, it has no others."""
        held, pods = await self.held(), await self.pods()
        memory = {f"{node.name}-{gpu.index}": gpu.memory for node in self.nodes.values() for gpu in node.gpus}
        for place, shares in held.items():
            assert sum(memory[place] if mib is None else mib for mib in shares.values()) <= memory[place], (
                place,
                shares,
            )
        told = {
            pod["metadata"]["uid"]: pod["metadata"].get("annotations", {}).get("carrel.dev/devices", "")
            for pod in pods.values()
        }
        has: dict[str, set[str]] = {}
        for place, shares in held.items():
            for uid in shares:
                has.setdefault(uid, set()).add(f"GPU-{place}")
        owed = {uid: set(gpus.split(",")) for uid, gpus in told.items() if gpus}
        assert all(gpus <= has.get(uid, set()) for uid, gpus in owed.items())
        assert owed == has or not at_rest

    async def collect_later(self) -> None:
        """The collector frees what no pod uses."""
        await self._later.informers.read_once()
        for _ in range(2):
            await self._collector.collect()
            self._seconds += 120.0

    async def empty(self) -> None:
        for name in await self.pods():
            await self.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))
        await self.collect_later()


@asynccontextmanager
async def bare_cluster(kubeconfig: Path, nodes: Sequence[Node]) -> AsyncIterator[BareCluster]:
    bare = BareCluster(kubeconfig, nodes)
    try:
        await bare.announce()
        yield bare
        await bare.empty()
        for name in bare.nodes:
            await bare.remove_report(name)
    finally:
        await bare.client.aclose()
