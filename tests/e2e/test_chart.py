"""One `helm install`, with the real helm, image and node; then an upgrade, and what is left after the uninstall.

The tests follow each other: each finds what the one before it has left.
"""

import contextlib
import json
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator

import pytest

from testbed.processes import Failed
from tests.e2e.chart import CHART, NAMESPACE, STARTING_S, InstalledChart, chart_node
from tests.e2e.pods import Json, create, eventually, is_gone, pod
from tests.e2e.scraping import prometheus_of

SIMULATED = ["--set", "agent.simulate=2xTesla-V100:16276"]
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/carrel-secrets"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/carrel"
BLIND = "its agent cannot see containers"
"""What the doctor says on this test bed, whose control groups are below one of its own."""
TELL = "env | grep NVIDIA_VISIBLE_DEVICES; echo told; sleep 3600"


@pytest.fixture(scope="module")
def chart() -> Iterator[InstalledChart]:
    with chart_node() as found:
        found.helm("install", "carrel", CHART, "--create-namespace", *SIMULATED)
        yield found


def wait_same(look: Callable[[], object], wanted: object) -> None:
    """A failure shows what was seen last."""
    with contextlib.suppress(AssertionError):
        eventually(lambda: look() == wanted, STARTING_S)
    assert look() == wanted


def run(chart: InstalledChart, manifest: Json, until: str = "Running") -> Json:
    """The pod, as soon as it runs."""
    name = manifest["metadata"]["name"]

    def is_created() -> bool:
        try:
            create(chart.api, "default", manifest)
        except urllib.error.HTTPError as refused:
            # kube-proxy learns a moment later than the webhook's pods that they are ready.
            assert refused.code == 500, refused.read()
            return False
        return True

    def seen() -> Json | None:
        found: Json = chart.get(f"/api/v1/namespaces/default/pods/{name}")
        return found if found["status"]["phase"] == until else None

    eventually(is_created, STARTING_S)
    found = eventually(seen, STARTING_S)
    assert found is not None
    return found


def told(chart: InstalledChart, name: str) -> str:
    def lines() -> list[str]:
        try:
            said = chart.api.kubectl("logs", name).splitlines()
        except Failed:
            return []
        return said if said[-1:] == ["told"] else []

    return eventually(lines, STARTING_S)[0].removeprefix("NVIDIA_VISIBLE_DEVICES=")


def lease_of(chart: InstalledChart, uid: str) -> Json:
    leases = chart.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")["items"]
    (found,) = [each for each in leases if uid in each["metadata"].get("annotations", {}).get("carrel.dev/shares", "")]
    return dict(found)


def test_all_pods_become_ready(chart: InstalledChart) -> None:
    assert chart.wait_ready() == {"webhook": 2, "scheduler": 2, "controller": 2, "agent": 1, "booking": 1}


def test_a_pod_gets_one_of_the_simulated_gpus_and_sees_that_one(chart: InstalledChart) -> None:
    devices = chart.get(f"/apis/gpu.scheduling/v1/gpunodestatuses/{chart.node.name}")["status"]["devices"]
    running = run(chart, pod("works", TELL, {"nvidia.com/gpu": "1"}))
    lease = lease_of(chart, running["metadata"]["uid"])
    assert told(chart, "works") == lease["metadata"]["annotations"]["carrel.dev/gpu"]
    assert told(chart, "works") in {each["uuid"] for each in devices}
    assert [each["model"] for each in devices] == ["Tesla-V100"] * 2


def test_a_real_prometheus_scrapes_all_components(chart: InstalledChart) -> None:
    main_metrics = {
        "webhook": ["carrel_reviews_total", "carrel_review_duration_seconds_bucket"],
        "scheduler": ["carrel_filter_duration_seconds_bucket", "carrel_bind_duration_seconds_bucket"],
        "controller": [
            "carrel_leader",
            "carrel_gpus",
            "carrel_waiting_pods",
            "carrel_invariant_check_duration_seconds",
        ],
        "agent": ["carrel_node_gpus", "carrel_node_reported_timestamp_seconds"],
        "booking": ["carrel_bookable_gpus", "carrel_booking_mirror_age_seconds"],
    }
    with prometheus_of(chart) as prometheus:

        def missing() -> list[str]:
            every = {component: [*names, "carrel_api_requests_total"] for component, names in main_metrics.items()}
            asked = [f'{name}{{component="{component}"}}' for component, names in every.items() for name in names]
            return [each for each in asked if prometheus.value(f"count({each})") is None]

        up = {each: ["up"] * count for each, count in chart.wait_ready().items()}
        wait_same(prometheus.targets, up)
        wait_same(missing, [])
        assert prometheus.value('max(carrel_gpus{model="Tesla-V100",state="opportunistic"})') == 1
        assert prometheus.value("sum(max by (invariant) (carrel_invariant_violations))") == 0
        assert prometheus.value('sum(carrel_refusals_total{kind="defect"})') == 0
        firing = prometheus.ask("query", query='ALERTS{alertstate="firing"}')["result"]
        assert [each["metric"]["alertname"] for each in firing] == []


