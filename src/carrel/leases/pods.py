"""What Carrel reads of a pod's progress: who it is as a holder, whether it waits, is going, or has finished."""

from carrel.dialects import carrel
from carrel.dialects.gpuclaim import lease_name, read_lease_name
from carrel.dialects.kai_reservation import is_reservation
from carrel.kubernetes.objects.pods import gates_of
from carrel.kubernetes.objects.shapes import Pod
from carrel.ledger.shares import Holder

FINISHED = ("Succeeded", "Failed")
SCHEDULED = "PodScheduled"


def holder_of(pod: Pod) -> Holder:
    return Holder(pod.metadata.uid, pod.metadata.namespace, pod.metadata.name)


def is_going(pod: Pod) -> bool:
    return bool(pod.metadata.deletion_timestamp) or pod.status.phase in FINISHED


def is_waiting(pod: Pod) -> bool:
    """For a GPU. A pod with scheduling gates wants none yet: nobody goes for it, nobody stands back for it."""
    is_over = pod.metadata.deletion_timestamp or pod.status.phase in FINISHED
    return not (pod.spec.node_name or is_over or gates_of(pod))


def was_put_aside(pod: Pod) -> bool:
    """The scheduler has tried to place it, and says that it could not."""
    return any(each.type == SCHEDULED and each.status == "False" for each in pod.status.conditions)


def slot_of(pod: Pod) -> str:
    """The Lease of the slot that a reservation pod says it is for; empty if it is none, or not ours."""
    name = pod.metadata.annotations.get(carrel.RESERVED_LEASE, "")
    place = read_lease_name(name) if is_reservation(pod) else None
    return lease_name(*place) if place else ""
