"""MAIA's own line in a cluster that does not have Carrel's image yet: nothing is refused until the webhook has answered
once; then GPU pods are, also while none runs, and no tool that installs takes that back.

The tests follow each other: each finds what the one before it has left.
"""

import json
from collections.abc import Iterator

import pytest
import yaml

from testbed.processes import Failed
from tests.e2e.chart import STARTING_S, InstalledChart, chart_node, helm, is_asked
from tests.e2e.gpu_booking import GPU_BOOKING, NAMESPACE, carrel
from tests.e2e.pods import Json, eventually, pod
from tools.image.carrel_image import carrel_image

LINE = ("gpu-booking", GPU_BOOKING, "-n", NAMESPACE)
GPU = {"nvidia.com/gpu": "1"}
SOMEBODY = ("--as", "somebody", "--as-group", "system:masters")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WEBHOOK = "app.kubernetes.io/component=webhook"


@pytest.fixture(scope="module")
def chart() -> Iterator[InstalledChart]:
    with chart_node(has_image=False) as found:
        yield found


def created(chart: InstalledChart, name: str, *options: str, **limits: str) -> Json | str:
    """The pod of somebody, or why it was refused."""
    words = ("create", *SOMEBODY, "--namespace", "default", *options, "--output", "json", "--filename", "-")
    try:
        said = chart.api.kubectl(*words, given=json.dumps(pod(name, limits=limits)))
    except Failed as failed:
        return str(failed)
    made: Json = json.loads(said)
    return made


def asks(chart: InstalledChart) -> bool:
    return is_asked(chart.api, "gpu-booking-webhook")


def test_while_the_image_is_missing_gpu_pods_are_created_as_before(chart: InstalledChart) -> None:
    said = helm("install", *LINE, "--create-namespace", api=chart.api)
    assert "in no registry" in said and "GPU pods are created as before" in said

    def waits_for_its_image() -> bool:
        found = chart.get(f"{PODS}?labelSelector={WEBHOOK}")["items"]
        states = [state for each in found for state in each["status"].get("containerStatuses", [])]
        reasons = {state["state"].get("waiting", {}).get("reason") for state in states}
        return bool(reasons & {"ImagePullBackOff", "ErrImagePull"})

    eventually(waits_for_its_image, STARTING_S)
    made = created(chart, "meanwhile", **GPU)
    assert isinstance(made, dict), made
    assert made["spec"]["schedulerName"] == "default-scheduler" and not made["metadata"].get("annotations")
    assert isinstance(created(chart, "plain"), dict)
    assert not asks(chart)
    doctor = carrel(chart.api, "doctor", "--carrel-namespace", NAMESPACE)
    assert doctor.returncode == 1 and "it has not answered yet" in doctor.stdout, doctor.stdout


def test_once_the_webhook_has_answered_gpu_pods_are_carrels(chart: InstalledChart) -> None:
    chart.node.load(carrel_image())
    for each in chart.get(PODS)["items"]:  # the kubelet would wait for minutes before it looks again
        chart.api.call("DELETE", f"{PODS}/{each['metadata']['name']}")
    eventually(lambda: asks(chart), STARTING_S)

    def is_admitted() -> bool:
        made = created(chart, "tried", "--dry-run=server", **GPU)
        return isinstance(made, dict) and "carrel.dev/tier" in made["metadata"].get("annotations", {})

    eventually(is_admitted, STARTING_S)


def rendered_as_a_repository_has_it() -> str:
    """Without a cluster to look at, as Argo CD renders it."""
    text = helm("template", *LINE, "--set", "carrel.secrets.existing=carrel-secrets")
    kinds = ("MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    return yaml.safe_dump_all(each for each in yaml.safe_load_all(text) if each and each["kind"] in kinds)


def test_no_tool_that_installs_takes_it_back(chart: InstalledChart) -> None:
    helm("upgrade", *LINE, "--set", "carrel.logLevel=debug", api=chart.api)
    assert asks(chart), "by server-side apply, as Helm 4 does"
    helm("upgrade", *LINE, "--server-side=false", api=chart.api)
    assert asks(chart), "by patches, as Helm 3 does"
    helm("rollback", "gpu-booking", "1", "-n", NAMESPACE, api=chart.api)
    assert asks(chart)
    given = rendered_as_a_repository_has_it()
    for options in (("--server-side", "--field-manager=argocd-controller", "--force-conflicts"), ()):
        chart.api.kubectl("apply", *options, "--filename", "-", given=given)
        assert asks(chart), options


def test_while_no_webhook_runs_gpu_pods_are_refused_and_others_are_not(chart: InstalledChart) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/carrel-webhook"
    chart.api.call("PATCH", path, {"spec": {"replicas": 0}})
    eventually(lambda: not chart.get(f"{PODS}?labelSelector={WEBHOOK}")["items"], STARTING_S)
    refused = created(chart, "refused", **GPU)
    assert isinstance(refused, str) and 'failed calling webhook "gpu-pods.carrel.dev"' in refused, refused
    assert isinstance(created(chart, "plain-meanwhile"), dict)
    assert asks(chart)
