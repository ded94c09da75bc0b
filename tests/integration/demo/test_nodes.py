"""The nodes of the demo: a simulated kubelet, and Carrel's agent, on the embedded API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from carrel.demo.nodes import DemoKubelets, NodeContext, SteadyMachine
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.kai_reservation import ReservationRequest, reservation_pod
from carrel.kubernetes.cluster import BindTarget, Json
from carrel.kubernetes.decoding import read_object
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.kubernetes.reflector import Informers
from carrel.node.settings import AgentMode
from tests.kit.agent import becomes
from tests.kit.coexist import RESERVATIONS, create_reservation_namespace
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, a_lab

NODE = a_node("n1", gpus=2)
FIRST, LAST = (gpu.uuid for gpu in NODE.gpus)
WHOLE = {"nvidia.com/gpu": "1"}


@asynccontextmanager
async def a_demo_node(folder: Path, mode: AgentMode = AgentMode.NATIVE) -> AsyncIterator[Lab]:
    async with a_lab([]) as lab:
        informers = Informers(lab.client)
        context = NodeContext(lab.client, lab.client, lab.client, mode, folder)
        kubelets = DemoKubelets(context, [NODE], informers.watch(PODS), lab.clock)
        await kubelets.announce()
        running = [asyncio.ensure_future(informers.run()), asyncio.ensure_future(kubelets.run())]
        try:
            await becomes(lambda: users(lab), {FIRST: [], LAST: []})
            yield lab
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)


async def users(lab: Lab) -> dict[str, list[str]]:
    """UUID of a GPU → the pods that the node reports with it."""
    for report in [each async for each in reports(lab)]:
        return {device["uuid"]: device["inUseBy"] for device in report["status"]["devices"]}
    return {}


async def reports(lab: Lab) -> AsyncIterator[Json]:
    for found in (await lab.client.list(GPU_NODE_STATUSES)).items:
        report = await lab.client.get(GPU_NODE_STATUSES, found.metadata.name)
        if "status" in report:
            yield report


async def phase(lab: Lab, name: str, namespace: str = "lab") -> str:
    return str((await lab.client.get(PODS, name, namespace)).get("status", {}).get("phase", ""))


async def test_a_pod_that_carrel_has_placed_runs_with_its_gpu(tmp_path: Path) -> None:
    async with a_demo_node(tmp_path) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits=WHOLE)

        assert await replica.bind(pod, "n1") is None

        gpu = (await lab.annotations("train"))["carrel.dev/devices"]
        await becomes(lambda: phase(lab, "train"), "Running")
        await becomes(lambda: users(lab), {FIRST: [], LAST: []} | {gpu: [pod["metadata"]["uid"]]})


async def test_a_pod_that_no_lease_gives_a_gpu_is_not_admitted(tmp_path: Path) -> None:
    async with a_demo_node(tmp_path) as lab:
        pod = await lab.pod("bypass", limits=WHOLE)
        await lab.client.bind(BindTarget("lab", "bypass", pod["metadata"]["uid"], "n1"))

        await becomes(lambda: phase(lab, "bypass"), "Failed")

        status = (await lab.client.get(PODS, "bypass", "lab"))["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "no Lease" in status["message"]


async def test_beside_nvidias_plugin_a_reservation_pod_says_which_gpu_the_kubelet_gave_it(tmp_path: Path) -> None:
    async with a_demo_node(tmp_path, AgentMode.COEXIST) as lab:
        await create_reservation_namespace(lab)
        pod = await lab.client.create(PODS, reservation_pod(ReservationRequest(N1, "shared", "carrel")), RESERVATIONS)

        async def reported() -> str:
            found = await lab.client.get(PODS, pod["metadata"]["name"], RESERVATIONS)
            return str(found["metadata"]["annotations"].get("run.ai/reserve_for_gpu_index", ""))

        await becomes(reported, LAST)
        await becomes(lambda: users(lab), {FIRST: [], LAST: [pod["metadata"]["uid"]]})


async def test_the_gpu_of_a_pod_that_is_gone_is_given_to_the_next(tmp_path: Path) -> None:
    async with a_demo_node(tmp_path, AgentMode.COEXIST) as lab:
        await start(lab, "one", "Running")
        await start(lab, "two", "Running")
        await start(lab, "three", "Failed")
        await lab.client.delete(PODS, "one", "lab")
        await becomes(lambda: gone(lab, "one"), True)

        await start(lab, "four", "Running")


async def start(lab: Lab, name: str, wanted: str) -> None:
    pod = await lab.pod(name, limits=WHOLE)
    await lab.client.bind(BindTarget("lab", name, pod["metadata"]["uid"], "n1"))
    await becomes(lambda: phase(lab, name), wanted)


async def gone(lab: Lab, name: str) -> bool:
    return name not in {pod.metadata.name for pod in (await lab.client.list(PODS)).items}


async def test_the_agent_writes_memory_on_the_node(tmp_path: Path) -> None:
    async with a_demo_node(tmp_path) as lab:

        async def amount() -> object:
            return (await lab.client.get(NODES, "n1"))["status"]["capacity"].get("aliyun.com/gpu-mem")

        await becomes(amount, str(sum(gpu.memory for gpu in NODE.gpus)))


async def test_what_the_demos_gpus_do_looks_like_people() -> None:
    """Over a day, 200 pods that have a GPU each: some work, some are forgotten, and a few counters stand still."""
    node = a_node("n1", gpus=1)
    now = datetime(2026, 11, 16, tzinfo=UTC)
    idle = stuck = busy = 0
    for number in range(200):
        made = {
            "metadata": {"name": "a", "uid": f"uid-{number}", "annotations": {"carrel.dev/devices": node.gpus[0].uuid}},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        }
        pod = read_object(PODS, made)
        samples = [
            (await SteadyMachine(node, lambda: [pod], lambda: now + timedelta(minutes=minute)).sample())[  # noqa: B023 # called at once
                node.gpus[0].uuid
            ]
            for minute in range(0, 24 * 60, 7)
        ]
        worked = sum(bool(sample.utilisation) for sample in samples)
        drew = max(sample.power_watts or 0.0 for sample in samples)
        busy += worked > len(samples) / 2
        idle += not worked and drew < 100
        stuck += not worked and drew > 100

    assert busy > 80
    assert idle > 10
    assert stuck > 3
