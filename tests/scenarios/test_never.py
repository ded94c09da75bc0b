"""A pod that no node could ever serve is told so in the same words everywhere, and costs nobody a GPU."""

from datetime import timedelta

import pytest

from carrel.cluster.coverage.coverage_reader import CoverageReader
from carrel.dialects.options import WhenFull
from carrel.ids import NodeName
from carrel.kubernetes.cluster import Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import EVENTS, NODES, PODS
from carrel.kubernetes.reflector import Informers
from carrel.ledger.gpus import Node
from carrel.lifecycle.reporting.pod_events import PodEventWriter, waiting_note
from testbed.kubelets import SimulatedKubelets
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.reviews import GPU, ReviewedCluster, a_pod, full
from tests.kit.tiers import (
    BOOKED,
    OPPORTUNISTIC,
    TierController,
    an_opportunistic_pod,
    mark_unschedulable,
    pods_of,
    settle,
)
from tests.scenarios.test_claim_status import NAMES_IT, Writer, a_claim, status
from tests.scenarios.test_gangs import a_gang, ready

SIXTEEN = {"nvidia.com/gpu": "16"}
WORDS = (
    "No node has 16 GPUs; the largest, dgx-1, has 8. This pod will never start here: ask for 8 or fewer, or use a gang."
)
LAB = (a_node("n1", 2), a_node("dgx-1", 8))
NAMES = (N1, NodeName("dgx-1"))


async def join(lab: Lab, node: Node) -> None:
    informers = Informers(lab.client)
    await SimulatedKubelets(lab.client, [node], informers.watch(PODS), lab.clock).announce()


async def test_filter_why_and_the_claim_say_the_same_whoever_holds_what() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await a_claim(lab, {"devices": {"count": 16}})
        pod = await replica.sees(await lab.pod("train", annotations=NAMES_IT))
        for number in range(3):
            why = replica.waiting_reason.why(pod)
            assert why is not None and why.reason == WORDS
            for chooses in (False, True):
                assert dict(replica.filter(pod, NAMES, chooses=chooses).refused) == dict.fromkeys(NAMES, WORDS[:-1])
            await Writer(replica).write(lab)
            assert (await status(lab))["message"] == WORDS
            assert CoverageReader(replica).holders(pod) == []
            await an_opportunistic_pod(lab, replica, f"tenant-{number}", node="dgx-1")


async def test_one_event_says_it_and_nothing_else_however_often_it_is_told() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=SIXTEEN, annotations=OPPORTUNISTIC))
        telling = PodEventWriter(replica.cluster, lab.clock)
        for number in range(5):
            why = replica.waiting_reason.why(pod)
            assert why is not None
            await telling.tell(pod, waiting_note(why, beyond=f"your booking of {number} GPUs is in use"))
            await an_opportunistic_pod(lab, replica, f"tenant-{number}", node="dgx-1")
            lab.clock.now += timedelta(minutes=1)

        (event,) = (await lab.client.list(EVENTS, Selection("lab", fields="involvedObject.name=train"))).items
        assert (event.message, event.count) == (WORDS, 1)


async def test_it_is_said_no_more_once_a_node_joins_that_can_serve_the_pod() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=SIXTEEN))
        assert replica.waiting_reason.why(pod) is not None

        await join(lab, a_node("big", 16))

        await eventually(lambda: "big" in replica.ledger.nodes and replica.nodes.store.get("big"))
        assert replica.waiting_reason.why(pod) is None
        assert list(replica.filter(pod, (*NAMES, NodeName("big"))).fitting) == ["big"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"unschedulable": True}}, id="cordoned"),
        pytest.param({"spec": {"taints": [{"key": "reboot", "effect": "NoSchedule"}]}}, id="tainted"),
    ],
)
async def test_a_node_that_takes_no_pods_now_is_still_a_node_that_could(change: Json) -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits={"nvidia.com/gpu": "8"}))
        await lab.client.patch(NODES, "dgx-1", MergePatch(change))
        await eventually(lambda: replica.eligible_nodes.nodes_for(pod) == ("n1",))

        why = replica.waiting_reason.why(pod)

        assert why is not None and "never" not in why.reason


