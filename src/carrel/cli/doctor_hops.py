"""What `carrel doctor` looks at: each hop between the parts of an installation, and what helps where one is broken.

A hop reads the cluster and changes nothing: the pod that asks for a GPU is a dry run. A hop that cannot be looked at,
because a right is missing, is a warning, not a failure. Every finding names what to do.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from carrel import manifests
from carrel.dialects import gpuclaim, nvidia
from carrel.dialects.carrel import PREFIXES
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import EVERYTHING, ClusterError, Forbidden, NotFound
from carrel.kubernetes.objects.release import why_unsupported
from carrel.kubernetes.objects.resources import (
    CRDS,
    LEASES,
    MUTATING_WEBHOOKS,
    PODS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
)
from carrel.leases.silent_agents import STALE_AFTER
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant, seconds

INSTALL = "helm upgrade --install carrel charts/carrel --namespace {namespace} --reuse-values"
CONTROLLER_LEASE = "carrel-controller"
LEADER_SILENT = timedelta(seconds=60)
"""A leader renews its Lease every few seconds, and another takes over long before this."""


class HopState(Enum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    state: HopState
    hop: str
    text: str
    advice: str = ""
    page: str = ""
    """Of the documents, where it is explained."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The installation that is looked at."""

    client: Client
    namespace: str
    now: Callable[[], datetime]
    """By the API server's clock."""

    @property
    def install(self) -> str:
        return INSTALL.format(namespace=self.namespace)


async def findings(of: Installation) -> list[Finding]:
    """All hops, in the order in which a pod meets them. Raises `ClusterError` if the API server does not answer."""
    found = [await _api_server(of)]
    for name, look in HOPS.items():
        try:
            found += await look(of)
        except Forbidden as error:
            found.append(Finding(HopState.WARN, name, f"you may not look: {error.message}", "ask an admin to run it"))
        except ClusterError as error:
            found.append(Finding(HopState.FAIL, name, str(error), "carrel doctor, once more"))
    return found


async def _api_server(of: Installation) -> Finding:
    release = await of.client.release()
    if why := why_unsupported(release):
        return Finding(HopState.FAIL, "API server", why, "upgrade the cluster", "docs/compatibility.md")
    return Finding(HopState.OK, "API server", f"Kubernetes {release[0]}.{release[1]} answers")


# --- what is installed in the API server ------------------------------------------------------------------------------


async def _definitions(of: Installation) -> list[Finding]:
    found = []
    for ours in manifests.crds():
        name = ours["metadata"]["name"]
        try:
            theirs = await of.client.get(CRDS, name)
        except NotFound:
            found.append(Finding(HopState.FAIL, "definitions", f"{name} is missing", of.install, "docs/install.md"))
            continue
        lacking = sorted(set(_fields(ours)) - set(_fields(theirs)))
        if lacking:
            text = f"{name} is of another version, and lacks {', '.join(lacking[:3])}"
            found.append(Finding(HopState.WARN, "definitions", text, of.install, "docs/install.md"))
    return found or [Finding(HopState.OK, "definitions", "all custom resource definitions are there")]


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


async def _policies(of: Installation) -> list[Finding]:
    missing = []
    for each in manifests.policies():
        kind = VALIDATING_POLICIES if each["kind"] == VALIDATING_POLICIES.kind else VALIDATING_POLICY_BINDINGS
        try:
            await of.client.get(kind, each["metadata"]["name"])
        except NotFound:
            missing.append(f"{each['kind']} {each['metadata']['name']}")
    if missing:
        text = f"missing: {', '.join(missing)}; users can write what only Carrel may"
        return [Finding(HopState.FAIL, "policies", text, of.install, "docs/admission.md")]
    return [Finding(HopState.OK, "policies", "the API server protects what Carrel writes")]


async def _webhook_configuration(of: Installation) -> list[Finding]:
    (ours,) = manifests.webhooks()
    name = ours["metadata"]["name"]
    try:
        theirs = await of.client.get(MUTATING_WEBHOOKS, name)
    except NotFound:
        text = f"MutatingWebhookConfiguration {name} is missing: GPU pods are refused, or get no GPU"
        return [Finding(HopState.FAIL, "webhook", text, of.install, "docs/admission.md")]
    entries = {each["name"]: each for each in theirs.get("webhooks", ())}
    if missing := [each["name"] for each in ours["webhooks"] if each["name"] not in entries]:
        text = f"its configuration lacks {', '.join(missing)}"
        return [Finding(HopState.FAIL, "webhook", text, of.install, "docs/admission.md")]
    if [each for each in entries.values() if not each["clientConfig"].get("caBundle")]:
        logs = f"kubectl --namespace {of.namespace} logs deployment/carrel-webhook"
        text = "it has not written its certificate authority into its configuration"
        return [Finding(HopState.FAIL, "webhook", text, logs, "docs/admission.md")]
    return [Finding(HopState.OK, "webhook", "its configuration is complete")]


# --- what answers -----------------------------------------------------------------------------------------------------


