"""Hollow nodes: any number of nodes with simulated cards that exist only as objects.

One program, `python -m testbed.hollow <orders>`, plays all their kubelets: it writes the Nodes, renews their Leases,
says of each pod that it runs, and finishes deletions. It knows nothing but what the API server tells it, so it may be
started again at any time. Cards are shown as extended resources and, once that kind is defined, as GpuNodeStatus.
"""

import asyncio
import datetime
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from carrel.dialects import gpuclaim, gpushare, nvidia
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS, Resource
from carrel.ledger.gpus import Gpu, MiB, Node
from testbed.control_plane import ApiServer
from testbed.processes import Process

HEARTBEAT_SECONDS = 10
LEASES_NAMESPACE = "kube-node-lease"
AT_ONCE = 20
"""Calls in flight: quick with thousands of nodes, and no flood."""
OBJECT = "application/json"
MERGE_PATCH = "application/merge-patch+json"
NOT_FOUND, CONFLICT = 404, 409
LONGEST_EVENT = 4 * 1024 * 1024
"""Bytes; more than etcd stores of one object."""


class Orders(msgspec.Struct):
    """What the program is given, as JSON."""

    server: str
    authority: str
    token: str
    nodes: list[Node]


def hollow_node(name: str, cards: int = 4) -> Node:
    """A node of equal cards, all in one NVLink island."""
    model, memory = "NVIDIA-A100-SXM4-40GB", MiB(40960)
    gpus = (
        Gpu(f"GPU-{name}-{index}", name, index, model, memory, island="0", bandwidth_gbps=600) for index in range(cards)
    )
    return Node(name, tuple(gpus))


def start_hollow_nodes(api: ApiServer, nodes: Sequence[Node]) -> Process:
    """Answers when the controllers and the schedulers see all of them ready."""
    orders = api.run.data / "hollow.json"
    orders.touch(mode=0o600)
    orders.write_bytes(msgspec.json.encode(Orders(api.url, str(api.authority.certificate), api.token, list(nodes))))
    checkout = Path(__file__).parent.parent
    process = api.start("hollow", ["env", f"PYTHONPATH={checkout}", sys.executable, "-m", "testbed.hollow", orders])
    names = {node.name for node in nodes}

    def all_ready() -> bool:
        present = api.call("GET", NODES.path())["items"]
        # Admission taints a new node; the node lifecycle controller takes the taint off when the node is ready.
        return names <= {node["metadata"]["name"] for node in present if not node["spec"].get("taints")}

    process.wait_until("ready", all_ready)
    return process


