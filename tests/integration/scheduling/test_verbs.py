"""kube-scheduler's calls over real HTTP, on the embedded API."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from carrel.ledger.ledger import Ledger
from carrel.scheduling.handlers import ExtenderHandlers
from carrel.scheduling.metrics import Metrics
from carrel.scheduling.pod_lookup import PodLookup
from tests.integration.scheduling.opened import Opened, an_open_extender
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node, held, holder

NODES = ["n1", "n2", "n3"]


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    """n1 and n2 have two cards of 16,276 MiB each, n3 has one of 8,000."""
    async with an_open_extender([a_node("n1"), a_node("n2"), a_node("n3", cards=1, memory=8000)]) as opened:
        yield opened


async def test_filter_tells_where_there_is_room_and_why_not_elsewhere(opened: Opened) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})

    assert await opened.caller.filter(pod, ["n3", "n2", "n1", "n4"]) == {
        "Nodes": None,
        "NodeNames": ["n2", "n1"],
        "FailedNodes": {
            "n3": "room on 0 of 1 GPUs",
            "n4": "no GPU that Carrel knows of",
        },
        "Error": "",
    }


@pytest.mark.parametrize("keys", [("pod", "nodes", "nodenames"), ("POD", "NODES", "nodeNames")], ids=["lower", "mixed"])
async def test_keys_may_be_in_any_letter_case(opened: Opened, keys: tuple[str, str, str]) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})

    answer = await opened.caller.post("/carrel/filter", dict(zip(keys, (pod, None, NODES), strict=True)))

    assert answer.json["NodeNames"] == ["n1", "n2"]


async def test_a_scheduler_that_sends_node_objects_gets_them_back(opened: Opened) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
    n1, n3 = ({"metadata": {"name": name, "labels": {"kept": "as it is"}}, "odd": [1.5, None]} for name in ("n1", "n3"))

    answer = await opened.caller.post("/carrel/filter", {"Pod": pod, "Nodes": {"items": [n1, n3]}, "NodeNames": None})

    assert answer.json["Nodes"] == {"items": [n1]}
    assert answer.json["NodeNames"] == ["n1"]
    assert list(answer.json["FailedNodes"]) == ["n3"]


async def test_nulls_where_go_writes_them_do_not_hide_what_a_pod_asks_for(opened: Opened) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "9000"})
    pod["metadata"] |= {"creationTimestamp": None, "labels": None}

    assert (await opened.caller.filter(pod, NODES))["NodeNames"] == ["n1", "n2"]


async def test_a_pod_that_asks_for_no_card_passes_through_untouched(opened: Opened) -> None:
    pod = await opened.lab.pod("web")

    found = await opened.caller.filter(pod, ["n1", "elsewhere"])
    scores = (await opened.caller.post("/carrel/prioritize", {"Pod": pod, "NodeNames": NODES})).json
    error = await opened.caller.bind(pod, "n1")

    assert (found["NodeNames"], found["FailedNodes"], error) == (["n1", "elsewhere"], {}, "")
    assert {score["Score"] for score in scores} == {0}
    assert await opened.lab.annotations("web") == {}
    assert await opened.lab.held() == {}
    assert len(opened.replica.transport.writes) == 1


async def test_the_fullest_node_that_fits_has_the_highest_score_alone(opened: Opened) -> None:
    first = await opened.lab.pod("first", limits={"aliyun.com/gpu-mem": "8138"})
    assert not await opened.caller.bind(first, "n2")
    second = await opened.lab.pod("second", limits={"aliyun.com/gpu-mem": "8138"})

    scores = (await opened.caller.post("/carrel/prioritize", {"Pod": second, "NodeNames": NODES})).json

    best = max(scores, key=lambda score: score["Score"])
    assert best == {"Host": "n2", "Score": 10}
    assert [score["Score"] for score in scores].count(10) == 1
    assert sorted(score["Host"] for score in scores) == NODES


async def test_bind_takes_the_lease_and_writes_the_annotations_in_two_writes(opened: Opened) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})

    assert await opened.caller.bind(pod, "n1") == ""

    notes = await opened.lab.annotations("train")
    assert (notes["ALIYUN_COM_GPU_MEM_IDX"], notes["ALIYUN_COM_GPU_MEM_ASSIGNED"]) == ("0", "false")
    assert await opened.lab.held() == {"gpu-n1-0": {pod["metadata"]["uid"]: 8138}}
    assert await opened.lab.bound() == {pod["metadata"]["uid"]: "n1"}
    assert len(opened.replica.transport.writes) == 2


async def test_a_bind_that_is_refused_says_why_and_leaves_nothing(opened: Opened) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "9000"})

    for prefix in ("carrel", "gpushare-scheduler"):
        assert "has 8,000 MiB in all, 9,000 MiB asked" in await opened.caller.bind(pod, "n3", prefix)
    assert (await opened.lab.held(), await opened.lab.bound()) == ({}, {})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param({"uid": "another"}, "is another one now", id="a pod of that name with another uid"),
        pytest.param({"name": "gone"}, "is not that of pod lab/gone", id="a name that belongs to another uid"),
        pytest.param({"name": "gone", "uid": "gone"}, "does not exist any more", id="a pod that is gone"),
    ],
)
async def test_only_the_very_pod_is_bound(opened: Opened, change: dict[str, str], complaint: str) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
    await opened.replica.sees(pod)

    error = await opened.caller.bind({"metadata": {**pod["metadata"], **change}}, "n1")

    assert complaint in error
    assert (await opened.lab.held(), await opened.lab.bound()) == ({}, {})


async def test_a_pod_that_the_cache_has_not_seen_yet_is_looked_up(opened: Opened) -> None:
    handlers = desk_with(opened, find_pod=PodLookup(opened.replica.cluster, lambda uid: None))
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
    names = {"PodName": "train", "PodNamespace": "lab", "PodUID": pod["metadata"]["uid"], "Node": "n1"}

    reply = await handlers.bind(as_bytes(names))

    assert (reply.status, reply.body) == (200, b'{"Error":""}')


def desk_with(opened: Opened, **other: Any) -> ExtenderHandlers:
    """The same desk, but for what is given."""
    return ExtenderHandlers(dataclasses.replace(opened.handlers._context, **other))


def as_bytes(document: Any) -> bytes:
    return json.dumps(document).encode()


# --- ready, leaving, looking -----------------------------------------------------------------------------------------


async def test_nothing_is_answered_before_the_ledger_is_complete(opened: Opened) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
    handlers = desk_with(opened, is_synced=lambda: False)
    names = {"PodName": "train", "PodNamespace": "lab", "PodUID": pod["metadata"]["uid"], "Node": "n1"}

    filtered = handlers.filter(as_bytes({"Pod": pod, "NodeNames": NODES}))
    bound = await handlers.bind(as_bytes(names))

    for reply in (filtered, bound):
        assert reply.status == 200
        assert b"the ledger is being rebuilt" in reply.body
    assert "the ledger is being rebuilt" in handlers.why_not_ready()
    assert await opened.lab.bound() == {}


async def test_who_leaves_brings_a_gang_together_that_waits_and_takes_no_other_bind(opened: Opened) -> None:
    gang = {"pod-group-name": "together", "carrel.dev/gang-size": "2", "gpu-fraction": "0.5"}
    one, two = [await opened.lab.pod(name, annotations=gang) for name in ("one", "two")]
    lonely = await opened.lab.pod("lonely", limits={"aliyun.com/gpu-mem": "8138"})
    for pod in (one, two):
        await opened.replica.sees(pod)
    node = (await opened.caller.filter(one, NODES))["NodeNames"][0]
    other = (await opened.caller.filter(two, NODES))["NodeNames"][0]
    waiting = asyncio.ensure_future(opened.caller.bind(one, node))
    await eventually(lambda: opened.handlers._binds, "a bind under way")

    leaving = asyncio.ensure_future(opened.handlers.wait_left())
    await asyncio.sleep(0)
    ready = await opened.caller.get("/readyz")
    refused = await opened.caller.bind(lonely, "n1")
    assert (ready.status, leaving.done(), waiting.done()) == (503, False, False)
    assert "takes no new binds" in refused
    assert await opened.caller.bind(two, other) == ""

    await leaving
    assert await waiting == ""
    assert len(await opened.lab.bound()) == 2


async def test_probes_and_metrics(opened: Opened) -> None:
    pod = await opened.lab.pod("train", limits={"aliyun.com/gpu-mem": "9000"})
    assert not await opened.caller.bind(pod, "n1")
    await opened.caller.filter(pod, ["n3"])

    for path in ("/healthz", "/readyz"):
        answer = await opened.caller.get(path)
        assert (answer.status, answer.text) == (200, "ok")
    metrics = (await opened.caller.get("/metrics")).text
    for line in (
        "carrel_filter_duration_seconds_count 1.0",
        'carrel_bind_duration_seconds_count{outcome="bound"} 1.0',
        'carrel_refusals_total{kind="no_room",verb="filter"} 1.0',
        'carrel_cards{state="shared"} 1.0',
        'carrel_cards{state="free"} 4.0',
        'carrel_memory_bytes{state="assumed"} 9.437184e+09',
    ):
        assert line in metrics
    assert 'carrel_watch_silence_seconds{kind="pods"}' in metrics
    assert "train" not in metrics


def test_metrics_of_an_empty_ledger_are_all_there() -> None:
    text = Metrics(Ledger(), dict).text().decode()

    for state in ("free", "shared", "whole", "kept", "unusable"):
        assert f'carrel_cards{{state="{state}"}} 0.0' in text


def test_metrics_follow_the_ledger_through_every_change() -> None:
    ledger = Ledger([a_node("n1"), a_node("n2", cards=1)])
    metrics = Metrics(ledger, dict)
    metrics.text()

    ledger.hold(held("a", "n1", 0, 8138))
    ledger.hold(held("b", "n2", 0, None))
    now = metrics.text().decode()
    assert 'carrel_cards{state="shared"} 1.0' in now
    assert 'carrel_cards{state="whole"} 1.0' in now
    assert 'carrel_cards{state="free"} 1.0' in now
    ledger.keep("GPU-n1-1", holder("c"))
    ledger.remove_node("n2")
    ledger.give_back("uid-a")

    def seen(by: Metrics) -> list[str]:
        return [line for line in by.text().decode().splitlines() if line.startswith(("carrel_cards", "carrel_memory"))]

    assert seen(metrics) == seen(Metrics(ledger, dict))
    assert 'carrel_cards{state="kept"} 1.0' in seen(metrics)
