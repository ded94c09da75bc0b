"""Scheduling gates and nominations: a pod that cannot be placed yet holds nothing, and a nomination gives no GPU."""

import asyncio
from typing import Any

import msgspec
import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.cluster import Json, MergePatch
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.reporting.claim_status import ClaimStatusWriter
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.reviews import a_state
from tests.kit.tiers import (
    BOOKED,
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    an_opportunistic_pod,
    an_unschedulable_booked_pod,
    catch_up,
    mark_unschedulable,
    pods_of,
    remove_gates,
    set_status,
    settle,
)

QUOTA = "example.com/quota"
HELD_BACK = f"lab/urgent is held back by the scheduling gate {QUOTA}: no scheduler tries it until it is removed"


async def why(replica: Replica, pod: Json) -> str:
    refusal = replica.waiting_reason.why(await replica.sees(pod))
    return refusal.reason if refusal else ""


# --- scheduling gates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gates", "named"),
    [([QUOTA], f"the scheduling gate {QUOTA}"), (["a.example/b", QUOTA], f"the scheduling gates a.example/b, {QUOTA}")],
    ids=["one", "two"],
)
async def test_the_reason_of_a_gated_pod_names_its_gates_until_they_are_removed(gates: list[str], named: str) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits=WHOLE, gates=gates)

        assert f"lab/train is held back by {named}:" in await why(replica, pod)

        opened = await remove_gates(lab, "train")
        assert await why(replica, opened) == ""
        assert await replica.bind(opened, "n1") is None


async def test_a_request_that_cannot_be_read_is_reported_before_the_gates() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits=WHOLE, annotations={"gpu-fraction": "0.5"}, gates=[QUOTA])

        assert "asks for GPUs in 2 ways" in await why(replica, pod)


async def test_no_gpu_is_revoked_for_a_gated_pod_until_its_gates_are_removed() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train")
        urgent = await an_unschedulable_booked_pod(lab, "urgent", gates=[QUOTA])  # whatever its status says
        controller = TierController(replica)

        await settle(lab, controller)
        assert (await pods_of(lab))["train"].metadata.uid == train["metadata"]["uid"]
        assert replica.ledger.kept_for(urgent["metadata"]["uid"]) == frozenset()
        assert await why(replica, urgent) == HELD_BACK

        await remove_gates(lab, "urgent")
        await mark_unschedulable(lab, "urgent")
        await settle(lab, controller)
        pods = await pods_of(lab)
        assert pods["urgent"].spec.node_name == "n1"
        assert "carrel.dev/handed-over" in pods["train"].metadata.annotations


async def test_no_gpu_is_left_free_for_a_gated_pod() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await replica.sees(await lab.pod("urgent", limits=WHOLE, annotations=BOOKED, gates=[QUOTA]))
        greedy = await lab.pod("greedy", limits=WHOLE, annotations=OPPORTUNISTIC)
        assert await why(replica, greedy) == ""

        opened = await remove_gates(lab, "urgent")
        await replica.sees(opened)
        assert replica.filter(await replica.sees(greedy), [N1]).refused == {"n1": "room, but a booked pod waits for it"}


async def test_a_gang_is_not_complete_while_a_member_is_gated_and_no_gpus_are_held() -> None:
    gang = {"carrel.dev/gpu-count": "1", "carrel.dev/gang-size": "3", "pod-group-name": "job"}
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        early = [await lab.pod(f"job-{number}", annotations=gang) for number in range(2)]
        late = await lab.pod("job-2", annotations=gang, gates=[QUOTA])
        for pod in (*early, late):
            await replica.sees(pod)

        missing = "gang lab/job waits for 1 more member: 2 of 3 are here, 1 held back by scheduling gates"
        assert replica.filter(await replica.sees(early[0]), [N1]).refused == {"n1": missing}
        assert await why(replica, early[0]) == missing
        assert list(replica.ledger.holders()) == [], "nothing is promised to a gang that cannot come together"

        opened = await remove_gates(lab, "job-2")
        await replica.sees(opened)
        answers = await asyncio.gather(*(_placed(replica, pod) for pod in (*early, opened)))
        assert answers == [None] * 3
        assert len(await lab.bound()) == 3


async def _placed(replica: Replica, pod: Json) -> Refusal | None:
    assert replica.filter(await replica.sees(pod), [N1]).fitting == ["n1"]
    return await replica.bind(pod, "n1")


