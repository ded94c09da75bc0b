"""`carrel controller` as a cluster runs it: several processes, on the API over HTTP."""

import asyncio
import contextlib
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import EVENTS, LEASES, PODS
from carrel.ledger.gpus import Node
from kubernetes_in_memory.http_server import serve
from tests.kit.configuration import configure
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

WHOLE_GPU = {"aliyun.com/gpu-mem": "16276"}


@dataclass
class Controller:
    process: asyncio.subprocess.Process
    url: str
    terminator: str = ""
    """The address of the pod terminator, if it is enabled."""

    async def ask(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}{path}") as answer:
            return answer.status, await answer.text()

    async def leads(self) -> bool:
        return "carrel_leader 1.0" in (await self.ask("/metrics"))[1]

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return await self.process.wait()


@dataclass
class ControllerLab:
    lab: Lab
    server: str

    @contextlib.asynccontextmanager
    async def controller(self, *options: str) -> AsyncIterator[Controller]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "carrel", "controller", "--server", self.server, "--port", "0", *options),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        told: list[str] = []
        try:
            async for line in process.stderr:
                told.append(line.decode())
                if found := re.search(r"listening url=(\S+)", told[-1]):
                    break
            else:
                raise AssertionError("".join(told))
            listening = asyncio.ensure_future(_read_on(process.stderr))
            maia = re.search(r"terminator url=(\S+)", "".join(told))
            yield Controller(process, found[1], maia[1] if maia else "")
            listening.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read_on(stream: asyncio.StreamReader) -> None:
    """Reads the log of a process: otherwise it would block on a full pipe."""
    async for _ in stream:
        pass


@contextlib.asynccontextmanager
async def a_stage(nodes: Sequence[Node]) -> AsyncIterator[ControllerLab]:
    async with a_lab(nodes, in_real_time=True) as lab, serve(lab.api) as served:
        yield ControllerLab(lab, served.url)


async def becomes(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    try:
        async with asyncio.timeout(LIMIT_S):
            while not (answer := await condition()):  # noqa: ASYNC110 - another process has no event to wait for
                await asyncio.sleep(0.1)
            return answer
    except TimeoutError:
        raise AssertionError(f"within {LIMIT_S:.0f} s it did not happen that {what}") from None


async def a_bound_pod(lab: Lab, name: str, **spec: Any) -> Json:
    pod = await lab.pod(name, **spec)
    async with lab.replica() as extender:
        assert await extender.bind(pod, "n1") is None
    return pod


async def events(lab: Lab, pod: str) -> dict[str, str]:
    """Reason → message."""
    found = (await lab.client.list(EVENTS, Selection("lab", fields=f"involvedObject.name={pod}"))).items
    return {event.reason: event.message for event in found}


async def test_a_notebook_that_finds_no_gpu_goes_on_without_one_and_is_told_once_also_by_the_next_controller() -> None:
    """Under the fence, with the default settings but for the time."""
    hub = {"hub.jupyter.org/username": "ada", "carrel.dev/tier": "opportunistic"}
    async with a_stage([a_node("n1", gpus=1)]) as stage:
        lab = stage.lab
        await a_bound_pod(lab, "busy", limits=WHOLE_GPU)
        await lab.pod("notebook", limits=WHOLE_GPU, annotations=hub)

        async def told() -> list[str]:
            selection = Selection("lab", fields="involvedObject.name=notebook")
            found = (await lab.client.list(EVENTS, selection)).items
            return [event.message for event in found if event.reason == "RunsWithoutGPU"]

        await configure(stage.lab.client, "tiers: {waitBeforeCpu: 1s}")
        async with stage.controller():
            await becomes(told, "the notebook is told that it runs without a GPU")
        async with stage.controller() as second:
            await becomes(second.leads, "the second controller leads")
            other = {"carrel.dev/runs-without-gpu": "this pod runs without a GPU: it asked too late"}
            await lab.pod("later", annotations=other)
            await becomes(lambda: events(lab, "later"), "the second controller tells about another pod")

        (message,) = await told()
        assert message.startswith("this pod runs without a GPU: it waited for one, and on ")
        pod = await lab.client.get(PODS, "notebook", "lab")
        assert not pod["spec"]["containers"][0]["resources"].get("limits")


async def test_the_gpu_of_a_pod_that_is_gone_is_freed_and_the_waiting_pod_is_woken() -> None:
    async with a_stage([a_node("n1", gpus=1)]) as stage, stage.controller():
        lab = stage.lab
        await a_bound_pod(lab, "first", limits=WHOLE_GPU)
        await lab.pod("second", limits=WHOLE_GPU)

        placed = await becomes(lambda: events(lab, "first"), "the first pod gets an Event about its GPU")
        assert placed == {"GPUAssigned": "this pod got GPU 0 of n1, 16,276 MiB"}
        waits = await becomes(lambda: events(lab, "second"), "the second pod gets an Event about why it waits")
        assert list(waits) == ["WaitingForGPU"]
        assert "16,276 MiB" in waits["WaitingForGPU"]

        await lab.client.delete(PODS, "first", "lab", how=DeleteOptions(grace_seconds=0))

        async def is_free() -> bool:
            return not await lab.held()

        async def is_woken() -> bool:
            return "carrel.dev/woken-at" in await lab.annotations("second")

        await becomes(is_free, "the GPU is free")
        await becomes(is_woken, "the second pod is woken")


async def test_a_claim_follows_its_pod_from_pending_to_bound_and_back() -> None:
    async with a_stage([a_node("n1", gpus=2)]) as stage, stage.controller():
        lab = stage.lab
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "two"}}
        await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 2}}}, "lab")

        def reaches(phase: str, allocated: str) -> Callable[[], Awaitable[bool]]:
            async def has() -> bool:
                status = (await lab.client.get(GPU_CLAIMS, "two", "lab")).get("status", {})
                return (status.get("phase"), status.get("allocated", "")) == (phase, allocated)

            return has

        await becomes(reaches("Pending", ""), "the claim is pending")
        await a_bound_pod(lab, "train", annotations={"gpu.scheduling/claim": "two"})
        await becomes(reaches("Bound", "n1:0,1"), "the claim is bound")
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        await becomes(reaches("Pending", ""), "the claim is pending again")


