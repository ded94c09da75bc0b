"""A pod in one line, as kubectl's users know it: how many containers are ready, its state in one word, restarts."""

from datetime import datetime
from typing import Any

Json = dict[str, Any]

NONE = "<none>"


def _containers(pod: Json) -> list[Json]:
    found: list[Json] = pod.get("status", {}).get("containerStatuses", [])
    return found


def _ready(pod: Json, now: datetime) -> str:
    ready = sum(1 for one in _containers(pod) if one.get("ready"))
    return f"{ready}/{len(pod['spec'].get('containers', ()))}"


def _restarts(pod: Json, now: datetime) -> str:
    return str(sum(one.get("restartCount", 0) for one in _containers(pod)))


def pod_state(pod: Json) -> str:
    """The most telling word: why a container waits or ended, else the pod's reason or phase."""
    status = pod.get("status", {})
    word: str = status.get("reason") or status.get("phase") or "Unknown"
    if any(one.get("reason") == "SchedulingGated" for one in status.get("conditions", ())):
        word = "SchedulingGated"
    word = _init_state(pod) or _container_state(pod) or word
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return word


def _init_state(pod: Json) -> str:
    statuses = pod.get("status", {}).get("initContainerStatuses", ())
    for index, one in enumerate(statuses):
        state = one.get("state", {})
        ended = state.get("terminated")
        if ended and ended.get("exitCode", 0) == 0:
            continue
        why = (ended or state.get("waiting") or {}).get("reason", "")
        if ended:
            return f"Init:{why or 'Error'}"
        if why and why != "PodInitializing":
            return f"Init:{why}"
        return f"Init:{index}/{len(pod['spec'].get('initContainers', ()))}"
    return ""


def _container_state(pod: Json) -> str:
    word = ""
    running = False
    for one in reversed(_containers(pod)):
        state = one.get("state", {})
        why = (state.get("waiting") or state.get("terminated") or {}).get("reason", "")
        if why:
            word = why
        elif "terminated" in state:
            word = f"ExitCode:{state['terminated'].get('exitCode', 0)}"
        elif "running" in state and one.get("ready"):
            running = True
    return "Running" if word == "Completed" and running else word


def _gates(pod: Json, now: datetime) -> str:
    gates = [gate.get("conditionType") for gate in pod["spec"].get("readinessGates", ())]
    met = {one.get("type") for one in pod.get("status", {}).get("conditions", ()) if one.get("status") == "True"}
    return f"{sum(gate in met for gate in gates)}/{len(gates)}" if gates else NONE


POD = (
    ("Ready", _ready, "string", 0),
    ("Status", lambda pod, now: pod_state(pod), "string", 0),
    ("Restarts", _restarts, "string", 0),
    ("IP", lambda pod, now: pod.get("status", {}).get("podIP") or NONE, "string", 1),
    ("Node", lambda pod, now: pod["spec"].get("nodeName") or NONE, "string", 1),
    ("Nominated Node", lambda pod, now: pod.get("status", {}).get("nominatedNodeName") or NONE, "string", 1),
    ("Readiness Gates", _gates, "string", 1),
)
"""Name, cell, type, priority. The age comes after the third."""
