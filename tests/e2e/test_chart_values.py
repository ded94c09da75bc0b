"""What the chart renders, with the real helm: the manifests of the program, and sentences about unusable values."""

import copy
import json
from base64 import b64decode
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import jsonschema_rs
import pytest
import yaml

from carrel.cluster_file import read_gpus
from carrel.configuration.moved import BY_VARIABLE
from carrel.configuration.reading import read
from carrel.configuration.schema import Configuration
from carrel.ids import NodeName
from carrel.manifests import crds, dra, policies, priority_classes, rbac, webhooks
from carrel.scheduling.scheduler_config import Extender, cpu_scheduler_config, scheduler_config
from testbed import schemas
from testbed.control_plane import ApiServer
from testbed.processes import Failed
from tests.e2e.chart import CHART, NAMESPACE, by_name, rendered
from tests.e2e.pods import Json

EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
OTHERS_KINDS = {"HTTPRoute", "PodMonitor", "PrometheusRule"}
"""Custom resources of others, which a bare API server does not know."""


def in_namespace(value: Any, name: str) -> Any:
    """The manifest as an admin would change it for another namespace than `carrel`."""
    if isinstance(value, dict):
        return {
            key: name if key == "namespace" and each == "carrel" else in_namespace(each, name)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [in_namespace(each, name) for each in value]
    if isinstance(value, str):
        return value.replace("system:serviceaccount:carrel:", f"system:serviceaccount:{name}:")
    return value


def program_manifests() -> Iterator[Json]:
    for each in (*crds(), *rbac(), *webhooks(), *policies(), *priority_classes()):
        yield in_namespace(copy.deepcopy(each), NAMESPACE)


def without_chart_metadata(found: Json) -> Json:
    metadata = {key: value for key, value in found["metadata"].items() if key not in ("labels", "annotations")}
    return {**found, "metadata": metadata}


def own_namespace_in_lists(found: Json) -> Json:
    """Lists of names of namespaces, which have Carrel's own among others."""
    for webhook in found.get("webhooks", ()):
        for rule in webhook.get("namespaceSelector", {}).get("matchExpressions", ()):
            rule["values"] = [NAMESPACE if each == "carrel" else each for each in rule["values"]]
    return found


def test_the_chart_has_the_manifests_of_the_program_and_no_others() -> None:
    expected = by_name([own_namespace_in_lists(each) for each in program_manifests()])
    chart = by_name(rendered())
    secret = b64decode(chart["Secret", NAMESPACE, "carrel-secrets"]["data"]["path-secret"]).decode()
    for webhook in expected["MutatingWebhookConfiguration", "", "carrel"]["webhooks"]:
        # As the webhook itself would write it.
        webhook["clientConfig"]["service"]["path"] = f"/{secret}/mutate"
        if webhook["name"] == "gpu-pods.carrel.dev":
            del webhook["rules"]  # which the webhook writes when it can answer
    for name, manifest in expected.items():
        assert without_chart_metadata(chart[name]) == without_chart_metadata(manifest), name
    kinds = {kind for kind, _, _ in expected}
    more = {name for name in chart if name[0] in kinds and name not in expected}
    helps = {"carrel-kube-scheduler", "carrel-volume-scheduler", "carrel-withdraw", "carrel-doctor"}
    assert {name for _, _, name in more} == helps


def test_of_a_secret_of_the_admin_no_path_is_rendered_which_the_webhook_would_overwrite() -> None:
    chart = by_name(rendered("--set", "secrets.existing=mine"))
    entries = chart["MutatingWebhookConfiguration", "", "carrel"]["webhooks"]
    assert not any("path" in each["clientConfig"]["service"] for each in entries)


def test_kube_scheduler_is_told_what_the_program_prints() -> None:
    chart = by_name(rendered())
    told = yaml.safe_load(chart["ConfigMap", NAMESPACE, "carrel-scheduler"]["data"]["scheduler.yaml"])
    assert told["leaderElection"].pop("resourceNamespace") == NAMESPACE
    assert told == scheduler_config(Extender("http://127.0.0.1:39999"))
    assert "cpu-scheduler.yaml" not in chart["ConfigMap", NAMESPACE, "carrel-scheduler"]["data"]


def of_claims(chart: dict[tuple[str, str, str], Json]) -> set[tuple[str, str]]:
    named = {(kind, name) for kind, _, name in chart if "dra" in name.split("-") or kind == "DeviceClass"}
    return named | {(kind, name) for kind, _, name in chart if (kind, name) in CLAIM_RULES}


def times_waited(chart: dict[tuple[str, str, str], Json]) -> dict[str, int]:
    """How long the API server waits for the webhook, by entry."""
    entries = chart["MutatingWebhookConfiguration", "", "carrel"]["webhooks"]
    return {each["name"]: each["timeoutSeconds"] for each in entries}


CLAIMS_OF_NVIDIA = "config.resourceClaims.enabled=true,config.resourceClaims.driver=gpu.nvidia.com"
CLAIM_RULES = {("ValidatingWebhookConfiguration", "carrel"), ("ValidatingAdmissionPolicy", "carrel-slices")}


def test_with_claims_the_chart_has_what_the_program_needs_for_them() -> None:
    chart = by_name(
        rendered("--set", "config.resourceClaims.enabled=true,dra.nvidiaDeviceClass=true", version="v1.34.0")
    )
    secret = b64decode(chart["Secret", NAMESPACE, "carrel-secrets"]["data"]["path-secret"]).decode()
    for each in dra():
        wanted = in_namespace(copy.deepcopy(each), NAMESPACE)
        for webhook in wanted.get("webhooks", ()):
            webhook["clientConfig"]["service"]["path"] = f"/{secret}/allocate"
        found = chart[each["kind"], wanted["metadata"].get("namespace", ""), each["metadata"]["name"]]
        assert without_chart_metadata(found) == without_chart_metadata(wanted), each["metadata"]["name"]
    (entries,) = webhooks(dra=True)
    assert times_waited(chart) == {each["name"]: each["timeoutSeconds"] for each in entries["webhooks"]}
    assert configuration(chart)["resourceClaims"]["enabled"] is True


def test_on_an_old_cluster_claims_are_refused() -> None:
    with pytest.raises(Failed, match=r"resourceClaims\.enabled needs Kubernetes 1\.34, and this cluster has v1\.33\.9"):
        rendered("--set", "config.resourceClaims.enabled=true", version="v1.33.9")


def test_by_default_there_is_nothing_about_claims() -> None:
    chart = by_name(rendered(version="v1.37.1"))
    assert of_claims(chart) == set()
    assert not {"claims.carrel.dev", "claim-pods.carrel.dev"} & times_waited(chart).keys()


def test_beside_nvidias_dra_driver_the_gate_asks_about_its_devices_and_agents_are_no_driver() -> None:
    chart = by_name(rendered("--set", CLAIMS_OF_NVIDIA, version="v1.34.0"))
    wanted = [in_namespace(each, NAMESPACE) for each in dra(driver="gpu.nvidia.com")]
    (gate,) = chart["ValidatingWebhookConfiguration", "", "carrel"]["webhooks"]
    (about,) = [each["expression"] for each in gate["matchConditions"] if each["name"] == "gpus-of-carrel"]
    assert about.endswith("result.driver in ['gpu.nvidia.com'])")
    assert gate["matchConditions"] == wanted[0]["webhooks"][0]["matchConditions"]
    assert of_claims(chart) == of_claims(by_name(wanted))
    assert "claim-pods.carrel.dev" in times_waited(chart) and "claims.carrel.dev" not in times_waited(chart)
    agent = chart["DaemonSet", NAMESPACE, "carrel-agent"]
    assert "cdi" not in [each["name"] for each in agent["spec"]["template"]["spec"]["volumes"]]


def test_values_about_claims_that_contradict_each_other_are_refused() -> None:
    values = f"{CLAIMS_OF_NVIDIA},dra.nvidiaDeviceClass=true,config.nodes.plugin=coexist"
    with pytest.raises(Failed, match=r"and dra\.nvidiaDeviceClass exclude each other") as refused:
        rendered("--set", values, version="v1.34.0")
    assert "resourceClaims.driver=gpu.nvidia.com and config.nodes.plugin=coexist exclude each other" in str(
        refused.value
    )


def test_the_kube_scheduler_for_pods_without_a_gpu_is_told_what_the_program_prints() -> None:
    chart = by_name(rendered("--set", "scheduler.cpuPods=true"))
    told = yaml.safe_load(chart["ConfigMap", NAMESPACE, "carrel-scheduler"]["data"]["cpu-scheduler.yaml"])
    assert told["leaderElection"].pop("resourceNamespace") == NAMESPACE
    assert told == cpu_scheduler_config(Extender("http://127.0.0.1:39999"))
    pod = chart["Deployment", NAMESPACE, "carrel-scheduler"]["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["extender", "kube-scheduler", "cpu-scheduler"]


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("v1.33.5", "v1.33.5"),
        ("v1.33.5-eks-3025e55", "v1.33.5"),
        ("v1.34.1-gke.1080000", "v1.34.1"),
        ("v1.35.0+k3s1", "v1.35.0"),
        ("v1.37.1-rc.1+rke2r1", "v1.37.1"),
    ],
)
def test_kube_scheduler_has_the_version_of_the_cluster_without_what_a_vendor_added(version: str, tag: str) -> None:
    found = by_name(rendered(version=version))["Deployment", NAMESPACE, "carrel-scheduler"]
    (image,) = [
        each["image"] for each in found["spec"]["template"]["spec"]["containers"] if each["name"] == "kube-scheduler"
    ]
    assert image == f"registry.k8s.io/kube-scheduler:{tag}"


