"""Every file in `examples/` does what its first lines and `examples/README.md` promise.

An example without a row here fails the first test. Annotations are written out, so that a typo in a constant fails.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from carrel.cluster_file import read_gpus
from carrel.kubernetes.cluster import ClusterError
from carrel.manifests import rbac
from carrel.scheduling.scheduler_config import Extender, scheduler_config
from tests.integration.examples.example_cluster import ALICE, BOB, EXAMPLES, HUB, an_example_cluster, documents
from tests.integration.scheduling.test_process import carrel_process
from tests.kit.agent import an_agent, becomes
from tests.kit.gpus import A100, A6000, N1
from tests.kit.lab import a_lab

WHOLE = None


@dataclass(frozen=True)
class Placed:
    """Each pod of the file is bound, with so many GPUs, and so many MiB or such a part of each."""

    gpus: int
    of_each: int | Fraction | None
    model: str = ""
    """Empty: any."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Patterns."""
    tier: str = "opportunistic"
    user: str = ALICE
    made_by: str = ALICE


@dataclass(frozen=True)
class Refused:
    words: str


@dataclass(frozen=True)
class Waits:
    words: str


GPU = "GPU-[-0-9a-f]{36}"

EXPECTED: Mapping[str, Placed | Refused | Waits] = {
    "booked.yaml": Placed(1, WHOLE, user=BOB, made_by=BOB, tier="booked"),
    "carrel-memory.yaml": Placed(2, 8138, A100, {"carrel.dev/devices": f"{GPU},{GPU}"}),
    "gpuclaim-exclusive.yaml": Placed(2, WHOLE, annotations={"gpu.scheduling/allocated": r"[\w-]+:(0,1|1,2|2,3)"}),
    "gpuclaim-gang.yaml": Placed(2, WHOLE, annotations={"gpu.scheduling/allocated": r"[\w-]+:\d,\d"}),
    "gpuclaim-island.yaml": Placed(4, WHOLE, A100, {"gpu.scheduling/allocated": r"[\w-]+:(0,1,2,3|4,5,6,7)"}),
    "gpuclaim-shared.yaml": Placed(1, 4069, annotations={"gpu.scheduling/allocated": r"[\w-]+:\d"}),
    "gpuclaim-with-limit.yaml": Placed(2, WHOLE, annotations={"gpu.scheduling/allocated": r"[\w-]+:(0,1|1,2|2,3)"}),
    "gpushare-count.yaml": Placed(1, 4069, annotations={"ALIYUN_COM_GPU_MEM_POD": "4069", "ALIYUN_GPU_ID": r"\d"}),
    "gpushare-memory.yaml": Placed(
        1,
        8138,
        annotations={
            "ALIYUN_COM_GPU_MEM_IDX": r"\d",
            "ALIYUN_COM_GPU_MEM_POD": "8138",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        },
    ),
    "gpushare-two-containers.yaml": Placed(1, 16276, annotations={"ALIYUN_COM_GPU_MEM_POD": "16276"}),
    "hami-memory.yaml": Placed(1, 3000, annotations={"carrel.dev/devices": GPU}),
    "kai-fraction.yaml": Placed(
        1, Fraction(1, 2), annotations={"received-resource-type": "Fraction", "carrel.dev/devices": GPU}
    ),
    "kai-memory.yaml": Placed(2, 4096, annotations={"carrel.dev/devices": f"{GPU},{GPU}"}),
    "kai-pod-group.yaml": Placed(1, Fraction(1, 4), annotations={"received-resource-type": "Fraction"}),
    "notebook.yaml": Placed(1, WHOLE, made_by=HUB),
    "nvidia-model.yaml": Placed(1, WHOLE, A6000, {"carrel.dev/devices": GPU}),
    "mig-slice.yaml": Waits("This cluster has no MIG slice 1g.10gb"),
    "refused-two-dialects.yaml": Refused("in 2 ways: nvidia.com/gpu and gpu-fraction or gpu-memory"),
    "waits-too-large.yaml": Waits("No node has 16 GPUs"),
}
"""File → what happens to it in an otherwise empty cluster."""

TESTED_BELOW = {
    "cluster.yaml",
    "for-a-booking.yaml",
    "gpuclaim-gang-job.yaml",
    "gpushare-scheduler-config.yaml",
    "kai-cpu-only.yaml",
    "kai-old-names.yaml",
    "node-gpus.yaml",
    "opportunistic-job.yaml",
}


