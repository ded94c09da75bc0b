"""A pod as a row of `kubectl get`: how many containers are ready, its state in one word, restarts.

The rules are those of Kubernetes 1.37's own printer, because people and scripts read them. In short: until all init
containers have finished, the state shows their progress; then the first container that waits or has ended determines
it. Sidecars (init containers that are restarted always) count as containers.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kubernetes_in_memory.times import age

Json = dict[str, Any]

NONE = "<none>"


@dataclass(frozen=True, slots=True)
class Restarts:
    count: int = 0
    last: str = ""
    """When the container that was restarted last had ended, as RFC 3339 text: texts of UTC are in the order of time."""

    def plus(self, container: Json) -> "Restarts":
        ended = (container.get("lastState", {}).get("terminated") or {}).get("finishedAt") or ""
        return Restarts(self.count + container.get("restartCount", 0), max(self.last, ended))

    def shown(self, now: datetime) -> str:
        return f"{self.count} ({age(self.last, now)} ago)" if self.count and self.last else str(self.count)


@dataclass(frozen=True, slots=True)
class PodCells:
    ready: int
    state: str
    restarts: Restarts


def cells_of(pod: Json) -> PodCells:
    status = pod.get("status", {})
    line = _of_init_containers(pod, PodCells(0, _own_word(status), Restarts()))
    if not line.state.startswith("Init:") or _is_true(status, "Initialized"):
        sidecars = [one for one in status.get("initContainerStatuses", ()) if one.get("name") in _sidecars(pod)]
        restarts = Restarts()
        for one in sidecars:
            restarts = restarts.plus(one)
        line = _of_containers(status, replace(line, restarts=restarts))
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return replace(line, state="Unknown")
        if status.get("phase") not in ("Succeeded", "Failed"):
            return replace(line, state="Terminating")
    return line


def _own_word(status: Json) -> str:
    gated = any(
        one.get("type") == "PodScheduled" and one.get("reason") == "SchedulingGated"
        for one in status.get("conditions", ())
    )
    return "SchedulingGated" if gated else status.get("reason") or status.get("phase") or ""


def _sidecars(pod: Json) -> set[str]:
    containers = pod.get("spec", {}).get("initContainers", ())
    return {one["name"] for one in containers if one.get("restartPolicy") == "Always"}


def _of_init_containers(pod: Json, line: PodCells) -> PodCells:
    """Up to the first that has not finished."""
    sidecars = _sidecars(pod)
    for index, one in enumerate(pod.get("status", {}).get("initContainerStatuses", ())):
        line = replace(line, restarts=line.restarts.plus(one))
        ended = one.get("state", {}).get("terminated")
        if ended and not ended.get("exitCode"):
            continue
        if one.get("name") in sidecars and one.get("started"):
            line = replace(line, ready=line.ready + bool(one.get("ready")))
            continue
        waits = (one.get("state", {}).get("waiting") or {}).get("reason", "")
        if ended:
            word = _end(ended)
        elif waits and waits != "PodInitializing":
            word = waits
        else:
            word = f"{index}/{len(pod.get('spec', {}).get('initContainers', ()))}"
        return replace(line, state=f"Init:{word}")
    return line


def _of_containers(status: Json, line: PodCells) -> PodCells:
    word, error, ready = line.state, "", 0
    for one in reversed(status.get("containerStatuses", ())):
        line = replace(line, restarts=line.restarts.plus(one))
        state = one.get("state", {})
        if waits := (state.get("waiting") or {}).get("reason"):
            word = waits
        elif ended := state.get("terminated"):
            word = _end(ended)
            error = word if ended.get("exitCode") else error
        elif one.get("ready") and "running" in state:
            ready += 1
    if word == "Completed":
        # Some containers are done, and others are not.
        if ready and _is_true(status, "Ready"):
            word = "Running"
        elif error:
            word = error
        elif ready:
            word = "NotReady"
    return replace(line, state=word, ready=line.ready + ready)


def _end(ended: Json) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _is_true(status: Json, condition: str) -> bool:
    return any(one.get("type") == condition and one.get("status") == "True" for one in status.get("conditions", ()))


def _ready(pod: Json, now: datetime) -> str:
    return f"{cells_of(pod).ready}/{len(pod.get('spec', {}).get('containers', ())) + len(_sidecars(pod))}"


def _address(pod: Json, now: datetime) -> str:
    addresses = pod.get("status", {}).get("podIPs") or [{"ip": pod.get("status", {}).get("podIP")}]
    return addresses[0].get("ip") or NONE


def _gates(pod: Json, now: datetime) -> str:
    gates = [gate.get("conditionType") for gate in pod.get("spec", {}).get("readinessGates", ())]
    return f"{sum(_is_true(pod.get('status', {}), gate) for gate in gates)}/{len(gates)}" if gates else NONE


POD = (
    ("Ready", _ready, "string", 0),
    ("Status", lambda pod, now: cells_of(pod).state, "string", 0),
    ("Restarts", lambda pod, now: cells_of(pod).restarts.shown(now), "string", 0),
    ("IP", _address, "string", 1),
    ("Node", lambda pod, now: pod.get("spec", {}).get("nodeName") or NONE, "string", 1),
    ("Nominated Node", lambda pod, now: pod.get("status", {}).get("nominatedNodeName") or NONE, "string", 1),
    ("Readiness Gates", _gates, "string", 1),
)
"""Name, cell, type, priority. The age comes after the third."""
