"""`filter` names one node, and counts what it has named as taken; where preferences matter, kube-scheduler chooses."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from carrel.cluster.pod_progress import holder_of
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.ids import NodeName
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from carrel.scheduling.assembly import handlers_on
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import BOOKED, WHOLE

HALF = {"aliyun.com/gpu-mem": "8138"}
NAMES = (N1, N2)


async def chosen(replica: Replica, pod: Json, nodes: tuple[NodeName, ...] = NAMES) -> list[str]:
    found = replica.scheduler.filter(await replica.sees(pod), nodes, chooses=True)
    assert not isinstance(found, Refusal)
    return list(found.fitting)


async def a_waiting_pod(lab: Lab, name: str, **spec: Any) -> Json:
    return await lab.pod(name, limits=WHOLE, **spec)


async def test_the_best_node_is_named_alone() -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("first", limits=HALF), "n2") is None
        second = await lab.pod("second", limits=HALF)

        assert await chosen(replica, second) == ["n2"], "where a half of a GPU is free"
        assert await replica.bind(second, "n2") is None
        assert await lab.held() == {"gpu-n2-0": dict.fromkeys(await lab.bound(), 8138)}


async def test_a_named_node_counts_as_taken_before_the_pod_is_bound() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        pods = [await a_waiting_pod(lab, f"p{number}") for number in range(3)]

        found = [await chosen(replica, pod) for pod in pods]

        assert found == [["n1"], ["n2"], []]
        assert await lab.held() == {}, "no Lease says so yet"
        assert await replica.bind(pods[1], "n2") is None
        assert await replica.bind(pods[0], "n1") is None
        assert replica.transport.writes[0::2] == 2 * ["POST /apis/coordination.k8s.io/v1/namespaces/carrel/leases"]
        assert len(replica.transport.writes) == 4
        replica.ledger.audit()


async def test_a_pod_that_asks_again_is_offered_another_node_for_half_a_minute() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        pod = await a_waiting_pod(lab, "train")

        assert [await chosen(replica, pod) for _ in range(2)] == [["n1"], ["n2"]]
        assert await chosen(replica, pod, (N1,)) == ["n1"], "there is no other"
        lab.clock.now += timedelta(seconds=31)
        assert await chosen(replica, pod) == ["n2"], "the attempt on n1 was the last one"
        lab.clock.now += timedelta(seconds=31)
        replica.scheduler.expire_promises()
        assert await chosen(replica, pod) == ["n1"], "the promise of n2 has expired, which counts as a failed attempt"


async def test_a_node_where_the_bind_failed_is_not_named_again() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        pod = await a_waiting_pod(lab, "train")
        assert await chosen(replica, pod) == ["n1"]
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        again = await a_waiting_pod(lab, "train")
        assert await chosen(replica, again) == ["n1"]
        async with lab.replica() as faster:
            assert await faster.bind(await a_waiting_pod(lab, "other"), "n1") is None

        assert await replica.bind(again, "n1") is not None

        assert await chosen(replica, again) == ["n2"]
        assert await replica.bind(again, "n2") is None
        replica.ledger.audit()


@pytest.mark.parametrize("end", ["deleted", "bound by another replica", "never bound"])
async def test_a_promise_ends_with_its_pod_or_its_time(end: str) -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        pod = await a_waiting_pod(lab, "train")
        assert await chosen(replica, pod) == ["n1"]
        if end == "deleted":
            await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        elif end == "never bound":
            lab.clock.now += timedelta(seconds=31)
            replica.scheduler.expire_promises()
        else:
            async with lab.replica() as other:
                assert await other.bind(pod, "n2") is None
            await eventually(lambda: "GPU-n2-0" in replica.ledger.shares_of(pod["metadata"]["uid"]))

        await eventually(lambda: "GPU-n1-0" not in replica.ledger.shares_of(pod["metadata"]["uid"]))
        assert await chosen(replica, await a_waiting_pod(lab, "next")) == ["n1"]
        replica.ledger.audit()


async def test_a_booked_share_is_bound_on_the_gpu_that_was_promised_to_it() -> None:
    """With the promise it counts as a pod that holds a GPU, which may hold any: its bind must not look for another."""
    ada = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        await lab.book(gpus=1)
        first = await lab.pod("first", annotations={**ada, "gpu-fraction": "0.25"})
        assert await replica.bind(first, "n1") is None
        fuller = {"carrel.dev/tier": "opportunistic", "gpu-fraction": "0.8"}
        assert await replica.bind(await lab.pod("of-another", annotations=fuller), "n1") is None
        second = await lab.pod("second", annotations={**ada, "gpu-fraction": "0.2"})

        assert await chosen(replica, second, (N1,)) == ["n1"]
        assert await replica.bind(second, "n1") is None

        assert {first["metadata"]["uid"], second["metadata"]["uid"]} in map(set, (await lab.held()).values())


async def test_a_promise_is_worth_nothing_on_a_node_that_takes_no_new_pods_by_now() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod = await a_waiting_pod(lab, "train")
        assert await chosen(replica, pod, (N1,)) == ["n1"]
        report = MergePatch({"status": {"heartbeat": "2026-11-16T11:00:00Z"}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", report, subresource="status")
        await eventually(lambda: any("T11:" in each.status.heartbeat for each in replica.node_statuses.store))
        replica.cluster_ledger.mark_silent_agents(lab.clock.now)

        refusal = await replica.bind(pod, "n1")

        assert refusal is not None and "n1 takes no new GPU pods" in refusal.reason
        assert await lab.held() == {}


NODES_WITH_A_ZONE = [{"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}]
SAME_ZONE = [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}]
EVENLY = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}


def affinity(kind: str, preferred: list[Json]) -> Json:
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


def spread(otherwise: str) -> Json:
    return {"topologySpreadConstraints": [{**EVENLY, "whenUnsatisfiable": otherwise}]}


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        pytest.param({}, 1, id="nothing"),
        pytest.param(affinity("nodeAffinity", NODES_WITH_A_ZONE), 2, id="some nodes"),
        pytest.param(affinity("podAffinity", SAME_ZONE), 2, id="to be near other pods"),
        pytest.param(affinity("podAntiAffinity", SAME_ZONE), 2, id="to be far from other pods"),
        pytest.param(spread("ScheduleAnyway"), 2, id="to be spread"),
        pytest.param(spread("DoNotSchedule"), 1, id="nothing, but it must be spread"),
    ],
)
async def test_kube_scheduler_chooses_if_the_pod_prefers(spec: Json, count: int) -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        containers = [{"name": "main", "image": "work", "resources": {"limits": WHOLE}}]
        body = {"metadata": {"name": "train"}, "spec": {"containers": containers, **spec}}
        pod = await lab.client.create(PODS, body, "lab")

        assert len(await chosen(replica, pod)) == count
        assert bool(replica.ledger.shares_of(pod["metadata"]["uid"])) == (count == 1)


async def test_kube_scheduler_chooses_if_a_node_would_rather_not_have_pods() -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        taint = {"key": "old", "value": "yes", "effect": "PreferNoSchedule"}
        await lab.client.patch(NODES, "n1", MergePatch({"spec": {"taints": [taint]}}))
        await eventually(lambda: any(node.spec.taints for node in replica.nodes.store))
        pod = await a_waiting_pod(lab, "train")

        assert await chosen(replica, pod) == ["n1", "n2"]
        assert await chosen(replica, pod, (N2,)) == ["n2"]
        await lab.client.patch(NODES, "n1", MergePatch({"spec": {"taints": None}}))
        await eventually(lambda: not any(node.spec.taints for node in replica.nodes.store))
        assert len(await chosen(replica, await a_waiting_pod(lab, "next"))) == 1


async def test_a_node_without_gpus_that_would_rather_not_have_pods_is_no_matter() -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        taint = {"key": "for-the-control-plane", "effect": "PreferNoSchedule"}
        await lab.client.create(NODES, {"metadata": {"name": "other"}, "spec": {"taints": [taint]}})
        await eventually(lambda: any(node.spec.taints for node in replica.nodes.store))

        assert len(await chosen(replica, await a_waiting_pod(lab, "train"), (*NAMES, NodeName("other")))) == 1


@pytest.mark.parametrize(
    ("toleration", "count"),
    [
        pytest.param({"operator": "Exists"}, 1, id="every taint"),
        pytest.param({"key": "old", "value": "yes"}, 1, id="this taint"),
        pytest.param({"key": "old", "operator": "Exists", "effect": "PreferNoSchedule"}, 1, id="only as a preference"),
        pytest.param({"key": "old", "operator": "Exists", "effect": "NoSchedule"}, 2, id="only where it excludes"),
        pytest.param({"key": "new", "operator": "Exists"}, 2, id="another taint"),
    ],
)
async def test_a_node_that_would_rather_not_have_pods_is_no_matter_for_one_that_tolerates(
    toleration: Json, count: int
) -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        taint = {"key": "old", "value": "yes", "effect": "PreferNoSchedule"}
        await lab.client.patch(NODES, "n1", MergePatch({"spec": {"taints": [taint]}}))
        await eventually(lambda: any(node.spec.taints for node in replica.nodes.store))
        containers = [{"name": "main", "image": "work", "resources": {"limits": WHOLE}}]
        body = {"metadata": {"name": "train"}, "spec": {"containers": containers, "tolerations": [toleration]}}

        assert len(await chosen(replica, await lab.client.create(PODS, body, "lab"))) == count


async def test_an_opportunistic_pod_is_not_named_the_node_that_a_booked_pod_waits_for() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        await replica.sees(await a_waiting_pod(lab, "urgent", annotations=BOOKED))
        free = {"carrel.dev/tier": "opportunistic"}

        assert await chosen(replica, await a_waiting_pod(lab, "modest", annotations=free)) == ["n2"]
        assert await chosen(replica, await a_waiting_pod(lab, "greedy", annotations=free)) == []


async def test_a_booked_pod_is_sent_where_a_gpu_is_kept_for_it() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        await lab.book(gpus=1)
        await eventually(lambda: len(replica.bookings.store) == 2)
        pod = await a_waiting_pod(lab, "booked", annotations=BOOKED)
        kept = await replica.lease_writer.keep_for(
            replica.ledger.entries(N2)[0].gpu, holder_of(await replica.sees(pod)), ()
        )
        assert kept

        assert await scores(lab, replica, "booked") == {"n2": 10, "n1": 0}
        assert await chosen(replica, pod) == ["n2"], "somebody may have lost it for this pod"
        assert await chosen(replica, await a_waiting_pod(lab, "other")) == ["n1"]
        assert await replica.bind(pod, "n2") is None
        replica.ledger.audit()


# --- topology first, then fragmentation ------------------------------------------------------------------------------


async def a_claim(lab: Lab, replica: Replica, name: str, **spec: Any) -> dict[str, str]:
    """What a pod that uses it is annotated with."""
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": name}, "spec": spec}
    await lab.client.create(GPU_CLAIMS, body, "lab")
    await eventually(lambda: replica.claims.store.get(name, "lab"))
    return {"gpu.scheduling/claim": name}


TOPOLOGY = [
    pytest.param(
        {"devices": {"count": 2}, "topology": {"mode": "Preferred"}},
        [a_node("n1", islands="ab"), a_node("n2", islands="aabb")],
        id="one island is preferred",
    ),
    pytest.param(
        {"devices": {"count": 2, "policy": "contiguous"}, "topology": {"mode": "Ignore"}},
        [a_node("n1", 3), a_node("n2", 4)],
        id="neighbours are asked for",
    ),
    pytest.param(
        {"devices": {"count": 2}, "topology": {"mode": "Preferred", "minBandwidthGBps": 100}},
        [a_node("n1", islands="aa", bandwidth_gbps=64), a_node("n2", islands="aaaa", bandwidth_gbps=600)],
        id="fast links are preferred",
    ),
    pytest.param(
        {"devices": {"count": 1}, "topology": {"mode": "Preferred", "minBandwidthGBps": 100}},
        [a_node("n1", 2, bandwidth_gbps=64), a_node("n2", 4, bandwidth_gbps=600)],
        id="fast links are preferred for one GPU",
    ),
    pytest.param(
        {"devices": {"count": 2, "policy": "contiguous"}, "topology": {"mode": "Preferred"}},
        [a_node("n1", islands="ab"), a_node("n2", islands="abcda")],
        id="one island is preferred, then neighbours",
    ),
]


@pytest.mark.parametrize(("claim", "nodes"), TOPOLOGY)
async def test_a_claim_goes_where_it_gets_its_topology_although_more_is_left_over_there(
    claim: dict[str, Any], nodes: list[Node]
) -> None:
    async with a_lab(nodes) as lab, lab.replica() as replica:
        if len(nodes[0].gpus) == 3:  # what is left on n1 are not neighbours
            second = await a_claim(
                lab, replica, "second", devices={"count": 1, "policy": "preferIds", "preferIds": [1]}
            )
            assert await replica.bind(await lab.pod("between", annotations=second), "n1") is None
        pod = await lab.pod("claims", annotations=await a_claim(lab, replica, "claims", **claim))
        any_two = await a_claim(lab, replica, "any-two", devices={"count": 2}, topology={"mode": "Ignore"})
        other = await lab.pod("any-two", annotations=any_two)

        assert list(replica.scheduler.rank(await replica.sees(pod), NAMES)) == ["n2", "n1"]
        assert list(replica.scheduler.rank(await replica.sees(other), NAMES)) == ["n1", "n2"]
        assert await scores(lab, replica, "claims") == {"n2": 10, "n1": 0}, "other scores must not outweigh it"
        assert await scores(lab, replica, "any-two") == {"n1": 10, "n2": 9}
        assert await chosen(replica, pod) == ["n2"]


async def scores(lab: Lab, replica: Replica, pod: str) -> dict[str, int]:
    body = msgspec.json.encode({"Pod": await lab.client.get(PODS, pod, "lab"), "NodeNames": NAMES})
    answer = msgspec.json.decode(handlers_on(replica, replica.scheduler).prioritize(body).body)
    return {each["Host"]: each["Score"] for each in answer}


async def test_of_nodes_with_the_same_topology_fragmentation_decides() -> None:
    nodes = [a_node("n1", islands="aab"), a_node("n2", islands="aabb")]
    async with a_lab(nodes) as lab, lab.replica() as replica:
        claim = await a_claim(lab, replica, "pair", devices={"count": 2}, topology={"mode": "Required"})
        pod = await lab.pod("train", annotations=claim)

        assert await chosen(replica, pod) == ["n2"], "on n1 a GPU would be left that is of no use for such a claim"
