"""What it takes an extender to load a large, full cluster: 5,000 nodes × 8 GPUs, and 50,000 pods with their Leases.

Its list calls are answered in the same process, as kube-apiserver would write the answers; to make them is not counted.
So only its own work is measured: from the first call until all that it watches is in its ledger.
`benchmarks.end_to_end` measures the same with a real server.
"""

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import uvloop

from benchmarks.core import GPUS, NODES, cluster
from benchmarks.measuring import Figure
from carrel.cluster.state import ClusterState
from carrel.dialects import gpuclaim
from carrel.dialects.gpu_lease import LeaseRecord, write_lease
from carrel.ids import PodUid
from carrel.kubernetes.client import Client
from carrel.kubernetes.transport import ApiRequest, ApiResponse
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.shares import Holder, Share
from carrel.scheduling.assembly import handlers_on, scheduler_on
from carrel.scheduling.run import wait_loaded

RUNS = 3
PODS = 50_000
LAB = "lab"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MOST_CPU_S = 8.0
"""By the goal for the whole start, 10 s, of which a server on the same two cores takes its part."""
MOST_BUSY_S = 0.5
"""How long the event loop may be busy without a pause: probes must be answered meanwhile."""
MOST_MB = 500.0
Json = dict[str, Any]


def measure() -> Iterator[Figure]:
    lines = [_in_new_process() for _ in range(RUNS)]
    cpu_s, busy_s, memory_mb = (min(column) for column in zip(*lines, strict=True))
    what = f"{NODES:,} nodes, {PODS:,} pods"
    yield Figure(f"loading {what}: CPU", cpu_s, "s", MOST_CPU_S)
    yield Figure(f"loading {what}: event loop busy at most", busy_s, "s", MOST_BUSY_S)
    yield Figure(f"loading {what}: most memory", memory_mb, "MB", MOST_MB)


def _in_new_process() -> tuple[float, ...]:
    done = subprocess.run([sys.executable, "-m", "benchmarks.loading"], check=True, capture_output=True, text=True)
    return tuple(map(float, done.stdout.split()))


