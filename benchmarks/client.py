"""The client on a large cluster: 50,000 pods listed page by page into an indexed store, and what one event costs.

The pods are recorded bytes as kube-apiserver writes them (managedFields and all, 4 kB each), so that decoding,
store and reflector are measured, and no server or network. Goals: an extender with 5,000 nodes and 50,000 pods
has to start within seconds and to fit in 500 MB beside its ledger.
"""

import asyncio
import gc
import json
import resource
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from benchmarks.measuring import Figure
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.reflector import Reflector
from carrel.kubernetes.store import Store
from carrel.kubernetes.transport import ApiRequest, ApiResponse

COUNT, PAGE, EVENTS, NODES = 50_000, 500, 10_000, 5_000


def measure() -> Iterator[Figure]:
    recording = Recording()
    store: Store[Any] = Store({"node": lambda pod: [pod.spec.node_name]})
    gc.collect()
    before = _peak_mib()
    listing, event = asyncio.run(_follow(recording, store))
    assert len(store) == COUNT
    yield Figure("list and index 50,000 pods, CPU", listing, "s", goal=3.0)
    yield Figure("list and index 50,000 pods, growth of the peak", _peak_mib() - before, "MiB", goal=400.0)
    yield Figure("one watch event, from bytes to store and handler, CPU", event * 1e6, "µs", goal=100.0)

    start = time.process_time()
    for node in range(1000):
        assert len(store.find("node", f"node-{node:05}")) == COUNT // NODES
    yield Figure("the pods of one node, CPU", (time.process_time() - start) / 1000 * 1e6, "µs", goal=10.0)
    start = time.process_time()
    assert len(store) == COUNT
    yield Figure("a snapshot of all pods, CPU", (time.process_time() - start) * 1e3, "ms", goal=5.0)


async def _follow(recording: "Recording", store: Store[Any]) -> tuple[float, float]:
    """CPU seconds of the whole list, and of one event. What the recording itself costs is not counted."""
    reflector: Reflector[Any] = Reflector(Client(recording), PODS, store)
    start = time.process_time()
    running = asyncio.create_task(reflector.run())
    await reflector.wait_synced()
    listing = time.process_time() - start - recording.spent
    heard, done = 0, asyncio.Event()

    def count(old: object, new: object) -> None:
        nonlocal heard
        # A new handler is first told what is there.
        heard += old is not None
        if heard == EVENTS:
            done.set()

    reflector.on_change(count)
    recording.spent = 0.0
    start = time.process_time()
    recording.may_speak.set()
    await done.wait()
    event = (time.process_time() - start - recording.spent) / EVENTS
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return listing, event


class Recording:
    """A transport that plays back a large cluster. Bytes are put together when they are asked for, as a server does."""

    def __init__(self) -> None:
        self._pod = json.dumps(_pod()).encode()
        self.spent = 0.0
        """CPU seconds that the playing itself took."""
        self.may_speak = asyncio.Event()
        """The watch is silent before."""

    async def send(self, request: ApiRequest) -> ApiResponse:
        if "watch" in request.query:
            return ApiResponse(200, stream=self._events(int(request.query["resourceVersion"])))
        start = int(request.query.get("continue", 0))
        numbers = range(start, start + PAGE)
        token = str(numbers.stop) if numbers.stop < COUNT else ""
        head = f'{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{COUNT}","continue":"{token}"}},'
        items = b",".join([self._numbered(number, version=number + 1) for number in numbers])
        return ApiResponse(200, head.encode() + b'"items":[' + items + b"]}")

    async def aclose(self) -> None:
        pass

    async def _events(self, version: int) -> AsyncGenerator[bytes, None]:
        await self.may_speak.wait()
        for number in range(EVENTS):
            yield b'{"type":"MODIFIED","object":' + self._numbered(number, version + number + 1) + b"}\n"
        await asyncio.Event().wait()

    def _numbered(self, number: int, version: int) -> bytes:
        start = time.process_time()
        pod = (
            self._pod.replace(b"NUMBER", b"%05d" % number)
            .replace(b"VERSION", b"%d" % version)
            .replace(b"NODE", b"node-%05d" % (number % NODES))
        )
        self.spent += time.process_time() - start
        return pod


def _pod() -> dict[str, Any]:
    """What a lab's pod looks like once it runs."""
    owned: dict[str, Any] = {
        f"f:{field}": {} for field in ("image", "imagePullPolicy", "name", "resources", "terminationMessagePath")
    }
    when = "2026-01-02T03:04:05Z"
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": when}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "train-NUMBER",
            "namespace": "lab",
            "uid": "0b1c2d3e-1111-4222-8333-4444555NUMBER",
            "resourceVersion": "VERSION",
            "creationTimestamp": when,
            "labels": {"app": "train", "pod-template-hash": "7d9c5f7b4", "hub.jupyter.org/username": "user-NUMBER"},
            "annotations": {
                "ALIYUN_COM_GPU_MEM_IDX": "0",
                "ALIYUN_COM_GPU_MEM_POD": "8138",
                "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "176000000NUMBER",
                "carrel.dev/devices": "GPU-0b1c2d3e-1111-4222-8333-4444555NUMBER",
            },
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train", "uid": "0b1c", "controller": True}
            ],
            "managedFields": [
                {
                    "manager": manager,
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": when,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:containers": {f'k:{{"name":"c{n}"}}': owned for n in range(4)}}},
                }
                for manager in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "nodeName": "NODE",
            "schedulerName": "gpu-scheduler",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {
                    "name": "main",
                    "image": "lab/train:1",
                    "env": [{"name": f"VARIABLE_{n}", "value": "a value of some length"} for n in range(10)],
                    "resources": {
                        "limits": {"aliyun.com/gpu-mem": "8138", "cpu": "4", "memory": "16Gi"},
                        "requests": {"aliyun.com/gpu-mem": "8138", "cpu": "4", "memory": "16Gi"},
                    },
                    "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(4)],
                }
            ],
            "volumes": [{"name": f"volume-{n}", "configMap": {"name": f"map-{n}"}} for n in range(4)],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] * 3,
        },
        "status": {
            "phase": "Running",
            "startTime": when,
            "conditions": conditions,
            "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {"startedAt": when}}}],
            "podIPs": [{"ip": "10.0.0.1"}],
        },
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
