"""Devices are allocated to the containers that were promised their GPUs, and to no others."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, Forbidden, MergePatch, Unavailable
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from carrel.ledger.refusals import Refusal
from carrel.node import allocation
from carrel.node.allocation import DeviceAllocation
from carrel.node.device_names import DeviceInventory
from carrel.node.interfaces import AllocatedDevices
from carrel.node.lease_check import LeaseCheck
from carrel.node.settings import AgentOptions
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, Replica, a_lab

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
NODE = a_node("n1")


@dataclass
class Bench:
    """The allocation of a node, beside an extender that promises GPUs."""

    lab: Lab
    extender: Replica
    allocator: DeviceAllocation
    inventory: DeviceInventory

    async def placed(self, name: str, **spec: Any) -> dict[str, Any]:
        """A pod that the extender has bound to the node, as soon as all caches have it."""
        pod = await self.lab.pod(name, **spec)
        assert await self.extender.bind(pod, "n1") is None
        bound = await self.lab.client.get(PODS, name, "lab")
        await self.extender.sees(bound)
        return bound

    def devices(self, index: int, count: int, skip: int = 0) -> list[str]:
        ours = [
            device.id
            for device in self.inventory.memory_devices()
            if (gpu := self.inventory.gpu_of(MEM, device.id)) and gpu.index == index
        ]
        return ours[skip : skip + count]

    async def allocated(self, resource: str, devices: Sequence[str]) -> Mapping[str, str]:
        answer = await self.allocator.allocate(resource, devices)
        assert not isinstance(answer, Refusal), answer
        return answer

    async def refused(self, resource: str, devices: Sequence[str]) -> str:
        answer = await self.allocator.allocate(resource, devices)
        assert isinstance(answer, Refusal), answer
        return answer.reason


@contextlib.asynccontextmanager
async def a_bench() -> AsyncIterator[Bench]:
    async with a_lab([NODE, a_node("n2")]) as lab, lab.replica() as extender:
        allocator, inventory = an_allocation(lab, extender.pods.store), DeviceInventory(NODE.gpus)
        allocator.update(inventory, ())
        yield Bench(lab, extender, allocator, inventory)


def an_allocation(lab: Lab, pods: Iterable[Pod], transport: Any = None) -> DeviceAllocation:
    client = lab.client if transport is None else Client(transport)
    check = LeaseCheck(client, N1, "carrel")
    return DeviceAllocation(client, AgentOptions(node_name=N1), check, pods, lab.clock, clock=lab.clock.seconds)


class DeadApiServer:
    """A transport to an API server that does not answer; each try takes a second."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.calls = 0

    async def send(self, request: ApiRequest) -> ResponseLike:
        self.calls += 1
        self._lab.clock.now += timedelta(seconds=1)
        raise Unavailable(0, "Unreachable", "no answer")

    async def aclose(self) -> None:
        """Nothing is open."""


def limits(mib: int) -> dict[str, dict[str, str]]:
    return {"limits": {MEM: str(mib)}}


async def test_a_container_gets_the_gpu_that_its_pod_was_promised() -> None:
    async with a_bench() as bench:
        await bench.placed("fills-0", **limits(16276))
        await bench.placed("a", **limits(8138))

        assert await bench.allocated(MEM, bench.devices(index=1, count=8138)) == {
            "NVIDIA_VISIBLE_DEVICES": "GPU-n1-1",
            "CUDA_VISIBLE_DEVICES": "GPU-n1-1",
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_DEV": "16276",
            "ALIYUN_COM_GPU_MEM_POD": "8138",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "8138",
        }


async def test_the_kubelet_is_asked_for_devices_of_that_gpu() -> None:
    async with a_bench() as bench:
        await bench.placed("fills-0", **limits(16276))
        await bench.allocated(MEM, bench.devices(index=0, count=16276))
        await bench.placed("a", **limits(100))

        available = [device.id for device in bench.inventory.memory_devices()][::-1]
        must = bench.devices(index=1, count=3)
        preferred = await bench.allocator.prefer(MEM, available, must, 100)

        assert len(set(preferred)) == 100 and set(must) <= set(preferred)
        assert bench.inventory.gpus_of(MEM, preferred) == (frozenset({"GPU-n1-1"}), ())
        assert await bench.allocator.prefer(MEM, available, [], 77) == ()  # no container waits for 77


