"""The manual of the GPU booking system, sentence by sentence, on a real API server and a real kubelet.

People create pods; the webhook, the real kube-scheduler with the extender, the controller and the agent do the rest.
Bookings are made in MAIA's JSON, and webhook and controller ask about them in it: Carrel's booking service answers, in
the place of MAIA's dashboard.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from carrel.kubernetes.objects.release import read_release
from carrel.parsing.time import instant
from tests.e2e.carrel_node import WHOLE, a_pod
from tests.e2e.configuration import wait_configured
from tests.e2e.maia import post
from tests.e2e.pods import Json, eventually, namespace, wait_for_phase
from tests.e2e.tiers_lab import ADA, CAROL, EVE, LIMIT_S, TERMINATOR_TOKEN, Lab, now, take_its_gpu, tiers_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with tiers_lab("tiers", tmp_path_factory.mktemp("bookings")) as found:
        yield found


@pytest.fixture(autouse=True)
def no_booking_is_used(lab: Lab) -> None:
    """Pods of the test before count for their bookings until their containers have ended."""

    def is_free() -> bool:
        leases = lab.api.call("GET", "/apis/coordination.k8s.io/v1/namespaces/carrel/leases")["items"]
        return all(each["metadata"].get("annotations", {}).get("carrel.dev/shares", "{}") == "{}" for each in leases)

    eventually(is_free, LIMIT_S)


def test_the_manual_sentence_by_sentence(lab: Lab) -> None:
    gpus = {device["uuid"] for device in lab.carrel.devices()}
    with namespace(lab.api) as ours:
        # If GPU GPUs are available, a Low Priority user will immediately be assigned one.
        low, its_gpu = lab.run(EVE, ours, "notebook")
        assert its_gpu in gpus

        # If the High Priority user can be assigned a different available GPU GPU, you will retain your GPU …
        first, other_gpu = lab.run(ADA, ours, "booked-1")
        assert {other_gpu, its_gpu} == gpus
        assert lab.pod(ours, "notebook")["metadata"]["uid"] == low["metadata"]["uid"]

        # … until all resources are exhausted and another High Priority request occurs: your temporarily assigned GPU
        # will be immediately revoked and reassigned to the High Priority user.
        lab.create(CAROL, ours, "booked-2")
        degraded = lab.successor(ours, of=low)
        eventually(lambda: lab.pod(ours, "booked-2")["status"]["phase"] == "Running", LIMIT_S)
        assert lab.sees(ours, "booked-2") == its_gpu

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
        assert lab.sees(ours, "beyond") == its_gpu
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
        eventually(lambda: lab.pod(ours, "other")["metadata"]["annotations"]["carrel.dev/tier"] == "booked", LIMIT_S)
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


def test_a_booked_notebook_waits_for_a_cordoned_node_and_others_go_on_on_cpu(lab: Lab) -> None:
    node, wait_s = lab.carrel.node.name, 5
    cordoned = f"node {node} is cordoned (kubectl uncordon {node})"

    def a_notebook(name: str) -> Json:
        made = a_pod(name, {WHOLE: "1"})
        made["metadata"]["labels"] = {"hub.jupyter.org/username": name}
        return made

    wait_configured(lab.api, {"tiers": {"waitBeforeCpu": f"{wait_s}s"}})
    with namespace(lab.api) as ours:
        lab.api.kubectl("cordon", node)
        try:
            lab.make(ADA, ours, a_notebook("mine"))
            lab.make(EVE, ours, a_notebook("hers"))
            mine, hers = lab.pod(ours, "mine"), lab.pod(ours, "hers")
            assert cordoned in hers["metadata"]["annotations"]["carrel.dev/runs-without-gpu"]
            eventually(lambda: cordoned in lab.events(ours, mine).get("WaitingForGPU", ""), LIMIT_S)
            created = instant(mine["metadata"]["creationTimestamp"], "pod", "creationTimestamp")
            eventually(lambda: now() > created + timedelta(seconds=3 * wait_s), LIMIT_S)
            assert cordoned in lab.command("why", "mine", "--namespace", ours).stdout
            details = lab.command("inspect", "-d").stdout
            assert f"{node} takes no new GPU pods: cordoned (kubectl uncordon {node})" in details
        finally:
            lab.api.kubectl("uncordon", node)

        placed = wait_for_phase(lab.api, ours, "mine", "Running")
        assert placed["metadata"]["uid"] == mine["metadata"]["uid"], "it was not put on CPU"
        assert lab.sees(ours, "mine")
        assert placed["metadata"]["annotations"]["carrel.dev/tier"] == "booked"
    wait_configured(lab.api)


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
        eventually(lambda: lab.pod(ours, "other")["metadata"]["annotations"]["carrel.dev/tier"] == "booked", LIMIT_S)
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
