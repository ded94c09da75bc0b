"""What several dialects read of a pod: its name in messages, and how much of an extended resource it requests."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from carrel.kubernetes.objects.kinds import Metadata, Pod
from carrel.kubernetes.objects.quantity import whole_quantity

SIDECAR = "Always"
"""The `restartPolicy` of an init container that runs on beside the others."""


class ContainerAsk(NamedTuple):
    container: str
    amount: int
    init: bool
    """It ends before the containers start, and uses what they will get. A sidecar does not."""


class ResourceAsk(NamedTuple):
    """How much of an extended resource a pod needs at most at one time, and which container needs what."""

    total: int
    containers: tuple[ContainerAsk, ...]


NOTHING_ASKED = ResourceAsk(0, ())

CLASS_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: the resource by which pods ask for its devices without a claim of their own."""


def subject(metadata: Metadata, kind: str = "pod") -> str:
    """How messages name an object: `pod lab/train`."""
    return f"{kind} {metadata.namespace}/{metadata.name}" if metadata.namespace else f"{kind} {metadata.name}"


def annotation_field(key: str) -> str:
    """How messages name an annotation."""
    return f"metadata.annotations['{key}']"


def variable_from(name: str, annotation: str) -> dict[str, Any]:
    """A variable of a container that the kubelet reads from an annotation of the pod when the container starts."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": annotation_field(annotation)}}}


def gates_of(pod: Pod) -> tuple[str, ...]:
    """The scheduling gates of the pod. Once the pod exists, gates can only be removed."""
    return tuple(gate.name for gate in pod.spec.scheduling_gates)


def resource_asked(pod: Pod, resource: str) -> ResourceAsk:
    """Summed as Kubernetes does: containers and sidecars together, or an init container with the earlier sidecars."""
    asks: list[ContainerAsk] = []
    for group, listed in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, each in enumerate(listed):
            # For extended resources Kubernetes demands request = limit, and copies the limit to the request.
            limits, requests = each.resources.limits, each.resources.requests
            text = limits[resource] if resource in limits else requests.get(resource, "0")
            if len(text) < 10 and text.isascii() and text.isdigit():
                amount = int(text)  # as nearly all are; the words for a mistake take longer to make than the rest
            else:
                where = f"resources.{'limits' if resource in limits else 'requests'}['{resource}']"
                amount = whole_quantity(text, subject(pod.metadata), f"spec.{group}[{index}].{where}")
            if amount:
                is_init = group == "initContainers" and each.restart_policy != SIDECAR
                asks.append(ContainerAsk(each.name, amount, is_init))
    if not asks:
        return NOTHING_ASKED
    if len(asks) == 1:
        return ResourceAsk(asks[0].amount, tuple(asks))
    return ResourceAsk(most_at_once(pod, {ask.container: ask.amount for ask in asks}), tuple(asks))


def extended_resources(pod: Pod) -> set[str]:
    """The resources that its containers name, besides Kubernetes' own, such as processors and memory."""
    found: set[str] = set()
    for group in (pod.spec.containers, pod.spec.init_containers):
        for each in group:
            for amounts in (each.resources.limits, each.resources.requests):
                for word in amounts:
                    if "/" in word:
                        found.add(word)
    return found


def resources_by_claim(pod: Pod) -> frozenset[str]:
    """The resources that the pod gets by a ResourceClaim which its scheduler has made for it."""
    made = pod.status.extended_resource_claim_status
    return frozenset(each.resource_name for each in made.request_mappings) if made is not None else frozenset()


def most_at_once(pod: Pod, amounts: Mapping[str, int]) -> int:
    """Of amounts by container. An init container runs beside the sidecars before it, and before all others."""
    sidecars = most = 0
    for container in pod.spec.init_containers:
        amount = amounts.get(container.name, 0)
        most = max(most, sidecars + amount)
        sidecars += amount if container.restart_policy == SIDECAR else 0
    return max(most, sidecars + sum(amounts.get(container.name, 0) for container in pod.spec.containers))
