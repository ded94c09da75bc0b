"""The manual of the GPU booking system, sentence by sentence, on a real API server and a real kubelet.

People create pods; the webhook, the real kube-scheduler with the extender, the controller and the agent do the rest.
Bookings are made in MAIA's JSON, and webhook and controller ask about them in it: Carrel's booking service answers, in
the place of MAIA's dashboard.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from carrel.kubernetes.objects.release import read_release
from carrel.parsing.time import instant
from testbed.processes import Failed
from tests.e2e import maia
from tests.e2e.carrel_node import WHOLE, CarrelNode, a_pod, carrel_node
from tests.e2e.maia import MaiaBookings, maia_bookings, post
from tests.e2e.pods import Json, eventually, namespace, wait_for_phase
from tests.e2e.webhook import ADMIN, UserClient, Webhook, sealed_with

CONTROLLER = "system:serviceaccount:carrel:carrel-controller"
ADA, CAROL, EVE = "ada@lab.example", "carol@lab.example", "eve@lab.example"
TERMINATOR_TOKEN = "of-maias-webhook"
LIMIT_S = 180
"""For broken components; a revocation takes seconds."""


class Lab:
    def __init__(self, carrel: CarrelNode, bookings: MaiaBookings) -> None:
        self.carrel, self.api, self.bookings = carrel, carrel.api, bookings
        self.restart_controller()
        self.people = {name: UserClient(carrel.api, name) for name in (ADA, CAROL, EVE, ADMIN)}

    def restart_controller(self, *options: str) -> None:
        """With the rights of its ServiceAccount, and no more. One that starts asks about all people at once."""
        self.carrel.controller.stop()
        groups = ["system:serviceaccounts", "system:serviceaccounts:carrel", "system:authenticated"]
        rights = self.api.kubeconfig_of(CONTROLLER, groups)
        service = ("--api-url", self.bookings.address, "--api-token", maia.TOKEN)
        terminator = ("--terminator-port", "0", "--terminator-token", TERMINATOR_TOKEN)
        self.carrel.controller = self.carrel.start_controller("--kubeconfig", rights, *service, *terminator, *options)

    def terminator(self) -> str:
        """Its URL."""
        begun = "terminator url="
        log = self.carrel.controller.log
        return eventually(lambda: log.read_text().rpartition(begun)[2] if begun in log.read_text() else "").split()[0]

    def create(self, who: str, ours: str, name: str) -> None:
        """A pod for one GPU, as a person writes it: with no word about tiers, schedulers or environment."""
        self.make(who, ours, a_pod(name, {WHOLE: "1"}))

    def make(self, who: str, ours: str, manifest: Json) -> None:
        manifest["spec"].pop("schedulerName", None)
        status, answer = self.people[who].call("POST", f"/api/v1/namespaces/{ours}/pods", manifest)
        assert status == 201, answer

    def run(self, who: str, ours: str, name: str) -> tuple[Json, str]:
        """The running pod, and the GPU that its container sees."""
        self.create(who, ours, name)
        placed = wait_for_phase(self.api, ours, name, "Running")
        return placed, self.sees(ours, name)

    def sees(self, ours: str, name: str, container: str = "main") -> str:
        return self.carrel.told(ours, name, container)["NVIDIA_VISIBLE_DEVICES"]

    def pod(self, ours: str, name: str) -> Json:
        return self.carrel.pods(ours)[name]

    def successor(self, ours: str, of: Json) -> Json:
        """The pod that runs under the name of the one that went."""

        def runs() -> Json | None:
            pod = self.carrel.pods(ours).get(of["metadata"]["name"])
            is_another = pod is not None and pod["metadata"]["uid"] != of["metadata"]["uid"]
            return pod if pod is not None and is_another and pod["status"]["phase"] == "Running" else None

        found = eventually(runs, LIMIT_S)
        assert found is not None
        return found

    def events(self, ours: str, pod: Json) -> dict[str, str]:
        """Reason → message."""
        told: dict[str, Any] = self.api.call("GET", f"/api/v1/namespaces/{ours}/events")
        uid = pod["metadata"]["uid"]
        return {each["reason"]: each["message"] for each in told["items"] if each["involvedObject"].get("uid") == uid}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of an admin."""
        whole = [sys.executable, "-m", "carrel", *arguments, "--kubeconfig", str(self.api.kubeconfig)]
        return subprocess.run(whole, capture_output=True, text=True, check=False)

    def set_end(self, ours: str, name: str, end: datetime) -> None:
        """As a time in Tokyo: whoever reads only `Z` never ends the pod."""
        in_tokyo = (end + timedelta(hours=9)).replace(tzinfo=None).isoformat() + "+09:00"
        notes = {"metadata": {"annotations": {"terminate-at": in_tokyo}}}
        status, answer = self.people[ADMIN].call("PATCH", f"/api/v1/namespaces/{ours}/pods/{name}", notes)
        assert status == 200, answer


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("bookings")
    with (
        sealed_with("a key that nobody knows"),
        maia_bookings(folder, "Tesla-V100", gpus=2) as bookings,
        carrel_node("tiers") as carrel,
    ):
        for name in (ADA, CAROL):
            bookings.book(name)
        Webhook(carrel.api, "--api-url", bookings.address, "--api-token", maia.TOKEN).install()
        yield Lab(carrel, bookings)