async def _admission(of: Installation) -> list[Finding]:
    """A pod that asks for a GPU, as a dry run: the API server calls the webhook, and nothing is created."""
    container = {"name": "main", "image": "none", "resources": {"limits": {nvidia.GPU: "1"}}}
    pod = {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {"generateName": "carrel-doctor-"},
        "spec": {"containers": [container]},
    }
    logs = f"kubectl --namespace {of.namespace} get pods,endpointslices; kubectl logs deployment/carrel-webhook"
    try:
        made = await of.client.create(PODS, pod, of.namespace, dry_run=True)
    except ClusterError as error:
        if "denied the request" in error.message:  # by a rule of the webhook, which therefore answers
            return [Finding(HopState.OK, "admission", f"the webhook answers: {error.message}")]
        if isinstance(error, Forbidden):
            raise
        return [
            Finding(HopState.FAIL, "admission", f"a GPU pod is refused: {error.message}", logs, "docs/admission.md")
        ]
    # In a full cluster it may have become a pod without a GPU, which another scheduler places.
    if not any(key.startswith(PREFIXES) for key in made["metadata"].get("annotations", {})):
        text = "a GPU pod is created as it is: the API server does not ask the webhook"
        return [Finding(HopState.FAIL, "admission", text, of.install, "docs/admission.md")]
    return [Finding(HopState.OK, "admission", "the API server asks the webhook about GPU pods, and it answers")]


async def _scheduler(of: Installation) -> list[Finding]:
    for namespace in (of.namespace, "kube-system"):
        if (found := await _leader(of, gpuclaim.SCHEDULER, namespace)) is not None:
            return [found]
    text = f"no kube-scheduler with the profile {gpuclaim.SCHEDULER} has ever led: GPU pods wait"
    logs = f"kubectl --namespace {of.namespace} logs deployment/carrel-scheduler --all-containers"
    return [Finding(HopState.FAIL, gpuclaim.SCHEDULER, text, logs, "docs/install.md")]


async def _controller(of: Installation) -> list[Finding]:
    found = await _leader(of, CONTROLLER_LEASE, of.namespace)
    logs = f"kubectl --namespace {of.namespace} logs deployment/carrel-controller"
    text = "no controller has ever led: nothing expires, and no GPU is freed"
    return [found or Finding(HopState.FAIL, CONTROLLER_LEASE, text, logs, "docs/tiers.md")]


async def _leader(of: Installation, name: str, namespace: str) -> Finding | None:
    try:
        lease = (await of.client.get(LEASES, name, namespace)).get("spec", {})
    except NotFound:
        return None
    holder, renewed = lease.get("holderIdentity") or "", lease.get("renewTime") or ""
    try:
        at = instant(renewed, f"Lease {namespace}/{name}", "spec.renewTime")
    except Malformed as malformed:
        return Finding(HopState.FAIL, name, str(malformed), f"kubectl --namespace {namespace} delete lease {name}")
    if not holder or of.now() - at > LEADER_SILENT:
        logs = f"kubectl --namespace {of.namespace} get pods"
        return Finding(HopState.FAIL, name, f"nobody leads; last renewed at {seconds(at)}", logs, "docs/install.md")
    return Finding(HopState.OK, name, f"{holder.partition('_')[0]} leads")


async def _agents(of: Installation) -> list[Finding]:
    reports = (await of.client.list(GPU_NODE_STATUSES, EVERYTHING)).items
    if not reports:
        logs = f"kubectl --namespace {of.namespace} logs daemonset/carrel-agent"
        return [Finding(HopState.WARN, "agents", "no agent has reported: no GPU is known", logs, "docs/nodes.md")]
    found = []
    for report in reports:
        node = report.metadata.name
        try:
            beat = gpuclaim.heartbeat_of(report)
        except Malformed as malformed:
            found.append(Finding(HopState.FAIL, f"node {node}", str(malformed), "", "docs/nodes.md"))
            continue
        if beat is not None and of.now() - beat > STALE_AFTER:
            logs = f"kubectl --namespace {of.namespace} get pods --field-selector spec.nodeName={node}"
            text = f"its agent last reported at {seconds(beat)}: it gets no new GPU pods"
            found.append(Finding(HopState.FAIL, f"node {node}", text, logs, "docs/nodes.md"))
            continue
        unhealthy = [f"GPU {gpu.id}: {gpu.reason or gpu.health}" for gpu in report.status.devices if gpu.reason]
        text = f"{len(report.status.devices)} GPUs" + (f"; {'; '.join(unhealthy)}" if unhealthy else "")
        advice = f"kubectl get gpunodestatus {node} --output yaml" if unhealthy else ""
        found.append(
            Finding(HopState.WARN if unhealthy else HopState.OK, f"node {node}", text, advice, "docs/nodes.md")
        )
    return found


HOPS: Mapping[str, Callable[[Installation], Awaitable[list[Finding]]]] = {
    "definitions": _definitions,
    "policies": _policies,
    "webhook": _webhook_configuration,
    "admission": _admission,
    gpuclaim.SCHEDULER: _scheduler,
    CONTROLLER_LEASE: _controller,
    "agents": _agents,
}
