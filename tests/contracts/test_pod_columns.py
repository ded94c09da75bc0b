"""A pod in one line, as `kubectl get pods` prints it: the server makes the columns, so both servers must agree."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Json, MergePatch
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.transport import ApiRequest
from tests.contracts.backends import Backend
from tests.contracts.objects import pod

POD_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
MAIN: Json = {"name": "main", "image": "busybox"}
SETUP: Json = {"name": "setup", "image": "busybox"}
SIDECAR: Json = {"name": "sidecar", "image": "busybox", "restartPolicy": "Always"}
RUNNING: Json = {"running": {"startedAt": "2026-11-16T10:00:00Z"}}


def ended(code: int, reason: str = "", **more: Any) -> Json:
    return {"terminated": {"exitCode": code, **({"reason": reason} if reason else {}), **more}}


def waits(reason: str) -> Json:
    return {"waiting": {"reason": reason}}


def of(name: str, state: Json, *, ready: bool = False, restarts: int = 0, **more: Any) -> Json:
    told = {"name": name, "state": state, "ready": ready, "restartCount": restarts, "image": "busybox", "imageID": ""}
    return {**told, **more}


def phase(name: str, *containers: Json, init: tuple[Json, ...] = (), true: tuple[str, ...] = (), **more: Any) -> Json:
    conditions = [{"type": one, "status": "True"} for one in true]
    statuses = {"containerStatuses": list(containers), "initContainerStatuses": list(init)}
    return {"phase": name, "conditions": conditions, **statuses, **more}


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        pytest.param({}, {}, ["0/1", "Pending", "0"], id="new"),
        pytest.param(
            {"schedulingGates": [{"name": "library.example/wait"}]}, {}, ["0/1", "SchedulingGated", "0"], id="gated"
        ),
        pytest.param(
            {},
            phase("Running", of("main", RUNNING, ready=True), true=("Ready",)),
            ["1/1", "Running", "0"],
            id="running and ready",
        ),
        pytest.param({}, phase("Running", of("main", RUNNING)), ["0/1", "Running", "0"], id="running, not ready"),
        pytest.param(
            {},
            phase("Succeeded", of("main", ended(0, "Completed"))),
            ["0/1", "Completed", "0"],
            id="completed",
        ),
        pytest.param({}, phase("Failed", of("main", ended(1, "Error"))), ["0/1", "Error", "0"], id="failed"),
        pytest.param({}, phase("Failed", of("main", ended(3))), ["0/1", "ExitCode:3", "0"], id="failed without a word"),
        pytest.param(
            {}, phase("Failed", of("main", ended(137, signal=9))), ["0/1", "Signal:9", "0"], id="killed by a signal"
        ),
        pytest.param(
            {}, phase("Failed", reason="Evicted", message="the node was full"), ["0/1", "Evicted", "0"], id="evicted"
        ),
        pytest.param(
            {},
            phase("Pending", of("main", waits("ImagePullBackOff"))),
            ["0/1", "ImagePullBackOff", "0"],
            id="no image",
        ),
        pytest.param(
            {},
            phase("Running", of("main", waits("CrashLoopBackOff"), restarts=7)),
            ["0/1", "CrashLoopBackOff", "7"],
            id="crashes again and again",
        ),
        pytest.param(
            {"initContainers": [SETUP]},
            phase("Pending", of("main", waits("PodInitializing")), init=(of("setup", RUNNING),)),
            ["0/1", "Init:0/1", "0"],
            id="the init container runs",
        ),
        pytest.param(
            {"initContainers": [SETUP]},
            phase(
                "Pending",
                of("main", waits("PodInitializing")),
                init=(of("setup", waits("CrashLoopBackOff"), restarts=2),),
            ),
            ["0/1", "Init:CrashLoopBackOff", "2"],
            id="the init container crashes",
        ),
        pytest.param(
            {"initContainers": [SETUP]},
            phase("Pending", of("main", waits("PodInitializing")), init=(of("setup", ended(1)),)),
            ["0/1", "Init:ExitCode:1", "0"],
            id="the init container failed",
        ),
        pytest.param(
            {"initContainers": [SETUP]},
            phase(
                "Running",
                of("main", RUNNING, ready=True),
                init=(of("setup", ended(0, "Completed"), restarts=2),),
                true=("Initialized", "Ready"),
            ),
            ["1/1", "Running", "0"],
            id="restarts of an init container that is done do not count",
        ),
        pytest.param(
            {"initContainers": [SIDECAR]},
            phase(
                "Running",
                of("main", RUNNING, ready=True),
                init=(of("sidecar", RUNNING, ready=True, started=True, restarts=1),),
                true=("Initialized", "Ready"),
            ),
            ["2/2", "Running", "1"],
            id="a sidecar counts as a container",
        ),
        pytest.param(
            {"initContainers": [SIDECAR, SETUP]},
            phase(
                "Pending",
                of("main", waits("PodInitializing")),
                init=(of("sidecar", RUNNING, ready=True, started=True), of("setup", RUNNING)),
            ),
            ["1/2", "Init:1/2", "0"],
            id="a sidecar is up, the next init container runs",
        ),
        pytest.param(
            {"containers": [MAIN, {"name": "helper", "image": "busybox"}]},
            phase(
                "Running", of("main", ended(0, "Completed")), of("helper", RUNNING, ready=True), true=("Initialized",)
            ),
            ["1/2", "NotReady", "0"],
            id="one is done, the other runs, the pod is not ready",
        ),
        pytest.param(
            {"containers": [MAIN, {"name": "helper", "image": "busybox"}]},
            phase("Running", of("main", ended(0, "Completed")), of("helper", RUNNING, ready=True), true=("Ready",)),
            ["1/2", "Running", "0"],
            id="one is done, the other runs, the pod is ready",
        ),
    ],
)
async def test_ready_status_and_restarts(
    backend: Backend, cluster: Client, namespace: str, spec: Json, status: Json, expected: list[str]
) -> None:
    await cluster.create(PODS, pod("train", spec=spec), namespace)
    if status:
        await cluster.patch(PODS, "train", MergePatch({"status": status}), namespace, subresource="status")
    row = await _row(backend, namespace)
    assert [row[column] for column in ("Ready", "Status", "Restarts")] == expected


async def test_a_restart_says_how_long_ago_it_was(backend: Backend, cluster: Client, namespace: str) -> None:
    await cluster.create(PODS, pod("train"), namespace)
    long_ago = (datetime.now(UTC) - timedelta(minutes=15)).strftime("%Y-%m-%dT%H:%M:%SZ")
    last = ended(1, "Error", finishedAt=long_ago, startedAt=long_ago)
    status = phase("Running", of("main", RUNNING, ready=True, restarts=3, lastState=last), true=("Ready",))
    await cluster.patch(PODS, "train", MergePatch({"status": status}), namespace, subresource="status")
    assert re.fullmatch(r"3 \(1[5-9]m ago\)", (await _row(backend, namespace))["Restarts"])


async def test_a_pod_that_goes_is_terminating_until_it_is_gone(
    backend: Backend, cluster: Client, namespace: str
) -> None:
    await cluster.create(PODS, pod("train", spec={"nodeName": "n1"}), namespace)
    await cluster.delete(PODS, "train", namespace)
    assert (await _row(backend, namespace))["Status"] == "Terminating"


async def test_the_wide_columns(backend: Backend, cluster: Client, namespace: str) -> None:
    spec = {"nodeName": "n1", "readinessGates": [{"conditionType": "library.example/open"}]}
    await cluster.create(PODS, pod("train", spec=spec), namespace)
    assert [(await _row(backend, namespace))[column] for column in WIDE] == ["<none>", "n1", "<none>", "0/1"]
    status = phase("Running", true=("library.example/open",), podIP="10.0.0.7", podIPs=[{"ip": "10.0.0.7"}])
    await cluster.patch(PODS, "train", MergePatch({"status": status}), namespace, subresource="status")
    assert [(await _row(backend, namespace))[column] for column in WIDE] == ["10.0.0.7", "n1", "<none>", "1/1"]


WIDE = ("IP", "Node", "Nominated Node", "Readiness Gates")


async def _row(backend: Backend, namespace: str) -> Json:
    answer = await backend.wire.send(ApiRequest("GET", PODS.path(namespace), {}, {"accept": POD_TABLE}))
    table = json.loads(answer.body)
    [row] = table["rows"]
    return {column["name"]: cell for column, cell in zip(table["columnDefinitions"], row["cells"], strict=True)}
