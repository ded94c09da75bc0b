"""What is installed in the API server: definitions, policies, priority classes, configurations of webhooks.

A pod that asks for a GPU, as a dry run, shows whether the API server calls the webhook: nothing is created. And where
Carrel stands in MAIA's place: the steps of `docs/admission.md` whose omission nobody notices.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from carrel import manifests
from carrel.cli.checks.components import component_pods, newest
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.cluster.installation import MARKER, installed_in
from carrel.dialects import nvidia
from carrel.dialects.carrel import PREFIXES
from carrel.kubernetes.cluster import ClusterError, Forbidden
from carrel.kubernetes.objects.resources import (
    CLUSTER_ROLES,
    CRDS,
    MUTATING_WEBHOOKS,
    PODS,
    PRIORITY_CLASSES,
    SERVICES,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
)


async def installation(of: Installation) -> Sequence[Finding]:
    """The marker of the one Carrel of a cluster."""
    if (marker := await of.find(CLUSTER_ROLES, MARKER)) is None:
        return [warn(f"there is no ClusterRole {MARKER}: a second Carrel would not know of this one", of.install)]
    if (namespace := installed_in(marker)) != of.namespace:
        text = f"Carrel is installed in the namespace {namespace or '?'}, and this looks at {of.namespace}"
        return [fail(text, f"carrel doctor --carrel-namespace {namespace}")]
    return [ok(f"the one Carrel of this cluster is in the namespace {namespace}")]


async def definitions(of: Installation) -> Sequence[Finding]:
    found: list[Finding] = []
    for ours in manifests.crds():
        name = ours["metadata"]["name"]
        theirs = await of.find(CRDS, name)
        found += _of_definition(of, name, ours, theirs) if theirs else [fail(f"{name} is missing", of.install)]
    return found or [ok("all custom resource definitions are there, in this version")]


def _of_definition(
    of: Installation, name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[Finding]:
    served = {version["name"] for version in theirs["spec"]["versions"] if version.get("served", True)}
    if unserved := [version["name"] for version in ours["spec"]["versions"] if version["name"] not in served]:
        text = f"{name} does not serve the version {', '.join(unserved)}, but {', '.join(sorted(served))}"
        yield fail(text, of.install)
        return
    conditions = {each.get("type"): each for each in (theirs.get("status") or {}).get("conditions", ())}
    if conditions.get("Established", {}).get("status") == "False":
        yield fail(f"{name} is not served: {conditions['Established'].get('message', '')}", of.install)
    if lacking := sorted(set(_fields(ours)) - set(_fields(theirs))):
        yield warn(f"{name} is of another version, and lacks {', '.join(lacking[:3])}", of.install)


def _fields(definition: Mapping[str, Any]) -> Iterator[str]:
    """Paths of the fields, as spec.devices.count."""
    for version in definition["spec"]["versions"]:
        schema = version.get("schema", {}).get("openAPIV3Schema", {})
        yield from _below(schema, "")


def _below(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        yield f"{path}{name}"
        yield from _below(part, f"{path}{name}.")
    if isinstance(items := schema.get("items"), dict):
        yield from _below(items, path)


async def policies(of: Installation) -> Sequence[Finding]:
    missing = []
    for each in manifests.policies():
        kind = VALIDATING_POLICIES if each["kind"] == VALIDATING_POLICIES.kind else VALIDATING_POLICY_BINDINGS
        if await of.find(kind, each["metadata"]["name"]) is None:
            missing.append(each["metadata"]["name"])  # a policy and its binding have one name
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        return [fail(f"missing, or not bound: {names}; users can write what only Carrel may", of.install)]
    return [ok("the API server protects what Carrel writes")]


async def priority_classes(of: Installation) -> Sequence[Finding]:
    names = [each["metadata"]["name"] for each in manifests.priority_classes()]
    missing = [name for name in names if await of.find(PRIORITY_CLASSES, name) is None]
    if missing:
        text = f"missing: {', '.join(missing)}; GPU pods have no priority over others, and may be preempted"
        return [warn(text, of.install)]
    return [ok(f"{', '.join(names)}")]


async def webhook_entries(of: Installation) -> dict[str, dict[str, Any]] | None:
    """The entries of Carrel's configuration by name, under either of its names; None: there is none."""
    configurations = [await of.find(MUTATING_WEBHOOKS, name) for name in manifests.CONFIGURATIONS]
    found = list(filter(None, configurations))
    return {each["name"]: each for one in found for each in one.get("webhooks") or ()} if found else None


async def webhook_configuration(of: Installation) -> Sequence[Finding]:
    (ours,) = manifests.webhooks()
    entries = await webhook_entries(of)
    if entries is None:
        name = manifests.CONFIGURATIONS[0]
        text = f"MutatingWebhookConfiguration {name} is missing: GPU pods are refused, or get no GPU"
        return [fail(text, of.install)]
    if missing := [each["name"] for each in ours["webhooks"] if each["name"] not in entries]:
        return [fail(f"its configuration lacks {', '.join(missing)}", of.install)]
    if not entries[ASKS].get("rules"):
        text = f"it has not answered yet: until it does, GPU pods are created as they are ({ASKS} has no rules)"
        return [fail(text, of.kubectl("get pods --selector app.kubernetes.io/component=webhook"))]
    if [each for each in entries.values() if not each["clientConfig"].get("caBundle")]:
        text = "it has not written its certificate authority into its configuration"
        return [fail(text, of.kubectl("logs deployment/carrel-webhook"))]
    found = [
        fail(
            f"{each['name']} has failurePolicy {theirs}, not {each['failurePolicy']}: {WHAT_HAPPENS[theirs]}",
            of.install,
        )
        for each in ours["webhooks"]
        if (theirs := entries[each["name"]].get("failurePolicy", "Fail")) != each["failurePolicy"]
    ]
    return found or [ok("its configuration is complete")]