async def test_the_claim_of_a_gated_pod_names_the_gates() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "one"}}
        await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
        claim = await eventually(lambda: replica.claims.store.get("one", "lab"))
        assert claim is not None
        await replica.sees(await lab.pod("train", annotations={"gpu.scheduling/claim": "one"}, gates=[QUOTA]))

        state = ClaimStatusWriter(replica).state_of(claim)

        assert f"held back by the scheduling gate {QUOTA}" in state.message


async def test_a_gated_pod_whose_booking_ends_gets_a_successor_with_the_remaining_gates() -> None:
    over = {"carrel.dev/tier": "booked", "terminate-at": "2026-11-16T11:00:00Z"}
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await lab.pod("train", limits=WHOLE, annotations=over, gates=[QUOTA, "a.example/b"])
        controller = TierController(replica)
        await catch_up(lab, replica)
        (pod,) = controller.parts.expiry.expired()
        await controller.parts.expiry.end(pod)  # the record is written, with both gates
        left = {"spec": {"schedulingGates": [{"name": QUOTA}]}}
        await lab.client.patch(PODS, "train", MergePatch(left), "lab")

        await settle(lab, controller)

        successor = await lab.client.get(PODS, "train", "lab")
        assert "carrel.dev/handed-over" in successor["metadata"]["annotations"]
        assert successor["spec"]["schedulingGates"] == [{"name": QUOTA}], "the other gate was removed already"


def test_the_eligible_nodes_of_a_gated_pod_follow_its_changed_selector() -> None:
    nodes = [
        msgspec.convert({"metadata": {"name": name, "labels": {"zone": name}}}, NodeObject) for name in ("n1", "n2")
    ]
    state = a_state()
    for node in nodes:
        state.nodes.store.put(node)

    def of(**spec: Any) -> tuple[str, ...]:
        gated = {"schedulingGates": [{"name": QUOTA}], **spec}
        return state.eligible_nodes.of(msgspec.convert({"metadata": {"uid": "u"}, "spec": gated}, Pod)).nodes

    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["n1"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert of() == ("n1", "n2")
    assert of(nodeSelector={"zone": "n2"}) == ("n2",)
    assert of(affinity=affinity) == ("n1",)
    assert of(affinity=affinity, nodeSelector={"zone": "n2"}) == ()


# --- nominations -----------------------------------------------------------------------------------------------------


async def nominate(lab: Lab, name: str, node: str) -> Json:
    """As kube-scheduler does after a preemption and, since 1.35, before it binds; other programs may do it too."""
    await set_status(lab, name, {"nominatedNodeName": node})
    return await lab.client.get(PODS, name, "lab")


async def test_a_nominated_pod_holds_nothing_and_may_be_placed_elsewhere() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        await lab.pod("train", limits=WHOLE)
        train = await nominate(lab, "train", "n1")
        other = await lab.pod("other", limits=WHOLE)

        assert replica.filter(await replica.sees(train), [N1, N2]).fitting == ["n1", "n2"]
        assert await replica.bind(other, "n1") is None
        assert not replica.filter(await replica.sees(train), [N1]).fitting
        assert await replica.bind(train, "n2") is None
        assert await lab.bound() == {other["metadata"]["uid"]: "n1", train["metadata"]["uid"]: "n2"}


async def test_a_nominated_booked_pod_still_waits_and_gets_a_gpu_by_revocation() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}}
        await lab.client.create(NODES, node)  # without GPUs
        await an_opportunistic_pod(lab, replica, "train")
        await an_unschedulable_booked_pod(lab, "urgent")
        await nominate(lab, "urgent", "n2")

        await settle(lab, TierController(replica))

        assert (await pods_of(lab))["urgent"].spec.node_name == "n1"


async def test_a_nominated_gang_member_is_filtered_for_one_node_and_planned_for_all() -> None:
    """kube-scheduler tries the nominated node alone first, and then all nodes."""
    gang = {"carrel.dev/gpu-count": "1", "carrel.dev/gang-size": "2", "pod-group-name": "job"}
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        for number in range(2):
            await lab.pod(f"job-{number}", annotations=gang)
        first = await nominate(lab, "job-0", "n1")
        second = await lab.client.get(PODS, "job-1", "lab")
        await replica.sees(second)

        assert not replica.filter(await replica.sees(first), [N1]).fitting, "there is no room for both"
        places = [replica.filter(await replica.sees(pod), [N1, N2]).fitting for pod in (first, second)]

        assert sorted(node for fitting in places for node in fitting) == ["n1", "n2"]
