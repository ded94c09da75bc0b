"""Dynamic Resource Allocation: what kube-apiserver asks the gate, the DeviceClass, and what slices advertise."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from carrel import manifests
from carrel.cli.checks.components import ComponentPod, agent_mode, component_pods
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.dialects import mig
from carrel.dialects.cdi import why_no_cdi
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES, GpuNodeStatus
from carrel.kubernetes.cluster import EVERYTHING, NotFound
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.objects.resources import NODES, VALIDATING_WEBHOOKS
from carrel.resource_claims import dra
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_SLICES, ResourceSlice

GATE = "allocations.carrel.dev"
SINCE, DIVIDED_SINCE = (1, 34), (1, 36)
CDI_UNSEEN = "containerd://1.7"
"""Nobody can ask it whether CDI is on."""


async def resource_claims(of: Installation) -> Sequence[Finding]:
    counts, driver = of.configuration.resource_claims.enabled, of.configuration.resource_claims.driver.value
    slices = await _slices(of)
    foreign = list(_not_counted(of, slices, driver if counts else ""))
    if not counts:
        return foreign or [
            ok("ResourceClaims are not counted (resourceClaims.enabled), and no driver advertises GPUs to them")
        ]
    release = await of.client.release()
    if release < SINCE:
        text = f"ResourceClaims are to be counted, and Kubernetes {release[0]}.{release[1]} has none; 1.34 has"
        return [fail(text, of.with_values("config.resourceClaims.enabled=false"))]
    ours = [each for each in slices if each.spec.driver == driver]
    found = [*foreign, *await _of_gate(of, driver), *await _of_class(of, driver), *_divided(of, ours, driver, release)]
    found += await _of_nodes(of, ours, driver)
    return found or [ok(f"they get devices of {driver}, on {len({each.spec.node_name for each in ours})} nodes")]


async def _slices(of: Installation) -> Sequence[ResourceSlice]:
    try:
        return (await of.client.list(RESOURCE_SLICES, EVERYTHING)).items
    except NotFound:
        return []  # before Kubernetes 1.34


def _not_counted(of: Installation, slices: Sequence[ResourceSlice], counted: str) -> Iterator[Finding]:
    """`counted`: the driver whose devices are; empty: none."""
    for driver in sorted(dra.CLASSES - {counted}):
        nodes = sorted({each.spec.node_name for each in slices if each.spec.driver == driver and each.spec.devices})
        if not nodes:
            continue
        text = f"devices of {driver} on {', '.join(nodes)} are not counted: claims and other pods may get the same GPU"
        yield fail(
            text,
            of.with_values("config.resourceClaims.enabled=true", f"config.resourceClaims.driver={driver}")
            + ", or uninstall that driver",
        )


async def _of_gate(of: Installation, driver: str) -> Sequence[Finding]:
    entries: dict[str, Mapping[str, Any]] = {}
    for name in manifests.CONFIGURATIONS:
        with suppress(NotFound):
            found = await of.client.get(VALIDATING_WEBHOOKS, name)
            entries |= {each["name"]: each for each in found.get("webhooks") or ()}
    gate = entries.get(GATE)
    if gate is None:
        text = f"no ValidatingWebhookConfiguration has {GATE}: claims get GPUs that others hold"
        return [fail(text, of.install)]
    if not gate["clientConfig"].get("caBundle"):
        text = f"the webhook has not written its certificate authority into {GATE}: claims wait"
        return [fail(text, of.kubectl("logs deployment/carrel-webhook"))]
    if gate.get("failurePolicy", "Fail") != "Fail":
        text = f"{GATE} has failurePolicy {gate['failurePolicy']}: claims get GPUs that others hold while it is away"
        return [fail(text, of.install)]
    asked = " ".join(each["expression"] for each in gate.get("matchConditions") or ())
    if asked and driver not in asked:
        return [fail(f"{GATE} is not asked about devices of {driver}", of.install)]
    return []


async def _of_class(of: Installation, driver: str) -> Sequence[Finding]:
    try:
        await of.client.get(DEVICE_CLASSES, driver)
    except NotFound:
        brings = of.install if driver == dra.DRIVER else "install NVIDIA's DRA driver"
        return [fail(f"DeviceClass {driver} is missing: no claim that names it gets a GPU", brings)]
    return []


def _divided(
    of: Installation, slices: Sequence[ResourceSlice], driver: str, release: tuple[int, int]
) -> Iterator[Finding]:
    divides = [device.allow_multiple_allocations for each in slices for device in each.spec.devices]
    if driver == dra.DRIVER and release >= DIVIDED_SINCE and divides and not any(divides):
        text = "the API server drops memory from claims and slices: they get whole GPUs only"
        yield warn(text, "switch on its feature gate DRAConsumableCapacity, and that of kube-scheduler")


async def _of_nodes(of: Installation, slices: Sequence[ResourceSlice], driver: str) -> Sequence[Finding]:
    reports = (await of.client.list(GPU_NODE_STATUSES, EVERYTHING)).items
    nodes = {each.metadata.name: each for each in (await of.client.list(NODES, EVERYTHING)).items}
    if driver != dra.DRIVER:
        return list(_reported(of, slices, reports))
    agents = {each.spec.node_name: each for each in await component_pods(of, "agent")}
    advertised = {each.spec.node_name for each in slices}
    return [
        finding
        for report in reports
        if (name := report.metadata.name) in nodes and any(not gpu.reason for gpu in report.status.devices)
        for finding in _of_node(of, nodes[name], agents.get(name), has_slice=name in advertised)
    ]


def _of_node(of: Installation, node: NodeObject, agent: ComponentPod | None, *, has_slice: bool) -> Iterator[Finding]:
    name, runtime = node.metadata.name, node.status.node_info.container_runtime_version
    hop = f"claims on {name}"
    mode = agent_mode(of, agent)
    if mode != "native":
        yield ok(f"they get no GPUs there: the agent runs in mode {mode}", hop)
    elif why := why_no_cdi(runtime):
        yield warn(f"they get no GPUs there: {why}", "docs/dra.md says what is needed", hop)
    elif not has_slice:
        look = of.kubectl(f"logs daemonset/carrel-agent; kubectl get gpunodestatus {name} --output yaml")
        yield fail("they get no GPUs there: it has no ResourceSlice of Carrel's driver", look, hop)
    elif runtime.startswith(CDI_UNSEEN):
        text = f"{runtime} heeds the devices of claims only with enable_cdi = true, which cannot be seen from here"
        yield warn(text, "look into its config.toml, or upgrade to containerd 2", hop)


def _reported(of: Installation, slices: Sequence[ResourceSlice], reports: Sequence[GpuNodeStatus]) -> Iterator[Finding]:
    """GPUs of NVIDIA's driver that Carrel cannot count are refused to every claim."""
    known = {gpu.uuid for report in reports for gpu in report.status.devices}
    for each in slices:
        uuids = dra.uuids_in(each)
        nameless = [device.name for device in each.spec.devices if device.name not in {at.device for at in uuids}]
        unknown = [uuid for uuid in uuids.values() if uuid not in known and not uuid.startswith(mig.UUID)]
        hop = f"claims on {each.spec.node_name}"
        if unknown or nameless:
            what = ", ".join((*unknown, *nameless))
            text = f"no agent reports {what}: every claim for it is refused"
            yield fail(text, of.kubectl(f"get pods --field-selector spec.nodeName={each.spec.node_name}"), hop)
