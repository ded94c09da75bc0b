"""The chart gpu-booking, as MAIA's document installs it: without values; with its four values, against MAIA's JSON; and
its end, with `carrel purge`. Beside a Carrel that is there already: test_gpu_booking_values.py.

The tests follow each other: each finds what the one before it has left.
"""

import json
import urllib.error
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from carrel.admission.certificates import Validity, issue, new_authority
from carrel.cluster.options import utc_now
from testbed.processes import Failed
from tests.e2e.chart import STARTING_S, InstalledChart, chart_node, helm, is_asked
from tests.e2e.gpu_booking import CONFIGURATION, GPU_BOOKING, NAMESPACE, carrel, follow_the_document
from tests.e2e.maia import TOKEN, MaiaBookings, maia_bookings
from tests.e2e.pods import Json, eventually, is_gone, pod
from tests.e2e.relay import relay

TLS = f"/api/v1/namespaces/{NAMESPACE}/secrets/gpu-booking-webhook-tls"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
GPU = {"nvidia.com/gpu": "1"}
MODEL = "Tesla-V100"
ADA = "ada@lab.example"


@pytest.fixture(scope="module")
def bookings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MaiaBookings]:
    with maia_bookings(tmp_path_factory.mktemp("maia"), MODEL, gpus=2) as found:
        yield found


@pytest.fixture(scope="module")
def chart() -> Iterator[InstalledChart]:
    with chart_node() as found:
        said = helm("install", "gpu-booking", GPU_BOOKING, "-n", "gpu-booking", "--create-namespace", api=found.api)
        assert "carrel purge --carrel-namespace gpu-booking" in said, said
        assert "helm test gpu-booking --namespace gpu-booking" in said, said
        assert "--set 'carrel.config.hubs.accounts={system:serviceaccount:jhub:hub}'" in said, said
        yield found


def wait_ready(chart: InstalledChart) -> set[str]:
    """Until the pods of each Deployment are those that it wants, and the agent's too: the Deployments' names."""
    apps = f"/apis/apps/v1/namespaces/{NAMESPACE}"

    def all_ready() -> set[str]:
        found = [each for kind in ("deployments", "daemonsets") for each in chart.get(f"{apps}/{kind}")["items"]]
        for each in found:
            status, spec = each["status"], each["spec"]
            wanted = spec.get("replicas", status.get("desiredNumberScheduled"))
            counts = [("updatedReplicas", "readyReplicas", "replicas"), ("updatedNumberScheduled", "numberReady")]
            names = counts["replicas" not in spec]
            if status.get("observedGeneration") != each["metadata"]["generation"]:
                return set()
            if {status.get(name, 0) for name in names} != {wanted}:
                return set()
        return {each["metadata"]["name"] for each in found} if is_asked(chart.api, "gpu-booking-webhook") else set()

    return eventually(all_ready, STARTING_S)


def admitted(chart: InstalledChart, namespace: str = "default") -> Json:
    """A GPU pod, as a dry run, as the webhook changes it."""

    def tried() -> Json | None:
        where = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        try:
            made: Json = chart.api.call("POST", where, pod("tried", limits=GPU))
        except urllib.error.HTTPError as refused:
            assert refused.code == 500, refused.read()  # not reachable yet, or not trusted yet
            return None
        # Written a moment ago, the rules are not known to the API server's own copy yet.
        return made if "carrel.dev/tier" in made["metadata"].get("annotations", {}) else None

    made = eventually(tried, STARTING_S)
    assert made is not None
    return made


def test_without_values_carrel_runs_under_the_names_of_maia(chart: InstalledChart) -> None:
    parts = {"webhook", "scheduler", "controller", "booking", "agent"}
    assert wait_ready(chart) == {f"carrel-{part}" for part in parts}
    services = {each["metadata"]["name"] for each in chart.get(SERVICES)["items"]}
    assert services == {"gpu-booking-mutating-webhook", "pod-terminator", "carrel-booking"}
    assert admitted(chart)["metadata"]["annotations"]["carrel.dev/tier"] == "opportunistic"
    called = {each["clientConfig"]["service"]["name"] for each in chart.get(CONFIGURATION)["webhooks"]}
    assert called == {"gpu-booking-mutating-webhook"}
    secret = chart.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/carrel-secrets")["data"]
    assert len(secret["maia-token"]) > 16


def test_what_the_document_does_by_hand_does_no_harm(chart: InstalledChart) -> None:
    before = chart.get(CONFIGURATION)["webhooks"]
    follow_the_document(chart.api)
    assert chart.get(CONFIGURATION)["webhooks"] == before, "the bundle was there already"
    # A certificate that another authority signed, as by an approved CSR, in the place of the webhook's own.
    valid = Validity(utc_now() - timedelta(hours=1), utc_now() + timedelta(days=365))
    authority = new_authority(valid)
    served = issue(authority, [f"gpu-booking-mutating-webhook.{NAMESPACE}.svc"], valid)
    data = {"tls.crt": served.certificate, "tls.key": served.key, "ca.crt": authority.certificate}
    body = {"data": {key: b64encode(value).decode() for key, value in data.items()}}
    chart.api.call("PATCH", TLS, body)
    follow_the_document(chart.api)

    def is_settled() -> bool:
        bundles = {each["clientConfig"]["caBundle"] for each in chart.get(CONFIGURATION)["webhooks"]}
        return bundles == {chart.get(TLS)["data"]["ca.crt"]} != {body["data"]["ca.crt"]}

    eventually(is_settled, STARTING_S)
    assert "carrel.dev/tier" in admitted(chart)["metadata"]["annotations"]


