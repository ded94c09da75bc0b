"""A node with much GPU memory: how long the kubelet waits for Carrel's plugin. It admits no other pod meanwhile."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import median

from benchmarks.measuring import Figure, cpu_seconds
from carrel.dialects import gpu_lease, gpushare, visible_devices
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.gpushare import GPU_MEM
from carrel.dialects.options import Unit
from carrel.ids import GpuUuid
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import BindTarget, Selection
from carrel.kubernetes.objects.resources import LEASES, NAMESPACES, NODES, PODS
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder, Share
from carrel.node.allocation import DeviceAllocation
from carrel.node.device_names import DeviceInventory
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as wire
from carrel.node.lease_check import LeaseCheck
from carrel.node.settings import AgentOptions
from kubernetes_in_memory import EmbeddedApi
from tests.kit.gpus import N1

GPUS = tuple(Gpu(GpuUuid(f"GPU-{index}"), N1, index, "NVIDIA-H100-80GB-HBM3", MiB(81920)) for index in range(8))
INVENTORY = DeviceInventory(GPUS, Unit.MIB_4)
WAITING = 100


def _message() -> bytes:
    devices = [wire.Device(ID=device.id, health="Healthy") for device in INVENTORY.memory_devices()]
    return wire.ListAndWatchResponse(devices=devices).SerializeToString()


async def _a_node_with_waiting_pods() -> DeviceAllocation:
    client, now = Client(EmbeddedApi()), datetime.now(UTC)
    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "carrel"}})
    holders: list[Holder] = []
    for number in range(WAITING):
        resources = {"limits": {GPU_MEM: str(200 + number % 2)}}
        container = {"name": "main", "image": "work", "resources": resources}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}}
        pod = await client.create(PODS, {**body, "spec": {"containers": [container]}}, "default")
        holders.append(Holder(pod["metadata"]["uid"], "default", f"pod-{number}"))
        promised = gpushare.Assumption(0, 20480, 200 + number % 2, False, number + 1)
        notes = {visible_devices.devices_key(): GPUS[0].uuid} | gpushare.write_assumption(promised)
        await client.bind(BindTarget("default", f"pod-{number}", holders[-1].uid, "n1", notes))
    record = LeaseRecord(N1, 0, GPUS[0].uuid, tuple(Share(each, GPUS[0].uuid, MiB(804)) for each in holders))
    await client.create(LEASES, gpu_lease.write_lease(record, "carrel", now), "carrel")
    pods = (await client.list(PODS, Selection(fields="spec.nodeName=n1"))).items
    check = LeaseCheck(client, N1, "carrel")
    allocator = DeviceAllocation(client, AgentOptions(node_name=N1), check, pods, lambda: now)
    allocator.update(INVENTORY, ())
    return allocator


async def _measure() -> list[Figure]:
    allocator = await _a_node_with_waiting_pods()
    devices = [device.id for device in INVENTORY.memory_devices()]
    start = time.process_time()
    preferred = await allocator.prefer(GPU_MEM, devices, (), 200)
    asked = time.process_time() - start
    assert INVENTORY.gpus_of(GPU_MEM, preferred) == (frozenset({GPUS[0].uuid}), ())
    took = []
    for number in range(WAITING):
        start = time.process_time()
        answer = await allocator.allocate(GPU_MEM, devices[: 200 + number % 2])
        took.append(time.process_time() - start)
        assert not isinstance(answer, Refusal)
    return [
        Figure("choose the preferred of 163,840 devices", asked * 1e3, "ms", 200.0),
        Figure("Allocate, 100 pods waiting, a Lease read", median(took) * 1e3, "ms", 10.0),
    ]


def measure() -> Iterator[Figure]:
    """The list is sent when the kubelet starts and when a GPU's health changes; the rest for every pod, which takes a
    second or more to start."""
    yield Figure("send the kubelet 163,840 devices (8 × 80 GiB)", cpu_seconds(_message, 3) * 1e3, "ms", 1000.0)
    yield Figure("size of that message", len(_message()) / 2**20, "MiB", 4.0)
    yield from asyncio.run(_measure())
