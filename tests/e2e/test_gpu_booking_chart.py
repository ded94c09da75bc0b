"""The chart gpu-booking, as MAIA's document installs it, without values; and what the document does by hand.

The tests follow each other: each finds what the one before it has left.
"""

import os
import subprocess
import urllib.error
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta

import pytest

from carrel.admission.certificates import Validity, issue, new_authority
from carrel.leases.cluster_state import utc_now
from testbed.clients import kubectl
from tests.e2e.chart import CHART, STARTING_S, InstalledChart, chart_node, helm
from tests.e2e.pods import Json, eventually, pod

GPU_BOOKING = CHART.parent / "gpu-booking"
NAMESPACE = "gpu-booking"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-booking-webhook"
TLS = f"/api/v1/namespaces/{NAMESPACE}/secrets/gpu-booking-webhook-tls"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
GPU = {"nvidia.com/gpu": "1"}
PATCH = (  # MAIA's document, word for word
    "kubectl patch mutatingwebhookconfiguration gpu-booking-webhook -n gpu-booking --type='json' "
    "-p=\"[{'op': 'replace', 'path': '/webhooks/0/clientConfig/caBundle', 'value': "
    r"\"$(kubectl get secret gpu-booking-webhook-tls -n gpu-booking -o jsonpath='{.data.ca\.crt}')\"}]"
    '"'
)


@pytest.fixture(scope="module")
def chart() -> Iterator[InstalledChart]:
    with chart_node() as found:
        said = helm("install", "gpu-booking", GPU_BOOKING, "-n", "gpu-booking", "--create-namespace", api=found.api)
        assert "carrel purge --carrel-namespace gpu-booking" in said, said
        assert "helm test gpu-booking --namespace gpu-booking" in said, said
        assert "--set carrel.spawners[0]=system:serviceaccount:jhub:hub" in said, said
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
        return {each["metadata"]["name"] for each in found}

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
        return made

    made = eventually(tried, STARTING_S)
    assert made is not None
    return made


def follow_the_document(chart: InstalledChart) -> None:
    path = f"{kubectl().parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "KUBECONFIG": str(chart.api.kubeconfig)}
    subprocess.run(["bash", "-c", PATCH], env=environment, check=True, capture_output=True)


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
    follow_the_document(chart)
    assert chart.get(CONFIGURATION)["webhooks"] == before, "the bundle was there already"
    # A certificate that another authority signed, as by an approved CSR, in the place of the webhook's own.
    valid = Validity(utc_now() - timedelta(hours=1), utc_now() + timedelta(days=365))
    authority = new_authority(valid)
    served = issue(authority, [f"gpu-booking-mutating-webhook.{NAMESPACE}.svc"], valid)
    data = {"tls.crt": served.certificate, "tls.key": served.key, "ca.crt": authority.certificate}
    body = {"data": {key: b64encode(value).decode() for key, value in data.items()}}
    chart.api.call("PATCH", TLS, body)
    follow_the_document(chart)

    def is_settled() -> bool:
        bundles = {each["clientConfig"]["caBundle"] for each in chart.get(CONFIGURATION)["webhooks"]}
        return bundles == {chart.get(TLS)["data"]["ca.crt"]} != {body["data"]["ca.crt"]}

    eventually(is_settled, STARTING_S)
    assert "carrel.dev/tier" in admitted(chart)["metadata"]["annotations"]
