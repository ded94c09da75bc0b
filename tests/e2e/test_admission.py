"""The webhook on a real API server: tiers, forged keys, generated pods, renewed certificates, and what a kill means."""

import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, SECRETS
from tests.e2e.carrel_cluster import CarrelCluster, a_node, carrel_cluster
from tests.e2e.configuration import ADMIN
from tests.e2e.pods import create, eventually, namespace, pod
from tests.e2e.webhook import PATH_SECRET, BookingService, UserClient, Webhook, a_booking_service, sealed_with
from tests.kit.any_pod import any_pod
from tests.kit.forged import PROTECTED, PROTECTED_LABELS

GPU = {"nvidia.com/gpu": "1"}
ALICE, EVE = "alice@lab.example", "eve@lab.example"
MODEL = "NVIDIA-RTX-A6000"
GENERATED = 10_000 if os.environ.get("CARREL_SWEEP") else 400
ROTATIONS, PER_ROTATION, PER_SECOND = 11, 10, 20
HANDOVER = "carrel.dev/handover"
NAMES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
Json = dict[str, Any]


class AdmissionCluster:
    def __init__(self, cluster: CarrelCluster, webhook: Webhook, service: BookingService) -> None:
        self.cluster, self.webhook, self.service = cluster, webhook, service
        self.api = cluster.api
        self.alice, self.eve, self.admin = (UserClient(cluster.api, name) for name in (ALICE, EVE, ADMIN))


@pytest.fixture(scope="module")
def admission() -> Iterator[AdmissionCluster]:
    with (
        sealed_with("a key that nobody knows"),
        a_booking_service() as service,
        carrel_cluster("admission", [a_node("n1", [49140])]) as cluster,
    ):
        service.model = MODEL
        service.until[ALICE] = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")
        webhook = Webhook(cluster.api, "--api-url", service.url, "--client-ca", cluster.api.authority.certificate)
        webhook.install()
        cluster.controller.stop()  # the one that mirrors what that service says
        cluster.controller = cluster.start_controller("--kubeconfig", cluster.api.kubeconfig, "--api-url", service.url)
        yield AdmissionCluster(cluster, webhook, service)


def made(who: UserClient, namespace: str, manifest: Json, query: str = "") -> Json:
    status, answer = who.call("POST", f"/api/v1/namespaces/{namespace}/pods{query}", manifest)
    assert status == 201, answer
    return answer


def test_the_api_server_accepts_the_tier_the_priority_and_the_environment(admission: AdmissionCluster) -> None:
    with namespace(admission.api) as ours:
        booked = made(admission.alice, ours, pod("booked", limits=GPU), "?dryRun=All")
        other = made(admission.eve, ours, pod("other", limits=GPU), "?dryRun=All")
        cpu = made(admission.eve, ours, pod("cpu"), "?dryRun=All")
        borrowed = pod("borrowed")
        borrowed["spec"]["priorityClassName"] = "carrel-gpu"
        borrowed = made(admission.eve, ours, borrowed, "?dryRun=All")

    assert booked["metadata"]["annotations"]["carrel.dev/tier"] == "booked"
    assert "carrel.dev/gpu-model" not in booked["metadata"]["annotations"]
    assert other["metadata"]["annotations"]["terminate-at"] == "1900-01-01T08:00:00Z"
    for each in (booked, other):
        assert (each["spec"]["priorityClassName"], each["spec"]["priority"]) == ("carrel-gpu", 0)
        assert each["spec"]["preemptionPolicy"] == "Never"
        assert [variable["name"] for variable in each["spec"]["containers"][0]["env"]] == list(NAMES)
        assert each["spec"]["schedulerName"] == "gpu-scheduler"
    assert cpu["spec"]["schedulerName"] == "default-scheduler" and "annotations" not in cpu["metadata"]
    assert "priorityClassName" not in borrowed["spec"] and borrowed["spec"]["priority"] == 0


def test_only_the_api_server_which_shows_its_certificate_and_knows_the_secret_is_answered(
    admission: AdmissionCluster,
) -> None:
    """That it is, all other tests here show."""
    pair = admission.api.authority.client(EVE)
    for shows, path in ((False, "/mutate"), (False, f"/{PATH_SECRET}/mutate"), (True, "/mutate")):
        anybody = ssl._create_unverified_context()  # only the other way is tested
        if shows:
            anybody.load_cert_chain(pair.certificate, pair.key)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{admission.webhook.url}{path}", b"{}", timeout=60, context=anybody)
        assert refused.value.code == 403
    log = admission.webhook.process.log.read_text()
    assert "unknown_caller" in log and PATH_SECRET not in log


