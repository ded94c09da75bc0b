"""`carrel doctor`: each hop that is broken is named, with what to do; what is well is said to be."""

from datetime import timedelta
from typing import Any

import pytest

from carrel.cli.doctor import lines
from carrel.cli.doctor_hops import Finding, HopState, Installation, findings
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import JsonPatch, MergePatch
from carrel.kubernetes.objects.resources import CRDS, LEASES, MUTATING_WEBHOOKS
from carrel.manifests import webhooks
from carrel.parsing.time import micro_seconds, seconds
from tests.kit.gpus import a_node
from tests.kit.lab import OURS, Lab, a_lab


async def seen(lab: Lab) -> dict[str, Finding]:
    """Hop → the worst that was found."""
    found = await findings(Installation(lab.client, OURS, lab.clock))
    order = list(HopState)
    return {each.hop: each for each in sorted(found, key=lambda each: order.index(each.state))}


async def lead(lab: Lab, name: str, seconds_ago: int, namespace: str = OURS) -> None:
    renewed = micro_seconds(lab.clock.now - timedelta(seconds=seconds_ago))
    spec = {"holderIdentity": "replica-1_uid", "renewTime": renewed, "leaseDurationSeconds": 15}
    await lab.client.create(
        LEASES,
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec},
        namespace,
    )


async def test_where_only_the_definitions_are_installed_everything_else_is_named_with_what_to_do() -> None:
    async with a_lab([a_node("n1")]) as lab:
        found = await seen(lab)
    failed = {hop for hop, each in found.items() if each.state is HopState.FAIL}
    assert failed == {"policies", "webhook", "admission", "gpu-scheduler", "carrel-controller"}
    assert {found[hop].state for hop in ("API server", "definitions", "node n1")} == {HopState.OK}
    assert "MutatingWebhookConfiguration carrel is missing" in found["webhook"].text
    assert "does not ask the webhook" in found["admission"].text
    assert all(found[hop].advice and found[hop].page for hop in failed)


async def test_a_definition_of_another_version_is_named_with_the_fields_that_it_lacks() -> None:
    async with a_lab([a_node("n1")]) as lab:
        place = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/gangSize"
        await lab.client.patch(CRDS, "gpuclaims.gpu.scheduling", JsonPatch([{"op": "remove", "path": place}]))
        definitions = (await seen(lab))["definitions"]
    assert definitions.state is HopState.WARN
    assert definitions.text == "gpuclaims.gpu.scheduling is of another version, and lacks spec.gangSize"


async def test_a_missing_definition_fails() -> None:
    async with a_lab([a_node("n1")]) as lab:
        await lab.client.delete(CRDS, "bookings.carrel.dev")
        definitions = (await seen(lab))["definitions"]
    assert (definitions.state, definitions.text) == (HopState.FAIL, "bookings.carrel.dev is missing")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({}, "has not written its certificate authority", id="no authority yet"),
        pytest.param({"webhooks": []}, "its configuration lacks", id="an entry is missing"),
    ],
)
async def test_a_webhook_configuration_that_is_not_complete_fails(change: dict[str, Any], said: str) -> None:
    async with a_lab([a_node("n1")]) as lab:
        (configuration,) = webhooks(for_embedded_api=True)
        names = [each["name"] for each in next(iter(webhooks()))["webhooks"]]
        configuration["webhooks"] = [{**configuration["webhooks"][0], "name": name} for name in names]
        await lab.client.create(MUTATING_WEBHOOKS, configuration | change)
        webhook = (await seen(lab))["webhook"]
    assert webhook.state is HopState.FAIL
    assert said in webhook.text


@pytest.mark.parametrize("hop", ["gpu-scheduler", "carrel-controller"])
async def test_a_leader_that_renews_its_lease_is_well_and_one_that_is_silent_is_not(hop: str) -> None:
    async with a_lab([a_node("n1")]) as lab:
        await lead(lab, hop, seconds_ago=5)
        well = (await seen(lab))[hop]
        await lab.client.delete(LEASES, hop, OURS)
        await lead(lab, hop, seconds_ago=300)
        silent = (await seen(lab))[hop]
    assert (well.state, well.text) == (HopState.OK, "replica-1 leads")
    assert (silent.state, silent.text[:12]) == (HopState.FAIL, "nobody leads")


async def test_a_silent_agent_fails_and_an_unhealthy_gpu_is_a_warning_with_its_reason() -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab:
        old = {"status": {"heartbeat": seconds(lab.clock.now - timedelta(minutes=5))}}
        await lab.client.patch(GPU_NODE_STATUSES, "n1", MergePatch(old), subresource="status")
        devices = (await lab.client.get(GPU_NODE_STATUSES, "n2"))["status"]["devices"]
        devices[0] |= {"health": "Unhealthy", "reason": "XID 79"}
        broken = {"status": {"devices": devices}}
        await lab.client.patch(GPU_NODE_STATUSES, "n2", MergePatch(broken), subresource="status")
        found = await seen(lab)
    assert found["node n1"].state is HopState.FAIL
    assert "its agent last reported at" in found["node n1"].text
    assert found["node n2"].state is HopState.WARN
    assert "GPU 0: XID 79" in found["node n2"].text


def test_what_is_not_well_is_followed_by_what_to_do_and_where_to_read() -> None:
    found = [
        Finding(HopState.OK, "API server", "Kubernetes 1.37 answers"),
        Finding(HopState.FAIL, "webhook", "it is missing", "helm upgrade", "docs/admission.md"),
    ]
    assert lines(found) == [
        "OK    API server  Kubernetes 1.37 answers",
        "FAIL  webhook     it is missing",
        "                  Try:   helm upgrade",
        "                  Read:  docs/admission.md",
    ]
