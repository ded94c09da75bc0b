"""MAIA's pod terminator over HTTP, called by MAIA's clients and by others."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from carrel.http.serving import Address, serving
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PODS
from carrel.lifecycle.assembly import terminator_on
from carrel.lifecycle.freeing.terminator_api import terminator_app
from tests.integration.lifecycle.test_controller import a_bound_pod, a_stage, becomes
from tests.integration.scheduling.test_process import carrel_process
from tests.kit.configuration import config_file
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    a_booked_pod,
    an_opportunistic_pod,
    an_unschedulable_booked_pod,
    catch_up,
    end_deleted,
    pods_of,
    settle,
)

TOKEN = "a-token-of-the-test"
OVER = {"terminate-at": "2026-11-16T11:00:00Z"}
Answer = tuple[int, Any]


class Caller:
    def __init__(self, url: str, session: aiohttp.ClientSession, token: str) -> None:
        self._url = url
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def get(self, path: str) -> Answer:
        async with self._session.get(f"{self._url}{path}", headers=self._headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def post(self, path: str, body: Any = None) -> Answer:
        data = body if isinstance(body, bytes) else None
        json = None if isinstance(body, bytes) else body
        async with self._session.post(f"{self._url}{path}", data=data, json=json, headers=self._headers) as answer:
            return answer.status, await answer.json(content_type=None)


@contextlib.asynccontextmanager
async def calling(
    lab: Lab, replica: Replica, token: str = TOKEN, sent: str = TOKEN, answer_within_s: float = 0
) -> AsyncIterator[Caller]:
    """By default the answer does not wait for the leader, which in these tests does nothing meanwhile."""
    await catch_up(lab, replica)
    app = terminator_app(terminator_on(replica, replica.cluster, answer_within_s), token)
    async with serving(app, Address()) as url, aiohttp.ClientSession() as session:
        yield Caller(url, session, sent)


async def test_a_random_delete_hands_over_a_pod_without_a_booking() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        await a_booked_pod(lab, replica, "booked")
        async with calling(lab, replica) as maia:
            assert await maia.post("/random-delete") == (200, {"status": "success", "deleted_pod": "train"})
            assert await maia.post("/random-delete") == (200, {"status": "no expired pods found"}), (
                "it is ending already"
            )

        await settle(lab, TierController(replica))

        pods = await pods_of(lab)
        assert "carrel.dev/handed-over" in pods["train"].metadata.annotations
        assert "carrel.dev/handed-over" not in pods["booked"].metadata.annotations


async def test_a_booked_pod_is_never_ended_before_its_time() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_booked_pod(lab, replica, "booked")
        async with calling(lab, replica) as maia:
            assert await maia.post("/random-delete") == (200, {"status": "no expired pods found"})
            assert await maia.get("/get-expired-pods") == (200, {"status": "no expired pods found"})
            status, answer = await maia.post("/delete-expired-pod", {"pod_name": "booked", "namespace": "lab"})
            assert (status, answer["status"]) == (404, "error")
            assert "may stay" in answer["message"]


async def test_expired_pods_are_listed_and_ended_by_name() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "low")
        await an_opportunistic_pod(lab, replica, "over", annotations=OVER)
        async with calling(lab, replica) as maia:
            status, answer = await maia.get("/get-expired-pods")
            assert (status, sorted(answer["expired_pods"])) == (200, ["low", "over"])
            ended = await maia.post("/delete-expired-pod", {"pod_name": "over", "namespace": "lab"})
            assert ended == (200, {"status": "success", "deleted_pod": "over"})
            status, answer = await maia.post("/delete-expired-pod", {"pod_name": "nobody", "namespace": "lab"})
            assert (status, answer) == (404, {"status": "error", "message": "there is no pod lab/nobody"})

        await settle(lab, TierController(replica))

        assert '"why":"expired"' in (await pods_of(lab))["over"].metadata.annotations["carrel.dev/handed-over"]


async def test_a_pod_with_maias_mark_that_another_scheduler_placed_is_ended_too() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        for name, limits in {"foreign": WHOLE, "cpu": {}}.items():
            container = {"name": "main", "image": "work", "resources": {"limits": limits}}
            metadata = {"name": name, "annotations": {"terminate-at": "1900-01-01T08:00:00Z"}}
            body = {"metadata": metadata, "spec": {"nodeName": "n1", "containers": [container]}}
            await lab.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **body}, "lab")
        async with calling(lab, replica) as maia:
            assert await maia.get("/get-expired-pods") == (200, {"status": "success", "expired_pods": ["foreign"]})
            wanted = {"Pod_Name": "foreign", "Namespace": "lab"}
            ended = await maia.post("/delete-expired-pod", wanted)
            assert ended == (200, {"status": "success", "deleted_pod": "foreign"})

        await settle(lab, TierController(replica))

        assert "carrel.dev/handed-over" in (await pods_of(lab))["foreign"].metadata.annotations


async def test_the_caller_is_answered_when_the_pod_is_being_deleted() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        async with calling(lab, replica, answer_within_s=300) as maia:
            answer = asyncio.create_task(maia.post("/random-delete"))

            async def is_written_down() -> bool:
                return bool((await lab.client.list(CONFIG_MAPS, Selection("carrel"))).items)

            await becomes(is_written_down, "the leader can see it")
            assert not answer.done(), "nobody has deleted the pod yet"
            await settle(lab, TierController(replica))
            assert await answer == (200, {"status": "success", "deleted_pod": "train"})


@pytest.mark.parametrize("sent", ["", "another-token", TOKEN[:-1], f"{TOKEN}x"], ids=["none", "wrong", "short", "long"])
async def test_without_the_token_nothing_is_answered_or_done(sent: str) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        async with calling(lab, replica, sent=sent) as maia:
            for call in (maia.post("/random-delete"), maia.get("/get-expired-pods"), maia.post("/delete-expired-pod")):
                status, answer = await call
                assert (status, answer["status"]) == (401, "error")

        await settle(lab, TierController(replica))

        assert "carrel.dev/handed-over" not in (await pods_of(lab))["train"].metadata.annotations


async def test_if_the_setting_allows_all_callers_no_token_is_needed() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        async with calling(lab, replica, token="", sent="") as maia:
            assert (await maia.post("/random-delete"))[0] == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="nothing"),
        pytest.param(b"{", 400, id="no JSON"),
        pytest.param(b"[]", 400, id="a list"),
        pytest.param(b'{"pod_name": "train"}', 400, id="no namespace"),
        pytest.param(b'{"pod_name": 1, "namespace": "lab"}', 400, id="a number for a name"),
        pytest.param(b"[" * 10_000, 400, id="too deep"),
        pytest.param(b" " * 20_000, 413, id="too large"),
    ],
)
async def test_bad_input_is_refused_with_the_reason(body: bytes, status: int) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica, calling(lab, replica) as maia:
        answer = await maia.post("/delete-expired-pod", body)

        assert answer[0] == status
        assert answer[1]["status"] == "error" and answer[1]["message"]


# --- in a process of its own ------------------------------------------------------------------------------------------


async def was_handed_over(lab: Lab, name: str) -> bool:
    """Whether the kubelet has ended the deleted pod, and the successor exists."""
    await end_deleted(lab)
    pod = (await pods_of(lab)).get(name)
    return pod is not None and "carrel.dev/handed-over" in pod.metadata.annotations


async def test_a_controller_revokes_a_gpu_for_a_booked_pod_and_wakes_the_scheduler() -> None:
    async with a_stage([a_node("n1", gpus=1)]) as stage, stage.controller() as controller:
        lab = stage.lab
        assert not controller.terminator, "it is not enabled, so it does not listen"
        await a_bound_pod(lab, "train", limits=WHOLE, annotations=OPPORTUNISTIC)
        urgent = await an_unschedulable_booked_pod(lab, "urgent")

        await becomes(lambda: was_handed_over(lab, "train"), "the pod without a booking continues without a GPU")

        async def is_woken() -> bool:
            return "carrel.dev/woken-at" in await lab.annotations("urgent")

        await becomes(is_woken, "the booked pod is woken")
        async with lab.replica() as extender:
            assert await extender.bind(urgent, "n1") is None
        assert "carrel_pods_revoked_total 1.0" in (await controller.ask("/metrics"))[1]


async def test_a_replica_that_does_not_lead_writes_the_hand_over_and_the_leader_carries_it_out() -> None:
    options = ("--terminator-port", "0", "--terminator-for-all")
    async with a_stage([a_node("n1", gpus=1)]) as stage, stage.controller() as leader:
        lab = stage.lab
        await becomes(leader.leads, "the first one leads")
        async with stage.controller(*options) as follower, aiohttp.ClientSession() as session:
            await a_bound_pod(lab, "train", limits=WHOLE, annotations=OPPORTUNISTIC)
            maia = Caller(follower.terminator, session, "")

            async def has_ended() -> bool:
                return bool((await maia.post("/random-delete"))[1] == {"status": "success", "deleted_pod": "train"})

            await becomes(has_ended, "the leader ends the pod")
            await becomes(lambda: was_handed_over(lab, "train"), "the leader has handed it over")
            assert not await follower.leads()


async def test_a_port_of_the_terminator_that_is_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = (
            "--server",
            "http://127.0.0.1:1",
            "--port",
            "0",
            "--terminator-port",
            port,
            "--config",
            config_file(tmp_path),
        )
        async with carrel_process("controller", *options, environment={"CARREL_TERMINATOR_TOKEN": TOKEN}) as process:
            code, told = await process.wait_end()

    assert code == 6
    assert f"✗ Cannot listen on 127.0.0.1:{port}" in told