async def test_a_whole_gpu_is_named_as_it_was_promised() -> None:
    async with a_bench() as bench:
        await bench.placed("shares-0", **limits(8138))
        await bench.placed("whole", limits={WHOLE: "1"})

        assert await bench.allocator.prefer(WHOLE, ["GPU-n1-0", "GPU-n1-1"], [], 1) == ["GPU-n1-1"]
        assert await bench.allocated(WHOLE, ["GPU-n1-1"]) == {
            "NVIDIA_VISIBLE_DEVICES": "GPU-n1-1",
            "CUDA_VISIBLE_DEVICES": "GPU-n1-1",
        }


async def test_two_equal_pods_are_served_in_the_order_of_their_promises_each_with_its_own_gpu() -> None:
    async with a_bench() as bench:
        for name in ("a", "b"):
            await bench.placed(name, **limits(12207))
            bench.lab.clock.now += timedelta(seconds=1)

        first = await bench.allocated(MEM, bench.devices(index=0, count=12207))
        second = await bench.allocated(MEM, bench.devices(index=1, count=12207))

        assert [first["ALIYUN_COM_GPU_MEM_IDX"], second["ALIYUN_COM_GPU_MEM_IDX"]] == ["0", "1"]


async def test_devices_of_the_younger_pods_gpu_are_for_the_younger_pod() -> None:
    async with a_bench() as bench:
        for name in ("a", "b"):
            await bench.placed(name, **limits(12207))

        answer = await bench.allocated(MEM, bench.devices(index=1, count=12207))

        assert answer["NVIDIA_VISIBLE_DEVICES"] == "GPU-n1-1"


