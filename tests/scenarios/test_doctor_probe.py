"""`carrel doctor --probe`: two pods say what a container really sees, and are removed however it ends."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from carrel.cli.checks.finding import HopState, ProbeOptions
from carrel.cli.checks.runtime import LABELS
from carrel.kubernetes.cluster import BindTarget, Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import PODS
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import a_node
from tests.kit.installation import InstalledLab
from tests.kit.lab import Lab, a_lab

OK, WARN, FAIL = HopState.OK, HopState.WARN, HopState.FAIL
OWN = "GPU-n1-0"
PROBE = ProbeOptions("lab", unplaced_s=60.0, wait_s=60.0, poll_s=0.01)
SIMULATED = {"CARREL_SIMULATE": "/etc/carrel/gpus.yaml"}


class Node:
    """A scheduler and a kubelet for the two pods: each ends at once, with the message that the test wants."""

    def __init__(self, lab: Lab, gpu: Any, plain: Any) -> None:
        self._lab = lab
        self._says = {True: gpu, False: plain}
        self.specs: list[Json] = []

    async def serve(self) -> None:
        done: set[str] = set()
        while True:
            for name in await probes(self._lab):
                if name not in done:
                    done.add(name)
                    await self._end(name)
            await asyncio.sleep(0.01)

    async def _end(self, name: str) -> None:
        pod = await self._lab.client.get(PODS, name, "lab")
        spec = pod["spec"]
        self.specs.append(spec)
        has_gpu = "nvidia.com/gpu" in spec["containers"][0]["resources"]["limits"]
        said = self._says[has_gpu]
        notes = {"carrel.dev/devices": OWN} if has_gpu else {}
        await self._lab.client.patch(PODS, name, MergePatch({"metadata": {"annotations": notes}}), "lab")
        await self._lab.client.bind(BindTarget("lab", name, pod["metadata"]["uid"], "n1"))
        if said is None:
            return  # it never ends
        message = said if isinstance(said, str) else json.dumps(said)
        ended = {"exitCode": 0, "message": message}
        state = {
            "name": "look",
            "ready": False,
            "image": "i",
            "imageID": "",
            "restartCount": 0,
            "state": {"terminated": ended},
        }
        status = {"phase": "Succeeded", "containerStatuses": [state]}
        await self._lab.client.patch(PODS, name, MergePatch({"status": status}), "lab", subresource="status")


async def probes(lab: Lab) -> list[str]:
    (label,) = LABELS.items()
    found = (await lab.client.list(PODS, Selection("lab", labels="=".join(label)))).items
    return [each.metadata.name for each in found if not each.metadata.deletion_timestamp]


@contextlib.asynccontextmanager
async def a_node_that_says(lab: Lab, gpu: Any, plain: Any) -> AsyncIterator[Node]:
    node = Node(lab, gpu, plain)
    serving = asyncio.ensure_future(node.serve())
    try:
        yield node
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def sees(variable: str, driver: list[str] | None = None, files: list[str] | None = None) -> Json:
    return {"variable": variable, "driver": driver or [], "files": files or []}


NONE = sees("void")


@pytest.mark.parametrize(
    ("env", "gpu", "plain", "states", "said"),
    [
        pytest.param(SIMULATED, sees(OWN), NONE, [OK, OK], "its own (simulated)", id="simulated, and well"),
        pytest.param(
            SIMULATED, sees("GPU-n1-1"), NONE, [FAIL, OK], "was given GPU-n1-0", id="simulated, told another GPU"
        ),
        pytest.param({}, sees(OWN, [OWN], ["/dev/nvidia0"]), NONE, [OK, OK], "exactly its own", id="real, and well"),
        pytest.param(
            {}, sees(OWN), NONE, [FAIL, OK], "the container runtime does not heed", id="the variable is ignored"
        ),
        pytest.param({}, sees(""), NONE, [FAIL, OK], "NVIDIA_VISIBLE_DEVICES is empty", id="nothing was handed over"),
        pytest.param(
            {}, sees(OWN, [OWN, "GPU-n1-1"]), NONE, [FAIL, OK], "it sees GPU-n1-0, GPU-n1-1", id="all GPUs of the node"
        ),
        pytest.param({}, sees(OWN, ["GPU-n1-1"]), NONE, [FAIL, OK], "its own is GPU-n1-0", id="another pod's GPU"),
        pytest.param(
            {},
            sees(OWN, [OWN]),
            sees("all", [OWN]),
            [OK, FAIL],
            "asks for no GPU sees GPU-n1-0",
            id="a pod without a GPU sees one",
        ),
        pytest.param(
            {},
            sees(OWN, [OWN]),
            sees("void", [], ["/dev/nvidia0"]),
            [OK, FAIL],
            "sees /dev/nvidia0",
            id="a device file",
        ),
        pytest.param(
            {}, sees(OWN, [OWN]), sees("all"), [OK, WARN], "the webhook was not asked", id="a pod without a GPU may try"
        ),
        pytest.param({}, "Traceback: no such command", NONE, [FAIL, OK], "no such command", id="another image"),
    ],
)
async def test_what_two_containers_see(
    env: dict[str, str], gpu: Any, plain: Any, states: list[HopState], said: str
) -> None:
    async with a_lab([a_node("n1")]) as lab:
        installed = InstalledLab(lab)
        await installed.component("webhook")
        await installed.component("agent", env)
        async with a_node_that_says(lab, gpu, plain) as node:
            found = await installed.look("visible GPUs", probe=PROBE)
        left = await probes(lab)
    assert [each.state for each in found] == states
    assert said in " ".join(each.text for each in found)
    assert left == []
    assert {spec["containers"][0]["image"] for spec in node.specs} == {"carrel:test"}


async def test_the_pods_are_unprivileged_end_by_themselves_and_one_tries_to_see_all() -> None:
    async with a_lab([a_node("n1")]) as lab:
        installed = InstalledLab(lab)
        await installed.component("webhook")
        async with a_node_that_says(lab, sees(OWN, [OWN]), NONE) as node:
            await installed.look("visible GPUs", probe=PROBE)
    gpu, plain = node.specs
    assert {each["activeDeadlineSeconds"] for each in node.specs} == {180}
    assert {each["automountServiceAccountToken"] for each in node.specs} == {False}
    assert all(each["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]} for each in node.specs)
    assert "env" not in gpu["containers"][0]
    assert plain["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    (term,) = plain["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]


async def test_without_probe_no_pod_is_made() -> None:
    async with a_lab([a_node("n1")]) as lab:
        installed = InstalledLab(lab)
        await installed.component("webhook")
        assert await installed.look("visible GPUs") == []
        assert await probes(lab) == []


async def test_a_cluster_without_a_free_gpu_is_a_warning_and_the_other_pod_is_still_tried() -> None:
    async with a_lab([a_node("n1")]) as lab:
        installed = InstalledLab(lab)
        await installed.component("webhook")
        found = await installed.look("visible GPUs", probe=replace(PROBE, unplaced_s=0.0))
        left = await probes(lab)
    assert [each.state for each in found] == [WARN, WARN]
    assert found[0].text == "it could not be tried: no scheduler has looked at the pod"
    assert left == []


async def test_a_pod_that_does_not_end_fails_and_is_removed() -> None:
    async with a_lab([a_node("n1")]) as lab:
        installed = InstalledLab(lab)
        await installed.component("webhook")
        async with a_node_that_says(lab, None, NONE):
            found = await installed.look("visible GPUs", probe=replace(PROBE, wait_s=0.0))
        left = await probes(lab)
    assert [each.state for each in found] == [FAIL, WARN] or found[1].state is OK
    assert found[0].text == "its pod on n1 has not ended after 0 s: its container runs"
    assert left == []


async def test_the_pods_are_removed_when_the_command_is_interrupted() -> None:
    async with a_lab([a_node("n1")]) as lab:
        installed = InstalledLab(lab)
        await installed.component("webhook")
        looking = asyncio.ensure_future(installed.look("visible GPUs", probe=PROBE))

        async with asyncio.timeout(LIMIT_S):
            while not await probes(lab):  # noqa: ASYNC110 # it can only be polled
                await asyncio.sleep(0.005)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        left = await probes(lab)
    assert left == []


async def test_where_no_pod_tells_the_image_it_must_be_given() -> None:
    async with a_lab([a_node("n1")]) as lab:
        found = await InstalledLab(lab).one("visible GPUs", PROBE)
    assert (found.state, found.advice) == (WARN, "carrel doctor --probe --probe-image IMAGE")
