"""Scheduling gates and nominations: who cannot be placed yet takes nothing from anybody, and a hint is no card."""

import asyncio
from typing import Any

import msgspec
import pytest

from carrel.kubernetes.cluster import Json, MergePatch
from carrel.kubernetes.objects import views
from carrel.kubernetes.objects.resources import GPU_CLAIMS, NODES, PODS
from carrel.leases.eligible_nodes import EligibleNodes
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.claim_status import ClaimContext, standing_of
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    BOOKED,
    OPPORTUNISTIC,
    WHOLE,
    Terminator,
    a_booked_one_in_vain,
    an_opportunist,
    catch_up,
    open_gates,
    pods_of,
    refuse,
    set_status,
    settle,
)

QUOTA = "example.com/quota"
HELD_BACK = (
    f"lab/urgent is held back by the scheduling gate {QUOTA}: no scheduler looks at it until whoever set that is done"
)


async def why(carrel: Replica, pod: Json) -> str:
    refusal = carrel.why(await carrel.sees(pod))
    return refusal.reason if refusal else ""


# --- scheduling gates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gates", "named"),
    [([QUOTA], f"the scheduling gate {QUOTA}"), (["a.example/b", QUOTA], f"the scheduling gates a.example/b, {QUOTA}")],
    ids=["one", "two"],
)
async def test_a_gated_pod_says_which_gates_hold_it_and_goes_on_without_them(gates: list[str], named: str) -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        pod = await lab.pod("train", limits=WHOLE, gates=gates)

        assert f"lab/train is held back by {named}:" in await why(carrel, pod)

        opened = await open_gates(lab, "train")
        assert await why(carrel, opened) == ""
        assert await carrel.bind(opened, "n1") is None


async def test_what_cannot_be_understood_is_said_before_the_gates() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        pod = await lab.pod("train", limits=WHOLE, annotations={"gpu-fraction": "0.5"}, gates=[QUOTA])

        assert "asks for GPUs in 2 ways" in await why(carrel, pod)


async def test_nobody_loses_a_card_to_a_gated_pod_until_its_gates_are_open() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        train = await an_opportunist(lab, carrel, "train")
        urgent = await a_booked_one_in_vain(lab, "urgent", gates=[QUOTA])  # whatever its status says
        terminator = Terminator(carrel)

        await settle(lab, terminator)
        assert (await pods_of(lab))["train"].metadata.uid == train["metadata"]["uid"]
        assert carrel.ledger.kept_for(urgent["metadata"]["uid"]) == frozenset()
        assert await why(carrel, urgent) == HELD_BACK

        await open_gates(lab, "urgent")
        await refuse(lab, "urgent")
        await settle(lab, terminator)
        pods = await pods_of(lab)
        assert pods["urgent"].spec.node_name == "n1"
        assert "carrel.dev/handed-over" in pods["train"].metadata.annotations


async def test_nobody_stands_back_for_a_gated_pod() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        await carrel.sees(await lab.pod("urgent", limits=WHOLE, annotations=BOOKED, gates=[QUOTA]))
        greedy = await lab.pod("greedy", limits=WHOLE, annotations=OPPORTUNISTIC)
        assert await why(carrel, greedy) == ""

        opened = await open_gates(lab, "urgent")
        await carrel.sees(opened)
        assert carrel.filter(await carrel.sees(greedy), ["n1"]).why_not() == {
            "n1": "room, but a booked pod waits for it"
        }


async def test_a_gang_is_not_complete_while_a_member_is_gated_and_its_cards_stay_free() -> None:
    gang = {"carrel.dev/gpu-cards": "1", "carrel.dev/gang-size": "3", "pod-group-name": "job"}
    async with a_lab([a_node("n1", cards=3)]) as lab, lab.replica() as carrel:
        early = [await lab.pod(f"job-{number}", annotations=gang) for number in range(2)]
        late = await lab.pod("job-2", annotations=gang, gates=[QUOTA])
        for pod in (*early, late):
            await carrel.sees(pod)

        missing = "gang lab/job waits for 1 more member: 2 of 3 are here, 1 held back by scheduling gates"
        assert carrel.filter(await carrel.sees(early[0]), ["n1"]).why_not() == {"n1": missing}
        assert await why(carrel, early[0]) == missing
        assert list(carrel.ledger.holders()) == [], "nothing is promised to a gang that cannot come together"

        opened = await open_gates(lab, "job-2")
        await carrel.sees(opened)
        answers = await asyncio.gather(*(_placed(carrel, pod) for pod in (*early, opened)))
        assert answers == [None] * 3
        assert len(await lab.bound()) == 3


async def _placed(carrel: Replica, pod: Json) -> Refusal | None:
    assert carrel.filter(await carrel.sees(pod), ["n1"]).fitting == ["n1"]
    return await carrel.bind(pod, "n1")