class FullCluster:
    """Answers lists as kube-apiserver does. Its watches never send anything."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        """CPU time that the answers took."""
        nodes = tuple(cluster())
        self._kinds: Mapping[str, tuple[int, Callable[[int], Json]]] = {
            "pods": (PODS, lambda number: a_pod(number, nodes)),
            "nodes": (len(nodes), lambda number: a_node(nodes[number])),
            "gpunodestatuses": (len(nodes), lambda number: a_report(nodes[number])),
            "leases": (len(nodes) * GPUS, lambda number: a_lease(number, nodes)),
            "namespaces": (1, lambda number: _object("Namespace", LAB, number)),
        }

    async def send(self, request: ApiRequest) -> ApiResponse:
        if "watch" in request.query:
            return ApiResponse(200, stream=_silence())
        await asyncio.sleep(0)
        begun = time.process_time()
        count, make = self._kinds.get(request.path.rpartition("/")[2], (0, _nothing))
        first = int(request.query.get("continue", 0))
        after = min(count, first + int(request.query.get("limit", 0) or count))
        metadata = {"resourceVersion": "900000"} | ({"continue": str(after)} if after < count else {})
        body = msgspec.json.encode({"metadata": metadata, "items": [make(number) for number in range(first, after)]})
        self.spent_s += time.process_time() - begun
        return ApiResponse(200, body)

    async def aclose(self) -> None:
        pass


async def _silence() -> AsyncGenerator[bytes, None]:
    await asyncio.Event().wait()
    yield b""


def _nothing(number: int) -> Json:
    raise AssertionError(f"there is no object number {number}")


# --- objects as the API server sends them ----------------------------------------------------------------------------


def _object(kind: str, name: str, number: int, **metadata: Any) -> Json:
    managed = {
        "manager": "kubectl",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-11-16T11:58:31Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:containers": {'k:{"name":"main"}': {".": {}, "f:image": {}, "f:resources": {}}}}},
    }
    return {
        "kind": kind,
        "metadata": {
            "name": name,
            "uid": uid_of(number),
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-11-16T11:58:31Z",
            **metadata,
            "managedFields": [managed, {**managed, "manager": "kubelet", "subresource": "status"}],
        },
    }


def uid_of(number: int) -> str:
    return f"5f3a9c1e-0d2b-4c7a-9e1f-{number:012}"


def a_pod(number: int, nodes: Sequence[Node]) -> Json:
    """As the notebook of a person, on the n-th GPU of its node."""
    node = nodes[number % len(nodes)]
    labels = {
        "app": "notebook",
        "pod-template-hash": "6d4cf56db6",
        "hub.jupyter.org/username": f"person-{number % 900}",
    }
    notes = {
        "carrel.dev/tier": "opportunistic",
        "carrel.dev/user": f"person-{number % 900}@lab.example",
        "carrel.dev/devices": node.gpus[number // len(nodes) % GPUS].uuid,
        "terminate-at": "1900-01-01T00:00:00Z",
    }
    amounts = {"aliyun.com/gpu-mem": "2048", "cpu": "4", "memory": "16Gi"}
    conditions = [
        {"type": each, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-11-16T11:58:33Z"}
        for each in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    mount = {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    container = {
        "name": "main",
        "image": "registry.example/lab/notebook:2026.11",
        "command": ["jupyterhub-singleuser"],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "HOME", "value": "/home/jovyan"}],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [mount],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ]
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    return {
        **_object("Pod", f"pod-{number:05}", number, namespace=LAB, labels=labels, annotations=notes),
        "spec": {
            "volumes": [{"name": "token", "projected": {"sources": [token], "defaultMode": 420}}],
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "nodeName": node.name,
            "securityContext": {},
            "schedulerName": "carrel-scheduler",
            "tolerations": tolerations,
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {
            "phase": "Running",
            "conditions": conditions,
            "hostIP": "10.0.0.1",
            "podIP": "10.244.0.1",
            "startTime": "2026-11-16T11:58:33Z",
            "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-11-16T11:58:35Z"}}}],
            "qosClass": "Guaranteed",
        },
    }


def a_node(node: Node) -> Json:
    amounts = {
        "cpu": "128",
        "memory": "1Ti",
        "pods": "110",
        "nvidia.com/gpu": str(GPUS),
        "aliyun.com/gpu-mem": "655360",
    }
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    conditions = [
        {"type": each, "status": "False", "reason": f"KubeletHasNo{each}", "message": f"kubelet has no {each}"}
        for each in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [{"names": [f"registry.example/lab/image-{each}:1"], "sizeBytes": 1_000_000} for each in range(20)]
    return {
        **_object("Node", node.name, 100_000, labels=labels),
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "images": images},
    }


def a_report(node: Node) -> Json:
    report = gpuclaim.node_status(node, {}, NOON)
    return {**report, **_object("GpuNodeStatus", node.name, 200_000)}


def a_lease(number: int, nodes: Sequence[Node]) -> Json:
    """Pod number n is on node n modulo the number of nodes, and there on one GPU after the other."""
    gpu = nodes[number % len(nodes)].gpus[number // len(nodes)]
    holders = (Holder(PodUid(uid_of(each)), LAB, f"pod-{each:05}") for each in range(number, PODS, len(nodes) * GPUS))
    record = LeaseRecord(gpu.node, gpu.index, gpu.uuid, tuple(Share(each, gpu.uuid, MiB(2048)) for each in holders))
    lease = write_lease(record, "carrel", NOON)
    return {**lease, **_object("Lease", number=300_000 + number, **lease["metadata"])}


# --- one run, in a process of its own --------------------------------------------------------------------------------


class BusyTimes:
    """How long the event loop was busy at most, without the making of answers."""

    def __init__(self, spent: Callable[[], float]) -> None:
        self._spent = spent
        self.most_s = 0.0

    async def watch(self) -> None:
        while True:
            begun = time.process_time() - self._spent()
            await asyncio.sleep(0)
            self.most_s = max(self.most_s, time.process_time() - self._spent() - begun)


async def load() -> tuple[float, float]:
    """The CPU time, and how long the event loop was busy at most."""
    api = FullCluster()
    state = ClusterState(Client(api))
    scheduler = scheduler_on(state)
    handlers_on(state, scheduler)
    busy = BusyTimes(lambda: api.spent_s)
    begun = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(state.informers.run()), tasks.create_task(busy.watch())]
        await wait_loaded(state, scheduler)
        used_s = time.process_time() - begun - api.spent_s
        for task in running:
            task.cancel()
    assert len(state.pods.store) == PODS
    assert sum(1 for _ in state.ledger.holders()) == PODS
    return used_s, busy.most_s


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cpu_s, busy_s = runner.run(load())
    print(cpu_s, busy_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