async def test_when_the_leader_is_killed_the_other_replica_takes_over() -> None:
    async with a_stage([a_node("n1")]) as stage, stage.controller() as one, stage.controller() as other:
        lab = stage.lab
        await a_bound_pod(lab, "train", limits=WHOLE_GPU)

        async def the_leader() -> Controller | None:
            leaders = [each for each in (one, other) if await each.leads()]
            assert len(leaders) < 2, "two lead at once"
            return leaders[0] if leaders else None

        leader = await becomes(the_leader, "one of them leads")
        follower = other if leader is one else one
        await becomes(lambda: follower.ask("/readyz"), "the other answers")
        assert await leader.end(signal.SIGKILL) == -signal.SIGKILL
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))

        async def is_free() -> bool:
            return not await lab.held()

        await becomes(is_free, "the GPU is free")
        assert await follower.leads()


async def test_on_sigterm_another_replica_leads_at_once() -> None:
    async with a_stage([a_node("n1")]) as stage, stage.controller() as controller:
        await becomes(controller.leads, "it leads")

        assert await controller.end(signal.SIGTERM) == 0

        lease = await stage.lab.client.get(LEASES, "carrel-controller", "carrel")
        assert not lease["spec"].get("holderIdentity")


async def test_it_is_ready_when_its_caches_are_complete_and_counts_its_work() -> None:
    async with a_stage([a_node("n1")]) as stage, stage.controller() as controller:

        async def is_ready() -> bool:
            return (await controller.ask("/readyz"))[0] == 200

        await becomes(is_ready, "it is ready")
        assert await controller.ask("/healthz") == (200, "ok")
        numbers = (await controller.ask("/metrics"))[1]
        for name in ("carrel_leader", "carrel_shares_freed_total", "carrel_claim_statuses_written_total"):
            assert f"\n{name} " in numbers


async def test_its_metrics_say_what_gpus_are_used_for_why_pods_wait_and_which_invariant_is_broken() -> None:
    """Somebody has written by hand on the Lease of a GPU that two pods hold more of it than there is."""
    async with a_stage([a_node("n1", gpus=2, model="A")]) as stage:
        await stage.lab.pod("train", limits={"aliyun.com/gpu-mem": "16277"})
        uids = {name: (await stage.lab.pod(name))["metadata"]["uid"] for name in ("one", "two")}
        for name, uid in uids.items():
            await stage.lab.client.bind(BindTarget("lab", name, uid, "n1"))
        shares = {uid: {"pod": f"lab/{name}", "state": "assigned", "mib": 9000} for name, uid in uids.items()}
        notes = {"carrel.dev/gpu": "GPU-n1-0", "carrel.dev/shares": json.dumps(shares)}
        lease = {"metadata": {"name": "gpu-n1-0", "annotations": notes}, "spec": {}}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease}
        await stage.lab.client.create(LEASES, body, "carrel")
        async with stage.controller() as controller:
            expected = (
                'carrel_invariant_violations{invariant="memory_exceeded"} 1.0',
                'carrel_invariant_violations{invariant="whole_gpu_shared"} 0.0',
                'carrel_waiting_pods{reason="request_refused",tier="none"} 1.0',
                'carrel_gpus{model="A",state="opportunistic"} 1.0',
                'carrel_gpus{model="A",state="free"} 1.0',
                'carrel_agents{state="reporting"} 1.0',
                'carrel_agents{state="silent"} 0.0',
                'carrel_hand_overs_closed_total{outcome="handed_over",why="revoked"} 0.0',
                'carrel_api_requests_total{code="200",resource="leases",verb="WATCH"} ',
            )

            async def says_all() -> bool:
                numbers = (await controller.ask("/metrics"))[1]
                return all(f"\n{line}" in numbers for line in expected)

            await becomes(says_all, "its metrics say all of that")


async def test_an_unschedulable_pod_that_has_room_now_is_woken() -> None:
    """As after an outage of the extender: the scheduler could not ask, and does not try again by itself."""
    async with a_stage([a_node("n1", gpus=1)]) as stage, stage.controller():
        pod = await stage.lab.pod("train", limits=WHOLE_GPU)
        aside = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no answer"}
        patch = MergePatch({"status": {"conditions": [aside]}})
        await stage.lab.client.patch(PODS, "train", patch, "lab", subresource="status")

        async def is_woken() -> bool:
            return "carrel.dev/woken-at" in await stage.lab.annotations("train")

        assert "carrel.dev/woken-at" not in pod["metadata"].get("annotations", {})
        await becomes(is_woken, "it is woken")
