"""Which container of a pod sees which cards, by its environment.

A container that uses a card gets both variables by the downward API, from the annotation that is written with the
Binding (`given`): the kubelet looks it up when the container starts, and one that is missing is no card. Every other
container of a GPU pod is told that it has none, because an image may ask for all cards by itself; `env` beats `envFrom`
beats the image. Whatever a user wrote in these variables is replaced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from carrel.core.requests import ContainerNeed
from carrel.protocols import carrel, nvidia
from carrel.protocols.asks import Dialect
from carrel.protocols.kubernetes.pods import annotation_field
from carrel.protocols.kubernetes.shapes import Pod

VARIABLES = (nvidia.VISIBLE_DEVICES, nvidia.CUDA_VISIBLE_DEVICES)

Json = dict[str, Any]


def sight_of(pod: Pod, dialect: Dialect, needs: Sequence[ContainerNeed]) -> dict[str, str]:
    """Container → the annotation with its cards, for each container that uses a card: all, if none asks by itself."""
    names = [need.container for need in needs]
    if dialect is Dialect.NVIDIA and len(names) > 1:  # whole cards are dealt out
        return {name: carrel.devices_key(name) for name in names}
    everyone = (container.name for container in (*pod.spec.containers, *pod.spec.init_containers))
    return dict.fromkeys(names or everyone, carrel.DEVICES)


def shown(container: Mapping[str, Any], annotation: str) -> Json:
    """The container, which sees the cards that this annotation will name."""
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": annotation_field(annotation)}}
    return _with(container, [{"name": name, "valueFrom": source} for name in VARIABLES])


def hidden(container: Mapping[str, Any], word: str = nvidia.NO_RUNTIME) -> Json:
    """The container, which sees no card: `none` or `void`. One that sees none already stays as it is."""
    variable = {"name": nvidia.VISIBLE_DEVICES, "value": word}
    written = [each for each in container.get("env") or () if each.get("name") in VARIABLES]
    if len(written) == 1 and written[0] in (
        {**variable, "value": nvidia.NO_DEVICE},
        {**variable, "value": nvidia.NO_RUNTIME},
    ):
        return dict(container)
    return _with(container, [variable])


def left_to_the_plugin(container: Mapping[str, Any]) -> Json:
    """The container, which sees what NVIDIA's device plugin says: nobody else's word stands in its way."""
    return _with(container, [])


def _with(container: Mapping[str, Any], variables: list[Json]) -> Json:
    # First, as other variables may refer to them.
    env = [*variables, *(each for each in container.get("env") or () if each.get("name") not in VARIABLES)]
    if env == (container.get("env") or []):
        return dict(container)
    changed = {key: value for key, value in container.items() if key != "env"}
    return {**changed, "env": env} if env else changed
