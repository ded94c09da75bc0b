"""A pod with a part of a GPU gets a limit of memory from admission until it starts, and never one that stops it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.cluster.configuration_record import GIVEN
from carrel.configuration.gpu_memory import Limits
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.dialects.options import WhenFull
from carrel.kubernetes.cluster import BindTarget
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from tests.kit.configuration import configure
from tests.kit.configuring import configuring_on, recorded
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.limited_pods import CLAIM, ON, PARTS, can_limit, named, says
from tests.kit.reviews import Json, ReviewedCluster, a_pod, review

MEM = {"aliyun.com/gpu-mem": "8138"}
LIMIT, REQUEST = "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"
LIMITED = {LIMIT: "<limits.carrel.dev/main>", REQUEST: "0"}


def limits(pod: Json) -> dict[str, str]:
    notes = pod["metadata"].get("annotations", {})
    return {key: each for key, each in notes.items() if key.startswith("limits.carrel.dev/")}


@pytest.mark.parametrize(("pod", "mib"), PARTS.values(), ids=PARTS)
async def test_a_part_in_each_dialect_gets_a_limit_that_suits_the_gpu(pod: Json, mib: str) -> None:
    reviewed = await ReviewedCluster(options=ON, claims=[CLAIM]).create(pod)

    assert reviewed.env().items() >= LIMITED.items()
    assert limits(reviewed.object) == {"limits.carrel.dev/main": mib}, "also before the pod is bound"
    again = await ReviewedCluster(options=ON, claims=[CLAIM]).create(reviewed.object)
    assert again.object == reviewed.object, "a second review changes nothing"

    async with a_lab([a_node("n1", memory=16_276)]) as lab, lab.replica() as extender:
        await can_limit(lab, extender)
        await lab.client.create(GPU_CLAIMS, CLAIM, "lab")
        there = await lab.client.create(PODS, named(reviewed.object), "lab")
        await extender.sees(there)
        assert await extender.bind(there, "n1") is None
        assert limits(await lab.client.get(PODS, "a", "lab")) == {"limits.carrel.dev/main": mib}


@pytest.mark.parametrize(
    ("pod", "options"),
    [
        pytest.param(a_pod({"nvidia.com/gpu": "1"}), ON, id="a whole GPU"),
        pytest.param(a_pod(MEM), AdmissionOptions(), id="limits are off"),
        pytest.param(a_pod(), ON, id="no GPU"),
    ],
)
async def test_others_get_no_limit_and_what_their_author_wrote_is_removed(pod: Json, options: AdmissionOptions) -> None:
    forged = {"limits.carrel.dev/main": "99999"}
    pod = {**pod, "metadata": {**pod["metadata"], "annotations": {**pod["metadata"].get("annotations", {}), **forged}}}
    reviewed = await ReviewedCluster(options=options).create(pod)

    assert not {LIMIT, REQUEST} & set(reviewed.env())
    assert limits(reviewed.object) == {}


@pytest.mark.parametrize(
    "written",
    [
        pytest.param([{"name": LIMIT, "value": "99999"}], id="more than its part"),
        pytest.param([{"name": LIMIT, "value": ""}, {"name": REQUEST, "value": ""}], id="empty"),
        pytest.param([{"name": LIMIT, "value": "much"}, {"name": LIMIT, "value": "0"}], id="no number, and twice"),
        pytest.param([{"name": REQUEST, "value": "99999"}], id="a request above the limit"),
    ],
)
async def test_what_a_user_writes_never_counts(written: list[Json]) -> None:
    off, whole = AdmissionOptions(), {"nvidia.com/gpu": "1"}
    for options, asked, expected in ((ON, MEM, LIMITED), (ON, whole, {}), (off, MEM, {})):
        container = {"name": "main", "resources": {"limits": asked}, "env": written}
        reviewed = await ReviewedCluster(options=options).create(a_pod(containers=[container]))

        names = [each["name"] for each in reviewed.container()["env"]]
        assert {name: reviewed.env()[name] for name in expected} == expected
        assert [name for name in names if name in (LIMIT, REQUEST)] == list(expected), "the first of two would count"


async def test_each_container_of_gpushare_may_have_its_own_amount() -> None:
    amounts = {"a": "4000", "b": "6000"}
    containers = [
        {"name": name, "resources": {"limits": {"aliyun.com/gpu-mem": each}}} for name, each in amounts.items()
    ]
    reviewed = await ReviewedCluster(options=ON).create(a_pod(containers=[*containers, {"name": "log"}]))

    assert limits(reviewed.object) == {f"limits.carrel.dev/{name}": each for name, each in amounts.items()}
    assert LIMIT not in reviewed.env("log")


async def test_a_pod_that_runs_on_cpu_has_no_limit() -> None:
    on_cpu = replace(ON, when_full=WhenFull.CPU)
    reviewed = await ReviewedCluster(options=on_cpu, nodes=[a_node("n1")]).create(a_pod(MEM))  # no node can limit it

    assert "no node with GPUs can limit the memory" in reviewed.annotations["carrel.dev/runs-without-gpu"]
    assert not {LIMIT, REQUEST} & set(reviewed.env())
    assert limits(reviewed.object) == {}


async def test_a_pod_whose_claim_comes_later_is_limited_whatever_it_will_ask_for() -> None:
    reviewed = await ReviewedCluster(options=ON).create(a_pod(annotations={"gpu.scheduling/claim": "c"}))

    assert reviewed.env().items() >= LIMITED.items()
    assert limits(reviewed.object) == {"limits.carrel.dev/main": "16276"}


async def test_a_debug_container_may_have_as_much_as_its_target() -> None:
    pod = (await ReviewedCluster(options=ON).create(a_pod(MEM))).object
    for target in ({"targetContainerName": "main"}, {}):
        reviewed = await ReviewedCluster(options=ON).ask(_debugged(pod, target))
        assert reviewed.env("debug").items() >= LIMITED.items()


# --- where it may run ------------------------------------------------------------------------------------------------


async def test_a_limited_pod_goes_only_where_memory_can_be_limited_and_others_go_on() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as extender:
        limited = await lab.pod("limited", limits=MEM, annotations={"limits.carrel.dev/main": "8138"})
        plain = await lab.pod("plain", limits=MEM)
        await extender.sees(limited)

        refused = await extender.bind(limited, "n1")
        assert isinstance(refused, Refusal)
        assert "it cannot limit their memory: its agent does not say that it can" in refused.reason
        assert await extender.bind(plain, "n1") is None, "what was admitted without a limit needs none"

        await can_limit(lab, extender)
        assert await extender.bind(limited, "n1") is None
        await says(lab, "its driver 570.86 is older than 615")
        await eventually(lambda: all(extender.ledger.node(name).why_no_limits for name in extender.ledger.nodes))  # type: ignore[union-attr] # it is there
        assert len(extender.ledger.holders()) == 2, "running pods go on"


async def test_a_limited_pod_that_somebody_else_binds_has_a_limit_that_lets_it_start() -> None:
    reviewed = await ReviewedCluster(options=ON).create(a_pod(annotations={"gpu-fraction": "0.5"}))
    async with a_lab([a_node("n1")]) as lab:
        there = await lab.client.create(PODS, named(reviewed.object), "lab")
        await lab.client.bind(BindTarget("lab", "a", there["metadata"]["uid"], "n1", {}))

        assert limits(await lab.client.get(PODS, "a", "lab")) == {"limits.carrel.dev/main": "8138"}


# --- auto ------------------------------------------------------------------------------------------------------------


async def _limits(lab: Lab) -> Limits:
    return (await recorded(lab)).configuration().memory.limits


async def test_auto_becomes_required_when_all_nodes_can_and_stays_so_until_an_admin_decides() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await configure(lab.client, "memory: {limits: auto}", GIVEN)
        configuring = configuring_on(replica)
        await configuring.round()
        assert await _limits(lab) is Limits.AUTO

        await can_limit(lab, replica)
        await configuring.round()
        assert await _limits(lab) is Limits.AUTO, "another agent may not have reported yet"
        lab.clock.now += timedelta(minutes=2)
        await configuring.round()
        assert await _limits(lab) is Limits.REQUIRED
        last = (await recorded(lab)).history[-1]
        assert (last.by, last.changes) == ("Carrel", ["memory.limits: auto → required"])

        await says(lab, "its driver 570.86 is older than 615")
        await eventually(lambda: all(replica.ledger.node(name).why_no_limits for name in replica.ledger.nodes))  # type: ignore[union-attr] # it is there
        await configuring_on(replica).round()
        assert await _limits(lab) is Limits.REQUIRED, "also for the next leader"
        await configure(lab.client, "memory: {limits: auto}\ntiers: {revocationGrace: 30s}", GIVEN)
        record = await configuring.round()
        assert record is not None and record.history[-1].changes == ["tiers.revocationGrace: 0s → 30s"]
        assert await _limits(lab) is Limits.REQUIRED

        await configure(lab.client, "memory: {limits: 'off'}", GIVEN)
        await configuring.round()
        assert await _limits(lab) is Limits.OFF
        await configure(lab.client, "memory: {limits: auto}", GIVEN)
        await configuring.round()
        assert await _limits(lab) is Limits.AUTO, "it begins anew"


# --- helpers ---------------------------------------------------------------------------------------------------------


def _debugged(pod: Json, target: Mapping[str, Any]) -> Json:
    debugged = {**pod["spec"], "ephemeralContainers": [{"name": "debug", "image": "x", **target}]}
    new = {**pod, "spec": debugged}
    body = review(new, "alice@lab.example")
    body["request"] |= {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": pod}
    return body
