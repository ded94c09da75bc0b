"""A snapshot of a cluster is the cluster: the same pods hold the same GPUs, and nobody is named."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from carrel.cli.cluster_snapshot import UsedHour, snapshot_of
from carrel.cluster.gpu_activities import GpuActivities
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.ids import PersonId
from carrel.kubernetes.cluster import BindTarget, Json, MergePatch
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.requests import WHOLE, GpuPolicy, Topology, TopologyMode
from carrel.simulation import snapshot
from carrel.simulation.workload import HOUR_S, PastUse, SimulatedCluster, SimulatedPod, Trace
from tests.kit.claimed_pods import a_claim_lab, asking
from tests.kit.coexist_node import HALF, a_coexist_node
from tests.kit.eventually import eventually
from tests.kit.gpu_use import BUSY, QUIET, ReportingAgent
from tests.kit.gpus import A100, A6000, N1, a_gpu, a_node
from tests.kit.lab import DAY, Lab, Replica, a_lab

ONE = {"nvidia.com/gpu": "1"}
ADA = {"carrel.dev/user": "Ada@lab.example", "carrel.dev/tier": "opportunistic"}


@dataclass(frozen=True)
class Taken:
    """A snapshot that was written and read again."""

    text: str
    cluster: SimulatedCluster
    trace: Trace
    remarks: tuple[str, ...]

    @property
    def holdings(self) -> list[tuple[str, tuple[str, ...], str]]:
        """Of each pod, in the order of creation: node, GPUs, and what it asks for."""
        return [(pod.node, pod.held, str(pod.request or "")) for pod in self.trace.pods]

    def named(self, number: int) -> SimulatedPod:
        return self.trace.pods[number - 1]


def taken(replica: Replica, activities: GpuActivities | None = None, used: Iterable[UsedHour] = ()) -> Taken:
    """Without activities: nothing is known of what pods do with their GPUs."""
    found = snapshot_of(replica, activities or GpuActivities(replica), used)
    text = json.dumps(found.document)
    return Taken(text, *snapshot.read(json.loads(text), "lab.json"), tuple(found.remarks))


async def later(lab: Lab) -> None:
    """So that the next pod is younger."""
    lab.clock.now += timedelta(hours=1)


async def a_running_pod(lab: Lab, replica: Replica, name: str, node: str, **spec: Any) -> Json:
    pod = await lab.pod(name, **spec)
    assert await replica.bind(pod, node) is None
    await later(lab)
    return await bound(lab, replica, name)


async def a_placed_pod(lab: Lab, replica: Replica, name: str, node: str, **spec: Any) -> Json:
    """Another scheduler has bound it, and no Lease names it."""
    pod = await lab.pod(name, **spec)
    await lab.client.bind(BindTarget("lab", name, pod["metadata"]["uid"], node))
    await later(lab)
    return await bound(lab, replica, name)


async def bound(lab: Lab, replica: Replica, name: str) -> Json:
    now = await lab.client.get(PODS, name, "lab")
    await replica.sees(now)
    return now


async def test_pods_hold_in_a_snapshot_the_gpus_that_they_hold_in_the_cluster() -> None:
    async with a_lab([a_node("big", islands="aabb"), a_node("small", gpus=1)], has_booker=False) as lab:
        await lab.book("ada@lab.example", gpus=2, model=A6000, start=lab.clock.now - DAY, end=lab.clock.now + DAY)
        async with lab.replica() as replica:
            await a_running_pod(lab, replica, "whole", "big", limits={"nvidia.com/gpu": "2"}, annotations=ADA)
            await a_running_pod(lab, replica, "shared", "small", limits={"aliyun.com/gpu-mem": "4000"})
            await a_running_pod(lab, replica, "half", "small", annotations=HALF)
            await a_placed_pod(lab, replica, "web", "small")
            await replica.sees(await lab.pod("booked", limits=ONE, annotations=ADA))
            await later(lab)
            await replica.sees(await lab.pod("waiting", limits={"nvidia.com/gpu": "3"}))
            held = await lab.held()
            found = taken(replica)

    assert found.holdings == [
        ("node-1", ("node-1/0", "node-1/1"), "2 whole GPUs"),
        ("node-2", ("node-2/0",), "4,000 MiB on one GPU"),
        ("node-2", ("node-2/0",), "0.5 of a GPU on one GPU"),
        ("node-2", (), ""),
        ("", (), "1 whole GPU"),
        ("", (), "3 whole GPUs"),
    ]
    assert {name for name, shares in held.items() if shares} == {"gpu-big-0", "gpu-big-1", "gpu-small-0"}
    assert [pod.arrives_s / HOUR_S for pod in found.trace.pods] == [-5, -4, -3, -2, -1, 0]
    assert found.remarks == ()
    assert [gpu.island for gpu in found.cluster.nodes[0].gpus] == ["0", "0", "1", "1"]


async def test_a_booking_is_there_as_it_is_and_its_person_has_the_number_of_its_pods() -> None:
    async with a_lab([a_node("n1")], has_booker=False) as lab, lab.replica() as replica:
        made = lab.clock.now
        await lab.book("ADA@lab.example", name="of-ada", gpus=2, model=A6000, start=made - DAY, end=made + 2 * DAY)
        await lab.book("eve@lab.example", gpus=1, shareOf=4, model=A6000)
        await eventually(lambda: len(tuple(replica.bookings.store)) == 2)
        await later(lab)
        await replica.sees(await lab.pod("train", limits=ONE, annotations=ADA))
        found = taken(replica)

    (wish,) = found.trace.wishes
    assert (wish.user, wish.model, wish.gpus, wish.is_made) == (found.named(1).owner, A6000, 2, True)
    assert (wish.asked_s, wish.start_s, wish.lasts_s) == (-HOUR_S, -25 * HOUR_S, 72 * HOUR_S)
    assert found.remarks == ("1 booking of a part of a GPU: not in the snapshot.",)


async def test_for_how_long_each_pod_has_been_idle_is_kept_and_what_nobody_knows_is_left_out() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica(is_shown=True) as replica:
        agent = ReportingAgent(lab, "n1", 3, [replica.view.gpu_usages])
        for name in ("busy", "idle", "fresh", "unseen"):
            pod = await lab.pod(name, limits=ONE, annotations=ADA)
            if name == "fresh":
                await agent.sample_for(timedelta(hours=2), gpu_0=BUSY, gpu_1=QUIET)
            assert await replica.bind(pod, "n1") is None
            await replica.sees(await lab.client.get(PODS, name, "lab"))
        found = taken(replica, replica.view.activities)

    by_gpu = {str(pod.held[0]): pod.idle_s for pod in found.trace.pods}
    assert by_gpu.pop("node-1/1") == pytest.approx(2 * HOUR_S, abs=120)
    assert by_gpu == {"node-1/0": 0.0, "node-1/2": 0.0, "node-1/3": None}
    assert "lab.example" not in found.text


async def test_past_use_is_kept_by_the_hour_under_the_numbers_of_pods_and_bookings() -> None:
    async with a_lab([a_node("n1")], has_booker=False) as lab, lab.replica() as replica:
        await replica.sees(await lab.pod("train", limits=ONE, annotations=ADA))
        now = lab.clock.now

        def used(person: str, hours_ago: float, held: float, active: float = 0.0, idle: float = 0.0) -> UsedHour:
            return UsedHour(person, A6000, now - timedelta(hours=hours_ago), held, active, idle)

        found = taken(
            replica,
            used=[
                used("ADA@lab.example", 1.0, 1.0, 0.25, 0.75),
                used("ada@lab.example", 1.5, 0.5, idle=0.5),
                used("ada@lab.example", 4.2, 2.0),
                used("eve@lab.example", 672.9, 1.0, active=0.1234567),
                used("eve@lab.example", 673.0, 1.0),
                used("eve@lab.example", 0.9, 1.0),
                used("joe@lab.example", 2.0, 0.0),
            ],
        )

    assert found.trace.past_use == (
        PastUse(found.named(1).owner, A6000, -4, (2.0, 0.0, 0.0, 1.5), (0.0, 0.0, 0.0, 0.25), (0.0, 0.0, 0.0, 1.25)),
        PastUse(PersonId("user-2"), A6000, -672, (1.0,), (0.123,), (0.0,)),
    ), "whole hours of the last four weeks in which something was held"
    assert "lab.example" not in found.text


async def test_past_use_that_does_not_add_up_is_written_so_that_it_can_be_read() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        hour = UsedHour("ada@lab.example", A6000, lab.clock.now - timedelta(hours=1), 1.0, 0.7, 0.7)
        found = taken(replica, used=[hour])

    (use,) = found.trace.past_use
    assert use.held == (1.4,)


async def test_nobody_is_named_in_a_snapshot() -> None:
    async with a_lab([replace(a_node("gpu-lab-7"), labels={"owner": "secret-label"})]) as lab:
        await lab.book("ada@lab.example", model=A6000)
        async with lab.replica() as replica:
            more = {"labels": {"app": "secret-app"}, "annotations": {**ADA, "note": "secret-note"}}
            await a_running_pod(lab, replica, "secret-pod", "gpu-lab-7", limits=ONE, **more)
            chosen = {"node_selector": {"owner": "secret-label"}}
            await replica.sees(await lab.pod("secret-waiting", limits={"nvidia.com/gpu": "2"}, **chosen))
            found = taken(replica)

    assert not {word for word in ("secret", "lab-7", "ada", "Ada", "booker", "GPU-", "uid") if word in found.text}


async def test_what_a_booking_allows_at_this_moment_is_not_kept() -> None:
    gpus = (a_gpu("n1", 0), a_gpu("n1", 1, model=A100))
    async with a_lab([replace(a_node("n1"), gpus=gpus)], has_booker=False) as lab, lab.replica() as replica:
        await lab.book("ada@lab.example", model=A100)
        pod = await replica.sees(await lab.pod("train", limits=ONE, annotations=ADA))
        await eventually(lambda: replica.covered_pods.of(pod.metadata.uid))
        asked = replica.pod_facts.asked(pod)
        found = taken(replica)

    assert A100 in str(asked), "in the cluster, it waits for a booked GPU"
    assert str(found.named(1).request) == "1 whole GPU"


async def test_the_models_that_a_pod_may_have_are_kept_and_uuids_are_not() -> None:
    models = {"nvidia.com/use-gputype": "A100,H100", "nvidia.com/nouse-gputype": "T4"}
    hami = {
        "containers": {"main": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}},
        "annotations": {**models, "nvidia.com/use-gpuuuid": "GPU-n1-0"},
    }
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await replica.sees(await lab.pod("train", annotations={"carrel.dev/hami": json.dumps(hami)}))
        found = taken(replica)

    assert str(found.named(1).request) == "3,000 MiB on one GPU of a model like A100 or H100 not of a model like T4"
    assert found.remarks == (
        "1 pod that may have only GPUs with certain UUIDs: in the snapshot with any GPU that suits otherwise.",
    )
    assert "GPU-" not in found.text


async def test_the_links_that_a_claim_asks_for_are_kept() -> None:
    spec = {
        "devices": {"count": 2, "policy": "spread"},
        "topology": {"mode": "Required", "minBandwidthGBps": 300},
        "selector": {"matchLabels": {"pool": "b"}},
    }
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "two"}, "spec": spec}
    nodes = [replace(a_node(name), labels={"pool": pool}) for name, pool in (("n1", "a"), ("n2", "b"))]
    async with a_lab(nodes) as lab, lab.replica() as replica:
        await lab.client.create(GPU_CLAIMS, body, "lab")
        await eventually(lambda: len(tuple(replica.claims.store)) == 1)
        await replica.sees(await lab.pod("train", annotations={"gpu.scheduling/claim": "two"}))
        found = taken(replica)

    request = found.named(1).request
    assert request is not None
    assert (request.gpus, request.policy) == (2, GpuPolicy.SPREAD)
    assert request.topology == Topology(TopologyMode.REQUIRED, 300)
    assert [request.node_labels <= node.labels.items() for node in found.cluster.nodes] == [False, True]


async def test_where_a_pod_may_run_by_labels_and_taints_is_kept() -> None:
    nodes = [replace(a_node(name, gpus=1), labels={"pool": pool}) for name, pool in (("n1", "a"), ("n2", "b"))]
    async with a_lab([*nodes, a_node("n3", gpus=1)]) as lab:
        taint = {"taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]}
        await lab.client.patch(NODES, "n3", MergePatch({"spec": taint}))
        async with lab.replica() as replica:
            await replica.sees(await lab.pod("anywhere", limits=ONE))
            await later(lab)
            await replica.sees(await lab.pod("in-pool-b", limits=ONE, node_selector={"pool": "b"}))
            await later(lab)
            await replica.sees(await lab.pod("nowhere", limits=ONE, node_selector={"pool": "c"}))
            found = taken(replica)

    def may_run(number: int) -> list[str]:
        request = found.named(number).request
        assert request is not None
        return [node.name for node in found.cluster.nodes if request.node_labels <= node.labels.items()]

    assert [may_run(number) for number in (1, 2, 3)] == [["node-1", "node-2"], ["node-2"], []]


async def test_behind_slots_pods_hold_the_gpus_that_the_kubelet_chose() -> None:
    async with a_coexist_node(gpus=3) as node_lab:
        await node_lab.run_pod("half", annotations=HALF)  # GPU 2, on slot 0
        node_lab.lab.clock.now += timedelta(seconds=1)
        await node_lab.run_pod("whole", limits=ONE)  # GPU 1, on slot 1
        await node_lab.reconcile(2)
        await node_lab.kubelet.report_users()
        ledger = node_lab.replica.cluster_ledger
        await eventually(lambda: ledger.users_of(node_lab.kubelet.node.gpus[1]))
        found = taken(node_lab.replica)

    held = {str(pod.request): pod.held for pod in found.trace.pods if pod.request is not None}
    assert held == {"0.5 of a GPU on one GPU": ("node-1/2",), "1 whole GPU": ("node-1/1",)}
    assert found.remarks == ()


async def test_while_nobody_says_which_gpu_a_pod_has_it_holds_one_that_is_free() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        await a_placed_pod(lab, replica, "whole", "n1", limits=ONE)
        await a_placed_pod(lab, replica, "part", "n1", limits={"aliyun.com/gpu-mem": "9000"})
        told = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
        await a_placed_pod(lab, replica, "told", "n1", limits={"aliyun.com/gpu-mem": "9000"}, annotations=told)
        found = taken(replica)

    assert [pod.held for pod in found.trace.pods] == [("node-1/1",), ("node-1/2",), ("node-1/0",)]
    assert found.remarks == ()


async def test_what_pods_hold_together_is_never_more_than_a_gpu_has() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        told = {"limits": {"aliyun.com/gpu-mem": "9000"}, "annotations": {"ALIYUN_COM_GPU_MEM_IDX": "1"}}
        await a_placed_pod(lab, replica, "first", "n1", **told)
        await a_placed_pod(lab, replica, "second", "n1", **told)
        found = taken(replica)

    assert [(pod.node, pod.held) for pod in found.trace.pods] == [("node-1", ("node-1/1",)), ("node-1", ())]
    assert found.remarks == ("1 pod whose GPUs no node reports, or that others hold: in the snapshot without GPUs.",)


async def test_a_pod_keeps_the_part_of_its_gpus_that_is_still_reported() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        await a_running_pod(lab, replica, "two", "n1", limits={"nvidia.com/gpu": "2"})
        await a_running_pod(lab, replica, "one", "n1", limits=ONE)
        devices = (await lab.client.get(GPU_NODE_STATUSES, "n1"))["status"]["devices"]
        patch = MergePatch({"status": {"devices": devices[:1]}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", patch, subresource="status")
        await eventually(lambda: len(replica.ledger.entries(N1)) == 1)
        found = taken(replica)

    assert found.holdings == [("node-1", ("node-1/0",), "1 whole GPU"), ("node-1", (), "")]
    assert found.remarks == ("1 pod whose GPUs no node reports, or that others hold: in the snapshot without GPUs.",)


async def test_pods_with_gates_and_on_nodes_without_a_report_are_left_out_and_counted() -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        await a_running_pod(lab, replica, "lost", "n2", limits=ONE)
        await lab.client.delete(GPU_NODE_STATUSES, "n2")
        await eventually(lambda: "n2" not in replica.ledger.nodes)
        for number in range(2):
            await replica.sees(await lab.pod(f"gated-{number}", limits=ONE, gates=["a.example/b"]))
        found = taken(replica)

    assert found.trace.pods == ()
    assert found.remarks == (
        "1 pod on a node that reports no GPU: not in the snapshot.",
        "2 pods with scheduling gates: not in the snapshot, because no GPU is wanted yet.",
    )


async def test_pods_that_share_a_claim_hold_its_gpu_once() -> None:
    async with a_claim_lab(a_node("n1")) as of:
        await of.claim("named", asking())
        for name in ("first", "second"):
            await of.pod(name, ADA, claim="named")
        await of.settle()
        found = taken(of.replica)

    assert sorted((pod.node, len(pod.held), pod.request is None) for pod in found.trace.pods) == [
        ("node-1", 0, True),
        ("node-1", 1, False),
    ]
    assert [pod.request.amount for pod in found.trace.pods if pod.request is not None] == [WHOLE]
    assert found.remarks == ()
