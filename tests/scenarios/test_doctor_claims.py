"""`carrel doctor` and ResourceClaims: what keeps them from GPUs, or gives them GPUs that others hold."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from carrel.cli.checks.finding import Finding, HopState, Installation
from carrel.cli.checks.resource_claims import resource_claims
from carrel.configuration.schema import Configuration, ResourceClaims
from carrel.dialects.options import DraDriver
from carrel.kubernetes.cluster import Json, JsonPatch, MergePatch
from carrel.kubernetes.objects.resources import NODES, VALIDATING_WEBHOOKS
from carrel.manifests import dra
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_SLICES
from tests.kit.dra import publish
from tests.kit.gpus import a_node
from tests.kit.installation import InstalledLab
from tests.kit.lab import OURS, Lab, a_lab

N1 = a_node("n1")
BUNDLE = {"caBundle": "YQ=="}
OFF = ResourceClaims()
ON = ResourceClaims(enabled=True)
NVIDIA = ResourceClaims(enabled=True, driver=DraDriver.NVIDIA)
FAIL, WARN, OK = HopState.FAIL, HopState.WARN, HopState.OK


class ClaimLab:
    def __init__(self, lab: Lab, claims: ResourceClaims) -> None:
        self.lab, self.installed, self.claims = lab, InstalledLab(lab), claims

    async def found(self) -> list[tuple[HopState, str]]:
        configuration = Configuration(resource_claims=self.claims)
        installation = Installation(self.installed.client, OURS, self.lab.clock, configuration=configuration)
        found: list[Finding] = list(await resource_claims(installation))
        assert all(each.advice for each in found if each.state is not OK)
        return [(each.state, each.text) for each in found]

    async def install(self, runtime: str = "containerd://2.2.1") -> None:
        await self.installed.component("agent")
        info = {"status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}
        await self.lab.client.patch(NODES, "n1", MergePatch(info), subresource="status")
        for each in dra(driver=self.claims.driver.value):
            if each["kind"] == "DeviceClass":
                await self.lab.client.create(DEVICE_CLASSES, each)
            if each["kind"] == "ValidatingWebhookConfiguration":
                self.installed.pods.objects[VALIDATING_WEBHOOKS.path(name="carrel")] = each
                each["webhooks"][0]["clientConfig"] |= BUNDLE

    @property
    def gate(self) -> Json:
        entry: Json = self.installed.pods.objects[VALIDATING_WEBHOOKS.path(name="carrel")]["webhooks"][0]
        return entry


@asynccontextmanager
async def a_claim_lab(claims: ResourceClaims = ON, **how: Any) -> AsyncIterator[ClaimLab]:
    async with a_lab([N1]) as lab:
        found = ClaimLab(lab, claims)
        await found.install(**how)
        yield found


async def test_where_all_is_well_it_says_so() -> None:
    async with a_claim_lab() as lab:
        await publish(lab.lab, N1)
        assert await lab.found() == [(OK, "they get devices of gpu.carrel.dev, on 1 nodes")]


async def test_without_dra_nothing_is_missed() -> None:
    async with a_claim_lab(OFF) as lab:
        assert await lab.found() == [
            (OK, "ResourceClaims are not counted (resourceClaims.enabled), and no driver advertises GPUs to them")
        ]


@pytest.mark.parametrize("claims", [OFF, ON], ids=["nothing is counted", "only our own driver"])
async def test_gpus_that_another_driver_advertises_uncounted_are_a_failure(claims: ResourceClaims) -> None:
    async with a_claim_lab(claims) as lab:
        await publish(lab.lab, N1)
        await publish(lab.lab, N1, driver="gpu.nvidia.com")
        text = "devices of gpu.nvidia.com on n1 are not counted: claims and other pods may get the same GPU"
        assert (FAIL, text) in await lab.found()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"failurePolicy": "Ignore"}, "has failurePolicy Ignore", id="failurePolicy"),
        pytest.param({"clientConfig": {}}, "has not written its certificate authority", id="no authority"),
        pytest.param({"name": "another"}, "no ValidatingWebhookConfiguration has allocations", id="no gate"),
        pytest.param(
            {"matchConditions": [{"expression": "'gpu.nvidia.com'"}]}, "is not asked about", id="another driver"
        ),
    ],
)
async def test_a_gate_that_does_not_guard_is_a_failure(change: Json, text: str) -> None:
    async with a_claim_lab() as lab:
        await publish(lab.lab, N1)
        lab.gate.update(change)
        ((state, said),) = await lab.found()
        assert state is FAIL and text in said


async def test_a_node_without_a_slice_says_why() -> None:
    async with a_claim_lab() as lab:
        assert (FAIL, "they get no GPUs there: it has no ResourceSlice of Carrel's driver") in await lab.found()
    async with a_claim_lab(runtime="containerd://1.6.20") as lab:
        ((state, said),) = await lab.found()
        assert state is WARN and "containerd://1.6.20 ignores the devices of claims" in said
    async with a_claim_lab(runtime="containerd://1.7.27") as lab:
        await publish(lab.lab, N1)
        ((state, said),) = await lab.found()
        assert state is WARN and "only with enable_cdi = true" in said


async def test_a_missing_class_is_a_failure() -> None:
    async with a_claim_lab() as lab:
        await publish(lab.lab, N1)
        await lab.lab.client.delete(DEVICE_CLASSES, "gpu.carrel.dev")
        assert await lab.found() == [(FAIL, "DeviceClass gpu.carrel.dev is missing: no claim that names it gets a GPU")]


async def test_memory_that_the_api_server_drops_is_named() -> None:
    async with a_claim_lab() as lab:
        await publish(lab.lab, N1)
        whole = JsonPatch([{"op": "remove", "path": f"/spec/devices/{n}/allowMultipleAllocations"} for n in (0, 1)])
        await lab.lab.client.patch(RESOURCE_SLICES, "n1-gpu.carrel.dev", whole)
        ((state, said),) = await lab.found()
        assert state is WARN and "they get whole GPUs only" in said


async def test_beside_nvidias_driver_gpus_that_no_agent_reports_are_named() -> None:
    async with a_claim_lab(NVIDIA) as lab:
        await lab.lab.client.create(DEVICE_CLASSES, _a_class("gpu.nvidia.com"))
        await publish(lab.lab, N1, driver="gpu.nvidia.com")
        assert await lab.found() == [(OK, "they get devices of gpu.nvidia.com, on 1 nodes")]
        await publish(lab.lab, a_node("n2", gpus=1), driver="gpu.nvidia.com")
        assert await lab.found() == [(FAIL, "no agent reports GPU-n2-0: every claim for it is refused")]


def _a_class(name: str) -> Json:
    spec = {"selectors": [{"cel": {"expression": f"device.driver == '{name}'"}}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