def test_the_manual_sentence_by_sentence(lab: Lab) -> None:
    cards = {device["uuid"] for device in lab.carrel.devices()}
    with namespace(lab.api) as ours:
        # If GPU GPUs are available, a Low Priority user will immediately be assigned one.
        low, its_card = lab.run(EVE, ours, "notebook")
        assert its_card in cards

        # If the High Priority user can be assigned a different available GPU GPU, you will retain your GPU …
        first, other_card = lab.run(ADA, ours, "booked-1")
        assert {other_card, its_card} == cards
        assert lab.pod(ours, "notebook")["metadata"]["uid"] == low["metadata"]["uid"]

        # … until all resources are exhausted and another High Priority request occurs: your temporarily assigned GPU
        # will be immediately revoked and reassigned to the High Priority user.
        lab.create(CAROL, ours, "booked-2")
        degraded = lab.successor(ours, of=low)
        eventually(lambda: lab.pod(ours, "booked-2")["status"]["phase"] == "Running", LIMIT_S)
        assert lab.sees(ours, "booked-2") == its_card

        # This allows the workload to be rescheduled on a standard CPU node (without GPU access).
        assert lab.carrel.told(ours, "notebook") == {"NVIDIA_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
        assert not degraded["spec"]["containers"][0]["resources"].get("limits")
        assert degraded["metadata"]["labels"] == low["metadata"]["labels"]
        told = ("handed-over", "notice", "user", "runs-without-gpu", "asked-for")
        assert degraded["metadata"]["annotations"].keys() == {f"carrel.dev/{key}" for key in told}
        eventually(lambda: "handed over to CPU" in lab.events(ours, degraded).get("HandedOverToCPU", ""))
        why = degraded["metadata"]["annotations"]["carrel.dev/runs-without-gpu"]
        eventually(lambda: lab.events(ours, degraded).get("RunsWithoutGPU") == why)
        assert "booked pod" in lab.events(ours, low)["GPURevoked"]

        # High Priority guarantees your continued access to the reserved GPU for the duration of your slot.
        assert lab.pod(ours, "booked-1")["metadata"]["uid"] == first["metadata"]["uid"]

        # A booking that runs on keeps its pod, whatever is written on the pod.
        second = lab.pod(ours, "booked-2")
        lab.set_end(ours, "booked-2", now())
        eventually(lambda: "+" not in lab.pod(ours, "booked-2")["metadata"]["annotations"]["terminate-at"])
        assert lab.pod(ours, "booked-2")["metadata"]["uid"] == second["metadata"]["uid"]

        # A booking is for one GPU: another pod of the same person is a low-priority one.
        lab.create(ADA, ours, "beyond")
        eventually(lambda: lab.pod(ours, "beyond")["metadata"]["annotations"]["carrel.dev/tier"] == "opportunistic")

        # If the current UTC time is past the terminate-at value, the Pod is deleted … and recreated without a GPU.
        # Her booking was shortened. MAIA is asked again every minute, and at once by a controller that starts.
        end = now() + timedelta(seconds=35)
        lab.bookings.end_at(CAROL, end)
        lab.restart_controller()
        after = lab.successor(ours, of=second)
        assert end <= instant(after["metadata"]["creationTimestamp"], "pod", "creationTimestamp"), "never early"
        assert lab.sees(ours, "booked-2") == ""
        assert "the booking of this pod ends at" in lab.events(ours, second)["BookingEnds"]

        # The GPU that is free now goes to whoever waits for one.
        eventually(lambda: lab.pod(ours, "beyond")["status"]["phase"] == "Running", LIMIT_S)
        assert lab.sees(ours, "beyond") == its_card
    lab.bookings.book(CAROL)


def test_a_controlled_pod_is_evicted_within_its_disruption_budget_and_the_next_has_no_gpu(lab: Lab) -> None:
    selector = {"matchLabels": {"app": "serve"}}
    spec = {**a_pod("serve", {WHOLE: "1"})["spec"], "restartPolicy": "Always"}
    template = {"metadata": {"labels": {"app": "serve"}}, "spec": spec}
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": selector}}

    def serving(ours: str) -> list[Json]:
        pods = [each for name, each in lab.carrel.pods(ours).items() if name.startswith("serve-")]
        return [each for each in pods if "deletionTimestamp" not in each["metadata"]]

    with namespace(lab.api) as ours:
        lab.api.call("PATCH", f"/api/v1/namespaces/{ours}", {"metadata": {"annotations": {"owner": EVE}}})
        replicas = {"metadata": {"name": "serve"}, "spec": {"selector": selector, "template": template}}
        lab.api.call("POST", f"/apis/apps/v1/namespaces/{ours}/replicasets", replicas)
        budgets = f"/apis/policy/v1/namespaces/{ours}/poddisruptionbudgets"
        lab.api.call("POST", budgets, budget)
        victim = eventually(lambda: [each for each in serving(ours) if each["status"]["phase"] == "Running"])[0]
        lab.run(CAROL, ours, "other")
        lab.create(ADA, ours, "booked")

        eventually(lambda: "disruption budget" in lab.events(ours, victim).get("RevocationHeldUp", ""), LIMIT_S)
        assert not lab.pod(ours, "booked")["spec"].get("nodeName")
        lab.api.call("DELETE", f"{budgets}/all")

        eventually(lambda: lab.pod(ours, "booked")["status"]["phase"] == "Running", LIMIT_S)
        (replaced,) = eventually(
            lambda: [each for each in serving(ours) if each["status"]["phase"] == "Running"], LIMIT_S
        )
        assert victim["metadata"]["uid"] in replaced["metadata"]["annotations"]["carrel.dev/handed-over"]
        assert not replaced["spec"]["containers"][0]["resources"].get("limits")
        records = "/api/v1/namespaces/carrel/configmaps?labelSelector=carrel.dev/handover"
        eventually(lambda: not lab.api.call("GET", records)["items"], LIMIT_S)


def test_maias_clients_end_pods_by_the_terminator(lab: Lab) -> None:
    url = lab.terminator()
    with namespace(lab.api) as ours:
        low, _ = lab.run(EVE, ours, "low")
        assert low["metadata"]["annotations"]["terminate-at"] == "1900-01-01T08:00:00Z"
        lab.run(ADA, ours, "booked")
        wanted = {"Pod_Name": "low", "Namespace": ours}
        for token in ("", "wrong", TERMINATOR_TOKEN[:-1]):
            for method, path in (
                ("POST", "delete-expired-pod"),
                ("POST", "random-delete"),
                ("GET", "get-expired-pods"),
            ):
                status, answer = post(f"{url}/{path}", wanted if method == "POST" else None, token, method)
                assert (status, answer["status"]) == (401, "error"), answer
        assert "deletionTimestamp" not in lab.pod(ours, "low")["metadata"]

        _, listed = post(f"{url}/get-expired-pods", token=TERMINATOR_TOKEN, method="GET")
        assert "low" in listed["expired_pods"] and "booked" not in listed["expired_pods"]
        status, answer = post(f"{url}/delete-expired-pod", {**wanted, "Pod_Name": "booked"}, TERMINATOR_TOKEN)
        assert status == 404 and "may stay" in answer["message"], answer

        ended = post(f"{url}/delete-expired-pod", wanted, TERMINATOR_TOKEN)
        assert ended == (200, {"status": "success", "deleted_pod": "low"})
        after = lab.successor(ours, of=low)
        assert low["metadata"]["uid"] in after["metadata"]["annotations"]["carrel.dev/handed-over"]
        assert lab.sees(ours, "low") == ""
        nothing = (200, {"status": "no expired pods found"})
        eventually(lambda: post(f"{url}/random-delete", token=TERMINATOR_TOKEN) == nothing)
        assert "deletionTimestamp" not in lab.pod(ours, "booked")["metadata"]


# --- what today's pods can say ---------------------------------------------------------------------------------------


def a_helper(name: str, then: str = "", **more: Any) -> Json:
    """An init container or, with `restartPolicy="Always"`, a sidecar; for one GPU."""
    main: Json = a_pod(name, {WHOLE: "1"})["spec"]["containers"][0]
    return {**main, "name": name, "command": ["sh", "-c", f"env | grep ^NVIDIA; echo told{then}"], **more}


def test_a_sidecar_has_its_own_gpu_and_debug_containers_see_no_other(lab: Lab) -> None:
    sidecar = a_helper("viewer", "; sleep 3600", restartPolicy="Always")
    manifest = a_pod("trains", {WHOLE: "1"}, initContainers=[a_helper("early"), sidecar, a_helper("late")])
    with namespace(lab.api) as ours:
        lab.make(ADA, ours, manifest)
        placed = wait_for_phase(lab.api, ours, "trains", "Running")
        seen = {name: lab.sees(ours, "trains", name) for name in ("early", "viewer", "late", "main")}

        assert {seen["viewer"], seen["main"]} == {device["uuid"] for device in lab.carrel.devices()}
        assert seen["late"] == seen["main"], "the sidecar runs already, with its own"
        assert placed["metadata"]["annotations"]["carrel.dev/devices"] == f"{seen['viewer']},{seen['main']}"
        uid = placed["metadata"]["uid"]
        eventually(lambda: [device["inUseBy"] for device in lab.carrel.devices()] == [[uid], [uid]])
        assert {device["health"] for device in lab.carrel.devices()} == {"Healthy"}

        everything = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        debug = {**a_helper("debug"), "targetContainerName": "viewer", "env": everything}
        del debug["resources"]
        joined = {"spec": {"ephemeralContainers": [debug, {**debug, "name": "free", "targetContainerName": None}]}}
        path = f"/api/v1/namespaces/{ours}/pods/trains/ephemeralcontainers"
        status, answer = lab.people[EVE].call("PATCH", path, joined)
        assert status == 200, answer
        assert lab.sees(ours, "trains", "debug") == seen["viewer"]
        assert lab.sees(ours, "trains", "free") == placed["metadata"]["annotations"]["carrel.dev/devices"]


def test_the_successor_keeps_the_resize_the_image_volume_and_the_pod_resources(lab: Lab) -> None:
    tools = {"name": "tools", "image": {"reference": "testbed/busybox:1", "pullPolicy": "Never"}}
    whole_pod = {"limits": {"cpu": "1", "memory": "256Mi"}, "requests": {"cpu": "500m", "memory": "256Mi"}}
    # Before 1.37, such a pod is not resized: there it has no resources as a whole.
    may_be_resized = read_release(lab.api.call("GET", "/version")) >= (1, 37)
    as_a_whole: Json = {"resources": whole_pod} if may_be_resized else {}
    manifest = a_pod("train", {WHOLE: "1", "cpu": "100m"}, volumes=[tools], **as_a_whole)
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "tools", "mountPath": "/tools"}]
    with namespace(lab.api) as ours:
        pods = f"/api/v1/namespaces/{ours}/pods"
        greedy = a_pod("greedy", resources={"limits": {WHOLE: "1"}})
        status, answer = lab.people[EVE].call("POST", pods, greedy)
        assert status == 422 and "spec.resources.limits" in answer["message"], "no GPU for a pod as a whole"

        lab.make(EVE, ours, manifest)
        placed = wait_for_phase(lab.api, ours, "train", "Running")
        resized: Json = {"metadata": {"annotations": {"carrel.dev/tier": "golden"}}, "spec": {}}
        for limits, expected in (({WHOLE: "2", "cpu": "100m"}, 422), ({WHOLE: "1", "cpu": "200m"}, 200)):
            main = {**placed["spec"]["containers"][0], "resources": {"limits": limits, "requests": limits}}
            resized["spec"]["containers"] = [main]
            status, answer = lab.people[EVE].call("PATCH", f"{pods}/train/resize", resized)
            assert status == expected, answer["message"]
        assert lab.pod(ours, "train")["metadata"]["annotations"]["carrel.dev/tier"] == "opportunistic"

        take_its_gpu(lab, ours)
        after = lab.successor(ours, of=placed)
        assert after["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "200m"}
        assert after["spec"].get("resources") == as_a_whole.get("resources")
        assert tools in after["spec"]["volumes"]


def test_a_job_that_replaces_only_failed_pods_continues_without_a_gpu(lab: Lab) -> None:
    sidecar = a_helper("viewer", "; sleep 3600", restartPolicy="Always")
    spec = a_pod("job", initContainers=[sidecar])["spec"]
    job = {
        "metadata": {"name": "job"},
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]},
            "template": {"spec": spec},
        },
    }

    def running(ours: str, but: str = "") -> Json | None:
        pods = [each for name, each in lab.carrel.pods(ours).items() if name.startswith("job-") and name != but]
        return next((each for each in pods if each["status"]["phase"] == "Running"), None)

    with namespace(lab.api) as ours:
        lab.api.call("PATCH", f"/api/v1/namespaces/{ours}", {"metadata": {"annotations": {"owner": EVE}}})
        lab.api.call("POST", f"/apis/batch/v1/namespaces/{ours}/jobs", job)
        first = eventually(lambda: running(ours), LIMIT_S)
        assert first is not None
        lab.run(CAROL, ours, "other")
        lab.create(ADA, ours, "booked")

        second = eventually(lambda: running(ours, but=first["metadata"]["name"]), LIMIT_S)
        assert second is not None
        assert first["metadata"]["uid"] in second["metadata"]["annotations"]["carrel.dev/handed-over"]
        assert not second["spec"]["initContainers"][0]["resources"].get("limits")
        eventually(lambda: lab.pod(ours, "booked")["status"]["phase"] == "Running", LIMIT_S)
        status = lab.api.call("GET", f"/apis/batch/v1/namespaces/{ours}/jobs/job")["status"]
        assert not status.get("failed") and status["active"] == 1
        records = "/api/v1/namespaces/carrel/configmaps?labelSelector=carrel.dev/handover"
        eventually(lambda: not lab.api.call("GET", records)["items"], LIMIT_S)


# --- notebooks -------------------------------------------------------------------------------------------------------


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


def take_its_gpu(lab: Lab, ours: str) -> None:
    lab.run(CAROL, ours, "other")
    lab.create(ADA, ours, "booked")


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


A_YEAR_S = 365 * 24 * 3600
IGNORES_SIGTERM = "trap '' TERM; while true; do sleep 1; done"


def a_pod_that_does_not_end(name: str) -> Json:
    manifest = a_pod(name, {WHOLE: "1"}, terminationGracePeriodSeconds=A_YEAR_S)
    manifest["spec"]["containers"][0]["command"] = ["sh", "-c", IGNORES_SIGTERM]
    return manifest


def test_neither_a_years_grace_nor_a_finalizer_keeps_a_gpu(lab: Lab) -> None:
    with namespace(lab.api) as ours:
        manifest = a_pod_that_does_not_end("sleepy")
        manifest["metadata"]["finalizers"] = ["lab.example/never"]
        lab.make(EVE, ours, manifest)
        sleepy = wait_for_phase(lab.api, ours, "sleepy", "Running")
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
        ghost = wait_for_phase(lab.api, ours, "ghost", "Running")
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
