"""A real control plane whose nodes are only objects, and the processes that place pods there.

Nothing runs on the nodes and no controllers run: all that is measured is how pods get their nodes.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

from benchmarks.end_to_end.bulk import add_objects, remove_objects
from carrel.cluster.configuration_record import GIVEN, TEXT, body_of
from carrel.cluster.options import utc_now
from carrel.dialects import gpuclaim, gpushare, nvidia
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Json, Selection
from carrel.kubernetes.config import access_to
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.objects.resources import CONFIG_MAPS, CRDS, LEASES, NAMESPACES, NODES, PODS
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.manifests import crds
from carrel.scheduling.scheduler_config import Extender, scheduler_config
from testbed import runs
from testbed.control_plane import ApiServer, Shape, api_server
from testbed.processes import Process

LAB, OURS = "lab", "carrel"
GPUS, GPU_MIB = 8, MiB(81_920)
AT_ONCE = 24
"""Concurrent calls when objects are made: more do not make the API server faster."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

T = TypeVar("T")


def a_node(number: int) -> Node:
    name = f"node-{number:04}"
    gpus = (
        Gpu(
            GpuUuid(f"GPU-{number:04}-{index}"),
            NodeName(name),
            index,
            "NVIDIA-A100-SXM4-80GB",
            GPU_MIB,
            "0",
            bandwidth_gbps=600,
        )
        for index in range(GPUS)
    )
    return Node(NodeName(name), tuple(gpus))


@dataclass(frozen=True, slots=True)
class StartedExtender:
    process: Process
    url: str
    ready_s: float
    """From its start until it answered that it is ready."""


class RealCluster:
    """Made by `real_cluster`."""

    def __init__(self, api: ApiServer, client: Client) -> None:
        self.api = api
        self.client = client
        self.nodes = 0
        self._extenders = 0

    async def prepare(self) -> None:
        for crd in crds():
            await self.client.create(CRDS, crd)
        for namespace in (OURS, LAB):
            await self.client.create(NAMESPACES, {"metadata": {"name": namespace}})
        await self.client.create(CONFIG_MAPS, body_of(GIVEN, OURS, {TEXT: "{}"}), OURS)
        for resource in (GPU_NODE_STATUSES, GPU_CLAIMS):
            await self.client.list(resource)  # until the kinds can be read

    def grow_to(self, nodes: int) -> None:
        """Adds as many nodes as are missing."""
        new = [a_node(number) for number in range(self.nodes, nodes)]
        add_objects(self.api, NODES, map(_node_object, new))
        add_objects(self.api, GPU_NODE_STATUSES, map(_report, new))
        self.nodes = nodes

    async def add_waiting(self, limits: Mapping[str, str], count: int, scheduler: str) -> None:
        """Pods that no node has yet."""

        async def add(number: int) -> None:
            await self.client.create(PODS, a_pod(number, limits, scheduler), LAB)

        await all_at_once(range(count), add)

    async def clear(self) -> None:
        """No pods, and no Leases: as the cluster was in the beginning."""
        for resource, namespace in ((PODS, LAB), (LEASES, OURS)):
            remove_objects(self.api, resource, namespace)
            while (await self.client.list(resource, Selection(namespace), limit=1)).items:  # noqa: ASYNC110 # by polling
                await asyncio.sleep(0.1)

    def start_extender(self, *options: str) -> "StartedExtender":
        self._extenders += 1
        port = self.api.slot.ports[-1 - self._extenders % 4]
        begun = time.monotonic()
        command: list[str | Path] = [
            "env",
            "CARREL_SEAL_KEY=none",
            sys.executable,
            "-m",
            "carrel",
            "extender",
            "--kubeconfig",
            self.api.kubeconfig,
        ]
        name = f"extender-{self._extenders}"
        process = self.api.start(name, [*command, "--port", str(port), *options])
        url = f"http://127.0.0.1:{port}"
        process.wait_until("ready", lambda: _is_ready(url), limit_seconds=180)
        return StartedExtender(process, url, time.monotonic() - begun)

    def start_scheduler(self, name: str, extender: str) -> Process:
        extenders = scheduler_config(Extender(extender))["extenders"] if extender else ()
        return self.api.start_scheduler(name, extenders)


def a_pod(number: int, limits: Mapping[str, str], scheduler: str, node: str = "") -> Json:
    spec: Json = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "image": "work", "resources": {"limits": dict(limits)}}],
    }
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": f"pod-{number:05}", "namespace": LAB}, "spec": spec}


def _node_object(node: Node) -> Json:
    amounts = {
        "cpu": "128",
        "memory": "1Ti",
        "pods": "110",
        nvidia.GPU: str(GPUS),
        gpushare.GPU_COUNT: str(GPUS),
        gpushare.GPU_MEM: str(GPUS * GPU_MIB),
    }
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "No kubelet runs here."}
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    return {"metadata": {"name": node.name, "labels": labels}, "status": status}


def _report(node: Node) -> Json:
    report = gpuclaim.node_status(node, {}, utc_now())
    del report["status"]["heartbeat"]  # so it counts as long as the object exists: no agent repeats it
    return report


@asynccontextmanager
async def real_cluster() -> AsyncIterator[RealCluster]:
    """Without nodes."""
    with runs.new("bench") as run, api_server(run, Shape()) as api:
        client = Client(HttpTransport(access_to(api.kubeconfig, {})))
        try:
            cluster = RealCluster(api, client)
            await cluster.prepare()
            yield cluster
        finally:
            await client.aclose()


def cpu_s(process: Process) -> float:
    """User and system time of all its threads."""
    fields = Path(f"/proc/{process.program.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def peak_memory_mb(process: Process) -> float:
    lines = Path(f"/proc/{process.program.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _is_ready(url: str) -> bool:
    with urlopen(f"{url}/readyz", timeout=5) as answer:
        return bool(answer.status == 200)


async def all_at_once(items: Iterable[T], make: Callable[[T], Awaitable[None]]) -> None:
    left = iter(items)

    async def work() -> None:
        for item in left:
            await make(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
