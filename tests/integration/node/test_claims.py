"""ResourceClaims on a node: the slice, what the kubelet asks, and what the container runtime reads. Real gRPC."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from carrel.configuration.schema import ResourceClaims
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.options import DeviceList
from carrel.kubernetes.cluster import Json, MergePatch, NotFound
from carrel.kubernetes.objects.resources import NODES
from carrel.resource_claims.objects import RESOURCE_SLICES
from tests.kit.agent import RunningAgent, an_agent, becomes
from tests.kit.claim_kubelet import ClaimKubelet
from tests.kit.dra import Gate, allocated, new_claim, store
from tests.kit.eventually import LIMIT_S, eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, Replica, a_lab

FIRST, SECOND = "gpu-565383ae-80d0-567b-90bd-e2fdb30cfc84", "gpu-4131c7b4-5a54-5f4c-9bde-79b9b48ede9c"
"""Its devices, by the UUIDs of their GPUs."""
SLICE = "n1-gpu.carrel.dev"


class ClaimNode:
    def __init__(self, running: RunningAgent, kubelet: ClaimKubelet, replica: Replica, cdi: Path) -> None:
        self.running, self.kubelet, self.replica, self.cdi = running, kubelet, replica, cdi
        self.lab = running.lab

    async def devices(self) -> list[Json]:
        try:
            found: list[Json] = (await self.lab.client.get(RESOURCE_SLICES, SLICE))["spec"]["devices"]
        except NotFound:
            return []
        return found

    async def allocated(self, name: str, **given: str) -> Json:
        """A claim that the gate let through: `first="8138Mi"`, of the first GPU."""
        claim = await new_claim(self.lab, name)
        devices = {"first": FIRST, "second": SECOND}
        after = allocated(claim, {f"n1/{devices[gpu]}": amount for gpu, amount in given.items()})
        gate = Gate(self.replica)
        await eventually(lambda: self.replica.device_claims and self.replica.device_claims.slices.store.get(SLICE))
        assert await gate.ask(after, claim) is None
        return await store(self.lab, after)

    def files(self) -> dict[str, Any]:
        return {each.name: json.loads(each.read_text()) for each in self.cdi.glob("*.json")}


async def runtime(lab: Lab, version: str) -> None:
    body = {"status": {"nodeInfo": {"containerRuntimeVersion": version}}}
    await lab.client.patch(NODES, "n1", MergePatch(body), subresource="status")


@asynccontextmanager
async def a_claim_node(folder: Path, version: str = "containerd://2.2.1", **settings: Any) -> AsyncIterator[ClaimNode]:
    async with a_lab([a_node("n1")]) as lab:
        await runtime(lab, version)
        given = {"claims": ResourceClaims(enabled=True), "cdi_folder": folder / "cdi", **settings}
        async with an_agent(lab, **given) as running, lab.replica(dra=True) as replica:
            yield ClaimNode(running, ClaimKubelet(running.kubelet.root), replica, folder / "cdi")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: the path of a socket has at most 107 characters."""
    with TemporaryDirectory(prefix="kubelet-") as made:
        yield Path(made)


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[ClaimNode]:
    async with a_claim_node(folder) as found:
        await found.kubelet.register()
        await becomes(lambda: _names(found), [FIRST, SECOND])
        await eventually(lambda: len(found.replica.ledger.entries(N1)) == 2)
        await eventually(lambda: found.replica.ledger.entries(N1)[0].gpu.model == "Tesla-V100", "the agent's report")
        yield found


async def _names(node: ClaimNode) -> list[str]:
    return [each["name"] for each in await node.devices()]


