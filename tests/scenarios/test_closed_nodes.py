"""The GPUs of a node that is cordoned, not ready or tainted count like unhealthy ones; booked pods wait for them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.bookings.inventory import ClusterInventory
from carrel.bookings.pages.cluster_map import PodOnMap, node_on_map, totals
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.ids import NodeName
from carrel.kubernetes.cluster import Json, MergePatch
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.gpus import Node
from carrel.ledger.tiers import Tier
from carrel.lifecycle.reporting.gpu_counts import gpu_counts
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import NOON, Lab, Replica, a_lab
from tests.kit.reviews import GPU, ReviewedCluster, RunningPod, a_booking, booked
from tests.kit.reviews import a_pod as a_new_pod
from tests.kit.tiers import (
    BOOKED,
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    a_booked_pod,
    an_opportunistic_pod,
    an_unschedulable_booked_pod,
    catch_up,
    hand_over_records,
    pods_of,
    settle,
)

HUB = {"hub.jupyter.org/username": "ada"}
CORDONED: Json = {"spec": {"unschedulable": True}}
OPEN: Json = {"spec": {"unschedulable": None, "taints": None}}
NOT_READY: Json = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
MAINTAINED: Json = {"spec": {"taints": [{"key": "maintenance", "value": "fans", "effect": "NoSchedule"}]}}
USUAL: Json = {"spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}}
DEDICATED: Json = {"spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}}

CLOSED = [
    pytest.param(CORDONED, "cordoned (kubectl uncordon n1)", id="cordoned"),
    pytest.param(NOT_READY, "not ready", id="not ready"),
    pytest.param(MAINTAINED, "tainted maintenance=fans:NoSchedule", id="tainted"),
]


def why(carrel: Replica, pod: Pod) -> str:
    refusal = carrel.waiting_reason.why(pod)
    assert refusal is not None
    return refusal.reason


async def change(lab: Lab, replica: Replica, node: str, body: Json) -> None:
    """Changes the Node as kubectl, or the node controller, does; waits until the replica sees it."""
    if "status" in body:
        after = await lab.client.patch(NODES, node, MergePatch(body), subresource="status")
    else:
        after = await lab.client.patch(NODES, node, MergePatch(body))
    version = after["metadata"]["resourceVersion"]
    await eventually(
        lambda: (there := replica.nodes.store.get(node)) and there.metadata.resource_version == version,
        f"{node} is seen as it is",
    )


def closed(replica: Replica, node: str = "n1") -> str:
    there = replica.ledger.node(NodeName(node))
    return there.closed if there is not None else "unknown"


# --- what is counted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "words"), CLOSED)
async def test_gpus_of_a_closed_node_are_neither_free_nor_bookable_and_the_pages_say_why(
    body: Json, words: str
) -> None:
    nodes = a_node("n1", 2, model="A6000"), a_node("n2", 1, model="A6000")
    async with a_lab(nodes) as lab, lab.replica(is_shown=True) as carrel:
        inventory, view = ClusterInventory(carrel), carrel.view
        assert inventory.unheld() == {"A6000": 3}

        await change(lab, carrel, "n1", body)

        assert inventory.unheld() == {"A6000": 1}
        stock = inventory.stock()["A6000"]
        assert (stock.gpus, stock.why_set_aside) == (1, f"2 of 3 are out of use: n1 is {words}")
        shown = node_on_map(N1, carrel.ledger.node(N1), view.entries(N1), lambda uid: PodOnMap(None))
        assert (shown.unusable, shown.unheld) == (words, 0)
        assert totals(carrel.ledger, view.entries).unheld == 1
        gpus = next(metric for metric in gpu_counts(carrel.ledger, ()) if metric.name == "carrel_gpus")
        states = {each.labels["state"]: each.value for each in gpus.samples if each.labels["model"] == "A6000"}
        assert (states["unusable"], states["free"]) == (2, 1)


async def test_after_an_uncordon_everything_counts_again_and_a_deleted_node_leaves_nothing() -> None:
    async with a_lab([a_node("n1", 2, model="A6000"), a_node("n2", 1, model="A6000")]) as lab, lab.replica() as carrel:
        inventory = ClusterInventory(carrel)
        for _ in range(3):
            await change(lab, carrel, "n1", CORDONED)
            assert inventory.stock()["A6000"].gpus == 1
            await change(lab, carrel, "n1", OPEN)
            assert (inventory.stock()["A6000"].gpus, inventory.unheld()) == (3, {"A6000": 3})

        await change(lab, carrel, "n1", CORDONED)
        await lab.client.delete(NODES, "n1")
        await eventually(lambda: carrel.nodes.store.get("n1") is None)
        assert closed(carrel) == ""


# --- which taints are usual ------------------------------------------------------------------------------------------


async def an_agent(lab: Lab, name: str, *tolerations: Json, namespace: str = "carrel") -> None:
    labels = {"app.kubernetes.io/name": "carrel", "app.kubernetes.io/component": "agent"}
    metadata = {"name": name, "labels": labels}
    spec = {"containers": [{"name": "agent", "image": "carrel"}], "tolerations": list(tolerations)}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    await lab.client.create(PODS, body, namespace)


async def test_the_taint_that_nearly_every_gpu_node_has_changes_nothing() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        await change(lab, carrel, "n1", USUAL)

        assert closed(carrel) == ""


async def test_a_taint_that_carrels_agents_tolerate_changes_nothing_even_while_they_are_replaced() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        await change(lab, carrel, "n1", DEDICATED)
        assert closed(carrel) == "tainted dedicated=gpu:NoSchedule"

        await an_agent(lab, "agent-1", {"key": "dedicated", "operator": "Exists"})
        await eventually(lambda: not closed(carrel), "the agent tolerates it")
        await lab.client.delete(PODS, "agent-1", "carrel")
        await eventually(lambda: not carrel.pods.store.get("agent-1", "carrel"))
        assert closed(carrel) == "", "an update of the DaemonSet deletes the only agent first"

        await an_agent(lab, "agent-2", {"key": "nvidia.com/gpu", "operator": "Exists"})
        await eventually(lambda: closed(carrel), "the admin has taken the toleration back")


async def test_what_a_daemonset_tolerates_by_itself_makes_no_cordon_usual() -> None:
    by_itself = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        await an_agent(lab, "agent-1", by_itself, {"operator": "Exists"})
        await change(lab, carrel, "n1", CORDONED)

        assert closed(carrel) == "cordoned (kubectl uncordon n1)"


async def test_a_pod_of_somebody_else_that_looks_like_an_agent_says_nothing() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        await change(lab, carrel, "n1", DEDICATED)
        await an_agent(lab, "agent-1", {"operator": "Exists"}, namespace="lab")
        await catch_up(lab, carrel)

        assert closed(carrel) == "tainted dedicated=gpu:NoSchedule"


# --- pods that come while the node is closed -------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "words"), CLOSED)
async def test_a_booked_notebook_that_only_misses_a_closed_node_stays_booked(body: Json, words: str) -> None:
    cluster = booked(node_objects={"n1": body}, nodes=[a_node("n1", 1), a_node("cpu", 0)])

    reviewed = await cluster.create(a_new_pod(GPU, labels=HUB))

    assert reviewed.annotations["carrel.dev/tier"] == "booked"
    assert reviewed.container()["resources"]["limits"] == GPU


@pytest.mark.parametrize(("body", "words"), CLOSED)
async def test_a_notebook_without_a_booking_runs_on_cpu_and_is_told_why(body: Json, words: str) -> None:
    cluster = ReviewedCluster(node_objects={"n1": body}, options=AdmissionOptions())

    reviewed = await cluster.create(a_new_pod(GPU, labels=HUB))

    assert reviewed.container()["resources"]["limits"] == {}
    why = reviewed.annotations["carrel.dev/runs-without-gpu"]
    tainted = "1 node has a taint that the pod does not tolerate: maintenance=fans:NoSchedule"
    assert (tainted if "tainted" in words else f"1 whole GPU asked, but node n1 is {words}") in why


async def test_a_pod_without_the_usual_toleration_does_not_use_up_its_booking() -> None:
    both = {"spec": {**USUAL["spec"], "unschedulable": True}}

    for body in (USUAL, both):
        reviewed = await booked(node_objects={"n1": body}).create(a_new_pod(GPU))
        assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"


async def test_a_pod_that_tolerates_the_taint_may_have_the_gpus() -> None:
    tolerates = [{"key": "maintenance", "operator": "Exists"}]
    cluster = ReviewedCluster(node_objects={"n1": MAINTAINED}, options=AdmissionOptions())

    reviewed = await cluster.create(a_new_pod(GPU, labels=HUB, tolerations=tolerates))

    assert reviewed.container()["resources"]["limits"] == GPU


async def test_a_pod_that_can_run_goes_before_an_older_one_that_misses_a_closed_node() -> None:
    waiting = RunningPod("pinned", "alice@lab.example", gpus=())
    nodes = [a_node("n1", 1), a_node("n2", 1)]
    pinned = replace(booked(node_objects={"n1": CORDONED}, nodes=nodes), running=[waiting])
    reviewed = await pinned.create(a_new_pod(GPU))
    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic", "the older one can have n2, and is first"

    large = a_new_pod({"nvidia.com/gpu": "2"})
    two = ReviewedCluster([a_booking(gpus=2)], nodes=[a_node("n1", 2), a_node("n2", 1)], node_objects={"n1": CORDONED})
    assert (await two.create(large)).annotations["carrel.dev/tier"] == "booked", "it waits for n1"


# --- pods that wait, and the node is closed meanwhile ----------------------------------------------------------------


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with a_lab([a_node("n1", 1), a_node("n2", 1)]) as lab:
        yield lab


PINNED: dict[str, Any] = {"limits": WHOLE, "labels": HUB, "node_selector": {"pool": "one"}}


async def only_n1(lab: Lab, replica: Replica) -> None:
    await change(lab, replica, "n1", {"metadata": {"labels": {"pool": "one"}}})


@pytest.mark.parametrize(("body", "words"), CLOSED)
async def test_a_booked_pod_waits_for_a_closed_node_however_long_and_gets_its_gpu_after(
    lab: Lab, body: Json, words: str
) -> None:
    async with lab.replica() as carrel:
        await only_n1(lab, carrel)
        mine = await lab.pod("mine", annotations=BOOKED, **PINNED)
        others = await lab.pod("others", annotations=OPPORTUNISTIC, **PINNED)
        controller = TierController(carrel, wait_before_cpu_s=60)
        await change(lab, carrel, "n1", body)
        lab.clock.now = NOON + timedelta(seconds=119)  # agents are silent after two minutes

        await settle(lab, controller, [])

        now = await pods_of(lab)
        assert now["mine"].metadata.uid == mine["metadata"]["uid"]
        assert now["others"].metadata.uid != others["metadata"]["uid"], "without a booking it goes on on CPU"
        assert carrel.covered_pods.tier(now["mine"]) is Tier.BOOKED
        assert words.removeprefix("tainted ") in why(carrel, now["mine"])
        assert await lab.held() == {} and not await hand_over_records(lab)

        healthy = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}} if "status" in body else OPEN
        await change(lab, carrel, "n1", healthy)
        await settle(lab, controller, [N1])
        assert (await lab.bound())[mine["metadata"]["uid"]] == "n1"


async def test_a_booked_pod_stays_booked_while_the_node_is_rebooted_and_its_agent_is_silent(lab: Lab) -> None:
    async with lab.replica() as carrel:
        await only_n1(lab, carrel)
        mine = await lab.pod("mine", annotations=BOOKED, **PINNED)
        await change(lab, carrel, "n1", NOT_READY)
        lab.clock.now = NOON + timedelta(minutes=5)
        carrel.cluster_ledger.mark_silent_agents(lab.clock.now)

        await settle(lab, TierController(carrel, wait_before_cpu_s=60), [])

        assert (await pods_of(lab))["mine"].metadata.uid == mine["metadata"]["uid"]
        assert why(carrel, await carrel.sees(mine)) == "1 whole GPU asked, but node n1 is not ready"


async def test_the_reason_names_the_nodes_that_would_do_and_no_others() -> None:
    nodes: list[Node] = [a_node(f"n{i}", 1, model="A6000") for i in range(1, 6)]
    async with a_lab([*nodes, a_node("t4", 1, model="T4")]) as lab, lab.replica() as carrel:
        wants = {**BOOKED, "carrel.dev/gpu-model": "A6000"}
        pod = await carrel.sees(await lab.pod("train", limits=WHOLE, annotations=wants))
        for node in ("n1", "n2", "n3", "n4", "n5", "t4"):
            await change(lab, carrel, node, CORDONED)
        assert (
            str(carrel.waiting_reason.why(pod))
            == "1 whole GPU of model A6000 asked, but 5 nodes are cordoned: n1, n2, n3 and 2 more"
        )

        await change(lab, carrel, "n2", NOT_READY)
        await change(lab, carrel, "n2", OPEN)
        assert str(carrel.waiting_reason.why(pod)) == (
            "1 whole GPU of model A6000 asked, but 4 nodes are cordoned: n1, n3, n4 and 1 more; node n2 is not ready"
        )


async def test_a_gang_says_which_nodes_it_misses_once_all_members_are_here() -> None:
    async with a_lab([a_node("n1", 1), a_node("n2", 1)]) as lab, lab.replica() as carrel:
        claim = {"devices": {"count": 1}, "gangRef": "g", "gangSize": 2}
        body = {"apiVersion": GPU_CLAIMS.api_version, "kind": GPU_CLAIMS.kind, "metadata": {"name": "g"}, "spec": claim}
        await lab.client.create(GPU_CLAIMS, body, "lab")
        first = await carrel.sees(await lab.pod("p1", annotations={**BOOKED, "gpu.scheduling/claim": "g"}))
        await change(lab, carrel, "n2", CORDONED)
        assert str(carrel.waiting_reason.why(first)) == "gang lab/g waits for 1 more member: 1 of 2 are here"

        await carrel.sees(await lab.pod("p2", annotations={**BOOKED, "gpu.scheduling/claim": "g"}))

        assert str(carrel.waiting_reason.why(first)) == (
            "gang lab/g has room for 1 of its 2 members; all or none are placed;"
            " node n2 is cordoned (kubectl uncordon n2)"
        )


# --- pods that run there ---------------------------------------------------------------------------------------------


async def test_pods_on_a_cordoned_node_keep_their_gpus_and_their_booking(lab: Lab) -> None:
    async with lab.replica() as carrel:
        mine = await a_booked_pod(lab, carrel, "mine")
        await change(lab, carrel, "n1", CORDONED)

        await settle(lab, TierController(carrel), [N2])

        assert carrel.covered_pods.tier(await carrel.sees(mine)) is Tier.BOOKED
        assert list(await lab.held()) == ["gpu-n1-0"]


async def test_a_half_of_a_gpu_whose_other_half_the_booking_has_waits_for_the_cordoned_node() -> None:
    half = a_new_pod(labels=HUB, annotations={"gpu-fraction": "0.5"})
    there = RunningPod("first", "alice@lab.example", gpus=(0,), mib=8138)
    cluster = booked(running=[there], nodes=[a_node("n1", 1)], node_objects={"n1": CORDONED})

    assert (await cluster.create(half)).annotations["carrel.dev/tier"] == "booked"


async def test_nobody_loses_a_gpu_on_a_closed_node_to_a_pod_that_cannot_go_there(lab: Lab) -> None:
    async with lab.replica() as carrel:
        await an_opportunistic_pod(lab, carrel, "on-n1", "n1")
        busy = await a_booked_pod(lab, carrel, "busy", "n2")
        await change(lab, carrel, "n1", CORDONED)
        await an_unschedulable_booked_pod(lab, "mine")
        controller = TierController(carrel)

        await settle(lab, controller, [N2])

        assert not controller.results and not await hand_over_records(lab)
        assert {"on-n1", "busy", "mine"} == (await pods_of(lab)).keys()
        await lab.client.delete(PODS, "busy", "lab")
        await settle(lab, controller, [N2])
        bound = await lab.bound()
        assert busy["metadata"]["uid"] not in bound and sorted(bound.values()) == ["n1", "n2"]