def test_a_notebook_runs_on_cpu_when_no_gpu_is_free(admission: AdmissionCluster) -> None:
    notebook = pod("full", limits=GPU)
    notebook["metadata"]["labels"] = {"hub.jupyter.org/username": "eve"}
    with namespace(admission.api) as ours:

        def has_gpu() -> bool:
            return _asks_for_a_gpu(made(admission.eve, ours, notebook, "?dryRun=All"))

        assert has_gpu()
        made(admission.eve, ours, pod("holds-it", limits=GPU))
        eventually(lambda: not has_gpu())
        assert _asks_for_a_gpu(made(admission.alice, ours, notebook, "?dryRun=All")), "her booking covers it"
        assert _asks_for_a_gpu(made(admission.eve, ours, pod("job", limits=GPU), "?dryRun=All")), "it waits"
    eventually(lambda: _asks_for_a_gpu(made(admission.eve, "default", notebook, "?dryRun=All")))


def test_a_pod_for_a_booking_that_starts_later_has_a_gate_that_only_carrel_gives(admission: AdmissionCluster) -> None:
    starts = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    times = {"start": f"{starts:%Y-%m-%dT%H:%M:%SZ}", "end": f"{starts + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"}
    booking = {"apiVersion": "carrel.dev/v1", "kind": "Booking", "metadata": {"name": "tomorrow"}}
    made_it = admission.admin.call("POST", BOOKINGS.path(), {**booking, "spec": {"user": EVE, "gpus": 1, **times}})
    assert made_it[0] == 201, made_it
    later, forged = pod("later", limits=GPU), pod("forged")
    later["metadata"]["annotations"] = {"carrel.dev/booking": "next"}
    forged["spec"]["schedulingGates"] = [{"name": "carrel.dev/booking"}]
    with namespace(admission.api) as ours:
        path = f"/api/v1/namespaces/{ours}/pods"
        eventually(lambda: admission.eve.call("POST", f"{path}?dryRun=All", later)[0] == 201)
        held_back = made(admission.eve, ours, later)
        status, answer = admission.alice.call("POST", f"{path}?dryRun=All", later)
        changes = {"metadata": {"annotations": {"carrel.dev/booking": "other"}}}
        settled = admission.eve.call("PATCH", f"{path}/later", changes)
        stripped = made(admission.eve, ours, forged, "?dryRun=All")
    admission.admin.call("DELETE", BOOKINGS.path(name="tomorrow"))

    assert held_back["spec"]["schedulingGates"] == [{"name": "carrel.dev/booking"}]
    assert held_back["metadata"]["annotations"]["carrel.dev/booking"] == "tomorrow"
    assert held_back["metadata"]["annotations"]["carrel.dev/waits-until"] == times["start"]
    assert status == 422 and "has no booking that starts later" in answer["message"], answer
    assert settled[0] == 403 and "what a pod asks for is settled" in settled[1]["message"], settled
    assert "schedulingGates" not in stripped["spec"]