def test_the_doctor_finds_nothing_in_the_cluster_and_from_outside(chart: InstalledChart) -> None:
    command = [sys.executable, "-m", "carrel", "doctor", "--carrel-namespace", NAMESPACE, "--output", "json"]
    outcome = subprocess.run(
        [*command, "--kubeconfig", str(chart.api.kubeconfig)], capture_output=True, text=True, check=False
    )
    found = json.loads(outcome.stdout)
    assert [each for each in found if each["state"] != "OK" and BLIND not in each["text"]] == []
    hops = {each["hop"]: each["text"] for each in found}
    assert {"admission", "gpu-scheduler", f"node {chart.node.name}", "account carrel-agent", "invariants"} <= set(hops)
    assert hops["component webhook"] == "2 ready, and answer"
    assert hops["database"].endswith("the newest")
    assert hops["clocks"].startswith("those of 8 pods agree")
    assert "it has been asked" in hops["extender"]
    said = chart.helm("test", "carrel", "--logs", "--timeout", f"{STARTING_S}s")
    states = [line.split()[0] for line in said.splitlines() if line.startswith(("OK ", "WARN ", "FAIL "))]
    assert states.count("OK") > len(hops), said
    assert [line for line in said.splitlines() if line.startswith(("WARN ", "FAIL ")) and BLIND not in line] == []
    assert "it is told to see GPU-" in said
    assert "a pod that asks for no GPU, and tries to see all, sees none" in said
    probes = json.loads(
        chart.api.kubectl("get", "pods", "--selector", "app.kubernetes.io/name=carrel-doctor", "--output", "json")
    )
    assert [each for each in probes["items"] if "deletionTimestamp" not in each["metadata"]] == []


def test_an_upgrade_keeps_secrets_certificates_and_gpus(chart: InstalledChart) -> None:
    before = chart.get(SECRET)["data"]
    called = [each["clientConfig"] for each in chart.get(HOOKS)["webhooks"]]
    gpu = told(chart, "works")
    chart.helm("upgrade", "carrel", CHART, "--reuse-values", "--set", "whenFull=wait,controller.replicas=1")
    assert chart.wait_ready()["controller"] == 1
    assert chart.get(SECRET)["data"] == before
    assert sorted(before) == ["maia-token", "path-secret", "seal-key", "terminator-token"]
    assert len(set(before.values())) == len(before)
    assert [each["clientConfig"] for each in chart.get(HOOKS)["webhooks"]] == called
    run(chart, pod("also", TELL, {"nvidia.com/gpu": "1"}))
    assert told(chart, "also") != gpu
    assert chart.get("/api/v1/namespaces/default/pods/works")["status"]["phase"] == "Running"


def test_after_the_uninstall_nothing_acts_and_what_is_peoples_is_kept(chart: InstalledChart) -> None:
    chart.helm("uninstall", "carrel", "--timeout", f"{STARTING_S}s")
    assert is_gone(chart.api, HOOKS)
    for kind in (
        "deployments,daemonsets,services,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,jobs",
        "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings",
    ):
        left = json.loads(chart.api.kubectl("get", kind, "--namespace", NAMESPACE, "--output", "json"))["items"]
        assert [each["metadata"]["name"] for each in left if "carrel" in each["metadata"]["name"]] == []
    eventually(lambda: not chart.pods(), STARTING_S)
    shown = chart.get(f"/api/v1/nodes/{chart.node.name}")["status"]["capacity"]
    assert not {"aliyun.com/gpu-mem", "aliyun.com/gpu-count"} & {each for each in shown if shown[each] != "0"}
    assert chart.get(SECRET)["data"]
    assert (
        chart.get(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/carrel-booking")["status"]["phase"] == "Bound"
    )
    assert chart.get("/apis/gpu.scheduling/v1/gpuclaims")["items"] == []
    # A pod without a GPU, and a pod with one, meet nobody any more.
    run(chart, pod("later", "true"), until="Succeeded")
    assert chart.get("/api/v1/namespaces/default/pods/works")["status"]["phase"] == "Running"
