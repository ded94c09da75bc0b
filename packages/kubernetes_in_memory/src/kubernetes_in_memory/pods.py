"""Pods: the defaults that clients and users see, and what may change after creation. Checks are in `pod_checks`."""

from collections.abc import Callable, Iterator
from typing import Any

from kubernetes_in_memory import pod_checks, status
from kubernetes_in_memory.causes import Cause, prohibited
from kubernetes_in_memory.kinds import PODS
from kubernetes_in_memory.quantities import amount

Json = dict[str, Any]

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
NODE_TROUBLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a failing node: a pod without a toleration of its own stays for five minutes."""
GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


def containers_of(pod: Json) -> Iterator[Json]:
    for place in CONTAINER_LISTS:
        yield from pod["spec"].get(place, ())


def default(pod: Json) -> Json:
    spec = pod.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("enableServiceLinks", True)
    for container in containers_of(pod):
        _default_container(container)
    for volume in spec.get("volumes", ()):
        _default_volume(volume)
    pod_status = pod.setdefault("status", {})
    pod_status.setdefault("phase", "Pending")
    pod_status.setdefault("qosClass", quality_of(pod))
    return pod


def _default_container(container: Json) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if image := container.get("image"):
        tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
        fixed = "@" in image or tag not in ("", "latest")
        container.setdefault("imagePullPolicy", "IfNotPresent" if fixed else "Always")
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for variable in container.get("env", ()):
        if "fieldRef" in variable.get("valueFrom", {}):
            variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    resources = container.setdefault("resources", {})
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **resources.get("requests", {})}


def _default_volume(volume: Json) -> None:
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if source in volume:
            volume[source].setdefault("defaultMode", 0o644)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    if volume.keys() == {"name"}:
        volume["emptyDir"] = {}


def quality_of(pod: Json) -> str:
    """Guaranteed: every container limits cpu and memory to what it requests. BestEffort: none asks for either."""
    asked = False
    guaranteed = True
    for container in pod["spec"].get("containers", ()):
        resources = container.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for name in ("cpu", "memory"):
            asked = asked or name in limits or name in requests
            if name not in limits or amount(str(limits[name])) != amount(str(requests.get(name))):
                guaranteed = False
    return "BestEffort" if not asked else "Guaranteed" if guaranteed else "Burstable"


def admit(pod: Json, priority_class: Callable[[str], Json | None]) -> None:
    """What kube-apiserver adds to a new pod: priority, tolerations of a failing node, the condition for its gates."""
    spec = pod["spec"]
    if spec.get("schedulingGates"):
        pod["status"]["conditions"] = [dict(GATED)]
    tolerations = spec.setdefault("tolerations", [])
    for key in NODE_TROUBLE:
        if not any(one.get("key", key) == key and one.get("effect", "NoExecute") == "NoExecute" for one in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    name = spec.get("priorityClassName", "")
    found = priority_class(name)
    if found is None and name:
        raise status.forbidden(PODS, pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found")
    value = found["value"] if found else 0
    if spec.get("priority", value) != value:
        raise status.forbidden(
            PODS,
            pod["metadata"].get("name", ""),
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name",
        )
    spec["priority"] = value
    if found:
        spec["priorityClassName"] = found["metadata"]["name"]
        if "preemptionPolicy" in found:
            spec["preemptionPolicy"] = found["preemptionPolicy"]


def check(pod: Json, live: Json | None) -> list[Cause]:
    causes = pod_checks.check(pod)
    if live is None and pod["spec"].get("ephemeralContainers"):
        causes.append(prohibited("spec.ephemeralContainers", "cannot be set on create"))
    if live is not None and not causes and pod["spec"] != live["spec"]:
        causes += _update_causes(pod["spec"], live["spec"])
    return causes


def _update_causes(spec: Json, live: Json) -> list[Cause]:
    causes = []
    if not _extends(spec.get("tolerations", []), live.get("tolerations", [])):
        causes.append(prohibited("spec.tolerations", "existing tolerations stay as they are; new ones may be added"))
    if not _extends(live.get("schedulingGates", []), spec.get("schedulingGates", [])):
        causes.append(prohibited("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate"))
    if _fixed(spec) != _fixed(live):
        changed = sorted(
            f"spec.{field}" for field in spec.keys() | live.keys() if _fixed(spec).get(field) != _fixed(live).get(field)
        )
        causes.append(
            prohibited(
                "spec",
                "pod updates may not change fields other than `spec.containers[*].image`, "
                "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions) and "
                "`spec.terminationGracePeriodSeconds`; "
                f"changed: {', '.join(changed)}",
            )
        )
    return causes


def _extends(longer: list[Json], shorter: list[Json]) -> bool:
    return all(one in longer for one in shorter)


def _fixed(spec: Json) -> Json:
    """A spec without what may change."""
    open_fields = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
    fixed = {field: value for field, value in spec.items() if field not in open_fields}
    for place in CONTAINER_LISTS:
        if place in fixed:
            fixed[place] = [{**container, "image": "", "imagePullPolicy": ""} for container in fixed[place]]
    return fixed