def _asks_for_a_gpu(manifest: Json) -> bool:
    asks = "nvidia.com/gpu" in str(manifest["spec"]["containers"][0]["resources"])
    if not asks:
        assert manifest["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
        assert manifest["spec"]["schedulerName"] == "default-scheduler"
    return asks


def test_forged_keys_are_stripped_on_create_and_refused_later(admission: AdmissionCluster) -> None:
    with namespace(admission.api) as ours:
        forged = pod("forged", limits=GPU)
        forged["metadata"] |= {"annotations": PROTECTED, "labels": PROTECTED_LABELS}
        created = made(admission.eve, ours, forged)
        path = f"/api/v1/namespaces/{ours}/pods/forged"

        assert not created["metadata"].get("labels")
        assert set(created["metadata"]["annotations"]) & PROTECTED.keys() == {
            "carrel.dev/tier",
            "carrel.dev/user",
            "terminate-at",
            "carrel.dev/admitted",
        }
        assert created["metadata"]["annotations"]["carrel.dev/tier"] == "opportunistic"
        assert created["metadata"]["annotations"]["carrel.dev/user"] == EVE
        for group, keys in (("annotations", PROTECTED), ("labels", PROTECTED_LABELS)):
            for key in keys:
                for where in (path, f"{path}/status"):
                    status, answer = admission.eve.call("PATCH", where, {"metadata": {group: {key: "forged"}}})
                    assert status == 403 and f"only Carrel may write or remove {key}" in answer["message"], answer
        status, answer = admission.eve.call("PATCH", path, {"metadata": {"annotations": {"terminate-at": None}}})
        assert status == 403, answer
        binding = {"metadata": {"name": "forged", "annotations": {"carrel.dev/devices": "GPU-0"}}}
        binding |= {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n1"}}  # type: ignore[dict-item] # any JSON
        status, answer = admission.eve.call("POST", f"{path}/binding", binding)
        assert status == 403 and "carrel.dev/devices" in answer["message"], answer
        assert admission.eve.call("PATCH", path, {"metadata": {"annotations": {"mine": "x"}}})[0] == 200


def test_generated_pods_are_answered_idempotently_and_never_with_a_5xx(admission: AdmissionCluster) -> None:
    random, refused, asked = Random(7), 0, 0
    with namespace(admission.api) as ours:
        path = f"/api/v1/namespaces/{ours}/pods?dryRun=All"
        for _ in range(GENERATED):
            status, first = admission.alice.call("POST", path, any_pod(random))
            assert status in (201, 400, 403, 422), first
            refused += status != 201
            if status != 201:
                continue
            asked += first["spec"]["schedulerName"] == "gpu-scheduler"
            status, again = admission.alice.call("POST", path, _as_written(first))
            assert status == 201, again
            assert again["spec"] == first["spec"]
            assert again["metadata"].get("annotations") == first["metadata"].get("annotations")
            assert again["metadata"].get("labels") == first["metadata"].get("labels")
    assert asked > GENERATED / 10 and refused > GENERATED / 100, "they are of every kind"


def _as_written(pod: Json) -> Json:
    """What the API server answered, as somebody would send it."""
    ours = ("generateName", "annotations", "labels", "ownerReferences")
    metadata = {key: pod["metadata"][key] for key in ours if key in pod["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def test_no_call_fails_while_certificates_are_renewed_ten_times(
    admission: AdmissionCluster,
) -> None:
    secret = SECRETS.path("carrel", "carrel-webhook-tls")
    shown: set[str] = set()
    with namespace(admission.api) as ours:
        path, begin = f"/api/v1/namespaces/{ours}/pods?dryRun=All", time.monotonic()
        for call in range(ROTATIONS * PER_ROTATION):
            if call % PER_ROTATION == 0:
                shown.add(admission.api.call("GET", secret)["data"]["tls.crt"])
                # Once in between the authority is renewed too.
                away = "ca.key" if call == 5 * PER_ROTATION else "tls.crt"
                admission.api.call("PATCH", secret, {"data": {away: None}})
            status, answer = admission.eve.call("POST", path, pod("during", limits=GPU))
            # The API server refuses the pod if the webhook does not answer.
            assert status == 201 and "carrel.dev/admitted" in answer["metadata"].get("annotations", {}), answer
            # The API server keeps its connection; this is a new one.
            assert admission.webhook.handshake() == 200
            time.sleep(max(0.0, begin + call / PER_SECOND - time.monotonic()))
    assert len(shown) >= ROTATIONS - 1


def test_an_eviction_gives_a_gpu_pod_no_longer_to_end_than_it_may_take(admission: AdmissionCluster) -> None:
    with namespace(admission.api) as ours:
        made(admission.alice, ours, pod("booked", limits=GPU))
        made(admission.eve, ours, pod("cpu"))
        refused = _evicted(admission, ours, "booked", 403)
        _evicted(admission, ours, "cpu", 201)

    assert "is not given 31,536,000 seconds to end" in refused["message"]


def _evicted(admission: AdmissionCluster, namespace: str, name: str, status: int) -> Json:
    """By a dry run, with a year to end. The webhook may not have seen the pod at once."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    eviction |= {"deleteOptions": {"gracePeriodSeconds": 31_536_000, "dryRun": ["All"]}}
    answer: Json = {}

    def is_answered() -> bool:
        nonlocal answer
        found, answer = admission.eve.call(
            "POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction?dryRun=All", eviction
        )
        return found == status

    eventually(is_answered)
    return answer


def test_a_job_whose_gpu_was_revoked_continues_without_a_gpu(admission: AdmissionCluster) -> None:
    """Its controller makes the next pod, the webhook takes the GPU off it, and nobody else's pod is touched."""
    eventually(lambda: not any(admission.cluster.held().values()))
    with namespace(admission.api) as ours:
        admission.api.call("PATCH", f"/api/v1/namespaces/{ours}", {"metadata": {"annotations": {"owner": EVE}}})
        template = pod("job", limits=GPU)
        job = {"metadata": {"name": "job"}, "spec": {"template": {"metadata": {}, "spec": template["spec"]}}}
        admission.api.call(
            "POST", f"/apis/batch/v1/namespaces/{ours}/jobs", {"apiVersion": "batch/v1", "kind": "Job", **job}
        )
        first = eventually(lambda: _bound(admission.cluster, ours))[0]
        assert first["metadata"]["annotations"]["carrel.dev/user"] == EVE
        assert first["metadata"]["annotations"]["carrel.dev/tier"] == "opportunistic"

        made(admission.alice, ours, pod("booked", limits=GPU))
        eventually(lambda: admission.cluster.pods(ours)["booked"]["spec"].get("nodeName") == "n1", limit_s=180)
        successor = eventually(lambda: _others(admission.cluster, ours, first["metadata"]["name"], "booked"))[0]

        assert "nvidia.com/gpu" not in str(successor["spec"]["containers"][0]["resources"])
        assert successor["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
        assert successor["spec"]["schedulerName"] == "default-scheduler"
        assert first["metadata"]["uid"] in successor["metadata"]["annotations"]["carrel.dev/handed-over"]
        records = f"/api/v1/namespaces/carrel/configmaps?labelSelector={HANDOVER}"
        eventually(lambda: not admission.api.call("GET", records)["items"], limit_s=180)


def _bound(cluster: CarrelCluster, namespace: str) -> list[Json]:
    return [each for each in cluster.pods(namespace).values() if each["spec"].get("nodeName")]


def _others(cluster: CarrelCluster, namespace: str, *known: str) -> list[Json]:
    return [each for name, each in cluster.pods(namespace).items() if name not in known]


def test_a_killed_webhook_blocks_gpu_pods_and_no_other_pod(admission: AdmissionCluster) -> None:
    with namespace(admission.api) as ours:
        pods = f"/api/v1/namespaces/{ours}/pods"
        admission.webhook.kill()
        try:
            assert made(admission.eve, ours, pod("cpu"))["spec"]["schedulerName"] == "default-scheduler"
            for manifest in (pod("unseen", limits=GPU), pod("unseen", limits=GPU, schedulerName="gpu-scheduler")):
                status, answer = admission.eve.call("POST", pods, manifest)
                assert status == 500 and 'failed calling webhook "gpu-pods.carrel.dev"' in answer["message"], answer
        finally:
            admission.webhook.start()
        made(admission.eve, ours, pod("seen", limits=GPU), "?dryRun=All")


def test_a_pod_created_while_the_configuration_is_missing_gets_no_gpu(admission: AdmissionCluster) -> None:
    eventually(lambda: not any(admission.cluster.held().values()))
    configuration = MUTATING_WEBHOOKS.path(name="carrel")
    with namespace(admission.api) as ours:
        path = f"/api/v1/namespaces/{ours}/pods/unseen"
        admission.api.call("DELETE", configuration)
        try:
            unseen = pod("unseen", limits=GPU, schedulerName="gpu-scheduler")
            unseen["metadata"]["annotations"] = {"carrel.dev/tier": "booked", "terminate-at": "2099-01-01T00:00:00Z"}
            # The API server hears of it a moment later.
            eventually(lambda: _is_left_alone(made(admission.eve, ours, unseen, "?dryRun=All")))
            made(admission.eve, ours, unseen)
            said = eventually(lambda: _why_it_waits(admission.api.call("GET", path)))
            # Who takes the configuration away, takes its refusals away: pods for other schedulers are left alone too.
            made(admission.eve, ours, pod("elsewhere", limits=GPU), "?dryRun=All")
        finally:
            admission.webhook.configure()
        assert "it was not admitted by Carrel's webhook" in said and "create it again" in said
        assert not any(admission.cluster.held().values())

        admission.api.call("DELETE", f"{path}?gracePeriodSeconds=0")
        create(admission.api, ours, pod("left-alone"))
        eventually(lambda: not _is_left_alone(made(admission.eve, ours, unseen, "?dryRun=All")))
        made(admission.alice, ours, pod("seen", limits=GPU))
        running = eventually(lambda: admission.cluster.pods(ours)["seen"]["spec"].get("nodeName"))
        assert running == "n1"


def _is_left_alone(pod: Json) -> bool:
    return bool(pod["metadata"]["annotations"]["carrel.dev/tier"] == "booked")


def _why_it_waits(pod: Json) -> str:
    found = [each for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
    assert not pod["spec"].get("nodeName")
    return str(found[0].get("message", "")) if found else ""
