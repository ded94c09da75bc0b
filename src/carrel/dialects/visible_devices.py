"""Which container of a pod sees which GPUs: what is written on the pod when it gets them, and the environment by which
its containers read that.

What is written goes onto the pod with the Binding, in one write: Carrel's own words, and those of the dialect that it
asked in. These are copies, for the kubelet's environment, for peers and for people; who holds what is written on the
Leases.

A container that uses a GPU gets both variables by the downward API, from these annotations: the same UUIDs in both, or
for CUDA the indices on the node, by a setting. The kubelet reads them when the container starts; a missing one means no
GPU. Every other container of a GPU pod gets the value for no GPU, because an image may ask for all GPUs by itself;
`env` beats `envFrom` beats the image. Whatever a user wrote in these variables is replaced.

The containers of a pod that asks for no GPU get it too, if NVIDIA's runtime may show them one. Namespaces of tools that
must see GPUs without asking for one, such as NVIDIA's device plugin, are left out.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.dialects import carrel, kai, kai_reservation, memory_limits, nvidia
from carrel.dialects.interface import Json, PodBinding
from carrel.dialects.options import CudaDevices
from carrel.ids import GpuUuid
from carrel.kubernetes.objects.kinds import Namespace, Pod
from carrel.kubernetes.objects.pods import annotation_field, subject, variable_from
from carrel.ledger.gpus import Gpu
from carrel.ledger.requests import ContainerNeed, are_dealt_out
from carrel.parsing.malformed import Malformed

_ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")
VARIABLES = (nvidia.VISIBLE_DEVICES, nvidia.CUDA_VISIBLE_DEVICES)
CONTAINER_GROUPS = ("containers", "initContainers", "ephemeralContainers")
TOOL_NAMESPACES = (
    "kube-system",
    *nvidia.TOOL_NAMESPACES,
    *(spelling.namespace for spelling in kai_reservation.SPELLINGS),
)
"""Besides Carrel's own: only admins create pods there. `manifests/webhooks.yaml` has the same names."""


# --- what is written on the pod --------------------------------------------------------------------------------------


def devices_key(container: str = "") -> str:
    """The annotation with the GPUs of the pod, or of one container; its environment refers to it by this name.

    A container's name may be as long as the part of a key after the slash, so it stands there alone.
    """
    return f"devices.carrel.dev/{container}" if container else carrel.DEVICES


def indices_key(container: str = "") -> str:
    """The annotation with the numbers of these GPUs on their node."""
    return f"indices.carrel.dev/{container}" if container else carrel.INDICES


def read_devices(pod: Pod, container: str = "") -> tuple[GpuUuid, ...]:
    """Empty if the pod has none. Only a copy: ask the ledger who holds what."""
    text = pod.metadata.annotations.get(devices_key(container), "")
    uuids = tuple(map(GpuUuid, text.split(","))) if text else ()
    if not all(uuids):
        raise Malformed(subject(pod.metadata), annotation_field(devices_key(container)), text, "UUIDs joined by commas")
    return uuids


def write_slots(slots: Sequence[str]) -> dict[str, str]:
    return {carrel.SLOTS: ",".join(slots)}


def bound_gpus(annotations: Mapping[str, str]) -> frozenset[str]:
    """What the pod was bound with, as its Leases name it: slots, or GPUs. Only a copy."""
    text = annotations.get(carrel.SLOTS) or annotations.get(carrel.DEVICES, "")
    return frozenset(text.split(",")) if text else frozenset()


def bind_annotations(binding: PodBinding) -> dict[str, str]:
    """What is written on a pod with its Binding."""
    gpus = binding.placement.gpus
    notes = _told(gpus, binding)
    if not all(gpu.has_uuid for gpu in gpus):
        notes |= write_slots([gpu.uuid for gpu in gpus])
    if are_dealt_out(binding.pod_request.request.containers):
        # Also where they see the same GPUs: their environment refers to these keys since the pod was admitted.
        for container, of_container in binding.placement.by_container().items():
            notes |= _told(of_container, binding, container)
    if binding.pod_request.request.is_limited:
        notes |= memory_limits.write_limits(binding.pod_request.request, [gpu.memory for gpu in gpus])
    return notes | binding.pod_request.dialect.bind_annotations(binding)


def _told(gpus: Sequence[Gpu], binding: PodBinding, container: str = "") -> dict[str, str]:
    """What the variables of the containers read."""
    notes = {devices_key(container): ",".join(map(visible_name, gpus))}
    if binding.options.cuda_devices is CudaDevices.INDEX:
        notes[indices_key(container)] = ",".join(map(cuda_index, gpus))
    return notes


def cuda_index(gpu: Gpu) -> str:
    """What CUDA calls a GPU in a container that sees all of its node: MIG slices have no index there."""
    return str(gpu.index) if gpu.slice is None else gpu.uuid


def visible_name(gpu: Gpu) -> str:
    """What NVIDIA's runtime calls a GPU: its UUID; where nobody has reported that, its index on the node."""
    return gpu.uuid if gpu.has_uuid else gpu.label


def _names(gpu: Gpu) -> tuple[str, ...]:
    """All that NVIDIA's runtime takes for the GPU; of a slice also what means its whole GPU."""
    parent = (gpu.slice.parent, str(gpu.slice.parent_index)) if gpu.slice else ()
    return gpu.uuid, gpu.label, *parent