ASKS = "gpu-pods.carrel.dev"
"""The webhook writes the rules of this entry when it can answer (`admission/asked_rules.py`)."""
WHAT_HAPPENS = {
    "Ignore": "GPU pods are created as they are while the webhook is away",
    "Fail": "pods that ask for no GPU are refused while the webhook is away",
}


REASONS = (
    ("x509", "it does not trust the webhook's certificate", "rollout restart deployment/carrel-webhook"),
    ("no endpoints available", "no webhook is ready", "get pods --selector app.kubernetes.io/component=webhook"),
    ('service "carrel-webhook" not found', "the webhook's Service is missing", "get services"),
    ("connection refused", "nobody listens there", "get endpointslices"),
    (
        "deadline exceeded",
        "no answer in time: does a firewall or a NetworkPolicy keep the API server away?",
        "get networkpolicies",
    ),
    ("no route to host", "the API server does not reach the pods' network", "get endpointslices"),
)
"""A part of the API server's message → what it means, and what to look at."""


async def admission(of: Installation) -> Sequence[Finding]:
    container = {"name": "main", "image": "none", "resources": {"limits": {nvidia.GPU: "1"}}}
    pod = {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {"generateName": "carrel-doctor-"},
        "spec": {"containers": [container]},
    }
    try:
        made = await of.client.create(PODS, pod, of.namespace, dry_run=True)
    except ClusterError as error:
        if "denied the request" in error.message:  # by a rule of the webhook, which therefore answers
            return [ok(f"the webhook answers: {error.message}")]
        if isinstance(error, Forbidden):
            raise
        return [_refused(of, error)]
    # In a full cluster it may have become a pod without a GPU, which another scheduler places.
    if not any(key.startswith(PREFIXES) for key in made["metadata"].get("annotations", {})):
        return [fail("a GPU pod is created as it is: the API server does not ask the webhook", of.install)]
    return [ok("the API server asks the webhook about GPU pods over TLS, and it answers")]


def _refused(of: Installation, error: ClusterError) -> Finding:
    for part, meaning, words in REASONS:
        if part in error.message:
            return fail(f"the API server cannot ask the webhook: {meaning} ({error.message})", of.kubectl(words))
    look = of.kubectl("get pods,endpointslices") + "; " + of.kubectl("logs deployment/carrel-webhook")
    return fail(f"a GPU pod is refused: {error.message}", look)


CONFIGURATION = "gpu-booking-webhook"
FOR_ALL = "CARREL_TERMINATOR_FOR_ALL"
OURS = "app.kubernetes.io/name"


async def maia(of: Installation) -> Sequence[Finding]:
    found: list[Finding] = []
    controller = newest(await component_pods(of, "controller"), "controller")
    if controller is not None and controller.given(FOR_ALL).lower() in ("true", "1", "yes"):
        text = "every pod of the cluster may ask the pod terminator to end opportunistic pods"
        found.append(warn(text, of.with_values("controller.terminator.forAll=false")))
    if (configuration := await of.find(MUTATING_WEBHOOKS, CONFIGURATION)) is None:
        return found or [ok("MAIA's webhook is not in this cluster")]
    for webhook in configuration.get("webhooks", ()):
        if webhook.get("rules"):  # where the chart gpu-booking stands before another Carrel, it asks about no pod
            found += await _of_webhook(of, webhook)
    return found or [ok(f"Carrel answers for {CONFIGURATION}")]


async def _of_webhook(of: Installation, webhook: dict[str, Any]) -> Sequence[Finding]:
    service = webhook.get("clientConfig", {}).get("service") or {}
    namespace, name = service.get("namespace", ""), service.get("name", "")
    if (found := await of.find(SERVICES, name, namespace)) is None:
        delete = f"kubectl delete mutatingwebhookconfiguration {CONFIGURATION}"
        return [fail(f"{CONFIGURATION} names the Service {namespace}/{name}, which does not exist", delete)]
    if (found.get("spec", {}).get("selector") or {}).get(OURS) != "carrel":
        text = f"MAIA's own webhook answers for {CONFIGURATION}: two webhooks decide about the same pods"
        return [
            fail(text, f"kubectl --namespace {namespace} get service {name}, and docs/admission.md, In MAIA's place")
        ]
    if webhook.get("failurePolicy") == "Ignore" and not webhook.get("matchConditions"):
        text = f"{CONFIGURATION} has failurePolicy Ignore: GPU pods are created without Carrel while it is away"
        return [warn(text, "set failurePolicy: Fail and the matchConditions, step 5 of docs/admission.md")]
    return []
