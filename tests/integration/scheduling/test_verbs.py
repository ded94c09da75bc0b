"""kube-scheduler's calls over real HTTP, on the embedded API."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from carrel.cluster.state import ClusterState
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.kinds import NodeMetadata, NodeObject, Pod
from carrel.kubernetes.objects.resources import NODES as NODE_OBJECTS
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.store import Store
from carrel.scheduling.assembly import handlers_on, scheduler_on
from carrel.scheduling.bind_check import BindCheck
from carrel.scheduling.handlers import ExtenderHandlers
from carrel.scheduling.metrics import ExtenderMetrics
from tests.integration.scheduling.served_extender import ServedExtender, a_served_extender
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node

NODES = ["n1", "n2", "n3"]


@pytest.fixture
async def extender() -> AsyncIterator[ServedExtender]:
    """n1 and n2 have two GPUs of 16,276 MiB each, n3 has one of 8,000. All would rather have no pods: so
    kube-scheduler chooses among those that have room."""
    nodes = [a_node("n1"), a_node("n2"), a_node("n3", gpus=1, memory=8000)]
    async with a_served_extender(nodes) as extender:
        reluctant = MergePatch({"spec": {"taints": [{"key": "old", "effect": "PreferNoSchedule"}]}})
        for node in nodes:
            await extender.lab.client.patch(NODE_OBJECTS, node.name, reluctant)
        known = extender.replica.nodes.store
        await eventually(lambda: all((found := known.get(node.name)) and found.spec.taints for node in nodes))
        yield extender


async def test_filter_names_one_node_and_on_gpushares_path_all() -> None:
    async with a_served_extender([a_node("n1"), a_node("n2")]) as extender:
        pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})

        both = (await extender.caller.filter(pod, NODES, "gpushare-scheduler"))["NodeNames"]
        named = await extender.caller.filter(pod, NODES)

        assert both == ["n1", "n2"], "gpushare names all, and so does Carrel in its place"
        assert named == {"Nodes": None, "NodeNames": ["n1"], "FailedNodes": {}, "Error": ""}
        assert await extender.caller.bind(pod, "n1") == ""


async def test_filter_says_where_there_is_room_and_why_not_elsewhere(extender: ServedExtender) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})

    assert await extender.caller.filter(pod, ["n3", "n2", "n1", "n4"]) == {
        "Nodes": None,
        "NodeNames": ["n2", "n1"],
        "FailedNodes": {
            "n3": "room on 0 of 1 GPUs",
            "n4": "no GPU that Carrel knows of",
        },
        "Error": "",
    }


@pytest.mark.parametrize("keys", [("pod", "nodes", "nodenames"), ("POD", "NODES", "nodeNames")], ids=["lower", "mixed"])
async def test_keys_may_be_in_any_letter_case(extender: ServedExtender, keys: tuple[str, str, str]) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})

    answer = await extender.caller.post("/carrel/filter", dict(zip(keys, (pod, None, NODES), strict=True)))

    assert answer.json["NodeNames"] == ["n1", "n2"]


async def test_a_scheduler_that_sends_node_objects_gets_them_back(extender: ServedExtender) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
    n1, n3 = ({"metadata": {"name": name, "labels": {"kept": "as it is"}}, "odd": [1.5, None]} for name in ("n1", "n3"))

    answer = await extender.caller.post("/carrel/filter", {"Pod": pod, "Nodes": {"items": [n1, n3]}, "NodeNames": None})

    assert answer.json["Nodes"] == {"items": [n1]}
    assert answer.json["NodeNames"] == ["n1"]
    assert list(answer.json["FailedNodes"]) == ["n3"]


async def test_nulls_where_go_writes_them_do_not_hide_what_a_pod_asks_for(extender: ServedExtender) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "9000"})
    pod["metadata"] |= {"creationTimestamp": None, "labels": None}

    assert (await extender.caller.filter(pod, NODES))["NodeNames"] == ["n1", "n2"]


async def test_a_pod_that_asks_for_no_gpu_fits_everywhere(extender: ServedExtender) -> None:
    pod = await extender.lab.pod("web")

    found = await extender.caller.filter(pod, ["n1", "elsewhere"])
    scores = (await extender.caller.post("/carrel/prioritize", {"Pod": pod, "NodeNames": NODES})).json
    error = await extender.caller.bind(pod, "n1")

    assert (found["NodeNames"], found["FailedNodes"], error) == (["n1", "elsewhere"], {}, "")
    assert {score["Score"] for score in scores} == {0}
    assert await extender.lab.annotations("web") == {}
    assert await extender.lab.held() == {}
    assert len(extender.replica.transport.writes) == 1


async def test_the_fullest_node_that_fits_has_the_highest_score_alone(extender: ServedExtender) -> None:
    first = await extender.lab.pod("first", limits={"aliyun.com/gpu-mem": "8138"})
    assert not await extender.caller.bind(first, "n2")
    second = await extender.lab.pod("second", limits={"aliyun.com/gpu-mem": "8138"})

    scores = (await extender.caller.post("/carrel/prioritize", {"Pod": second, "NodeNames": NODES})).json

    best = max(scores, key=lambda score: score["Score"])
    assert best == {"Host": "n2", "Score": 10}
    assert [score["Score"] for score in scores].count(10) == 1
    assert sorted(score["Host"] for score in scores) == NODES


async def test_bind_takes_the_lease_and_writes_the_annotations_in_two_writes(extender: ServedExtender) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})

    assert await extender.caller.bind(pod, "n1") == ""

    notes = await extender.lab.annotations("train")
    assert (notes["ALIYUN_COM_GPU_MEM_IDX"], notes["ALIYUN_COM_GPU_MEM_ASSIGNED"]) == ("0", "false")
    assert await extender.lab.held() == {"gpu-n1-0": {pod["metadata"]["uid"]: 8138}}
    assert await extender.lab.bound() == {pod["metadata"]["uid"]: "n1"}
    assert len(extender.replica.transport.writes) == 2


async def test_a_bind_that_is_refused_says_why_and_leaves_nothing(extender: ServedExtender) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "9000"})

    for prefix in ("carrel", "gpushare-scheduler"):
        assert "has 8,000 MiB in all, 9,000 MiB asked" in await extender.caller.bind(pod, "n3", prefix)
    assert (await extender.lab.held(), await extender.lab.bound()) == ({}, {})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param({"uid": "another"}, "is another pod now", id="a pod of that name with another uid"),
        pytest.param({"name": "gone"}, "is not that of pod lab/gone", id="a name that belongs to another uid"),
        pytest.param({"name": "gone", "uid": "gone"}, "does not exist any more", id="a pod that is gone"),
    ],
)
async def test_only_the_pod_with_the_same_name_and_uid_is_bound(
    extender: ServedExtender, change: dict[str, str], complaint: str
) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
    await extender.replica.sees(pod)

    error = await extender.caller.bind({"metadata": {**pod["metadata"], **change}}, "n1")

    assert complaint in error
    assert (await extender.lab.held(), await extender.lab.bound()) == ({}, {})


async def test_a_pod_that_the_cache_has_not_seen_yet_is_looked_up(extender: ServedExtender) -> None:
    handlers = handlers_with(extender, Store(), extender.replica.nodes.store)
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
    names = {"PodName": "train", "PodNamespace": "lab", "PodUID": pod["metadata"]["uid"], "Node": "n1"}

    reply = await handlers.bind(as_bytes(names))

    assert (reply.status, reply.body) == (200, b'{"Error":""}')


CLAIM = {"resourceName": "nvidia.com/gpu", "containerName": "main", "requestName": "container-0-request-0"}
BY_CLAIM = {"extendedResourceClaimStatus": {"resourceClaimName": "train-x", "requestMappings": [CLAIM]}}


async def test_a_pod_whose_gpu_is_of_a_claim_gets_no_other_even_if_the_cache_has_not_seen_the_claim(
    extender: ServedExtender,
) -> None:
    """kube-scheduler makes the claim for nvidia.com/gpu, notes it on the pod, and asks for the bind at once."""
    pod = await extender.lab.pod("train", limits={"nvidia.com/gpu": "1"})
    stale = await extender.replica.sees(pod)
    await extender.lab.client.patch(PODS, "train", MergePatch({"status": BY_CLAIM}), "lab", subresource="status")
    pods: Store[Pod] = Store()
    pods.put(stale)
    nodes: Store[NodeObject] = Store()
    nodes.put(NodeObject(metadata=NodeMetadata(name=N1)))
    handlers = handlers_with(extender, pods, nodes)
    names = {"PodName": "train", "PodNamespace": "lab", "PodUID": pod["metadata"]["uid"], "Node": "n1"}

    reply = await handlers.bind(as_bytes(names))

    assert reply.body == b'{"Error":""}'
    assert (await extender.lab.held(), await extender.lab.bound()) == ({}, {pod["metadata"]["uid"]: "n1"})


def handlers_with(extender: ServedExtender, pods: Store[Pod], nodes: Store[NodeObject]) -> ExtenderHandlers:
    """The same handlers, that know these pods and nodes when they bind."""
    replica = extender.replica
    known = BindCheck(replica.cluster, pods, nodes, None)
    return ExtenderHandlers(replica, replica.scheduler, known, ExtenderMetrics(replica.informers.silences))


def as_bytes(document: Any) -> bytes:
    return json.dumps(document).encode()


# --- readiness, stopping, metrics ------------------------------------------------------------------------------------


async def test_nothing_is_answered_before_the_ledger_is_complete(extender: ServedExtender) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
    starting = ClusterState(extender.lab.client)
    handlers = handlers_on(starting, scheduler_on(starting))
    names = {"PodName": "train", "PodNamespace": "lab", "PodUID": pod["metadata"]["uid"], "Node": "n1"}

    filtered = handlers.filter(as_bytes({"Pod": pod, "NodeNames": NODES}))
    bound = await handlers.bind(as_bytes(names))

    for reply in (filtered, bound):
        assert reply.status == 200
        assert b"the ledger is being rebuilt" in reply.body
    assert "the ledger is being rebuilt" in handlers.why_not_ready()
    assert await extender.lab.bound() == {}


async def test_a_stopping_replica_finishes_a_waiting_gang_and_takes_no_other_bind(extender: ServedExtender) -> None:
    gang = {"pod-group-name": "together", "carrel.dev/gang-size": "2", "gpu-fraction": "0.5"}
    one, two = [await extender.lab.pod(name, annotations=gang) for name in ("one", "two")]
    lonely = await extender.lab.pod("lonely", limits={"aliyun.com/gpu-mem": "8138"})
    for pod in (one, two):
        await extender.replica.sees(pod)
    node = (await extender.caller.filter(one, NODES))["NodeNames"][0]
    other = (await extender.caller.filter(two, NODES))["NodeNames"][0]
    waiting = asyncio.ensure_future(extender.caller.bind(one, node))
    await eventually(lambda: extender.handlers._binds, "a bind under way")

    leaving = asyncio.ensure_future(extender.handlers.wait_binds_finished())
    await asyncio.sleep(0)
    ready = await extender.caller.get("/readyz")
    refused = await extender.caller.bind(lonely, "n1")
    assert (ready.status, leaving.done(), waiting.done()) == (503, False, False)
    assert "takes no new binds" in refused
    assert await extender.caller.bind(two, other) == ""

    await leaving
    assert await waiting == ""
    assert len(await extender.lab.bound()) == 2


async def test_probes_and_metrics(extender: ServedExtender) -> None:
    pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "9000"})
    assert not await extender.caller.bind(pod, "n1")
    await extender.caller.filter(pod, ["n3"])

    for path in ("/healthz", "/readyz"):
        answer = await extender.caller.get(path)
        assert (answer.status, answer.text) == (200, "ok")
    metrics = (await extender.caller.get("/metrics")).text
    for line in (
        "carrel_filter_duration_seconds_count 1.0",
        'carrel_bind_duration_seconds_count{outcome="bound"} 1.0',
        'carrel_refusals_total{kind="no_room",verb="filter"} 1.0',
        'carrel_api_requests_total{code="201",resource="pods/binding",verb="POST"} 1.0',
    ):
        assert line in metrics
    assert 'carrel_watch_silence_seconds{kind="pods"}' in metrics
    assert "train" not in metrics