def test_every_example_is_tested_and_listed_in_the_readme() -> None:
    files = {file.name for file in EXAMPLES.glob("*.yaml")}
    listed = re.findall(r"\[`(\S+\.yaml)`\]", (EXAMPLES / "README.md").read_text())

    assert files == EXPECTED.keys() | TESTED_BELOW
    assert files == set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_an_example_begins_with_two_or_three_lines_about_it(file: Path) -> None:
    comment = re.match(r"(# .*\n)+", file.read_text())

    assert comment is not None
    assert 2 <= comment[0].count("\n") <= 3
    assert comment[0].rstrip().endswith((".", "yaml"))


@pytest.mark.parametrize("file", [file for file, outcome in EXPECTED.items() if isinstance(outcome, Placed)])
async def test_the_pods_get_the_gpus_that_the_example_promises(file: str) -> None:
    expected = EXPECTED[file]
    assert isinstance(expected, Placed)
    async with an_example_cluster() as cluster:
        made = await cluster.apply(file, expected.made_by)
        assert await cluster.schedule() == {}

        for name in (each["metadata"]["name"] for each in made):
            pod = await cluster.pod(name)
            found = pod["metadata"]["annotations"]
            held = await cluster.held(pod)
            assert len(held) == expected.gpus
            for lease, mib in held.items():
                gpu, part = cluster.gpu(lease), expected.of_each
                assert mib == (part * gpu.memory if isinstance(part, Fraction) else part)
                assert expected.model in ("", gpu.model)
            assert found["carrel.dev/user"] == expected.user
            assert found["carrel.dev/tier"] == expected.tier
            for key, pattern in expected.annotations.items():
                assert re.fullmatch(pattern, found[key]), f"{key}: {found[key]}"


async def test_a_booked_pod_carries_the_end_of_the_booking() -> None:
    async with an_example_cluster() as cluster:
        (pod,) = await cluster.apply("booked.yaml", BOB)

        assert pod["metadata"]["annotations"]["terminate-at"] == f"{cluster.until:%Y-%m-%dT%H:%M:%SZ}"
        assert pod["spec"]["priorityClassName"] == "carrel-gpu"


async def test_a_pod_for_a_booking_that_starts_later_is_held_back_until_then() -> None:
    async with an_example_cluster() as cluster:
        (pod,) = await cluster.apply("for-a-booking.yaml", ALICE)

        notes = pod["metadata"]["annotations"]
        assert notes["carrel.dev/booking"] == "booking-alice"
        assert notes["carrel.dev/waits-until"] == f"{cluster.until:%Y-%m-%dT%H:%M:%SZ}"
        assert pod["spec"]["schedulingGates"] == [{"name": "carrel.dev/booking"}]
        assert await cluster.schedule() == {}, "no scheduler tries it"
        assert not await cluster.held(pod)
        with pytest.raises(ClusterError, match="has no booking that starts later"):
            await cluster.apply("for-a-booking.yaml", BOB)


@pytest.mark.parametrize("file", [file for file, outcome in EXPECTED.items() if isinstance(outcome, Refused)])
async def test_a_mistake_is_refused_with_the_reason(file: str) -> None:
    expected = EXPECTED[file]
    assert isinstance(expected, Refused)
    async with an_example_cluster() as cluster:
        with pytest.raises(ClusterError, match=expected.words):
            await cluster.apply(file)


@pytest.mark.parametrize("file", [file for file, outcome in EXPECTED.items() if isinstance(outcome, Waits)])
async def test_a_pod_that_fits_nowhere_waits_with_the_reason(file: str) -> None:
    expected = EXPECTED[file]
    assert isinstance(expected, Waits)
    async with an_example_cluster() as cluster:
        (pod,) = await cluster.apply(file)
        await cluster.schedule()

        assert pod["metadata"]["name"] == file.removesuffix(".yaml")
        why = cluster.replica.waiting_reason.why(await cluster.replica.sees(pod))
        assert why is not None
        assert expected.words in why.reason


async def test_a_jobs_pod_gives_its_gpu_to_a_booked_pod_and_the_next_one_runs_without() -> None:
    async with an_example_cluster() as cluster:
        await cluster.apply("opportunistic-job.yaml")
        pods = [await cluster.pod_of_job("opportunistic-job") for _ in range(15)]  # all healthy GPUs
        assert await cluster.schedule() == {}
        await cluster.apply("booked.yaml", BOB)
        assert "booked" in await cluster.schedule()

        await cluster.control()
        successor = await cluster.pod_of_job("opportunistic-job")
        await cluster.control()
        assert await cluster.schedule() == {}

        left = [await cluster.held(pod) for pod in pods]
        assert left.count({}) == 1, "one pod has lost its GPU"
        assert len(await cluster.held(await cluster.pod("booked"))) == 1
        (container,) = successor["spec"]["containers"]
        assert "nvidia.com/gpu" not in container["resources"].get("limits", {})
        assert "carrel.dev/handed-over" in successor["metadata"]["annotations"]