async def test_the_claim_of_a_gated_pod_says_what_holds_it() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "one"}}
        await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
        claim = await eventually(lambda: carrel.claims.store.get("one", "lab"))
        assert claim is not None
        pod = await carrel.sees(await lab.pod("train", annotations={"gpu.scheduling/claim": "one"}, gates=[QUOTA]))

        known = ClaimContext(carrel.cluster_ledger, lambda _: [pod], carrel.why, carrel.options.dialect_options)
        assert f"held back by the scheduling gate {QUOTA}" in standing_of(claim, known).message


async def test_the_booking_of_a_gated_pod_ends_and_its_successor_has_the_gates_that_are_left() -> None:
    over = {"carrel.dev/tier": "booked", "terminate-at": "2026-11-16T11:00:00Z"}
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        await lab.pod("train", limits=WHOLE, annotations=over, gates=[QUOTA, "a.example/b"])
        terminator = Terminator(carrel)
        await catch_up(lab, carrel)
        (pod,) = terminator.expiry.over()
        await terminator.expiry.end(pod)  # the record is written, with both gates
        left = {"spec": {"schedulingGates": [{"name": QUOTA}]}}
        await lab.client.patch(PODS, "train", MergePatch(left), "lab")

        await settle(lab, terminator)

        successor = await lab.client.get(PODS, "train", "lab")
        assert "carrel.dev/handed-over" in successor["metadata"]["annotations"]
        assert successor["spec"]["schedulingGates"] == [{"name": QUOTA}], "nobody would open the other one again"


def test_where_a_gated_pod_may_go_follows_what_is_added_to_it() -> None:
    nodes = [
        msgspec.convert({"metadata": {"name": name, "labels": {"zone": name}}}, views.Node) for name in ("n1", "n2")
    ]
    destinations = EligibleNodes(lambda: nodes)

    def of(**spec: Any) -> tuple[str, ...]:
        gated = {"schedulingGates": [{"name": QUOTA}], **spec}
        return destinations.of(msgspec.convert({"metadata": {"uid": "u"}, "spec": gated}, views.Pod)).nodes

    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["n1"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert of() == ("n1", "n2")
    assert of(nodeSelector={"zone": "n2"}) == ("n2",)
    assert of(affinity=affinity) == ("n1",)
    assert of(affinity=affinity, nodeSelector={"zone": "n2"}) == ()


# --- nominations -----------------------------------------------------------------------------------------------------


async def nominate(lab: Lab, name: str, node: str) -> Json:
    """kube-scheduler does so after a preemption and, since 1.35, when it is about to bind; others may, too."""
    await set_status(lab, name, {"nominatedNodeName": node})
    return await lab.client.get(PODS, name, "lab")


async def test_a_nominated_pod_holds_nothing_and_may_go_elsewhere() -> None:
    async with a_lab([a_node("n1", cards=1), a_node("n2", cards=1)]) as lab, lab.replica() as carrel:
        await lab.pod("train", limits=WHOLE)
        train = await nominate(lab, "train", "n1")
        other = await lab.pod("other", limits=WHOLE)

        assert carrel.filter(await carrel.sees(train), ["n1", "n2"]).fitting == ["n1", "n2"]
        assert await carrel.bind(other, "n1") is None
        assert not carrel.filter(await carrel.sees(train), ["n1"]).fitting
        assert await carrel.bind(train, "n2") is None
        assert await lab.bound() == {other["metadata"]["uid"]: "n1", train["metadata"]["uid"]: "n2"}


async def test_a_booked_pod_that_is_nominated_still_waits_and_gets_a_card_where_one_can_be_freed() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}}
        await lab.client.create(NODES, node)  # without cards
        await an_opportunist(lab, carrel, "train")
        await a_booked_one_in_vain(lab, "urgent")
        await nominate(lab, "urgent", "n2")

        await settle(lab, Terminator(carrel))

        assert (await pods_of(lab))["urgent"].spec.node_name == "n1"


async def test_a_member_of_a_gang_that_is_nominated_is_asked_about_one_node_only_and_planned_for_all() -> None:
    """kube-scheduler tries the nominated node alone first, and all of them if that will not do."""
    gang = {"carrel.dev/gpu-cards": "1", "carrel.dev/gang-size": "2", "pod-group-name": "job"}
    async with a_lab([a_node("n1", cards=1), a_node("n2", cards=1)]) as lab, lab.replica() as carrel:
        for number in range(2):
            await lab.pod(f"job-{number}", annotations=gang)
        first = await nominate(lab, "job-0", "n1")
        second = await lab.client.get(PODS, "job-1", "lab")
        await carrel.sees(second)

        assert not carrel.filter(await carrel.sees(first), ["n1"]).fitting, "there is no room for both"
        places = [carrel.filter(await carrel.sees(pod), ["n1", "n2"]).fitting for pod in (first, second)]

        assert sorted(node for fitting in places for node in fitting) == ["n1", "n2"]
