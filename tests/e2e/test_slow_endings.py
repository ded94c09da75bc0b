"""Pods that end slowly or not at all. A notebook is told before, and its successor keeps what it owned. Neither a long
grace period nor a finalizer keeps a GPU; a container that still runs after its pod was deleted by force does.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from testbed.processes import Failed
from tests.e2e.carrel_node import WHOLE, a_pod
from tests.e2e.pods import Json, eventually, namespace, wait_for_phase
from tests.e2e.tiers_lab import EVE, LIMIT_S, Lab, now, take_its_gpu, tiers_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with tiers_lab("slow-endings", tmp_path_factory.mktemp("bookings")) as found:
        yield found


# --- notebooks --------------------------------------------------------------------------------------------------------

READS_NOTICE = "cd /etc/carrel; while true; do cat notice; echo; sleep 1; done"
"""As the first process of its container it does not hear SIGTERM, and so uses its whole grace."""


def start_notebook(lab: Lab, ours: str, told_before: str, grace_s: int) -> Json:
    """A pod as a hub makes it, with a Service and a Secret of its own. It prints its notice all the time.

    `told_before`: between the announcement that it loses its GPU and SIGTERM; `grace_s`: from then on.
    """
    # The pods of the test before may still be ending: it must wait for its GPU.
    notes = {"carrel.dev/revocation-grace": told_before, "carrel.dev/when-full": "wait"}
    lab.api.call("PATCH", f"/api/v1/namespaces/{ours}", {"metadata": {"annotations": notes}})
    manifest = a_pod("notebook", {WHOLE: "1"}, terminationGracePeriodSeconds=grace_s)
    manifest["metadata"]["labels"] = {"hub.jupyter.org/username": "eve"}
    manifest["spec"]["containers"][0]["command"] = ["sh", "-c", READS_NOTICE]
    lab.make(EVE, ours, manifest)
    placed = wait_for_phase(lab.api, ours, "notebook", "Running")
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "notebook", "uid": placed["metadata"]["uid"]}
    owned = {"metadata": {"name": "notebook", "ownerReferences": [{**reference, "blockOwnerDeletion": True}]}}
    ports = {"selector": {"hub.jupyter.org/username": "eve"}, "ports": [{"port": 8888}]}
    lab.api.call("POST", f"/api/v1/namespaces/{ours}/services", {**owned, "spec": ports})
    lab.api.call("POST", f"/api/v1/namespaces/{ours}/secrets", owned)
    return placed


def printed(lab: Lab, ours: str) -> str:
    try:
        return lab.api.kubectl("--namespace", ours, "logs", "notebook", "--tail", "3")
    except Failed:
        return ""  # its container is not there yet


def owned_in(lab: Lab, ours: str, kind: str) -> dict[str, list[str]]:
    """Name → the uids of the owners."""
    found = lab.api.call("GET", f"/api/v1/namespaces/{ours}/{kind}")["items"]
    return {
        each["metadata"]["name"]: [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]
        for each in found
    }


def test_a_notebook_reads_its_notice_and_keeps_what_it_owns(lab: Lab) -> None:
    with namespace(lab.api) as ours:
        first = start_notebook(lab, ours, told_before="20s", grace_s=1)
        take_its_gpu(lab, ours)

        eventually(lambda: "save your work now" in printed(lab, ours), LIMIT_S)
        after = lab.successor(ours, of=first)

        eventually(lambda: "this pod lost its GPU at" in printed(lab, ours), LIMIT_S)
        eventually(lambda: owned_in(lab, ours, "services") == {"notebook": [after["metadata"]["uid"]]}, LIMIT_S)
        assert owned_in(lab, ours, "secrets") == {"notebook": []}, "it is left to the hub"
        eventually(lambda: lab.pod(ours, "booked")["status"]["phase"] == "Running", LIMIT_S)
        eventually(lambda: "handover-" not in str(owned_in(lab, "carrel", "configmaps")), LIMIT_S)
        eventually(lambda: "handover-" not in str(owned_in(lab, "carrel", "secrets")), LIMIT_S)


def test_a_notebook_that_is_stopped_while_it_is_ending_does_not_come_back(lab: Lab) -> None:
    with namespace(lab.api) as ours:
        start_notebook(lab, ours, told_before="1s", grace_s=15)
        take_its_gpu(lab, ours)
        eventually(lambda: "deletionTimestamp" in lab.pod(ours, "notebook")["metadata"], LIMIT_S)
        path = f"/api/v1/namespaces/{ours}/pods/notebook"
        status, answer = lab.people[EVE].call("DELETE", path, {"gracePeriodSeconds": 1})
        assert status == 200, answer

        eventually(lambda: lab.pod(ours, "booked")["status"]["phase"] == "Running", LIMIT_S)
        eventually(lambda: "handover-" not in str(owned_in(lab, "carrel", "configmaps")), LIMIT_S)
        assert "notebook" not in lab.carrel.pods(ours)
        eventually(lambda: owned_in(lab, ours, "services") == {}, LIMIT_S)


# --- pods that do not end ---------------------------------------------------------------------------------------------

A_YEAR_S = 365 * 24 * 3600
IGNORES_SIGTERM = "trap '' TERM; echo told; while true; do sleep 1; done"


def a_pod_that_does_not_end(name: str) -> Json:
    manifest = a_pod(name, {WHOLE: "1"}, terminationGracePeriodSeconds=A_YEAR_S)
    manifest["spec"]["containers"][0]["command"] = ["sh", "-c", IGNORES_SIGTERM]
    return manifest


def ignoring_sigterm(lab: Lab, ours: str, name: str) -> Json:
    """The running pod. Its container runs for a moment before it ignores the signal."""
    running = wait_for_phase(lab.api, ours, name, "Running")
    lab.carrel.told(ours, name)
    return running


def test_neither_a_years_grace_nor_a_finalizer_keeps_a_gpu(lab: Lab) -> None:
    with namespace(lab.api) as ours:
        manifest = a_pod_that_does_not_end("sleepy")
        manifest["metadata"]["finalizers"] = ["lab.example/never"]
        lab.make(EVE, ours, manifest)
        sleepy = ignoring_sigterm(lab, ours, "sleepy")
        uid, path = sleepy["metadata"]["uid"], f"/api/v1/namespaces/{ours}/pods/sleepy"
        assert sleepy["spec"]["terminationGracePeriodSeconds"] == 300
        assert any(uid in shares for shares in lab.carrel.held().values())
        try:
            status, answer = lab.people[EVE].call("DELETE", path, {"gracePeriodSeconds": A_YEAR_S})
            assert status == 403, answer
            assert "is not given longer to end than its manifest says (300 seconds)" in answer["message"]

            lab.api.call("DELETE", path, {"gracePeriodSeconds": 2})
            eventually(lambda: not any(uid in shares for shares in lab.carrel.held().values()), LIMIT_S)
            left = lab.pod(ours, "sleepy")["metadata"]
            assert left["finalizers"] == ["lab.example/never"], "the finalizer keeps the object, and no GPU"
        finally:
            lab.api.call("PATCH", path, {"metadata": {"finalizers": None}})


def test_a_pod_deleted_by_force_holds_its_gpu_until_its_node_or_an_admin_says_otherwise(lab: Lab) -> None:
    carrel, node = lab.carrel, lab.carrel.node.name
    reports = f"/apis/gpu.scheduling/v1/gpunodestatuses/{node}"
    with namespace(lab.api) as ours:
        lab.make(EVE, ours, a_pod_that_does_not_end("ghost"))
        ghost = ignoring_sigterm(lab, ours, "ghost")
        uid = ghost["metadata"]["uid"]
        (gpu,) = [name for name, shares in carrel.held().items() if uid in shares]
        lab.api.kubectl("--namespace", ours, "delete", "pod", "ghost", "--grace-period=0", "--force")
        assert "ghost" not in carrel.pods(ours)

        eventually(lambda: uid in carrel.status().get("orphans", []))
        assert uid in carrel.held()[gpu], "its container still runs"
        refused = lab.command("release", node, "--yes")
        assert refused.returncode == 3, refused.stderr

        # Two minutes of silence are not waited for.
        carrel.kill_agent()
        long_ago = (now() - timedelta(minutes=10)).isoformat().replace("+00:00", "Z")
        lab.api.call("PATCH", f"{reports}/status", {"status": {"heartbeat": long_ago}})
        index = gpu.rpartition("-")[2]
        aside = f"GPU {index} is set aside: node {node} has not reported since {long_ago}"
        assert f"{aside}; the pod {ours}/ghost may still run there" in lab.command("inspect", node, "-d").stdout

        released = lab.command("release", f"{node}/{index}", "--yes")
        assert released.returncode == 0, released.stderr
        assert uid not in carrel.held().get(gpu, {})
        told = lab.api.call("GET", "/api/v1/namespaces/default/events")["items"]
        assert [each["message"] for each in told if each["reason"] == "GPUReleased"]

        end_processes(uid)
        carrel.agent = carrel.start_agent()
        eventually(lambda: carrel.status().get("orphans") == [] and carrel.status()["heartbeat"] != long_ago)


def end_processes(uid: str) -> None:
    """Of a pod that the API server does not know any more, and that has a year left."""
    for path in Path("/sys/fs/cgroup").glob(f"**/pod{uid}/**/cgroup.procs"):
        with contextlib.suppress(OSError):
            for number in path.read_text().split():
                os.kill(int(number), signal.SIGKILL)
