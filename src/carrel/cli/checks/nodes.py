"""The agents' reports, what the kubelets have to give, and what must always hold, counted again."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from carrel.cli.checks.components import ComponentPod, agent_mode, component_pods
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.cluster.invariants import TOLERATED, Invariant, observe, violations
from carrel.cluster.record.silent_agents import why_silent
from carrel.configuration.gpu_memory import Limits
from carrel.dialects import gpuclaim, gpushare, mig, nvidia
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpuclaim import LIMITS_POSSIBLE
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES, GpuNodeStatus
from carrel.kubernetes.cluster import EVERYTHING, Selection
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.objects.quantity import whole_quantity
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS
from carrel.ledger.gpus import LIMITS_NOT_SAID
from carrel.parsing.malformed import Malformed
from carrel.parsing.printable import printable
from carrel.parsing.time import moment

STALLS_ABOVE = 2048
"""Devices of a plugin, as `node.memory_mode_decision` says."""
STALLS_SINCE = 36
"""The first minor version of a kubelet that stalls on more."""


async def agents(of: Installation) -> Sequence[Finding]:
    reports = (await of.client.list(GPU_NODE_STATUSES, EVERYTHING)).items
    if not reports:
        return [warn("no agent has reported: no GPU is known", of.kubectl("logs daemonset/carrel-agent"))]
    return [finding for report in reports for finding in _of_report(of, report)]


def _of_report(of: Installation, report: GpuNodeStatus) -> Iterator[Finding]:
    node = report.metadata.name
    hop = f"node {node}"
    try:
        beat = gpuclaim.heartbeat_of(report)
    except Malformed as malformed:
        yield fail(str(malformed), of.kubectl("rollout restart daemonset/carrel-agent"), hop)
        return
    if silent := why_silent(report, of.now(), of.configuration.lab.zone):
        look = of.kubectl(f"get pods --field-selector spec.nodeName={node}")
        yield fail(f"it gets no new GPU pods: {silent}", look, hop)
        return
    show = f"kubectl get gpunodestatus {node} --output yaml"
    unhealthy = [f"GPU {gpu.id}: {gpu.reason or gpu.health}" for gpu in report.status.devices if gpu.reason]
    reported = f", reported at {moment(beat, of.configuration.lab.zone)}" if beat else ""
    counted = f"{len(report.status.devices)} GPUs{reported}"
    trouble = [*unhealthy, *filter(None, [report.status.message])]
    yield warn(f"{counted}; {'; '.join(trouble)}", show, hop) if trouble else ok(counted, hop)
    if report.status.orphans is None and beat is not None:
        text = "its agent cannot see containers (--cgroups): a GPU counts as free while a deleted pod may still use it"
        yield warn(text, "mount /sys/fs/cgroup of the host into the agent, as the chart does", hop)


async def memory_limits(of: Installation) -> Sequence[Finding]:
    reports = (await of.client.list(GPU_NODE_STATUSES, EVERYTHING)).items
    nodes = {each.metadata.name: each.status.memory_limits for each in reports if each.status.devices}
    unable = {name: printable(said) or LIMITS_NOT_SAID for name, said in nodes.items() if said != LIMITS_POSSIBLE}
    limits = of.configuration.memory.limits
    if limits is Limits.REQUIRED:
        why = "it takes no parts of GPUs, because their memory cannot be limited there"
        help_ = "upgrade it, or use it for whole GPUs: docs/memory-limits.md"
        found = [warn(f"{why}: {said}", help_, f"node {name}") for name, said in sorted(unable.items())]
        return found or [ok("the driver limits the memory of every part of a GPU")]
    if limits is Limits.OFF or not nodes:
        return [ok("parts of GPUs are counted, and not limited")]
    named = "; ".join(f"{name}: {said}" for name, said in sorted(unable.items())[:SHOWN])
    named += f"; and {len(unable) - SHOWN} more nodes" if len(unable) > SHOWN else ""
    if len(unable) == len(nodes):
        return [ok(f"parts of GPUs are counted, and not limited: no node can ({named})")]
    if unable:
        text = f"parts of GPUs are counted, and not limited, until these nodes can limit them too: {named}"
        return [warn(text, of.with_values("config.memory.limits=required") + ", to use the others for parts")]
    return [ok("all nodes can limit memory: within a minute or two every new part of a GPU is a limit")]


async def kubelets(of: Installation) -> Sequence[Finding]:
    reports = {each.metadata.name: each for each in (await of.client.list(GPU_NODE_STATUSES, EVERYTHING)).items}
    nodes = {each.metadata.name: each for each in (await of.client.list(NODES, EVERYTHING)).items}
    agents_by_node = {each.spec.node_name: each for each in await component_pods(of, "agent")}
    found: list[Finding] = []
    for name, report in sorted(reports.items()):
        if report.status.devices:
            hop = f"kubelet of {name}"
            wrong = list(_of_kubelet(of, report, nodes.get(name), agents_by_node.get(name), hop))
            found += wrong or [ok(_advertised(nodes[name].status.allocatable), hop)]
    return found or [ok("no node has GPUs")]


def _advertised(allocatable: Mapping[str, str]) -> str:
    slices = sorted(name for name in allocatable if name.startswith(mig.PREFIX))
    names = (nvidia.GPU, *slices, gpushare.GPU_COUNT, gpushare.GPU_MEM)
    shown = [f"{allocatable[name]} {name}" for name in names if amount(allocatable, name)]
    return f"advertises {', '.join(shown)}" if shown else "advertises nothing, as it should"


def _of_kubelet(
    of: Installation, report: GpuNodeStatus, node: NodeObject | None, agent: ComponentPod | None, hop: str
) -> Iterator[Finding]:
    if node is None:
        yield fail("the cluster has no such node: is the agent's --node-name right?", "kubectl get nodes", hop)
        return
    mode = agent_mode(of, agent)
    advertised = {name: amount(node.status.allocatable, name) for name in (nvidia.GPU, gpushare.GPU_MEM)}
    healthy = sum(1 for gpu in report.status.devices if not gpu.reason)
    whole = sum(amount(node.status.allocatable, name) for name in node.status.allocatable if mig.is_device(name))
    logs = of.kubectl(f"logs daemonset/carrel-agent; kubectl describe node {node.metadata.name}")
    if mode == "report-only":
        return
    if mode == "coexist":
        if not whole:
            text = f"it advertises no {nvidia.GPU}: in coexist mode NVIDIA's plugin must run there"
            yield fail(text, of.with_values("config.nodes.plugin=native") + ", or install NVIDIA's plugin", hop)
        return
    if healthy and whole < healthy:
        text = f"it advertises {whole} {nvidia.GPU}, and {healthy} GPUs are healthy: a plugin is not registered"
        yield (warn if whole else fail)(text, logs, hop)
    is_given = report.status.memory_resource and gpushare.GPU_MEM not in report.status.message
    if is_given and not advertised[gpushare.GPU_MEM]:
        yield fail(f"it advertises no {gpushare.GPU_MEM}, which the agent gives it", logs, hop)
    if report.status.memory_resource == "plugin" and _stalls(node, advertised[gpushare.GPU_MEM]):
        text = f"{advertised[gpushare.GPU_MEM]:,} devices of {gpushare.GPU_MEM} make this kubelet stall for minutes"
        yield warn(text, of.with_values("config.memory.unit=GiB"), hop)


def _stalls(node: NodeObject, devices: int) -> bool:
    minor = node.status.node_info.kubelet_version.split(".")[1:2]
    return devices > STALLS_ABOVE and bool(minor) and minor[0].isdecimal() and int(minor[0]) >= STALLS_SINCE


def amount(shown: Mapping[str, str], resource: str) -> int:
    """0 if it is not there, or is no number."""
    try:
        return whole_quantity(shown.get(resource, "0"), "the Node", resource)
    except Malformed:
        return 0


SHOWN = 5
AGAIN = "carrel doctor, once more in a few minutes: it may be over"


async def invariants(of: Installation) -> Sequence[Finding]:
    # Leases last: a pod that is bound meanwhile has its Lease before.
    listed = [(await of.client.list(kind, EVERYTHING)).items for kind in (GPU_NODE_STATUSES, NODES, PODS, BOOKINGS)]
    statuses, nodes, pods, bookings = listed
    leases = (await of.client.list(LEASES, Selection(of.namespace))).items
    found = violations(observe(statuses, nodes, leases, pods, bookings, of.now()))  # type: ignore[arg-type] # by position
    if not found:
        return [ok(f"all {len(Invariant)} hold, over {len(leases)} Leases")]
    lasting = [each for each in found if TOLERATED[each.invariant] == timedelta()]
    brief = [each for each in found if each not in lasting]
    defect = of.kubectl("logs deployment/carrel-controller") + ", and tell Carrel's developers"
    more = [f"; and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return [
        *(fail(f"{each.words} ({each.invariant.value})", defect) for each in lasting[:SHOWN]),
        *(warn(f"{each.words} ({each.invariant.value})", AGAIN) for each in brief[: max(0, SHOWN - len(lasting))]),
        *(warn(text.removeprefix("; "), "carrel inspect --details") for text in more),
    ]
