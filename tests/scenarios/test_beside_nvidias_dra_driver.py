"""Beside NVIDIA's own DRA driver: its GPUs are counted on the same Leases, and Carrel hands over nothing by claims."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from carrel.dialects.options import DraDriver
from carrel.kubernetes.cluster import Json
from carrel.ledger.gpus import Node
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_SLICES
from tests.kit.dra import Gate, allocated, delete_claim, new_claim, publish, sees_claim, store
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node, divided_gpu
from tests.kit.lab import Lab, a_lab

NVIDIA = "gpu.nvidia.com"
N1 = a_node("n1")


@asynccontextmanager
async def a_lab_with_nvidias_driver(node: Node = N1) -> AsyncIterator[tuple[Lab, Gate]]:
    async with a_lab([node]) as lab:
        await publish(lab, node, driver=NVIDIA)
        async with lab.replica(dra=True, dra_driver=DraDriver.NVIDIA) as replica:
            yield lab, Gate(replica)


def given(claim: Json, *devices: str) -> Json:
    """As a scheduler writes it: the devices of NVIDIA's driver cannot be divided."""
    return allocated(claim, {f"n1/{device}": "" for device in devices}, driver=NVIDIA)


async def test_its_devices_are_whole_gpus_and_shared_with_every_dialect() -> None:
    async with a_lab_with_nvidias_driver() as (lab, gate):
        share = await lab.pod("share", limits={"aliyun.com/gpu-mem": "100"})
        assert await gate.replica.bind(share, "n1") is None
        first, second = await new_claim(lab, "first"), await new_claim(lab, "second")
        taken = next(iter(await lab.held())).removeprefix("gpu-n1-")
        free = str(1 - int(taken))

        refused = await gate.ask(given(first, f"gpu-{taken}"), first)
        assert str(refused) == f"GPU {taken} of n1 has 16,176 MiB free, 16,276 MiB asked; held by lab/share"
        assert await gate.ask(given(first, f"gpu-{free}"), first) is None
        assert "held by ResourceClaim lab/first" in str(await gate.ask(given(second, f"gpu-{free}"), second))
        late = await lab.pod("late", limits={"nvidia.com/gpu": "1"})
        assert "ResourceClaim lab/first" in str(await gate.replica.bind(late, "n1"))


async def test_a_claim_that_is_gone_frees_its_gpu() -> None:
    async with a_lab_with_nvidias_driver() as (lab, gate):
        claim = await new_claim(lab, "train")
        assert await gate.ask(given(claim, "gpu-0"), claim) is None
        await sees_claim(gate.replica, await store(lab, given(claim, "gpu-0")))
        assert await gate.replica.collector.collect() == []
        await delete_claim(lab, "train")
        assert gate.replica.device_claims is not None
        claims = gate.replica.device_claims.claims.store
        await eventually(lambda: claims.get("train", "lab") is None)
        assert [each.why for each in await gate.replica.collector.collect()] == ["the claim is gone"]
        assert await lab.held() == {}


async def test_claims_of_carrels_own_driver_are_not_counted_there() -> None:
    async with a_lab_with_nvidias_driver() as (lab, gate):
        claim = await new_claim(lab, "train")
        assert await gate.ask(allocated(claim, {"n1/gpu-0": ""}), claim) is None
        assert await lab.held() == {}


async def test_a_gpu_that_no_agent_reports_is_refused() -> None:
    async with a_lab_with_nvidias_driver() as (lab, gate):
        await publish(lab, a_node("n2"), driver=NVIDIA)
        claim = await new_claim(lab, "train")
        elsewhere = allocated(claim, {"n2/gpu-0": ""}, driver=NVIDIA)
        assert gate.replica.device_claims is not None
        slices = gate.replica.device_claims.slices.store
        await eventually(lambda: slices.get(f"n2-{NVIDIA}") is not None)
        assert "is GPU-n2-0, which no agent of Carrel reports" in str(await gate.ask(elsewhere, claim))


async def publish_mig(lab: Lab, gate: Gate, parent: str) -> None:
    attributes = {"uuid": {"string": "MIG-1"}, "type": {"string": "mig"}, "parentUUID": {"string": parent}}
    pool = {"name": "n1-mig", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NVIDIA, "nodeName": "n1", "pool": pool, "devices": [{"name": "mig-0", "attributes": attributes}]}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "mig"}, "spec": spec}
    await lab.client.create(RESOURCE_SLICES, body)
    assert gate.replica.device_claims is not None
    slices = gate.replica.device_claims.slices.store
    await eventually(lambda: slices.get("mig") is not None)


async def test_a_mig_slice_of_a_gpu_that_carrel_hands_out_is_refused() -> None:
    async with a_lab_with_nvidias_driver() as (lab, gate):
        await publish_mig(lab, gate, N1.gpus[0].uuid)
        claim = await new_claim(lab, "slice")
        asked = allocated(claim, {"n1-mig/mig-0": ""}, driver=NVIDIA)
        assert str(await gate.ask(asked, claim)) == (
            "device gpu.nvidia.com/n1-mig/mig-0 is a MIG slice of GPU 0 of n1, which Carrel hands out as a whole"
        )


async def test_a_mig_slice_of_a_gpu_that_carrel_gives_to_nobody_is_left_alone() -> None:
    divided = Node(N1.name, (replace(N1.gpus[0], unusable="it is divided into MIG slices"), N1.gpus[1]))
    async with a_lab_with_nvidias_driver(divided) as (lab, gate):
        await publish_mig(lab, gate, N1.gpus[0].uuid)
        claim = await new_claim(lab, "slice")
        assert await gate.ask(allocated(claim, {"n1-mig/mig-0": ""}, driver=NVIDIA), claim) is None
        assert await lab.held() == {}


DIVIDED = Node(N1.name, divided_gpu())


async def a_mig_class(lab: Lab) -> None:
    """As NVIDIA's driver brings it."""
    expression = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "mig.nvidia.com"}}
    selectors = [{"cel": {"expression": expression}}]
    await lab.client.create(DEVICE_CLASSES, {**body, "spec": {"selectors": selectors}})


async def test_slices_that_agents_report_are_counted_like_gpus() -> None:
    async with a_lab_with_nvidias_driver(DIVIDED) as (lab, gate):
        pod = await lab.pod("student", limits={"nvidia.com/mig-1g.10gb": "1"})
        assert await gate.replica.bind(pod, "n1") is None
        first, second = await new_claim(lab, "first"), await new_claim(lab, "second")

        assert "held by lab/student" in str(await gate.ask(given(first, "gpu-1000"), first))
        assert await gate.ask(given(first, "gpu-1001"), first) is None
        assert set(await lab.held()) == {"gpu-n1-1000", "gpu-n1-1001"}
        assert "held by ResourceClaim lab/first" in str(await gate.ask(given(second, "gpu-1001"), second))


async def test_a_pod_with_a_claim_of_nvidias_class_for_slices_asks_for_slices() -> None:
    async with a_lab_with_nvidias_driver(DIVIDED) as (lab, gate):
        await a_mig_class(lab)
        claims = gate.replica.device_claims
        await eventually(lambda: claims.classes.store.get("mig.nvidia.com") is not None)
        await new_claim(lab, "slice", deviceClassName="mig.nvidia.com")
        await eventually(lambda: claims.claims.store.get("slice", "lab") is not None)
        pod = await lab.pod("student", claims=[{"name": "gpu", "resourceClaimName": "slice"}])

        asked = claims.claimed_by(await gate.replica.sees(pod)).request
        assert asked is not None
        assert (asked.gpus, asked.slices) == (1, "any")