def pod_specs(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    for each in objects:
        if each["kind"] in ("Deployment", "DaemonSet", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


@pytest.mark.parametrize("values", [None, *EXAMPLES], ids=lambda file: file.stem if file else "default")
def test_all_pods_but_the_agent_are_restricted_and_the_agents_exceptions_are_these(values: Any) -> None:
    for name, spec in pod_specs(rendered(*(["--values", values] if values else []))):
        host_paths = [each["hostPath"]["path"] for each in spec.get("volumes", ()) if "hostPath" in each]
        is_agent = name.startswith("carrel-agent")
        of_agents = ["/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources", "/sys/fs/cgroup"]
        assert host_paths == (of_agents if is_agent else []), name
        assert spec["securityContext"]["runAsUser"] == (0 if is_agent else 65532), name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["enableServiceLinks"] is False, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name


@pytest.mark.parametrize("values", [None, *EXAMPLES], ids=lambda file: file.stem if file else "default")
def test_the_api_server_would_take_everything(api_server: ApiServer, values: Any) -> None:
    objects = rendered(*(["--values", values] if values else []), namespace="default")
    known = [each for each in objects if each["kind"] not in OTHERS_KINDS]
    # Of a namespace that does not exist yet, nothing can be tried.
    known = [each for each in known if each["metadata"].get("namespace") != "kai-resource-reservation"]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": known})
    said = api_server.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename", "-", given=listed
    )
    assert len(said.splitlines()) == len(known)


@pytest.mark.parametrize("release", schemas.RELEASES)
@pytest.mark.parametrize("values", [None, *EXAMPLES], ids=lambda file: file.stem if file else "default")
def test_every_release_knows_all_fields(values: Any, release: str) -> None:
    objects = rendered(*(["--values", values] if values else []), version=f"v{release}.0")
    wrong = {}
    for each in [each for each in objects if each["kind"] not in OTHERS_KINDS]:
        known = schemas.names(release)
        of_kind = known.get((each["apiVersion"], each["kind"]))
        assert of_kind, f"{release} has no {each['apiVersion']} {each['kind']}"
        schema = {"$ref": f"#/$defs/{of_kind}", "$defs": schemas.definitions(release)}
        found = [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(each)]
        if found:
            wrong[each["kind"], each["metadata"]["name"]] = found
    assert wrong == {}


def test_a_field_that_a_release_does_not_know_is_noticed() -> None:
    (policy, *_) = [each for each in rendered() if each["kind"] == "ValidatingAdmissionPolicy"]
    name = schemas.names("1.33")["admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"]
    schema = {"$ref": f"#/$defs/{name}", "$defs": schemas.definitions("1.33")}
    policy["spec"]["newer"] = True
    assert ["newer" in error.message for error in jsonschema_rs.validator_for(schema).iter_errors(policy)] == [True]


def environment(objects: list[Json], deployment: str) -> dict[str, Any]:
    found = by_name(objects)["Deployment", NAMESPACE, deployment]["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in found["env"]}


def configuration(chart: dict[tuple[str, str, str], Json]) -> Any:
    """The file that all components follow."""
    return yaml.safe_load(chart["ConfigMap", NAMESPACE, "carrel"]["data"]["carrel.yaml"])


@pytest.mark.parametrize("values", [None, *EXAMPLES], ids=lambda file: file.stem if file else "default")
def test_the_configuration_is_what_was_given_and_the_program_takes_it(values: Any) -> None:
    written = configuration(by_name(rendered(*(["--values", values] if values else []))))
    made = read(yaml.safe_dump(written))
    if values is None:
        assert made == Configuration()
    elif values.stem == "full":
        assert made.tiers.revocation_grace == timedelta(minutes=1)
        assert made.bookings.rules.cooldown == timedelta(days=7)
        assert dict(made.hubs.users) == {"ada": "ada.lovelace@lab.example"}


def test_a_change_of_the_configuration_replaces_no_pod() -> None:
    options = "tiers.whenFull=cpu", "memory.unit=GiB", "bookings.rules.maxGpus=2", "hubs.users.ada=a@lab.example"
    secrets = "secrets.sealKey=0123456789abcdef"  # random ones are another story
    before, after = (
        dict(pod_specs(rendered("--set", ",".join([secrets, *given]))))
        for given in ([], [f"config.{each}" for each in (*options, "bookings.publicUrl=https://gpus.lab.example")])
    )
    assert before == after


def test_no_field_of_the_configuration_is_given_to_a_process_besides() -> None:
    for name, spec in pod_specs(rendered("--values", CHART / "examples/full.yaml")):
        told = {each["name"] for container in spec["containers"] for each in container.get("env", ())}
        assert told & BY_VARIABLE.keys() == set(), name


def test_the_processes_that_seal_and_check_have_one_key() -> None:
    objects = rendered()
    keys = [
        environment(objects, f"carrel-{name}")["CARREL_SEAL_KEY"] for name in ("webhook", "controller", "scheduler")
    ]
    assert keys[0] == keys[1] == keys[2]


def test_the_booking_service_gets_its_secrets_by_their_names() -> None:
    objects = rendered("--set", "booking.smtpSecret.name=mail,booking.oidcSecret.name=login,booking.oidcSecret.key=own")
    told = environment(objects, "carrel-booking")
    assert told["CARREL_SMTP_URL"] == {"secretKeyRef": {"name": "mail", "key": "url"}}
    assert told["CARREL_OIDC_CLIENT_SECRET"] == {"secretKeyRef": {"name": "login", "key": "own"}}
    assert "CARREL_HUB_CLIENT_SECRET" not in told and "CARREL_WEBHOOK_SECRET" not in told


@pytest.mark.parametrize(("longest", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400)])
def test_the_webhook_is_asked_about_deletions_that_would_take_longer(longest: str, seconds: int) -> None:
    chart = by_name(rendered("--set", f"config.pods.longestGrace={longest}"))
    text = json.dumps(chart["MutatingWebhookConfiguration", "", "carrel"])
    assert f"gracePeriodSeconds.orValue(0) > {seconds}" in text and "orValue(0) > 300" not in text


def test_the_extender_listens_on_loopback() -> None:
    told = environment(rendered(), "carrel-scheduler")
    assert "CARREL_BIND_ADDRESS" not in told  # the default of the program
    assert told["CARREL_HEALTH_ADDRESS"] == "0.0.0.0:39995"


def test_simulated_gpus_are_written_short_or_as_the_agent_reads_them() -> None:
    for option in ("2xTesla-T4:15360+1xNVIDIA-A100:81920", "list"):
        given = "agent.simulate[0].model=Tesla-T4,agent.simulate[0].memoryMiB=15360" if option == "list" else ""
        objects = by_name(rendered("--set", given or f"agent.simulate={option}"))
        text = objects["ConfigMap", NAMESPACE, "carrel-simulated-gpus"]["data"]["gpus.yaml"]
        first, *_ = read_gpus(text, "gpus.yaml", NodeName("n1"))
        assert (first.model, first.memory) == ("Tesla-T4", 15360)
    agent = objects["DaemonSet", NAMESPACE, "carrel-agent"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert "NVIDIA_VISIBLE_DEVICES" not in {each["name"] for each in agent}


def agents(objects: list[Json]) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == "DaemonSet"}


def told_agent(daemon_set: Json) -> dict[str, str]:
    container = daemon_set["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_agents_that_only_report_run_on_the_nodes_that_another_plugin_has() -> None:
    found = agents(rendered("--set", "agent.nodeSelector.gpus=carrel,agent.reportOnly.nodeSelector.gpus=gpushare"))
    chosen = {name: each["spec"]["template"]["spec"]["nodeSelector"] for name, each in found.items()}
    assert chosen == {"carrel-agent": {"gpus": "carrel"}, "carrel-agent-report-only": {"gpus": "gpushare"}}
    only = {name: told_agent(each).get("CARREL_REPORT_ONLY") for name, each in found.items()}
    assert only == {"carrel-agent": None, "carrel-agent-report-only": "true"}
    for each in found.values():
        assert each["spec"]["template"]["spec"]["serviceAccountName"] == "carrel-agent"
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
    selectors = [each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] for each in found.values()]
    assert len(set(selectors)) == 2, "a DaemonSet must not count the pods of the other"


def test_while_the_path_secret_is_changed_the_api_server_uses_the_first() -> None:
    both = "new-0123456789abcdef\\,old-0123456789abcdef"
    chart = by_name(rendered("--set", f"secrets.pathSecret={both}"))
    told = b64decode(chart["Secret", NAMESPACE, "carrel-secrets"]["data"]["path-secret"]).decode()
    assert told == "new-0123456789abcdef,old-0123456789abcdef"
    called = chart["MutatingWebhookConfiguration", "", "carrel"]["webhooks"]
    assert {each["clientConfig"]["service"]["path"] for each in called} == {"/new-0123456789abcdef/mutate"}


def test_reservation_pods_pull_their_image_with_the_same_secrets() -> None:
    chart = by_name(rendered("--set", "config.nodes.plugin=coexist,image.pullSecrets[0]=mine"))
    space = "kai-resource-reservation"
    assert chart["ServiceAccount", space, space]["imagePullSecrets"] == [{"name": "mine"}]
    assert chart["Deployment", NAMESPACE, "carrel-controller"]["spec"]["template"]["spec"]["imagePullSecrets"] == [
        {"name": "mine"}
    ]
    assert "imagePullSecrets" not in chart["ServiceAccount", NAMESPACE, "carrel-controller"]


def test_kais_old_names_are_one_value() -> None:
    """Under the new names everything is there too, for the way back."""
    found = [by_name(rendered(*options)) for options in ((), ("--set", "config.reservations.names=old-kai"))]
    more = found[1].keys() - found[0].keys()
    assert {(kind, name) for kind, _, name in more} == {
        (kind, "runai-reservation") for kind in ("Namespace", "ServiceAccount", "Role", "RoleBinding")
    }
    example = yaml.safe_load_all((CHART.parents[1] / "examples/kai-old-names.yaml").read_text())
    for name, given in by_name(list(example)).items():
        assert without_chart_metadata(found[1][name]) == without_chart_metadata(given), name


def test_a_gateway_routes_the_host_and_the_path_to_the_booking_service() -> None:
    url = "config.bookings.publicUrl=https://gpus.lab.example/services/carrel"
    parent = "booking.gateway.parentRefs[0].name=public,booking.gateway.parentRefs[0].namespace=gateways"
    route = by_name(rendered("--set", f"{url},{parent}"))["HTTPRoute", NAMESPACE, "carrel-booking"]
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert route["spec"] == {
        "parentRefs": [{"name": "public", "namespace": "gateways"}],
        "hostnames": ["gpus.lab.example"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/services/carrel"}}],
                "backendRefs": [{"name": "carrel-booking", "port": 39997}],
            }
        ],
    }


