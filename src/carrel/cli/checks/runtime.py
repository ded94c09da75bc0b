"""How GPUs come into containers: RuntimeClass, who is told to see none, and what a container really sees.

Two pods say that, one with a GPU and one without, and are removed afterwards. They are ordinary pods of an ordinary
namespace, because Carrel's own may see all GPUs. They have Carrel's image, so that no other is needed, and the rights
of `restricted`. The one with a GPU has no booking: it takes a GPU that is free, or none. The one without tries to see
all, as a user would, on the same node. Both end by themselves, also if this program is killed.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from carrel.cli.checks.components import ComponentPod, component_pods, newest
from carrel.cli.checks.definitions import webhook_entries
from carrel.cli.checks.finding import Finding, Installation, ProbeOptions, fail, ok, warn
from carrel.cluster.pod_progress import FINISHED
from carrel.cluster.runtime_class import AUTO, NONE
from carrel.dialects import carrel, nvidia
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.options import HideFrom
from carrel.kubernetes.cluster import EVERYTHING, ClusterError, DeleteOptions, Forbidden, Invalid, NotFound
from carrel.kubernetes.objects.resources import PODS, RUNTIME_CLASSES

SIMULATE = "CARREL_SIMULATE"
CONDITION = "may-see-gpus"
"""As in `manifests/webhooks.yaml`."""


def is_simulated(pods: Sequence[ComponentPod]) -> bool:
    agent = newest(pods, "agent")
    return agent is not None and bool(agent.given(SIMULATE))


async def runtime_class(of: Installation) -> Sequence[Finding]:
    setting, hidden = of.configuration.nodes.runtime_class, of.configuration.nodes.hide_gpus_from
    name = nvidia.RUNTIME_CLASS if setting == AUTO else "" if setting == NONE else setting
    is_there = bool(name) and await of.find(RUNTIME_CLASSES, name) is not None
    if setting not in (AUTO, NONE) and not is_there:
        text = f"there is no RuntimeClass {name}: the API server refuses every GPU pod"
        return [fail(text, of.with_values("config.nodes.runtimeClass=auto"))]
    if hidden is HideFrom.ALL_PODS and await _asks_about_few(of):
        text = "hideGpusFrom is all-pods, but the API server asks the webhook only about pods that may see a GPU"
        return [fail(text, of.install)]
    if is_there:
        return [ok(f"GPU pods that name none get {name}")]
    if is_simulated(await component_pods(of)):
        return [ok("GPU pods get none, and need none: GPUs are simulated")]
    if hidden is not HideFrom.ALL_PODS:
        text = (
            f"GPU pods get none, so NVIDIA's runtime must be the default one of the nodes; then an image alone may use "
            f"any GPU, because hideGpusFrom is {hidden.value}"
        )
        return [warn(text, of.with_values("config.nodes.hideGpusFrom=all-pods"))]
    return [ok("GPU pods get none: NVIDIA's runtime must be the default one of the nodes; --probe shows whether it is")]


async def _asks_about_few(of: Installation) -> bool:
    """Whether the webhook's configuration leaves out pods that ask for no GPU, and look as if they could see none."""
    entries = await webhook_entries(of) or {}  # that there are none is said by `webhook`
    conditions = (each for entry in entries.values() for each in entry.get("matchConditions") or ())
    return any(each.get("name") == CONDITION for each in conditions)


LABELS = {"app.kubernetes.io/name": "carrel-doctor"}
WITH_GPU, WITHOUT_GPU = "with a GPU", "without a GPU"
BY_KUBELET = "config.nodes.deviceList=mounts"


@dataclass(frozen=True, slots=True)
class Ended:
    """A pod that has ended, and what its container saw."""

    node: str
    own: tuple[str, ...]
    """The GPUs that Carrel gave it; empty: the kubelet chose."""
    variable: str
    driver: tuple[str, ...]
    """GPUs that the driver shows there."""
    files: tuple[str, ...]
    """Of devices, as /dev/nvidia0."""


async def visible_gpus(of: Installation) -> Sequence[Finding]:
    """Empty if no pods are wanted."""
    if of.probe is None:
        return []
    pods = await component_pods(of)
    image = of.probe.image or next(
        (each.main.image for each in pods if each.component in ("webhook", "controller")), ""
    )
    if not image:
        return [warn("no pod of Carrel tells which image to use", "carrel doctor --probe --probe-image IMAGE")]
    simulated = is_simulated(pods)
    gpu = await _run(of, of.probe, _manifest(image, WITH_GPU, {nvidia.GPU: "1"}))
    found = [_of_gpu_pod(of, gpu, simulated=simulated) if isinstance(gpu, Ended) else gpu]
    nodes = [gpu.node] if isinstance(gpu, Ended) else await _gpu_nodes(of)
    if not nodes:
        return found
    plain = await _run(of, of.probe, _manifest(image, WITHOUT_GPU, {}, nodes))
    found.append(_of_plain_pod(of, plain) if isinstance(plain, Ended) else plain)
    return found