async def test_a_pod_that_excludes_the_large_node_is_told_that_it_does() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        selector = {"kubernetes.io/hostname": "n1"}
        pod = await replica.sees(await lab.pod("train", limits={"nvidia.com/gpu": "8"}, node_selector=selector))

        why = replica.waiting_reason.why(pod)

        assert why is not None
        assert why.reason.startswith(
            "No node that this pod's node selector or affinity allows has 8 GPUs; the largest,"
        )


# --- at admission ----------------------------------------------------------------------------------------------------


async def test_kubectl_shows_a_warning_and_the_pod_is_created() -> None:
    reviewed = await ReviewedCluster(nodes=LAB).create(a_pod(SIXTEEN))

    assert reviewed.allowed and reviewed.container()["resources"]["limits"] == SIXTEEN
    assert reviewed.warnings == [WORDS]


async def test_a_pod_that_could_be_served_gets_no_warning_though_all_is_taken() -> None:
    assert (await full(when_full=WhenFull.WAIT).create(a_pod(GPU))).warnings == []


async def test_where_a_full_cluster_means_cpu_the_reason_says_what_there_is_at_most() -> None:
    reviewed = await full().create(a_pod(SIXTEEN))

    why = "no node has 16 GPUs; the largest, n1, has 3; ask for 3 or fewer, or use a gang"
    assert reviewed.warnings == [f"this pod runs without a GPU: {why}"]


# --- nobody loses a GPU for it ---------------------------------------------------------------------------------------


async def booked_gang(lab: Lab, replica: Replica, size: int, gpus: int) -> list[Json]:
    """Pods of one gang that a booking covers, and that kube-scheduler could not place."""
    gang = {**BOOKED, "pod-group-name": "g", "carrel.dev/gang-size": str(size), "carrel.dev/gpu-count": str(gpus)}
    pods = [await lab.pod(f"member-{number}", annotations=gang) for number in range(size)]
    for pod in pods:
        await mark_unschedulable(lab, pod["metadata"]["name"])
    return pods


async def handed_over(lab: Lab) -> set[str]:
    return {name for name, pod in (await pods_of(lab)).items() if "carrel.dev/handed-over" in pod.metadata.annotations}


@pytest.mark.parametrize(("size", "expected"), [(2, {"tenant-0", "tenant-1"}), (3, set())])
async def test_gpus_are_revoked_for_a_booked_gang_only_if_all_of_it_can_ever_run(size: int, expected: set[str]) -> None:
    async with a_lab([a_node("n1", 4)]) as lab, lab.replica() as replica:
        for number in range(2):
            await an_opportunistic_pod(lab, replica, f"tenant-{number}", limits={"nvidia.com/gpu": "2"})
        await booked_gang(lab, replica, size, gpus=2)

        await settle(lab, TierController(replica), [])

        assert await handed_over(lab) == expected


async def test_no_gpu_is_revoked_for_a_booked_pod_that_no_node_can_serve() -> None:
    async with a_lab([a_node("n1", 2)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "tenant")
        await lab.pod("booked", limits={"nvidia.com/gpu": "3"}, annotations=BOOKED)
        await mark_unschedulable(lab, "booked")

        await settle(lab, TierController(replica))

        assert await handed_over(lab) == set()
        assert replica.ledger.kept == set()


async def test_members_that_fit_each_but_never_together_are_told_so() -> None:
    async with a_lab([a_node("n1", 2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2, gpus=2)
        await ready(replica, pods)
        pod = await replica.sees(pods[0])

        why = replica.waiting_reason.why(pod)

        assert why is not None
        assert why.reason == (
            "Gang lab/job needs 2 pods with 2 whole GPUs each; if all GPUs were free, 1 would fit."
            " This pod will never start here: ask for less in each pod, or for fewer pods."
        )
        assert replica.filter(pod, [N1]).refused == {"n1": why.reason[:-1]}