def tier_of_adas_pod(chart: InstalledChart, *options: str) -> str:
    """She creates a pod that asks for a GPU. Empty: the webhook did not answer."""
    user = ("--as", ADA, "--as-group", "system:masters", "--namespace", "ada")
    given = json.dumps(pod("train", limits=GPU))
    try:
        made = chart.api.kubectl("create", *user, *options, "--output", "json", "--filename", "-", given=given)
    except Failed as failed:
        assert "InternalError" in str(failed), failed
        return ""
    return str(json.loads(made)["metadata"]["annotations"]["carrel.dev/tier"])


def test_with_the_four_values_bookings_are_made_in_maias_dashboard(
    chart: InstalledChart, bookings: MaiaBookings, tmp_path: Path
) -> None:
    with relay(chart.api.address, bookings.address) as address:
        four = {"apiUrl": f"{address}/", "gpuStatsUrl": f"{address}/gpu-stats/", "apiToken": TOKEN}
        gpus = {"agent": {"simulate": f"2x{MODEL}:16276"}}
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump({**four, "namespace": NAMESPACE, "carrel": gpus}))
        helm("upgrade", "gpu-booking", GPU_BOOKING, "-n", NAMESPACE, "--values", values, api=chart.api)
        assert "carrel-booking" not in wait_ready(chart)
        bookings.book(ADA)
        chart.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "ada"}})
        chart.api.wait_for_namespace("ada")
        eventually(lambda: tier_of_adas_pod(chart, "--dry-run=server") == "booked", STARTING_S)
        assert tier_of_adas_pod(chart) == "booked"
        path = "/api/v1/namespaces/ada/pods/train"
        eventually(lambda: chart.get(path)["status"]["phase"] == "Running", STARTING_S)
        # Who binds it may have seen the booking later than the webhook; then the controller corrects it.
        eventually(lambda: not chart.get(path)["metadata"]["annotations"]["terminate-at"].startswith("1900"))
        helm("test", "gpu-booking", "-n", NAMESPACE, "--timeout", f"{STARTING_S}s", api=chart.api)


def gpu_leases(chart: InstalledChart) -> list[str]:
    leases = chart.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")["items"]
    return [each["metadata"]["name"] for each in leases if "carrel.dev/gpu" in each["metadata"].get("annotations", {})]


def test_purge_refuses_while_carrel_is_installed(chart: InstalledChart) -> None:
    said = carrel(chart.api, "purge", "--carrel-namespace", NAMESPACE, "--yes")
    assert (said.returncode, said.stderr.splitlines()[0]) == (3, "✗ Carrel is not uninstalled")
    elsewhere = carrel(chart.api, "purge", "--carrel-namespace", "default", "--yes")
    assert (elsewhere.returncode, elsewhere.stderr.splitlines()[0]) == (3, "✗ Carrel is not uninstalled")
    assert f"installed in the namespace {NAMESPACE}" in elsewhere.stderr


def test_after_uninstall_and_purge_nothing_of_carrel_is_left_and_pods_go_on(chart: InstalledChart) -> None:
    claim = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "mine"},
        "spec": {"devices": {"count": 1}},
    }
    chart.api.call("POST", "/apis/gpu.scheduling/v1/namespaces/ada/gpuclaims", claim)
    eventually(lambda: len(gpu_leases(chart)) == 1, STARTING_S)  # those of the doctor's pods are collected
    helm("uninstall", "gpu-booking", "-n", NAMESPACE, "--timeout", f"{STARTING_S}s", api=chart.api)
    for gone in (CONFIGURATION, "/apis/rbac.authorization.k8s.io/v1/clusterroles/carrel-installation"):
        assert is_gone(chart.api, gone)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    eventually(lambda: not chart.get(pods)["items"], STARTING_S)
    assert chart.get("/apis/gpu.scheduling/v1/namespaces/ada/gpuclaims/mine")

    # For a minute the Leases may say that somebody leads: who ended had no right any more to give them back.
    for name in ("carrel-controller", "gpu-scheduler"):
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name}"
        chart.api.call("PATCH", lease, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    shown = carrel(chart.api, "purge", "--carrel-namespace", NAMESPACE, "--dry-run", "--output", "json")
    assert shown.returncode == 0, shown.stderr
    listed = {(each["kind"], each["name"]): each["holds"] for each in json.loads(shown.stdout)}
    assert listed["CustomResourceDefinition", "gpuclaims.gpu.scheduling"] == "1 object"
    assert {
        ("Secret", "carrel-secrets"),
        ("Secret", "gpu-booking-webhook-tls"),
        ("PersistentVolumeClaim", "carrel-booking"),
        ("Lease", "carrel-controller"),
        ("ConfigMap", "carrel-changes"),
        ("ConfigMap", "carrel-applied"),
    } <= set(listed)
    kinds = {"ConfigMap", "CustomResourceDefinition", "Lease", "Secret", "PersistentVolumeClaim"}
    assert {kind for kind, _ in listed} == kinds
    assert len(gpu_leases(chart)) == 1 and {("Lease", gpu_leases(chart)[0])} <= set(listed), "that of the running pod"
    asks = carrel(chart.api, "purge", "--carrel-namespace", NAMESPACE)
    assert (asks.returncode, asks.stderr.splitlines()[0]) == (2, "✗ Nothing is deleted")

    done = carrel(chart.api, "purge", "--carrel-namespace", NAMESPACE, "--yes")
    assert done.returncode == 0, done.stderr
    left = chart.api.kubectl("get", "crd,leases,secrets,pvc,configmaps", "--namespace", NAMESPACE, "--output", "name")
    assert left.split() == ["configmap/kube-root-ca.crt"]
    assert chart.get("/api/v1/namespaces/ada/pods/train")["status"]["phase"] == "Running"
    again = carrel(chart.api, "purge", "--carrel-namespace", NAMESPACE, "--yes")
    assert again.stdout == "Nothing of Carrel is left.\n"
