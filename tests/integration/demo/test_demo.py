"""`carrel demo` while it runs. One demo is for all tests; the last one ends it."""

import asyncio
import json
import signal
import time
import urllib.request
from collections.abc import Iterator

import pytest

from carrel.dialects import mig
from carrel.dialects.registry import DIALECTS
from tests.integration.demo.demo_process import KUBECTL, DemoProcess, a_demo, eventually
from tests.kit.carrel_command import carrel
from tests.kit.eventually import LIMIT_S

PLACED = {
    "gpushare-two-containers-",
    "gpuclaim-island-",
    "kai-memory-",
    *(dialect.example.replace(".yaml", "-") for dialect in DIALECTS if dialect is not mig.DIALECT),
}
"""The examples whose pods run."""


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoProcess]:
    with a_demo() as running:
        yield running


def test_pods_of_every_dialect_are_placed_with_the_tier_of_their_owner(demo: DemoProcess) -> None:
    lines = demo.lines_until(r"waits-too-large-\w+ waits")
    assert "book at http" in demo.lines_until(KUBECTL.pattern)[-1]
    assert not [line for line in lines if not line.startswith(("Carrel demo", "  "))]
    assert not [line for line in lines if line.endswith("free; free\n") or ("XID" in line and "free" in line)]
    tiers: dict[str, set[str]] = {}
    seen: set[str] = set()
    deadline = time.monotonic() + LIMIT_S
    while not (seen >= PLACED and "booked" in tiers["lab"]) and time.monotonic() < deadline:
        pods = demo.objects("api/v1/pods")
        for pod in pods:
            tier = pod["metadata"].get("annotations", {}).get("carrel.dev/tier", "")
            tiers.setdefault(pod["metadata"]["namespace"], set()).add(tier)
        seen |= {pod["metadata"].get("generateName", "") for pod in pods if pod["spec"].get("nodeName")}
        time.sleep(0.2)

    assert seen >= PLACED
    assert "booked" in tiers["lab"]
    assert "opportunistic" in tiers["vision"]


def test_a_gpu_is_taken_back_from_who_holds_many_and_not_from_a_newcomer(demo: DemoProcess) -> None:
    """cleo has booked one GPU. All GPUs of that model are held without a booking: one by nia, the others by hal."""
    taken = r"hal/train-\d continues without a GPU: .*: hal@lab.example \d\.0 GPUs, nia@lab.example 1\.0 GPUs"

    lines = demo.lines_until(taken)

    assert sum("continues without a GPU" in line for line in lines) == 1


def test_a_booking_covers_one_of_two_pods_and_the_other_runs_on_what_is_free(demo: DemoProcess) -> None:
    demo.lines_until(
        r"cleo@lab.example booked 1 NVIDIA-RTX-A6000: 1 of 1 held: cleo/train; "
        r"beyond it, on what is free: cleo/sweep$"
    )


def test_kubectl_shows_a_pod_that_runs_as_ready(demo: DemoProcess) -> None:
    as_table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    question = urllib.request.Request(f"{demo.api()}/api/v1/pods", headers=as_table)

    def ready() -> list[str]:
        with urllib.request.urlopen(question) as answer:
            table = json.load(answer)
        columns = [column["name"] for column in table["columnDefinitions"]]
        rows = [dict(zip(columns, row["cells"], strict=True)) for row in table["rows"]]
        return [row["Ready"] for row in rows if row["Status"] == "Running"]

    assert set(eventually(ready, "a pod runs")) <= {"1/1", "2/2"}


def test_its_booking_service_shows_who_has_booked_what(demo: DemoProcess) -> None:
    free = json.loads(demo.pages_of("zoe")("/maia-api/gpu-stats/"))["gpu"]

    assert set(free) == {"NVIDIA-A100-SXM4-80GB", "NVIDIA-RTX-A6000", "Tesla-T4"}


def test_why_explain_and_inspect_work_against_it(demo: DemoProcess) -> None:
    # A pod of our own: the demo deletes its pods after a while.
    container = {"name": "main", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "16"}}}
    stays = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays"}, "spec": {"containers": [container]}}
    headers = {"content-type": "application/json"}
    where = f"{demo.api()}/api/v1/namespaces/speech/pods"
    with urllib.request.urlopen(urllib.request.Request(where, json.dumps(stays).encode(), headers)) as answer:
        assert answer.status == 201
    demo.lines_until("speech/stays waits: No node has 16 GPUs")

    def run(*words: str) -> str:
        done = asyncio.run(carrel(*words, "--server", demo.api()))
        assert done.code == 0, done.err
        return done.out

    assert "No node has 16 GPUs" in run("why", "pod/stays", "-n", "speech")
    assert "No node has 16 GPUs" in run("explain", "pod/stays", "-n", "speech")
    assert "Allocated/Total GPU Memory In Cluster:" in run("inspect")


def test_its_nodes_report_who_uses_which_gpu(demo: DemoProcess) -> None:
    def is_reported() -> bool:
        """That a pod uses the GPU that it was told."""
        reports = demo.objects("apis/gpu.scheduling/v1/gpunodestatuses")
        devices = [device for each in reports for device in each.get("status", {}).get("devices", ())]
        users = {device["uuid"]: device["inUseBy"] for device in devices}
        told = {
            pod["metadata"]["uid"]: pod["metadata"].get("annotations", {}).get("carrel.dev/devices", "").split(",")[0]
            for pod in demo.objects("api/v1/pods")
        }
        return any(uid in users.get(uuid, ()) for uid, uuid in told.items())

    assert eventually(is_reported, "the report")


def test_its_nodes_mark_a_gpushare_pod_that_has_its_share(demo: DemoProcess) -> None:
    def marks() -> set[str]:
        notes = (pod["metadata"].get("annotations", {}) for pod in demo.objects("api/v1/pods"))
        return {each["ALIYUN_COM_GPU_MEM_ASSIGNED"] for each in notes if "ALIYUN_COM_GPU_MEM_ASSIGNED" in each}

    eventually(lambda: "true" in marks(), "the mark")


def test_its_bookings_are_made_by_people(demo: DemoProcess) -> None:
    (booking,) = json.loads(demo.pages_of("cleo")("/api/v1/bookings?user=me"))["items"]

    assert (booking["created_by"], booking["reason"]) == ("cleo@lab.example", "")


def test_a_new_person_is_told_what_to_do_first(demo: DemoProcess) -> None:
    demo.lines_until(r"Sign in as you@lab\.example: your pods are in the namespace you\.")
    owners = {
        each["metadata"]["name"]: each["metadata"].get("annotations", {}) for each in demo.objects("api/v1/namespaces")
    }

    assert owners["you"]["owner"] == "you@lab.example"
    assert "What to do first" in demo.pages_of("you")("/")
    assert "What to do first" not in demo.pages_of("cleo")("/")


def test_it_says_at_once_that_it_starts(demo: DemoProcess) -> None:
    """Measured in CPU time, so that a busy machine is no reason to fail."""
    assert demo.lines_until("")[0].startswith("Carrel demo: starting.")
    assert demo.first_line_cpu_s < 2


def test_it_says_that_it_also_plays_the_way_beside_nvidias_plugin(demo: DemoProcess) -> None:
    demo.lines_until(r"Beside NVIDIA's plugin: carrel demo --mode coexist")


def test_it_exits_with_zero_after_ctrl_c(demo: DemoProcess) -> None:
    demo.process.send_signal(signal.SIGINT)

    assert demo.process.wait(LIMIT_S) == 0
