"""What several dialects read of a pod: how to name it, and how much of an extended resource it asks for."""

from dataclasses import dataclass

from carrel.kubernetes.objects.kinds import Container, Metadata, Pod
from carrel.kubernetes.objects.quantity import whole_quantity

SIDECAR = "Always"
"""The `restartPolicy` of an init container that runs on beside the others."""


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    container: str
    amount: int
    init: bool
    """It ends before the containers start, and uses what they will have. A sidecar does not."""


@dataclass(frozen=True, slots=True)
class ResourceAsk:
    """How much of an extended resource a pod needs at its greediest moment, and who of it needs what."""

    total: int
    containers: tuple[ContainerAsk, ...]


NOTHING_ASKED = ResourceAsk(0, ())


def subject(metadata: Metadata, kind: str = "pod") -> str:
    """How messages name an object: `pod lab/train`."""
    return f"{kind} {metadata.namespace}/{metadata.name}" if metadata.namespace else f"{kind} {metadata.name}"


def annotation_field(key: str) -> str:
    """How messages name an annotation."""
    return f"metadata.annotations['{key}']"


def gates_of(pod: Pod) -> tuple[str, ...]:
    """The scheduling gates that hold the pod back. They can only be removed, never added, when it has been made."""
    return tuple(gate.name for gate in pod.spec.scheduling_gates)


def resource_asked(pod: Pod, resource: str) -> ResourceAsk:
    """Summed as Kubernetes does: containers and sidecars together, or an init container beside the earlier sidecars."""
    if not _names(pod, resource):
        return NOTHING_ASKED
    sidecars = greediest_init = 0
    asks: list[ContainerAsk] = []
    for index, container in enumerate(pod.spec.init_containers):
        amount = _amount(pod, container, resource, f"spec.initContainers[{index}]")
        if container.restart_policy == SIDECAR:
            sidecars += amount
            asks.append(ContainerAsk(container.name, amount, init=False))
        else:
            greediest_init = max(greediest_init, sidecars + amount)
            asks.append(ContainerAsk(container.name, amount, init=True))
    for index, container in enumerate(pod.spec.containers):
        amount = _amount(pod, container, resource, f"spec.containers[{index}]")
        asks.append(ContainerAsk(container.name, amount, init=False))
    together = sum(ask.amount for ask in asks if not ask.init)
    return ResourceAsk(max(together, greediest_init), tuple(ask for ask in asks if ask.amount))


def _names(pod: Pod, resource: str) -> bool:
    """Most resources are named by no container of a pod; then there is nothing to sum up."""
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        if resource in container.resources.limits or resource in container.resources.requests:
            return True
    return False


def _amount(pod: Pod, container: Container, resource: str, path: str) -> int:
    # Kubernetes wants request = limit for extended resources, and fills the request in from the limit.
    for name, quantities in (("limits", container.resources.limits), ("requests", container.resources.requests)):
        if resource in quantities:
            field = f"{path}.resources.{name}['{resource}']"
            return whole_quantity(quantities[resource], subject(pod.metadata), field)
    return 0