async def test_the_pods_of_a_job_are_bound_together_when_all_are_there() -> None:
    async with an_example_cluster() as cluster:
        await cluster.apply("gpuclaim-gang-job.yaml")
        pods = [await cluster.pod_of_job("gpuclaim-gang-job") for _ in range(2)]
        await cluster.schedule()
        await cluster.replica.gang_sizes.wait_looked_up()
        waiting = await cluster.schedule()
        assert all("waits for 1 more member: 2 of 3 are here" in why for why in waiting.values())
        assert len(waiting) == 2

        pods.append(await cluster.pod_of_job("gpuclaim-gang-job"))
        assert await cluster.schedule() == {}
        assert [len(await cluster.held(pod)) for pod in pods] == [1, 1, 1]


async def test_a_pod_of_kais_scheduler_without_a_gpu_is_not_changed_and_its_scheduler_is_served() -> None:
    async with an_example_cluster() as cluster:
        (pod,) = await cluster.apply("kai-cpu-only.yaml")

    assert pod["spec"]["schedulerName"] == "kai-scheduler"
    assert not any(key.startswith("carrel.dev/") for key in pod["metadata"].get("annotations", {}))
    served = scheduler_config(Extender("http://127.0.0.1:39999"))["profiles"]
    assert {"schedulerName": "kai-scheduler"} in served


async def test_a_kube_scheduler_that_is_configured_for_gpushare_is_served() -> None:
    (config,) = documents("gpushare-scheduler-config.yaml")
    (extender,) = config["extenders"]
    assert [each["name"] for each in extender["managedResources"]] == ["aliyun.com/gpu-mem"]
    async with an_example_cluster() as cluster, aiohttp.ClientSession() as session:
        (pod,) = await cluster.apply("gpushare-memory.yaml")
        await cluster.replica.sees(pod)
        url = cluster.extender + urlsplit(extender["urlPrefix"]).path
        nodes = [node.metadata.name for node in cluster.replica.nodes.store]

        async def asked(verb: str, body: dict[str, object]) -> dict[str, Any]:
            async with session.post(f"{url}/{extender[verb]}", json=body) as answer:
                found: dict[str, Any] = await answer.json()
                return found

        fitting = (await asked("filterVerb", {"Pod": pod, "NodeNames": nodes}))["NodeNames"]
        target = {"PodName": pod["metadata"]["name"], "PodNamespace": "lab", "PodUID": pod["metadata"]["uid"]}
        assert (await asked("bindVerb", {**target, "Node": fitting[0]}))["Error"] == ""
        assert len(await cluster.held(pod)) == 1


def test_kais_old_names_get_the_rights_that_the_new_ones_have() -> None:
    """`tests/e2e` runs it."""
    new, old = "kai-resource-reservation", "runai-reservation"
    shipped = [each for each in rbac() if new in (each["metadata"]["name"], each["metadata"].get("namespace"))]

    assert documents("kai-old-names.yaml") == json.loads(json.dumps(shipped).replace(new, old))
    assert len(shipped) == 4


async def test_the_agent_reports_the_simulated_gpus_of_a_node() -> None:
    text = (EXAMPLES / "node-gpus.yaml").read_text()
    assert len(read_gpus(text, "node-gpus.yaml", N1)) == 3
    async with a_lab([]) as lab, an_agent(lab, gpus=documents("node-gpus.yaml")[0]["gpus"]) as running:

        async def reported() -> list[tuple[str, str]]:
            return [(each["model"], each["health"]) for each in await running.devices()]

        healthy, broken = ("Tesla-V100", "Healthy"), ("Tesla-T4", "Unhealthy")
        await becomes(reported, [healthy, healthy, broken])


async def test_the_booking_service_lists_the_gpus_of_the_cluster_file(tmp_path: Path) -> None:
    options = ("--inventory", str(EXAMPLES / "cluster.yaml"), "--database", f"sqlite:///{tmp_path}/bookings.db")
    async with carrel_process("booking", "--port", "0", "--dev", *options) as process, asyncio.timeout(120):
        url = (await process.wait_line(r"listening url=(\S+)"))[1]
        async with aiohttp.ClientSession() as session, session.get(f"{url}/maia-api/gpu-stats/") as answer:
            models = (await answer.json())["gpu"]

    assert set(models) == {"NVIDIA-A100-SXM4-80GB", "NVIDIA-RTX-A6000", "Tesla-T4"}