async def _gpu_nodes(of: Installation) -> list[str]:
    reports = (await of.client.list(GPU_NODE_STATUSES, EVERYTHING)).items
    return sorted(each.metadata.name for each in reports if each.status.devices)


# --- the pods --------------------------------------------------------------------------------------------------------


def _manifest(image: str, kind: str, limits: dict[str, str], nodes: Sequence[str] = ()) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "look",
        "image": image,
        "args": ["visible-gpus", "--write", "/dev/termination-log"],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi", **limits}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if not limits:
        container["env"] = [{"name": nvidia.VISIBLE_DEVICES, "value": "all"}]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 180,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"key": nvidia.GPU, "operator": "Exists"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    if nodes:
        names = {"key": "metadata.name", "operator": "In", "values": list(nodes)[:1]}
        required = {"nodeSelectorTerms": [{"matchFields": [names]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    name = f"carrel-doctor-{kind.replace(' a ', '-').lower()}-{uuid4().hex[:5]}"
    metadata = {"name": name, "labels": LABELS}
    return {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": metadata, "spec": spec}


@contextlib.asynccontextmanager
async def _pod(of: Installation, namespace: str, manifest: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Removed when the block ends, however it ends."""
    making = asyncio.ensure_future(of.client.create(PODS, manifest, namespace))
    try:
        yield await asyncio.shield(making)
    finally:
        # Also if the answer to the creation was lost; and while we are being cancelled, hence the shield.
        await asyncio.shield(asyncio.ensure_future(_remove(of, namespace, manifest["metadata"]["name"], making)))


async def _remove(of: Installation, namespace: str, name: str, making: asyncio.Future[dict[str, Any]]) -> None:
    """A creation under way ends first: the pod would appear after it was deleted."""
    await asyncio.wait([making])
    with contextlib.suppress(ClusterError):
        await of.client.delete(PODS, name, namespace, how=DeleteOptions(grace_seconds=1))


async def _run(of: Installation, probe: ProbeOptions, manifest: dict[str, Any]) -> Ended | Finding:
    hop = f"container {WITH_GPU if nvidia.GPU in str(manifest['spec']['containers'][0]['resources']) else WITHOUT_GPU}"
    try:
        async with _pod(of, probe.namespace, manifest) as made:
            if carrel.RUNS_WITHOUT_GPU in made["metadata"].get("annotations", {}):
                return _untried("no GPU is free", hop)
            return await _wait_ended(of, probe, made, hop)
    except (Invalid, Forbidden) as error:
        # Webhooks, policies, quotas and Pod Security answer 403 too; only a missing right is an admin's matter.
        if isinstance(error, Forbidden) and (error.status == 401 or "cannot create resource" in error.message):
            raise
        return fail(f"the pod is refused: {error.message}", "carrel doctor, without --probe, says more", hop)


async def _wait_ended(of: Installation, probe: ProbeOptions, made: dict[str, Any], hop: str) -> Ended | Finding:
    name = made["metadata"]["name"]
    loop = asyncio.get_running_loop()
    began = loop.time()
    pod = made
    while (pod.get("status") or {}).get("phase") not in FINISHED:
        waited = loop.time() - began
        is_placed = bool(pod["spec"].get("nodeName"))
        if waited > (probe.wait_s if is_placed else probe.unplaced_s):
            return _not_ended(pod, probe, hop) if is_placed else _untried(_why_unplaced(pod), hop)
        await asyncio.sleep(probe.poll_s)
        try:
            pod = await of.client.get(PODS, name, probe.namespace)
        except NotFound:
            return warn("somebody deleted the pod before it had said what it sees", "carrel doctor --probe", hop)
    return _ended(pod, hop)


def _untried(why: str, hop: str) -> Finding:
    return warn(
        f"it could not be tried: {why}", "carrel doctor --probe, when a GPU is free; carrel inspect shows when", hop
    )


def _why_unplaced(pod: dict[str, Any]) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    said = [each.get("message", "") for each in conditions if each.get("type") == "PodScheduled"]
    return next(filter(None, said), "no scheduler has looked at the pod")


def _statuses(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _not_ended(pod: dict[str, Any], probe: ProbeOptions, hop: str) -> Finding:
    waiting = [(each.get("state") or {}).get("waiting") or {} for each in _statuses(pod)]
    reason = next((each.get("reason", "") for each in waiting if each), "")
    words = next((f"{each.get('reason')}: {each.get('message', '')}" for each in waiting if each), "its container runs")
    text = f"its pod on {pod['spec']['nodeName']} has not ended after {probe.wait_s:.0f} s: {words}"
    if "Pull" in reason or "Image" in reason:
        image = pod["spec"]["containers"][0]["image"]
        return warn(
            text, f"let {probe.namespace} pull {image}, or: carrel doctor --probe --probe-namespace NAMESPACE", hop
        )
    return fail(text, f"kubectl describe node {pod['spec']['nodeName']}", hop)


def _ended(pod: dict[str, Any], hop: str) -> Ended | Finding:
    """What its program wrote as its last message."""
    ends = [(each.get("state") or {}).get("terminated") or {} for each in _statuses(pod)]
    said = next((each.get("message") or "" for each in ends if each), "")
    try:
        seen = json.loads(said)
        notes = pod["metadata"].get("annotations") or {}
        own = tuple(filter(None, notes.get(carrel.DEVICES, "").split(",")))
        return Ended(pod["spec"]["nodeName"], own, str(seen["variable"]), tuple(seen["driver"]), tuple(seen["files"]))
    except (ValueError, KeyError, TypeError):
        status = pod.get("status") or {}
        why = said or f"{status.get('reason', '')} {status.get('message', '')}".strip() or "it said nothing"
        return fail(f"its pod ended without an answer: {why[:300]}", "carrel doctor --probe, once more", hop)


# --- what it means ---------------------------------------------------------------------------------------------------


def _of_gpu_pod(of: Installation, saw: Ended, *, simulated: bool) -> Finding:
    hop = f"container {WITH_GPU}"
    named = tuple(each for each in saw.variable.split(",") if nvidia.is_uuid(each))
    if simulated:
        if named and (not saw.own or set(named) == set(saw.own)):
            return ok(f"on {saw.node} it is told to see {', '.join(named)}, its own (simulated)", hop)
        text = f"on {saw.node} it is told to see {saw.variable or 'nothing'}, and was given {', '.join(saw.own)}"
        return fail(text, of.kubectl("logs deployment/carrel-webhook"), hop)
    if not saw.driver and not saw.files:
        if named:
            text = (
                f"on {saw.node} it was given {', '.join(named)} and sees none: the container runtime does not heed "
                f"{nvidia.VISIBLE_DEVICES}, or not that of unprivileged containers"
            )
            return fail(text, of.with_values(BY_KUBELET) + ", or give GPU pods NVIDIA's RuntimeClass", hop)
        text = f"on {saw.node} it sees no GPU, and {nvidia.VISIBLE_DEVICES} is {saw.variable or 'empty'}"
        return fail(text, of.kubectl("logs daemonset/carrel-agent"), hop)
    if (saw.own and set(saw.driver) != set(saw.own)) or len(saw.driver) != 1:
        text = (
            f"on {saw.node} it sees {', '.join(saw.driver or saw.files)}, and its own is {', '.join(saw.own) or 'one'}"
        )
        return fail(text, "is NVIDIA's runtime configured to show all GPUs? docs/nodes.md", hop)
    return ok(f"on {saw.node} it sees exactly its own, {saw.driver[0]}", hop)


def _of_plain_pod(of: Installation, saw: Ended) -> Finding:
    hop = f"container {WITHOUT_GPU}"
    told = [each for each in saw.variable.split(",") if each not in ("", nvidia.NO_DEVICE, nvidia.NO_RUNTIME)]
    if saw.driver or saw.files:
        text = f"on {saw.node} a pod that asks for no GPU sees {', '.join(saw.driver or saw.files)}"
        return fail(text, of.with_values("config.nodes.hideGpusFrom=all-pods"), hop)
    if told:
        text = f"on {saw.node} a pod that asks for no GPU may keep {nvidia.VISIBLE_DEVICES}={saw.variable}"
        hides = of.configuration.nodes.hide_gpus_from.value
        why = f"hideGpusFrom is {hides}" if hides == "gpu-pods" else "the webhook was not asked about it"
        return warn(f"{text}: {why}", of.with_values("config.nodes.hideGpusFrom=nvidia-pods"), hop)
    return ok(f"on {saw.node} a pod that asks for no GPU, and tries to see all, sees none", hop)