def test_with_postgresql_two_run_without_a_volume_and_are_replaced_one_by_one() -> None:
    objects = rendered("--set", "booking.database.existingSecret=mine,booking.database.key=address")
    booking = by_name(objects)["Deployment", NAMESPACE, "carrel-booking"]["spec"]
    told = environment(objects, "carrel-booking")["CARREL_DATABASE"]
    assert told == {"secretKeyRef": {"name": "mine", "key": "address"}}
    assert (booking["replicas"], "strategy" in booking) == (2, False)
    assert [each["name"] for each in booking["template"]["spec"]["volumes"]] == ["tmp"]
    assert not [each for each in objects if each["kind"] == "PersistentVolumeClaim"]


def test_beside_bookings_elsewhere_the_service_is_told_where_and_components_ask_there() -> None:
    there = "bookingsElsewhere.apiUrl=https://maia.example:8443/api/?of=carrel,bookingsElsewhere.existingSecret=maia"
    objects = rendered("--set", there)
    assert environment(objects, "carrel-booking")["CARREL_BOOKINGS_ELSEWHERE"] == "https://maia.example:8443"
    assert environment(objects, "carrel-controller")["CARREL_API_URL"] == "https://maia.example:8443/api/?of=carrel"
    assert "CARREL_BOOKINGS_ELSEWHERE" not in environment(rendered(), "carrel-booking")
    without = by_name(rendered("--set", f"booking.enabled=false,{there}"))
    assert ("Deployment", NAMESPACE, "carrel-booking") not in without


