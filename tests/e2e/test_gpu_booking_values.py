"""What the chart gpu-booking renders, with the real helm: Carrel under MAIA's names, and sentences about bad values.
Beside a Carrel, on a real API server without nodes: only the names; and no second Carrel.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator

import pytest
import yaml

from carrel.configuration.reading import read
from carrel.configuration.schema import PluginMode
from testbed.control_plane import ApiServer
from testbed.control_plane import api_server as start_api_server
from testbed.fixtures import shown_run
from testbed.processes import Failed
from tests.e2e.chart import CHART, by_name, helm
from tests.e2e.chart import rendered as carrel_rendered
from tests.e2e.gpu_booking import CONFIGURATION, GPU_BOOKING, NAMESPACE, carrel, follow_the_document
from tests.e2e.pods import Json, eventually, is_gone

MAIA = ("apiUrl=https://maia.example/maia-api/gpu-schedulability/", "apiToken=of-the-dashboard")


def rendered(*values: str, option: str = "--set") -> list[Json]:
    options = [word for each in values for word in (option, each)]
    text = helm("template", "gpu-booking", GPU_BOOKING, "-n", NAMESPACE, "--kube-version", "v1.33.0", *options)
    return [each for each in yaml.safe_load_all(text) if each]


def test_it_renders_all_of_carrel_and_three_names_are_maias() -> None:
    ours = {
        (kind, NAMESPACE if namespace == "gpus" else namespace, name)
        for kind, namespace, name in by_name(carrel_rendered())
    }
    theirs = set(by_name(rendered()))
    assert ours - theirs == {("MutatingWebhookConfiguration", "", "carrel"), ("Service", NAMESPACE, "carrel-webhook")}
    assert theirs - ours == {
        ("MutatingWebhookConfiguration", "", "gpu-booking-webhook"),
        ("Service", NAMESPACE, "gpu-booking-mutating-webhook"),
    }
    webhook = by_name(rendered())["Deployment", NAMESPACE, "carrel-webhook"]["spec"]["template"]["spec"]
    told = {each["name"]: each.get("value") for each in webhook["containers"][0]["env"]}
    assert told["CARREL_CONFIGURATION"] == "gpu-booking-webhook"
    binding = by_name(rendered())["ValidatingAdmissionPolicyBinding", "", "carrel-gpu-pods"]["spec"]
    assert binding["paramRef"]["name"] == "gpu-booking-webhook"


def test_with_an_address_bookings_are_asked_for_there_with_the_token() -> None:
    found = by_name(rendered(*MAIA, "gpuStatsUrl=https://maia.example/maia-api/gpu-stats/", f"namespace={NAMESPACE}"))
    assert ("Deployment", NAMESPACE, "carrel-booking") not in found
    secret = found["Secret", NAMESPACE, "carrel-bookings-elsewhere"]["data"]
    assert b64decode(secret["token"]) == b"of-the-dashboard"
    for part in ("webhook", "controller"):
        spec = found["Deployment", NAMESPACE, f"carrel-{part}"]["spec"]["template"]["spec"]
        told = {each["name"]: each for each in spec["containers"][0]["env"]}
        assert told["CARREL_API_URL"]["value"] == "https://maia.example/maia-api/gpu-schedulability/"
        reference = told["CARREL_API_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": "carrel-bookings-elsewhere", "key": "token"}


def test_with_an_address_the_service_shows_map_and_usage_if_it_is_asked_for() -> None:
    found = by_name(rendered(*MAIA, "carrel.booking.enabled=true"))
    spec = found["Deployment", NAMESPACE, "carrel-booking"]["spec"]["template"]["spec"]
    told = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert told["CARREL_BOOKINGS_ELSEWHERE"] == "https://maia.example"
    controller = found["Deployment", NAMESPACE, "carrel-controller"]["spec"]["template"]["spec"]
    assert "CARREL_API_URL" in {each["name"] for each in controller["containers"][0]["env"]}


def test_without_an_address_the_token_is_that_of_carrels_own_booking_service() -> None:
    found = by_name(rendered("apiToken=0123456789abcdef"))
    assert ("Deployment", NAMESPACE, "carrel-booking") in found
    assert b64decode(found["Secret", NAMESPACE, "carrel-secrets"]["data"]["maia-token"]) == b"0123456789abcdef"
    random = by_name(rendered())["Secret", NAMESPACE, "carrel-secrets"]["data"]["maia-token"]
    assert len(b64decode(random)) == 48


def test_values_of_carrel_are_given_under_its_name() -> None:
    found = by_name(rendered("carrel.agent.simulate=2xTesla-T4:15360", "carrel.webhook.replicas=3"))
    assert found["Deployment", NAMESPACE, "carrel-webhook"]["spec"]["replicas"] == 3
    assert ("ConfigMap", NAMESPACE, "carrel-simulated-gpus") in found


@pytest.mark.parametrize(
    ("values", "most"),
    [
        pytest.param((), 1, id="as in MAIA's document"),
        pytest.param(("carrel.config.lab.timezone=Europe/Stockholm",), 1, id="with other fields"),
        pytest.param(("carrel.config.bookings.rules.cooldown=7d",), 1, id="with another rule"),
        pytest.param(("carrel.config.bookings.rules.maxGpus=0",), 0, id="no limit, if the admin says so"),
    ],
)
def test_a_booking_of_a_person_has_one_gpu_unless_the_admin_allows_more(values: tuple[str, ...], most: int) -> None:
    written = by_name(rendered(*values))["ConfigMap", NAMESPACE, "carrel"]["data"]["carrel.yaml"]
    assert read(written).bookings.rules.max_gpus == most


@pytest.mark.parametrize(
    ("values", "plugin", "grace", "gpus"),
    [
        pytest.param((), PluginMode.COEXIST, 30, 8, id="as MAIA runs"),
        pytest.param(("carrel.agent.simulate=2xTesla-T4:15360",), PluginMode.NATIVE, 30, 8, id="simulated GPUs"),
        pytest.param(
            (
                "carrel.config.nodes.plugin=native",
                "carrel.config.tiers.notebookGrace=2m",
                "carrel.config.dialects.maiaBookingGpus=1",
            ),
            PluginMode.NATIVE,
            120,
            1,
            id="as the admin says",
        ),
    ],
)
def test_the_defaults_are_those_of_a_cluster_with_maia(
    values: tuple[str, ...], plugin: PluginMode, grace: int, gpus: int
) -> None:
    found = read(by_name(rendered(*values))["ConfigMap", NAMESPACE, "carrel"]["data"]["carrel.yaml"])
    assert (found.nodes.plugin, found.tiers.notebook_grace.total_seconds()) == (plugin, grace)
    assert found.dialects.maia_booking_gpus == gpus


BAD = {
    "the token of the document": (
        ("apiToken=secret-token",),
        "everybody knows; write the token of your dashboard",
    ),
    "the token of the document, with an address": ((MAIA[0], "apiToken=secret-token"), "which everybody knows"),
    "an address without a token": ((MAIA[0],), "apiUrl needs apiToken, the token that the dashboard expects"),
    "a token that can be guessed": (("apiToken=short",), "has 5 characters, which can be guessed"),
    "an address that is none": (
        ("apiUrl=maia", MAIA[1]),
        "write an address such as https://maia.example/maia-api/gpu-schedulability/",
    ),
    "half of the addresses": (("gpuStatsUrl=https://maia.example/",), "write both for bookings in MAIA's dashboard"),
    "another namespace": (("namespace=elsewhere",), "write --namespace elsewhere, or leave namespace empty"),
    "an unknown key": (("apiURL=https://maia.example",), "additional properties 'apiURL' not allowed"),
    "a wrong type": (("apiToken=12345",), "got number, want string"),
    "a value of Carrel that is none": (
        ("carrel.config.nodes.plugin=both",),
        "value must be one of 'native', 'coexist'",
    ),
    "values of Carrel that exclude each other": (("carrel.booking.replicas=2",), "a volume with SQLite serves one"),
}


@pytest.mark.parametrize(("options", "sentence"), BAD.values(), ids=BAD)
def test_a_value_that_cannot_be_used_is_refused_with_what_to_write(options: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(Failed) as refused:
        rendered(*options)
    assert sentence in str(refused.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Failed) as refused:
        rendered("apiUrl=maia", "apiToken=secret-token", "namespace=elsewhere")
    assert str(refused.value).count("\n  - ") == 3


# --- the hubs of the cluster -----------------------------------------------------------------------------------------

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def a_hub(api: ApiServer, namespace: str, *, has_rights: bool) -> None:
    """As Zero to JupyterHub installs it; nothing runs it."""
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    labels = {"app": "jupyterhub", "component": "hub"}
    spec = {"serviceAccountName": "hub", "containers": [{"name": "hub", "image": "hub"}]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    deployment = {"selector": {"matchLabels": labels}, "template": template}
    body = {"metadata": {"name": "hub", "labels": labels}, "spec": deployment}
    api.call("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
    if has_rights:
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hub"}
        subjects = [{"kind": "ServiceAccount", "name": "hub", "namespace": namespace}]
        body = {"metadata": {"name": "hub"}, "roleRef": role, "subjects": subjects}
        api.call("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body)


def test_the_hubs_that_run_at_installation_are_named_and_shown_and_none_that_comes_later() -> None:
    def named() -> tuple[str, ...]:
        written = api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/carrel")["data"]["carrel.yaml"]
        return read(written).hubs.accounts

    jhub, place = "system:serviceaccount:jhub:hub", ("gpu-booking", GPU_BOOKING, "-n", NAMESPACE)
    with shown_run("hubs") as run, start_api_server(run) as api:
        a_hub(api, "jhub", has_rights=True)
        a_hub(api, "of-a-member", has_rights=False)
        said = helm("install", *place, "--create-namespace", api=api)
        assert f"Hubs           {jhub}\n" in said and "of-a-member" not in said
        assert named() == (jhub,)

        a_hub(api, "later", has_rights=True)
        said = helm("upgrade", *place, api=api)
        assert named() == (jhub,) and f"Hubs           {jhub}\n" in said
        helm("upgrade", *place, "--set", "carrel.config.hubs.accounts={any}", api=api)
        assert named() == ("any",)
        helm("upgrade", *place, "--reset-values", api=api)
        assert named() == (), "what was given and is taken back is believed no more"


# --- beside a Carrel --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def beside() -> Iterator[ApiServer]:
    """Carrel in the namespace `gpus`. No node runs its pods, so its webhook has made no certificates."""
    with shown_run("beside") as run, start_api_server(run) as api:
        helm("install", "carrel", CHART, "-n", "gpus", "--create-namespace", api=api)
        body = {"metadata": {"name": "carrel-webhook-tls"}, "data": {"ca.crt": b64encode(b"an authority").decode()}}
        api.call("POST", "/api/v1/namespaces/gpus/secrets", body)
        yield api
        helm("uninstall", "carrel", "-n", "gpus", "--no-hooks", api=api)
        purged = carrel(api, "purge", "--carrel-namespace", "gpus", "--yes")
        assert purged.returncode == 0, purged.stderr


def test_beside_a_carrel_only_the_names_are_installed_and_lead_to_it(beside: ApiServer) -> None:
    said = helm("install", "gpu-booking", GPU_BOOKING, "-n", NAMESPACE, "--create-namespace", api=beside)
    assert "release carrel in the namespace gpus" in said
    assert not beside.call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    services = beside.call("GET", f"/api/v1/namespaces/{NAMESPACE}/services")["items"]
    assert {each["metadata"]["name"]: each["spec"]["externalName"] for each in services} == {
        "gpu-booking-mutating-webhook": "carrel-webhook.gpus.svc.cluster.local",
        "pod-terminator": "pod-terminator.gpus.svc.cluster.local",
    }
    authority = beside.call("GET", "/api/v1/namespaces/gpus/secrets/carrel-webhook-tls")["data"]
    assert beside.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/gpu-booking-webhook-tls")["data"] == authority
    follow_the_document(beside)
    (entry,) = beside.call("GET", CONFIGURATION)["webhooks"]
    assert not entry.get("rules"), "it asks about no pod"
    given = f"{','.join(MAIA)},carrel.config.nodes.plugin=coexist"
    with pytest.raises(Failed) as refused:
        helm("upgrade", "gpu-booking", GPU_BOOKING, "-n", NAMESPACE, "--set", given, api=beside)
    assert "helm upgrade carrel charts/carrel --namespace gpus --reset-then-reuse-values" in str(refused.value)
    assert "carrel has values for a Carrel that this release would install" in str(refused.value)
    helm("uninstall", "gpu-booking", "-n", NAMESPACE, api=beside)
    assert is_gone(beside, CONFIGURATION)


def test_a_second_carrel_is_refused_by_the_chart_and_by_a_component(beside: ApiServer) -> None:
    with pytest.raises(Failed, match=r"Carrel is installed in the namespace gpus \(release carrel\)"):
        helm("install", "second", CHART, "-n", "second", "--create-namespace", api=beside)
    adopt = carrel(beside, "adopt", "--carrel-namespace", "second")
    words = "Try:  the same with --carrel-namespace gpus"
    assert (adopt.returncode, adopt.stderr.splitlines()[2].strip()) == (2, words)
    said = carrel(beside, "extender", "--carrel-namespace", "second", "--port", "0")
    assert (said.returncode, said.stderr.count("Carrel is installed in the namespace gpus")) == (5, 1)
    purge = carrel(beside, "purge", "--carrel-namespace", "second", "--yes")
    assert (purge.returncode, purge.stderr.splitlines()[0]) == (3, "✗ Carrel is not uninstalled")


def test_what_a_deleted_namespace_leaves_is_purged() -> None:
    """Not `helm uninstall`: webhook configuration, policies and roles are still there, and nobody answers."""
    with shown_run("deleted-namespace") as run, start_api_server(run) as api:
        helm("install", "carrel", CHART, "-n", "gone", "--create-namespace", api=api)
        api.call("DELETE", "/api/v1/namespaces/gone")
        # No controller deletes what is in a namespace here.
        items = api.kubectl("get", "deployments,daemonsets", "-n", "gone", "--output", "name").split()
        api.kubectl("delete", "-n", "gone", *items)
        finalized = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gone"}, "spec": {"finalizers": []}}
        api.call("PUT", "/api/v1/namespaces/gone/finalize", finalized)
        eventually(lambda: is_gone(api, "/api/v1/namespaces/gone"))
        with pytest.raises(Failed, match=r"carrel purge --carrel-namespace gone"):
            helm("install", "carrel", CHART, "-n", "gpus", "--create-namespace", api=api)
        done = carrel(api, "purge", "--carrel-namespace", "gone", "--yes")
        assert done.returncode == 0, done.stderr
        kinds = "mutatingwebhookconfigurations,validatingadmissionpolicies,clusterroles,clusterrolebindings,crd"
        left = api.kubectl("get", kinds, "--output", "name").split()
        assert [each for each in left if "carrel" in each or "gpu.scheduling" in each] == []