async def test_the_containers_of_a_pod_are_served_one_after_the_other() -> None:
    async with a_bench() as bench:
        container = {"image": "work", "resources": {"limits": {MEM: "4000"}}}
        containers = [{"name": name, **container} for name in ("a", "b")]
        pod = await bench.placed("two", containers=containers)

        await bench.allocated(MEM, bench.devices(0, 4000))
        await bench.allocator.mark_assigned()
        assert (await bench.lab.annotations("two"))["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
        answer = await bench.allocated(MEM, bench.devices(0, 4000, skip=4000))
        await bench.allocator.mark_assigned()

        assert (answer["ALIYUN_COM_GPU_MEM_CONTAINER"], answer["ALIYUN_COM_GPU_MEM_POD"]) == ("4000", "8000")
        notes = await bench.lab.annotations("two")
        assert notes["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
        assert notes["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == str(int(bench.lab.clock.now.timestamp()) * 10**9)
        assert notes["carrel.dev/devices"] == pod["metadata"]["annotations"]["carrel.dev/devices"]


async def test_one_pod_that_cannot_be_marked_does_not_stop_the_others() -> None:
    class RefusesOnePod:
        """An API server that refuses patches of one pod."""

        def __init__(self, lab: Lab) -> None:
            self._lab = lab

        async def send(self, request: ApiRequest) -> ResponseLike:
            if request.method == "PATCH" and request.path.endswith("/a"):
                raise Forbidden(403, "Forbidden", "not this one")
            return await self._lab.api.send(request)

        async def aclose(self) -> None:
            """The API belongs to the test."""

    async with a_bench() as bench:
        allocator = an_allocation(bench.lab, bench.extender.pods.store, RefusesOnePod(bench.lab))
        for name in ("a", "b"):
            await bench.placed(name, **limits(8138))
        rows = [AllocatedDevices("lab", name, "main", MEM, tuple(bench.devices(0, 8138))) for name in ("a", "b")]
        allocator.update(bench.inventory, rows)

        await allocator.mark_assigned()

        marks = [(await bench.lab.annotations(name))["ALIYUN_COM_GPU_MEM_ASSIGNED"] for name in ("a", "b")]
        assert marks == ["false", "true"]


async def test_a_lost_answer_is_given_again() -> None:
    async with a_bench() as bench:
        await bench.placed("a", **limits(8138))
        devices = bench.devices(0, 8138)
        assert await bench.allocated(MEM, devices) == await bench.allocated(MEM, devices)


async def test_after_a_restart_the_kubelets_records_say_who_was_served() -> None:
    async with a_bench() as bench:
        for name in ("a", "b"):
            await bench.placed(name, **limits(12207))
        served = AllocatedDevices("lab", "a", "main", MEM, tuple(bench.devices(0, 12207)))
        bench.allocator.update(bench.inventory, [served])

        assert bench.inventory.gpus_of(
            MEM, await bench.allocator.prefer(MEM, [d.id for d in bench.inventory.memory_devices()], [], 12207)
        ) == (frozenset({"GPU-n1-1"}), ())


async def test_a_served_pod_is_no_candidate_for_another_call() -> None:
    """A pod that bypassed the scheduler asks for as much, while the other one still pulls its image."""
    async with a_bench() as bench:
        await bench.placed("a", **limits(8138))
        devices = tuple(bench.devices(0, 8138))
        await bench.allocated(MEM, devices)
        bench.allocator.update(bench.inventory, [AllocatedDevices("lab", "a", "main", "example.com/nic", ("eth1",))])
        await bench.allocated(MEM, devices)
        bench.allocator.update(bench.inventory, [AllocatedDevices("lab", "a", "main", MEM, devices)])

        assert "no pod of this node waits for so many" in await bench.refused(MEM, bench.devices(1, 8138))


async def test_a_pod_is_served_though_the_kubelet_still_lists_an_older_one_of_its_name() -> None:
    async with a_bench() as bench:
        await bench.placed("a", **limits(8138))
        rows = [AllocatedDevices("lab", "a", "main", MEM, tuple(bench.devices(0, 8138)))]
        bench.allocator.update(bench.inventory, rows)
        await bench.lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: bench.extender.pods.store.get("a", "lab") is None)
        assert bench.allocator.without_replaced_pods(rows) == []
        await bench.placed("a", **limits(8138))
        bench.allocator.update(bench.inventory, rows)

        await bench.allocated(MEM, bench.devices(0, 8138))
        bench.allocator.update(bench.inventory, rows)  # from now on the row is its own
        assert "no pod of this node waits" in await bench.refused(MEM, bench.devices(0, 8138))


async def test_init_containers_which_the_kubelet_does_not_show_were_served_before_the_others() -> None:
    async with a_bench() as bench:
        container = {"image": "work", "resources": {"limits": {MEM: "4000"}}}
        names = {"init_containers": "warms-up", "containers": "main"}
        await bench.placed("a", **{key: [{"name": name, **container}] for key, name in names.items()})
        # As after a restart: no answer is remembered.
        bench.allocator.update(
            bench.inventory, [AllocatedDevices("lab", "a", "main", MEM, tuple(bench.devices(0, 4000)))]
        )

        await bench.allocator.mark_assigned()

        assert (await bench.lab.annotations("a"))["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
        assert "no pod of this node waits" in await bench.refused(MEM, bench.devices(0, 4000))


async def test_a_running_pod_is_marked_as_assigned_whatever_the_kubelet_lists() -> None:
    async with a_bench() as bench:
        pod = await bench.placed("a", **limits(8138))
        status = MergePatch({"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"phase": "Running"}})
        await bench.extender.sees(await bench.lab.client.patch(PODS, "a", status, "lab", subresource="status"))
        await bench.allocator.mark_assigned()
        assert (await bench.lab.annotations("a"))["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"


async def test_a_pod_that_the_kubelet_knows_before_we_do_is_looked_up() -> None:
    async with a_bench() as bench:
        deaf = an_allocation(bench.lab, ())
        deaf.update(bench.inventory, ())
        await bench.placed("a", **limits(8138))

        assert not isinstance(await deaf.allocate(MEM, bench.devices(0, 8138)), Refusal)


async def test_an_equal_pod_that_is_not_in_the_cache_yet_gets_its_own_gpu() -> None:
    async with a_bench() as bench:
        await bench.placed("a", **limits(12207))
        heard = tuple(bench.extender.pods.store)
        allocator = an_allocation(bench.lab, heard)
        allocator.update(bench.inventory, ())
        first = await allocator.allocate(MEM, bench.devices(0, 12207))
        await bench.placed("b", **limits(12207))

        second = await allocator.allocate(MEM, bench.devices(1, 12207))

        assert not isinstance(first, Refusal) and not isinstance(second, Refusal)
        assert [answer["NVIDIA_VISIBLE_DEVICES"] for answer in (first, second)] == ["GPU-n1-0", "GPU-n1-1"]


async def test_containers_on_a_node_without_isolation_are_told_so() -> None:
    async with a_bench() as bench:
        bench.allocator.update(bench.inventory, (), {"cgpu.disable.isolation": "true"})
        await bench.placed("a", **limits(8138))
        assert (await bench.allocated(MEM, bench.devices(0, 8138)))["CGPU_DISABLE"] == "true"


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        pytest.param([], "0 devices of aliyun.com/gpu-mem", id="none"),
        pytest.param([""], "1 unknown ones, such as ''", id="an empty name"),
        pytest.param(["GPU-n1-0-_-1"], "1 unknown ones", id="a name of another plugin"),
        pytest.param(["{0}", "{0}"], "named twice", id="one device twice"),
        pytest.param(["{0}"], "no pod of this node waits for so many", id="an amount that no pod asked for"),
    ],
)
async def test_devices_that_cannot_be_matched_are_refused(devices: list[str], words: str) -> None:
    async with a_bench() as bench:
        await bench.placed("a", **limits(8138))
        known = bench.devices(0, 1)[0]
        assert words in await bench.refused(MEM, [device.format(known) for device in devices])


async def test_a_forged_annotation_gets_no_gpu_and_blocks_no_other_pod() -> None:
    async with a_bench() as bench:
        await bench.placed("honest", **limits(8138))
        forged = await bench.lab.annotations("honest") | {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1"}
        for name, uuid in (("forged", "GPU-n1-0"), ("elsewhere", "GPU-n2-0"), ("no-uuid", ",")):
            notes = {**forged, "carrel.dev/devices": uuid}
            pod = await bench.lab.pod(name, annotations=notes, limits={MEM: "8138"})
            await bench.lab.client.bind(BindTarget("lab", name, pod["metadata"]["uid"], "n1"))
            await bench.extender.sees(await bench.lab.client.get(PODS, name, "lab"))

        await bench.allocated(MEM, bench.devices(0, 8138))
        await bench.lab.client.delete(PODS, "honest", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: bench.extender.pods.store.get("honest", "lab") is None)

        reason = await bench.refused(MEM, bench.devices(0, 8138))
        assert reason == "8138 of aliyun.com/gpu-mem on n1: no Lease gives lab/elsewhere, lab/forged its GPUs"


async def test_a_gpu_that_became_unusable_after_the_promise_is_not_allocated() -> None:
    async with a_bench() as bench:
        await bench.placed("a", **limits(8138))
        broken = tuple(replace(gpu, unusable="XID 79") for gpu in NODE.gpus)
        bench.allocator.update(DeviceInventory(broken), ())
        assert await bench.refused(MEM, bench.devices(0, 8138)) == (
            "lab/a was promised GPU 0 of n1, which has become unusable: XID 79"
        )


async def test_a_pod_that_is_ending_or_has_run_is_no_candidate() -> None:
    async with a_bench() as bench:
        pod = await bench.placed("a", **limits(8138))
        status = MergePatch({"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"phase": "Running"}})
        await bench.extender.sees(await bench.lab.client.patch(PODS, "a", status, "lab", subresource="status"))
        assert "no pod of this node waits" in await bench.refused(MEM, bench.devices(0, 8138))


async def test_a_lease_that_names_another_gpu_does_not_confirm() -> None:
    async with a_bench() as bench:
        await bench.placed("a", **limits(8138))
        patch = MergePatch({"metadata": {"annotations": {"carrel.dev/gpu": "GPU-of-before-the-reboot"}}})
        await bench.lab.client.patch(LEASES, "gpu-n1-0", patch, "carrel")
        assert "no Lease gives lab/a its GPUs" in await bench.refused(MEM, bench.devices(0, 8138))


async def test_without_an_api_server_it_waits_and_then_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever: the kubelet admits no other pod meanwhile."""
    monkeypatch.setattr(allocation, "RETRY_S", 0.0)

    async with a_bench() as bench:
        await bench.placed("a", **limits(8138))
        away = DeadApiServer(bench.lab)
        allocator = an_allocation(bench.lab, bench.extender.pods.store, away)
        allocator.update(bench.inventory, ())
        answer = await allocator.allocate(MEM, bench.devices(0, 8138))

    assert isinstance(answer, Refusal) and "cannot be looked up" in answer.reason
    assert away.calls > 1
