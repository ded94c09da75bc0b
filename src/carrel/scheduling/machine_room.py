"""How much CPU and memory the nodes have free, by the Nodes and Pods that the extender watches anyway.

Scoring prefers nodes by it; nothing is refused because of it. An amount that cannot be read counts as nothing.
"""

from fractions import Fraction
from functools import lru_cache

from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import most_at_once
from carrel.kubernetes.objects.quantity import quantity
from carrel.ledger.machines import MachineRoom, Machines
from carrel.parsing import Malformed

CPU, MEMORY = "cpu", "memory"
FINISHED = ("Succeeded", "Failed")
ONE_MIB = Fraction(1, 1024 * 1024)


def machine_of(pod: Pod) -> MachineRoom:
    """What the pod requests of its machine, besides GPUs, as kube-scheduler counts it."""
    return MachineRoom(_requested(pod, CPU, 1000), _requested(pod, MEMORY, ONE_MIB))


def _requested(pod: Pod, resource: str, factor: int | Fraction) -> int:
    """What is requested for the pod as a whole, else what its containers request; and its overhead."""
    asked = pod.spec.resources.requests.get(resource)
    if asked is None:
        by_container = {}
        for each in (*pod.spec.init_containers, *pod.spec.containers):
            text = each.resources.requests.get(resource) or each.resources.limits.get(resource)
            by_container[each.name] = _amount(text, factor) if text else 0
        of_pod = most_at_once(pod, by_container)
    else:
        of_pod = _amount(asked, factor)
    overhead = pod.spec.overhead.get(resource)
    return of_pod + (_amount(overhead, factor) if overhead else 0)


def room_of(node: NodeObject) -> MachineRoom | None:
    """What pods may have of the machine; None: the node does not say it."""
    allocatable = node.status.allocatable
    if CPU not in allocatable or MEMORY not in allocatable:
        return None
    return MachineRoom(_amount(allocatable[CPU], 1000), _amount(allocatable[MEMORY], ONE_MIB))


@lru_cache(maxsize=4096)
def _amount(text: str, factor: int | Fraction) -> int:
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