async def test_the_plugin_says_who_it_is_and_the_slice_follows(node: ClaimNode) -> None:
    info = await node.kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", "gpu.carrel.dev")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]

    found = await node.lab.client.get(RESOURCE_SLICES, SLICE)
    assert found["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    assert found["metadata"]["ownerReferences"][0]["kind"] == "Node"
    device = found["spec"]["devices"][0]
    assert device["attributes"]["model"] == {"string": "Tesla-V100"}
    assert device["attributes"]["uuid"]["string"].startswith("GPU-")
    policy = {"default": "16276Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    assert device["capacity"]["memory"] == {"value": "16276Mi", "requestPolicy": policy}
    assert device["allowMultipleAllocations"] is True


async def test_a_slice_that_the_kubelet_deleted_is_written_again(node: ClaimNode) -> None:
    await node.lab.client.delete(RESOURCE_SLICES, SLICE)
    await becomes(lambda: _names(node), [FIRST, SECOND])


async def test_a_gpu_that_is_ill_gets_a_taint(node: ClaimNode) -> None:
    ill = {"count": 1, "model": "Tesla-V100", "memoryMiB": 16276, "unusable": "XID 79"}
    node.running.simulate([ill, {"count": 1, "model": "Tesla-V100", "memoryMiB": 16276}])

    async def taints() -> list[Any]:
        return [[each["key"] for each in device.get("taints", [])] for device in await node.devices()]

    await becomes(taints, [["carrel.dev/unusable"], []])
    assert (await node.lab.client.get(RESOURCE_SLICES, SLICE))["spec"]["pool"]["generation"] == 2


async def test_the_kubelet_is_told_which_gpus_are_well(node: ClaimNode) -> None:
    async with aclosing(node.kubelet.health()) as told:
        assert await anext(told) == {FIRST: ("HEALTHY", ""), SECOND: ("HEALTHY", "")}
        ill = {"count": 1, "model": "Tesla-V100", "memoryMiB": 16276, "unusable": "XID 79"}
        node.running.simulate([ill, {"count": 1, "model": "Tesla-V100", "memoryMiB": 16276}])
        wanted = {FIRST: ("UNHEALTHY", "XID 79"), SECOND: ("HEALTHY", "")}
        async with asyncio.timeout(LIMIT_S):
            assert wanted in [seen async for seen in until(told, wanted)]


async def test_a_kubelet_of_1_36_is_told_too(node: ClaimNode) -> None:
    async with aclosing(node.kubelet.health("v1alpha1")) as told:
        assert {health for health, _ in (await anext(told)).values()} == {"HEALTHY"}


async def until(told: AsyncIterator[Any], wanted: Any) -> AsyncIterator[Any]:
    async for seen in told:
        yield seen
        if seen == wanted:
            return


async def test_a_claim_that_its_lease_names_gets_its_gpus(node: ClaimNode) -> None:
    claim = await node.allocated("train", first="8138Mi", second="")
    uid = claim["metadata"]["uid"]

    for _ in range(2):  # the kubelet asks again
        answer = (await node.kubelet.prepare(claim))[uid]
        assert not answer.error
        assert [(each.device_name, each.pool_name, list(each.request_names)) for each in answer.devices] == [
            (FIRST, "n1", ["gpu"]),
            (SECOND, "n1", ["gpu"]),
        ]
        assert [list(each.cdi_device_ids) for each in answer.devices] == [[f"carrel.dev/gpu={uid}"]] * 2

    uuids = ",".join(device["attributes"]["uuid"]["string"] for device in await node.devices())
    (device,) = node.files()[f"carrel.dev-gpu-{uid}.json"]["devices"]
    assert device["name"] == uid
    assert device["containerEdits"]["env"] == [f"NVIDIA_VISIBLE_DEVICES={uuids}", f"CUDA_VISIBLE_DEVICES={uuids}"]
    assert [each["inUseBy"] for each in await node.running.devices()] == [[uid], [uid]], "before the kubelet is told"


async def test_admin_access_sees_the_gpus_and_is_no_user_of_them(node: ClaimNode) -> None:
    claim = await new_claim(node.lab, "look", adminAccess=True)
    looks = await store(node.lab, allocated(claim, {f"n1/{FIRST}": ""}, adminAccess=True))
    uid = looks["metadata"]["uid"]
    forged = await store(node.lab, allocated(await new_claim(node.lab, "x"), {f"n1/{FIRST}": ""}, adminAccess=True))
    assert "no Lease gives" in (await node.kubelet.prepare(forged))[forged["metadata"]["uid"]].error

    assert not (await node.kubelet.prepare(looks))[uid].error
    (device,) = node.files()[f"carrel.dev-gpu-{uid}.json"]["devices"]
    assert device["containerEdits"]["env"][0].startswith("NVIDIA_VISIBLE_DEVICES=GPU-")
    assert [each["inUseBy"] for each in await node.running.devices()] == [[], []]

    train = await node.allocated("train", first="")
    assert not (await node.kubelet.prepare(train))[train["metadata"]["uid"]].error
    status = await node.lab.client.get(GPU_NODE_STATUSES, "n1")
    assert status["status"]["preparedClaims"] == [train["metadata"]["uid"]]


async def test_where_nvidias_own_files_are_used_each_gpu_is_named_too(folder: Path) -> None:
    async with a_claim_node(folder, device_list=DeviceList.CDI) as node:
        await node.kubelet.register()
        await becomes(lambda: _names(node), [FIRST, SECOND])
        await eventually(lambda: node.replica.ledger.entries(N1)[0].gpu.model == "Tesla-V100")
        claim = await node.allocated("train", second="")
        uid, uuid = claim["metadata"]["uid"], (await node.devices())[1]["attributes"]["uuid"]["string"]

        (device,) = (await node.kubelet.prepare(claim))[uid].devices
        assert list(device.cdi_device_ids) == [f"carrel.dev/gpu={uid}", f"nvidia.com/gpu={uuid}"]


async def test_a_claim_that_no_lease_names_is_refused_with_the_holder(node: ClaimNode) -> None:
    first = await node.allocated("first", first="")
    claim = await new_claim(node.lab, "stolen")
    stolen = await store(node.lab, allocated(claim, {f"n1/{FIRST}": ""}))  # past the gate

    answers = await node.kubelet.prepare(stolen, first)

    assert answers[stolen["metadata"]["uid"]].error == (
        "no Lease gives GPU 0 of n1 to ResourceClaim lab/stolen; it is held by ResourceClaim lab/first"
    )
    assert not answers[first["metadata"]["uid"]].error, "one that is refused does not hold up the others"
    assert list(node.files()) == [f"carrel.dev-gpu-{first['metadata']['uid']}.json"]


async def test_a_claim_that_is_gone_or_not_allocated_is_refused(node: ClaimNode) -> None:
    claim = await new_claim(node.lab, "train")
    other = {"metadata": {"namespace": "lab", "name": "train", "uid": "another-uid"}}
    gone = {"metadata": {"namespace": "lab", "name": "gone", "uid": "gone-uid"}}
    answers = await node.kubelet.prepare(claim, other, gone)
    assert {uid: answer.error for uid, answer in answers.items()} == {
        claim["metadata"]["uid"]: "the claim has no GPU of n1: it is not allocated, or elsewhere",
        "another-uid": "ResourceClaim lab/train is another one by now",
        "gone-uid": "ResourceClaim lab/gone does not exist",
    }


async def test_what_is_given_back_leaves_nothing(node: ClaimNode) -> None:
    claim = await node.allocated("train", first="8138Mi")
    await node.kubelet.prepare(claim)
    for _ in range(2):
        assert [each.error for each in (await node.kubelet.unprepare(claim)).values()] == [""]
    assert node.files() == {}
    assert [each["inUseBy"] for each in await node.running.devices()] == [[], []]


async def test_a_socket_that_vanished_is_there_again(node: ClaimNode) -> None:
    node.kubelet.socket.unlink()
    assert (await node.kubelet.register()).name == "gpu.carrel.dev"


async def test_prepared_claims_are_known_after_a_restart_of_the_agent(folder: Path) -> None:
    async with a_claim_node(folder) as first:
        await first.kubelet.register()
        await becomes(lambda: _names(first), [FIRST, SECOND])
        await eventually(lambda: first.replica.ledger.entries(N1)[0].gpu.model == "Tesla-V100")
        claim = await first.allocated("train", second="")
        await first.kubelet.prepare(claim)
    async with a_claim_node(folder) as second:

        async def used() -> list[Any]:
            return [each.get("inUseBy") for each in await second.running.devices()]

        await becomes(used, [[], [claim["metadata"]["uid"]]])


@pytest.mark.parametrize(
    ("version", "settings", "why"),
    [
        pytest.param(
            "containerd://1.6.20", {}, "containerd://1.6.20 ignores the devices of claims", id="an old runtime"
        ),
        pytest.param("containerd://2.2.1", {"device_list": DeviceList.MOUNTS}, "cdi works", id="by mounts"),
        pytest.param("", {}, "its container runtime says its version in a way that is not known", id="no version"),
    ],
)
async def test_where_claims_would_be_ignored_nothing_is_advertised(
    folder: Path, version: str, settings: dict[str, Any], why: str
) -> None:
    async with a_claim_node(folder, version, **settings) as node:

        async def message() -> bool:
            return why in (await node.running.status()).get("message", "")

        await becomes(message, True)
        assert not node.kubelet.socket.exists()
        assert await node.devices() == []