BAD = {
    "an unknown key": ("agent.simulat=x", "additional properties 'simulat' not allowed"),
    "a wrong type": ("webhook.replicas=many", "got string, want integer"),
    "a word that means nothing": ("config.tiers.whenFull=never", "value must be one of 'cpu', 'wait', 'default'"),
    "a default secret": (
        "secrets.maiaToken=secret-token",
        "leave it empty for a random one",
    ),
    "the other default secret": ("secrets.terminatorToken=S#perS3crEt_007", "is a default that everybody knows"),
    "a short secret": ("secrets.sealKey=abc", "has 3 characters, which can be guessed"),
    "a slash in a path's secret": ("secrets.pathSecret=0123456789/abcdef", "becomes a part of a path"),
    "a capital in a path's secret": ("secrets.pathSecret=0123456789Abcdef", "takes small letters, digits and -"),
    "a comma in a path's secret that is short": (
        "secrets.pathSecret=0123456789abcdef\\,abc",
        "secrets.pathSecret has 3 characters",
    ),
    "two secrets": ("secrets.existing=mine,secrets.sealKey=x", "write the value into your Secret mine"),
    "a missing secret": ("bookingsElsewhere.apiUrl=https://maia.example", "needs bookingsElsewhere.existingSecret"),
    "two replicas on SQLite": ("booking.replicas=2", "give booking.database.existingSecret"),
    "a hub without its token": ("config.bookings.signIn.hub.url=https://hub.example", "needs booking.hubSecret.name"),
    "Matrix without a token": ("config.notifications.matrixUrl=https://matrix.example", "needs booking.matrixSecret"),
    "posts without a secret": ("config.notifications.webhookUrl=https://chat.example", "needs booking.webhookSecret"),
    "an Ingress without a host": ("booking.ingress.enabled=true", "need config.bookings.publicUrl, whose host they"),
    "an unknown field": ("config.tiers.whenfull=cpu", "additional properties 'whenfull' not allowed"),
    "a number without a unit": ("config.tiers.revocationGrace=60", "got number, want string"),
    "a unit that is none": ("config.tiers.revocationGrace=1w", "does not match pattern '^[0-9]{1,9}[dhms]$'"),
    "a value that moved": ("mode=coexist", "at '/mode': value must be 'moved to config.nodes.plugin'"),
    "a section that moved": ("booking.oidc.issuer=https://a", "'moved to config.bookings.signIn.oidc, the name of its"),
    "a variable that moved": ("booking.env.CARREL_COOLDOWN_DAYS=7", "'moved to config.bookings.rules.cooldown'"),
    "simulated GPUs in other words": ("agent.simulate=two", "write COUNTxMODEL:MIB, as 2xTesla-T4:15360"),
    "simulated GPUs beside NVIDIA's plugin": (
        "agent.simulate=1xT4:100,config.nodes.plugin=coexist",
        "has no simulated GPUs",
    ),
    "simulated GPUs without agents": ("agent.simulate=1xT4:100,agent.enabled=false", "needs agent.enabled=true"),
    "two agents on one node": ("agent.reportOnly.nodeSelector.a=b", "needs agent.nodeSelector, for the other agents"),
    "agents that only report beside NVIDIA's plugin": (
        "agent.reportOnly.nodeSelector.a=b,agent.nodeSelector.a=c,config.nodes.plugin=coexist",
        "agent.reportOnly.nodeSelector and config.nodes.plugin=coexist exclude each other",
    ),
    "an Ingress and a Gateway": (
        "booking.ingress.enabled=true,booking.gateway.parentRefs[0].name=a",
        "booking.ingress.enabled and booking.gateway.parentRefs exclude each other; choose one",
    ),
    "an Ingress for nothing": ("booking.enabled=false,booking.ingress.enabled=true", "there is nothing that"),
    "a terminator for all that does not run": (
        "controller.terminator.forAll=true,controller.terminator.enabled=false",
        "needs controller.terminator.enabled=true",
    ),
    "a kubelet's folder that is none": ("agent.kubeletFolder=kubelet", "write a path such as /var/lib/kubelet"),
    "a word that CUDA does not know": ("config.dialects.cudaDevices=name", "value must be one of 'uuid', 'index'"),
    "a quote in a user's name": ("config.pods.trustedUsers[0]=o'neil", "without blanks, quotes and backslashes"),
    "a variable that the chart sets": ("webhook.env.CARREL_CONFIGURATION=a", "which the chart sets itself"),
}


@pytest.mark.parametrize(("option", "sentence"), BAD.values(), ids=BAD)
def test_a_value_that_cannot_be_used_is_refused_with_what_to_write(option: str, sentence: str) -> None:
    with pytest.raises(Failed) as refused:
        rendered("--set", option)
    assert sentence in str(refused.value)


def test_a_kubernetes_that_is_too_old_is_refused() -> None:
    with pytest.raises(Failed, match=r"1\.33"):
        rendered(version="v1.32.9")