# --- the environment of its containers -------------------------------------------------------------------------------


def may_see_gpus(spec: Mapping[str, Any], runtime_shows_gpus: Callable[[str], bool] = nvidia.is_runtime) -> bool:
    """Whether NVIDIA's runtime may show a pod a GPU that it does not ask for, by its manifest: an image counts only
    together with a RuntimeClass. `manifests/webhooks.yaml` asks about these pods, and about all that name a
    RuntimeClass."""
    runtime_class = str(spec.get("runtimeClassName") or "")
    return (
        (runtime_class != "" and runtime_shows_gpus(runtime_class))
        or spec.get("schedulerName") in kai.DIALECT.scheduler_names
        or bool(spec.get("resourceClaims"))
        or any(
            container.get("envFrom")
            or any(variable.get("name") == nvidia.VISIBLE_DEVICES for variable in container.get("env") or ())
            for group in CONTAINER_GROUPS
            for container in spec.get(group) or ()
        )
    )


def is_for_tools(name: str, namespace: Namespace | None, carrel_namespace: str) -> bool:
    """Whether the pods of a namespace see GPUs that they do not ask for."""
    labels = namespace.metadata.labels if namespace is not None else {}
    return name in (carrel_namespace, *TOOL_NAMESPACES) or labels.get(carrel.SEES_GPUS) == "true"


@dataclass(frozen=True, slots=True)
class Sight:
    """The annotations that name the GPUs of a container."""

    devices: str
    """For NVIDIA's runtime."""
    cuda: str
    """For CUDA."""


def sight_of(
    pod: Pod, needs: Sequence[ContainerNeed], cuda_devices: CudaDevices = CudaDevices.UUID
) -> dict[str, Sight]:
    """For each container that uses a GPU: all, if none asks by itself. Under the empty name: all GPUs of the pod."""
    cuda = indices_key if cuda_devices is CudaDevices.INDEX else devices_key
    names, of_pod = [need.container for need in needs], Sight(devices_key(), cuda())
    if are_dealt_out(needs):
        return {"": of_pod, **{name: Sight(devices_key(name), cuda(name)) for name in names}}
    everyone = (container.name for container in (*pod.spec.containers, *pod.spec.init_containers))
    return dict.fromkeys(["", *(names or everyone)], of_pod)


def shown(
    container: Mapping[str, Any], sees: Sight, further: Sequence[Json] = (), replaced: Sequence[str] = ()
) -> Json:
    """The container, which sees the GPUs that these annotations will name.

    `further` are the variables of its dialect; `replaced` are the names of which a user's own value does not count.
    """
    ours = (
        variable_from(nvidia.VISIBLE_DEVICES, sees.devices),
        variable_from(nvidia.CUDA_VISIBLE_DEVICES, sees.cuda),
    )
    return _with(container, [*ours, *further], replaced)


def hidden(container: Mapping[str, Any], word: str = nvidia.NO_RUNTIME) -> Json:
    """The container, which sees no GPU: `none` or `void`. One that sees none already stays as it is."""
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


def gpus_seen(pod: Mapping[str, Any], container: str, gpus: Sequence[Gpu]) -> frozenset[GpuUuid]:
    """The GPUs that a container of a pod on their node can see, by its manifest. Where that does not say: all."""
    everything = frozenset(gpu.uuid for gpu in gpus)
    spec = pod.get("spec") or {}
    variables = [
        variable
        for group in ("initContainers", "containers")
        for each in spec.get(group) or ()
        if each.get("name") == container
        for variable in each.get("env") or ()
        if variable.get("name") == nvidia.VISIBLE_DEVICES
    ]
    value = _value(pod, variables[-1]) if variables else None  # the last one counts
    if value is None:
        return everything
    seen: set[GpuUuid] = set()
    for word in filter(None, (part.strip() for part in value.split(","))):
        found = {gpu.uuid for gpu in gpus if word in _names(gpu)}
        if found or word in (nvidia.NO_DEVICE, nvidia.NO_RUNTIME) or nvidia.is_uuid(word) or word.isdigit():
            seen |= found
        else:
            return everything  # `all`, or a word that only the runtime knows
    return frozenset(seen)


def _value(pod: Mapping[str, Any], variable: Mapping[str, Any]) -> str | None:
    """None: it cannot be known from the manifest."""
    source = variable.get("valueFrom")
    if not source:
        text = str(variable.get("value") or "")
        return None if "$(" in text else text
    named = _ANNOTATION.fullmatch(str((source.get("fieldRef") or {}).get("fieldPath")))
    notes = (pod.get("metadata") or {}).get("annotations") or {}
    return str(notes.get(named[1], "")) if named else None


def _with(container: Mapping[str, Any], variables: list[Json], replaced: Sequence[str] = ()) -> Json:
    # First, as other variables may refer to them.
    ours = {*VARIABLES, *memory_limits.VARIABLES, *replaced, *(each["name"] for each in variables)}
    written = container.get("env") or []
    env = [*variables, *[each for each in written if each.get("name") not in ours]]
    changed = dict(container)
    if env:
        changed["env"] = env
    elif written:
        del changed["env"]
    return changed
