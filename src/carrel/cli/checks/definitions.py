"""What is installed in the API server: definitions, policies, priority classes, the webhook's configuration."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from carrel import manifests
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.installation import MARKER, installed_in
from carrel.kubernetes.cluster import NotFound
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import (
    CLUSTER_ROLES,
    CRDS,
    MUTATING_WEBHOOKS,
    PRIORITY_CLASSES,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    Resource,
)


async def installation(of: Installation) -> Sequence[Finding]:
    """The marker of the one Carrel of a cluster."""
    try:
        namespace = installed_in(await of.client.get(CLUSTER_ROLES, MARKER))
    except NotFound:
        return [warn(f"there is no ClusterRole {MARKER}: a second Carrel would not know of this one", of.install)]
    if namespace != of.namespace:
        text = f"Carrel is installed in the namespace {namespace or '?'}, and this looks at {of.namespace}"
        return [fail(text, f"carrel doctor --carrel-namespace {namespace}")]
    return [ok(f"the one Carrel of this cluster is in the namespace {namespace}")]


async def definitions(of: Installation) -> Sequence[Finding]:
    found: list[Finding] = []
    for ours in manifests.crds():
        name = ours["metadata"]["name"]
        try:
            theirs = await of.client.get(CRDS, name)
        except NotFound:
            found.append(fail(f"{name} is missing", of.install))
            continue
        found += _of_definition(of, name, ours, theirs)
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
        if not await _is_there(of, kind, each["metadata"]["name"]):
            missing.append(each["metadata"]["name"])  # a policy and its binding have one name
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        return [fail(f"missing, or not bound: {names}; users can write what only Carrel may", of.install)]
    return [ok("the API server protects what Carrel writes")]


async def priority_classes(of: Installation) -> Sequence[Finding]:
    names = [each["metadata"]["name"] for each in manifests.priority_classes()]
    missing = [name for name in names if not await _is_there(of, PRIORITY_CLASSES, name)]
    if missing:
        text = f"missing: {', '.join(missing)}; GPU pods have no priority over others, and may be preempted"
        return [warn(text, of.install)]
    return [ok(f"{', '.join(names)}")]


async def _is_there(of: Installation, kind: Resource[Object], name: str) -> bool:
    try:
        await of.client.get(kind, name)
    except NotFound:
        return False
    return True


async def webhook_entries(of: Installation) -> dict[str, dict[str, Any]] | None:
    """The entries of Carrel's configuration by name, under either of its names; None: there is none."""
    found = []
    for name in manifests.CONFIGURATIONS:
        with suppress(NotFound):
            found.append(await of.client.get(MUTATING_WEBHOOKS, name))
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


WHAT_HAPPENS = {
    "Ignore": "GPU pods are created as they are while the webhook is away",
    "Fail": "pods that ask for no GPU are refused while the webhook is away",
}
