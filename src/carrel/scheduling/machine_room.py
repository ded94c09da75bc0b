"""How much CPU and memory the nodes have free, by the Nodes and Pods that the extender watches anyway.

Scoring prefers nodes by it; nothing is refused because of it. An amount that cannot be read counts as nothing.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import attrgetter

from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import most_at_once
from carrel.kubernetes.objects.quantity import quantity
from carrel.ledger.machines import MachineRoom, Machines
from carrel.parsing import Malformed

CPU, MEMORY = "cpu", "memory"
FINISHED = ("Succeeded", "Failed")
MIB = 1024 * 1024


def machine_of(pod: Pod) -> MachineRoom:
    """What the pod requests of its machine, besides GPUs, as kube-scheduler counts it: what is requested for the pod as
    a whole, else what its containers request; and its overhead."""
    of_containers = _of_containers(pod)
    asked, overhead = pod.spec.resources.requests, pod.spec.overhead
    if not asked and not overhead:  # mostly
        return of_containers
    cpu = _milli(asked[CPU]) if CPU in asked else of_containers.cpu_milli
    memory = _mib(asked[MEMORY]) if MEMORY in asked else of_containers.memory_mib
    return MachineRoom(cpu + _milli(overhead.get(CPU, "0")), memory + _mib(overhead.get(MEMORY, "0")))


def _of_containers(pod: Pod) -> MachineRoom:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    if len(containers) == 1:  # mostly
        asked = containers[0].resources
        return MachineRoom(
            _milli(_asked(asked.requests, asked.limits, CPU)), _mib(_asked(asked.requests, asked.limits, MEMORY))
        )
    cpu = {each.name: _milli(_asked(each.resources.requests, each.resources.limits, CPU)) for each in containers}
    memory = {each.name: _mib(_asked(each.resources.requests, each.resources.limits, MEMORY)) for each in containers}
    return MachineRoom(most_at_once(pod, cpu), most_at_once(pod, memory))


def room_of(node: NodeObject) -> MachineRoom | None:
    """What pods may have of the machine; None: the node does not say it."""
    allocatable = node.status.allocatable
    if CPU not in allocatable or MEMORY not in allocatable:
        return None
    return MachineRoom(_milli(allocatable[CPU]), _mib(allocatable[MEMORY]))


def _asked(requests: Mapping[str, str], limits: Mapping[str, str], resource: str) -> str:
    return requests.get(resource) or limits.get(resource) or "0"


@lru_cache(maxsize=4096)
def _milli(text: str) -> int:
    return _times(text, 1000)


@lru_cache(maxsize=4096)
def _mib(text: str) -> int:
    return _times(text, 1) // MIB


def _times(text: str, factor: int) -> int:
    try:
        return max(0, int(quantity(text, "", "") * factor))
    except Malformed:
        return 0


class MachineWatch:
    """Keeps `machines` equal to what the Nodes and Pods say."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if new is not None:
            if (size := room_of(new)) is not None:
                self._machines.set_node(new.metadata.name, size)
        elif old is not None:
            self._machines.remove_node(old.metadata.name)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._machines.vacate(old.metadata.uid)
        elif new.status.phase in FINISHED:
            self._machines.vacate(new.metadata.uid)
        elif new.spec.node_name:
            is_known = self._machines.has(new.metadata.uid, new.spec.node_name)
            if not is_known or old is None or _is_resized(old, new):
                self._machines.occupy(new.metadata.uid, new.spec.node_name, machine_of(new))


def _is_resized(old: Pod, new: Pod) -> bool:
    """Whether somebody has changed what the running pod requests: nothing else in the containers can change but their
    images. While the kubelet has not followed, kube-scheduler counts the larger of both; here, what is asked counts."""
    before, now = old.spec, new.spec
    return (
        before.containers != now.containers
        or before.init_containers != now.init_containers
        or before.resources != now.resources
    )


def newest_first(pods: Iterable[Pod]) -> list[Pod]:
    """By the time of their creation."""
    return sorted(pods, key=attrgetter("metadata.creation_timestamp", "metadata.uid"), reverse=True)