class Kubelets:
    def __init__(self, orders: Orders, session: aiohttp.ClientSession) -> None:
        self._nodes = {node.name: node for node in orders.nodes}
        self._server = orders.server
        self._session = session
        self._in_flight = asyncio.Semaphore(AT_ONCE)

    async def play(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._beat))
            tasks.create_task(self._repeat(self._run_pods))

    async def _repeat(self, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await part()
            except* (aiohttp.ClientError, TimeoutError) as errors:
                print(f"{part.__qualname__}: {errors.exceptions!r}; again in a second", flush=True)
                await asyncio.sleep(1)

    # --- nodes -------------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        await self._all(self._beat_of(node) for node in self._nodes.values())
        await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _beat_of(self, node: Node) -> None:
        lease = {"holderIdentity": node.name, "leaseDurationSeconds": 40, "renewTime": _now("microseconds")}
        renewed = await self._call("PATCH", LEASES.path(LEASES_NAMESPACE, node.name), {"spec": lease})
        if renewed == NOT_FOUND:
            await self._create(NODES, {"metadata": {"name": node.name, "labels": _labels(node)}})
            await self._call("PATCH", NODES.path(name=node.name, subresource="status"), {"status": _node_status(node)})
            # Last, because who finds the Lease takes the rest for granted.
            await self._create(LEASES, {"metadata": {"name": node.name}, "spec": lease}, LEASES_NAMESPACE)
        cards = gpuclaim.node_status(node, {}, datetime.datetime.now(datetime.UTC))
        if await self._call("PATCH", GPU_NODE_STATUSES.path(name=node.name), cards) == NOT_FOUND:
            # Either the object is missing or its kind is; in the second case this finds no kind either.
            await self._create(GPU_NODE_STATUSES, cards)
        # Where the kind has a status subresource, the calls above leave the status alone; where not, this one is a 404.
        await self._call("PATCH", GPU_NODE_STATUSES.path(name=node.name, subresource="status"), cards)

    # --- pods --------------------------------------------------------------------------------------------------------

    async def _run_pods(self) -> None:
        """Lists, then watches until the server ends the watch; then it is called again. No change is lost."""
        query = {"fieldSelector": "spec.nodeName!="}
        async with self._session.get(self._server + PODS.path(), params=query) as answer:
            answer.raise_for_status()
            pods = await answer.json()
        await self._all(map(self._tend, pods["items"]))
        query |= {"watch": "true", "resourceVersion": pods["metadata"]["resourceVersion"]}
        patient = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._server + PODS.path(), params=query, timeout=patient) as events:
            events.raise_for_status()
            async with asyncio.TaskGroup() as tasks:
                async for line in events.content:
                    event = msgspec.json.decode(line)
                    if event["type"] == "ERROR":
                        return
                    if event["type"] in ("ADDED", "MODIFIED"):
                        tasks.create_task(self._tend(event["object"]))

    async def _tend(self, pod: Mapping[str, Any]) -> None:
        metadata, phase = pod["metadata"], pod["status"].get("phase")
        if pod["spec"].get("nodeName") not in self._nodes:
            return
        path = PODS.path(metadata["namespace"], metadata["name"])
        if "deletionTimestamp" in metadata:
            only_this = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            await self._call("DELETE", path, only_this)
        elif phase == "Pending":
            # A pod that has changed meanwhile is left alone: another event tells.
            as_seen = {"resourceVersion": metadata["resourceVersion"]}
            await self._call("PATCH", f"{path}/status", {"metadata": as_seen, "status": _running(pod)})

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _all(self, calls: Iterable[Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for call in calls:
                tasks.create_task(call)

    async def _create(self, resource: Resource[Any], body: Mapping[str, Any], namespace: str = "") -> None:
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        await self._call("POST", resource.path(namespace), typed)

    async def _call(self, method: str, path: str, body: Mapping[str, Any]) -> int:
        """The status. That something is already there, or already gone, is an answer like any other."""
        headers = {"Content-Type": MERGE_PATCH if method == "PATCH" else OBJECT}
        data = msgspec.json.encode(body)
        async with (
            self._in_flight,
            self._session.request(method, self._server + path, data=data, headers=headers) as answer,
        ):
            if answer.status not in (NOT_FOUND, CONFLICT):
                if not answer.ok:
                    print(f"{method} {path}: {await answer.text()}", flush=True)
                answer.raise_for_status()
            return answer.status


def _labels(node: Node) -> dict[str, str]:
    return {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"} | dict(
        node.labels
    )


def _node_status(node: Node) -> dict[str, Any]:
    resources = {
        "cpu": "64",
        "memory": "512Gi",
        "pods": "110",
        nvidia.GPU: str(len(node.gpus)),
        gpushare.GPU_COUNT: str(len(node.gpus)),
        gpushare.GPU_MEM: str(sum(gpu.memory for gpu in node.gpus)),
    }
    ready = {"type": "Ready", "status": "True", "reason": "Hollow", "message": "This node is only an object."}
    times = {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
    addresses = [{"type": "Hostname", "address": node.name}]
    return {"capacity": resources, "allocatable": resources, "conditions": [ready | times], "addresses": addresses}


def _running(pod: Mapping[str, Any]) -> dict[str, Any]:
    now = _now()
    conditions = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for container in pod["spec"]["containers"]
        ],
    }


def _now(precision: str = "seconds") -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec=precision).replace("+00:00", "Z")


async def main(orders: Orders) -> None:
    trust = ssl.create_default_context(cafile=orders.authority)
    headers = {"Authorization": f"Bearer {orders.token}"}
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=30), read_bufsize=LONGEST_EVENT
    ) as session:
        await Kubelets(orders, session).play()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Orders)))
