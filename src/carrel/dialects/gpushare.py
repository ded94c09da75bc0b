"""gpushare's words: one GPU shared by memory.

    resources.limits             aliyun.com/gpu-mem               units of the pod; one unit is a MiB, a GiB or between
                                 aliyun.com/gpu-count             one, beside gpu-mem, which it repeats; else refused
    Node capacity                aliyun.com/gpu-mem, gpu-count    units and GPUs of the node
    Node label                   gpushare: "true"                 the node takes part
                                 cgpu.disable.isolation: "true"   its containers get CGPU_DISABLE=true
    pod annotations, at bind     ALIYUN_COM_GPU_MEM_IDX           index of the GPU; ALIYUN_GPU_ID in the peer's document
                                 ALIYUN_COM_GPU_MEM_DEV           units of that GPU
                                 ALIYUN_COM_GPU_MEM_POD           units of the pod
                                 ALIYUN_COM_GPU_MEM_ASSIGNED      "false" when promised, "true" when handed over
                                 ALIYUN_COM_GPU_MEM_ASSUME_TIME   nanoseconds since 1970
    env of its containers        IDX, DEV and POD as above, and ALIYUN_COM_GPU_MEM_CONTAINER: units of the container
    not written                  scheduler.framework.gpushare.allocation: {"0": {"1": 8, "2": 8}}: container → GPU →
                                 units, of Alibaba's scheduler, for pods with several GPUs; protected; read of pods that
                                 were there before Carrel
                                 ALIYUN_COM_GPU_MEM_ASSIGN_TIME: known to the peers by name, written by none; protected
    ConfigMap in kube-system     unhealthy-gpu-<node>             key `gpus`: "0,2"

Amounts are whole and signed: nothing here is ever subtracted from something smaller. The annotations are copies for the
peers' tools; what is held is written on Leases.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.dialects import carrel
from carrel.dialects.interface import Dialect, Json, PodBinding, Reading, ToldGpus
from carrel.dialects.options import Unit
from carrel.ids import NodeName
from carrel.kubernetes.objects.kinds import ConfigMap, Pod
from carrel.kubernetes.objects.pods import annotation_field, resource_asked, subject, variable_from
from carrel.ledger.gpus import MiB, total_of
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ContainerNeed, Memory, Request
from carrel.parsing.fields import Field, whole_number
from carrel.parsing.malformed import Malformed

GPU_MEM = "aliyun.com/gpu-mem"
GPU_COUNT = "aliyun.com/gpu-count"
NODE_LABEL = "gpushare"
NO_ISOLATION_LABEL = "cgpu.disable.isolation"
NO_ISOLATION = "CGPU_DISABLE"

INDEX = "ALIYUN_COM_GPU_MEM_IDX"
GPU_UNITS = "ALIYUN_COM_GPU_MEM_DEV"
POD_UNITS = "ALIYUN_COM_GPU_MEM_POD"
CONTAINER_UNITS = "ALIYUN_COM_GPU_MEM_CONTAINER"
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ASSIGN_TIME = "ALIYUN_COM_GPU_MEM_ASSIGN_TIME"
ALLOCATION = "scheduler.framework.gpushare.allocation"
GPU_ID = "ALIYUN_GPU_ID"
WRITTEN = (
    INDEX,
    GPU_ID,
    GPU_UNITS,
    POD_UNITS,
    ASSIGNED,
    ASSUME_TIME,
    ALLOCATION,
    ASSIGN_TIME,
)
"""What only a scheduler writes on a pod."""

TOLD = (INDEX, GPU_UNITS, POD_UNITS)
"""What a container is told in its environment as it is told on its pod."""

PLUGIN_ACCOUNT = "system:serviceaccount:kube-system:gpushare-device-plugin"
"""Of gpushare's own device plugin, as its manifests make it: it marks the pods that it gave their share."""
UNHEALTHY_NAMESPACE = "kube-system"
UNHEALTHY_PREFIX = "unhealthy-gpu-"
UNHEALTHY_KEY = "gpus"

NO_ROOM = "Insufficient GPU Memory in one device"
"""The peer's sentence for a node that was filtered out; tools look for it."""
NOT_SHARED = "The node {} is not for GPU share, need skip"
"""The peer's sentence for a node without GPUs."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """What the annotations of a placed pod say. In units, as they do."""

    index: int
    gpu_units: int
    pod_units: int
    assigned: bool
    assumed_at_ns: int


def request_of(pod: Pod, reading: Reading) -> Request | Refusal | None:
    """All containers of the pod share one GPU. Unlike the peer, an init container's greed counts: it runs too."""
    asked = resource_asked(pod, GPU_MEM)
    count = resource_asked(pod, GPU_COUNT).total
    if count > 1 or (count and not asked.total):
        help_ = f"ask for {GPU_MEM}, which is memory of one GPU, or for whole GPUs by nvidia.com/gpu"
        return Refusal(f"{subject(pod.metadata)} asks for {count} {GPU_COUNT}, which gives no GPU; {help_}")
    if not asked.total:
        return None
    unit = reading.options.memory_unit
    needs = tuple(
        ContainerNeed(ask.container, 1, Memory(MiB(ask.amount * unit.mib)), ask.init) for ask in asked.containers
    )
    return Request(1, Memory(MiB(asked.total * unit.mib)), containers=needs)


def read_assumption(pod: Pod) -> Assumption | None:
    """None if the pod has no index yet."""
    notes, where = pod.metadata.annotations, subject(pod.metadata)
    if INDEX not in notes:
        return None

    def number(key: str) -> int:
        return whole_number(notes.get(key, ""), where, annotation_field(key))

    if notes.get(ASSIGNED) not in ("true", "false"):
        raise Malformed(where, annotation_field(ASSIGNED), notes.get(ASSIGNED), '"true" or "false"')
    return Assumption(
        number(INDEX), number(GPU_UNITS), number(POD_UNITS), notes[ASSIGNED] == "true", number(ASSUME_TIME)
    )


def told_gpus(pod: Pod) -> ToldGpus:
    """What gpushare's own extender, or Alibaba's scheduler for pods with several GPUs, gave to the pod."""
    notes, where = pod.metadata.annotations, subject(pod.metadata)
    if ALLOCATION in notes:
        told: dict[int | str, int] = {}
        for container in Field.parse(notes[ALLOCATION], where, annotation_field(ALLOCATION)).entries().values():
            for key, units in container.entries().items():
                index = _index(key, container)
                told[index] = told.get(index, 0) + units.integer(at_least=1)
        return told
    text = notes.get(INDEX, "")
    return {whole_number(text, where, annotation_field(INDEX)): 0} if text else {}


def write_assumption(assumption: Assumption) -> dict[str, str]:
    return {
        INDEX: str(assumption.index),
        GPU_ID: str(assumption.index),
        GPU_UNITS: str(assumption.gpu_units),
        POD_UNITS: str(assumption.pod_units),
        ASSIGNED: "true" if assumption.assigned else "false",
        ASSUME_TIME: str(assumption.assumed_at_ns),
    }


def environment(assumption: Assumption, container_units: int) -> dict[str, str]:
    """What the plugin tells a container about its part of the GPU."""
    return {
        INDEX: str(assumption.index),
        GPU_UNITS: str(assumption.gpu_units),
        POD_UNITS: str(assumption.pod_units),
        CONTAINER_UNITS: str(container_units),
    }


def variables(pod: Pod, container: Mapping[str, Any]) -> list[Json]:
    """What a container that uses memory is told of its part, so that nobody need be asked when it starts
    (`decisions/0019`). Where its node says that memory is not isolated, it is told that too, unless its author has."""
    asks = resource_asked(pod, GPU_MEM).containers
    units = next((ask.amount for ask in asks if ask.container == container.get("name")), 0)
    if not units:
        return []
    told = [variable_from(name, name) for name in TOLD]
    told.append({"name": CONTAINER_UNITS, "value": str(units)})
    disabled = variable_from(NO_ISOLATION, carrel.CGPU_DISABLE)
    written = [each for each in container.get("env") or () if each.get("name") == NO_ISOLATION]
    return told if written and written != [disabled] else [*told, disabled]


def bind_annotations(binding: PodBinding) -> dict[str, str]:
    unit, gpu, amount = binding.options.memory_unit, binding.placement.gpus[0], binding.pod_request.request.amount
    # As the pod asks, and as the Node has it: also where a part of the GPU is kept by its driver.
    pod_units = (amount.mib if isinstance(amount, Memory) else amount.on(gpu.memory)) // unit.mib
    assumption = Assumption(gpu.index, total_of(gpu.memory) // unit.mib, pod_units, False, binding.assumed_at_ns)
    is_disabled = binding.node_labels.get(NO_ISOLATION_LABEL) == "true"
    return {**write_assumption(assumption), carrel.CGPU_DISABLE: "true" if is_disabled else "false"}


def assigned(now_ns: int) -> dict[str, str]:
    """What is written on a pod when the node has handed over its part."""
    return {ASSIGNED: "true", ASSUME_TIME: str(now_ns)}


def filtered_out(node: str, why: str, has_gpus: bool) -> str:
    """The peer's own sentence, by which its tools know it, then our reason."""
    return f"{NO_ROOM if has_gpus else NOT_SHARED.format(node)}: {why}"


def read_unhealthy(config_map: ConfigMap) -> frozenset[int]:
    """Indices of the GPUs that an admin has set aside on a node."""
    where, text = subject(config_map.metadata, "ConfigMap"), config_map.data.get(UNHEALTHY_KEY, "")
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    return frozenset(whole_number(part, where, f"data.{UNHEALTHY_KEY}") for part in parts)


@dataclass(frozen=True, slots=True)
class InspectedPod:
    name: str
    namespace: str
    used: int


@dataclass(frozen=True, slots=True)
class InspectedGpu:
    index: int
    total: int
    pods: Sequence[InspectedPod] = ()


@dataclass(frozen=True, slots=True)
class InspectedNode:
    name: NodeName
    gpus: Sequence[InspectedGpu]


def inspection(nodes: Sequence[InspectedNode], error: str = "") -> dict[str, Any]:
    """The answer of `GET …/inspect`, which the peers' kubectl plugin reads. In units."""
    answer: dict[str, Any] = {"nodes": [_inspected(node) for node in nodes]}
    return {**answer, "error": error} if error else answer


def _inspected(node: InspectedNode) -> dict[str, Any]:
    gpus = [
        {
            "id": gpu.index,
            "totalGPU": gpu.total,
            "usedGPU": sum(pod.used for pod in gpu.pods),
            "pods": [{"name": pod.name, "namespace": pod.namespace, "usedGPU": pod.used} for pod in gpu.pods],
        }
        for gpu in node.gpus
    ]
    return {
        "name": node.name,
        "totalGPU": sum(gpu.total for gpu in node.gpus),
        "usedGPU": sum(pod.used for gpu in node.gpus for pod in gpu.pods),
        "devs": gpus,
    }


def _index(key: str, field: Field) -> int:
    return whole_number(key, field.subject, f"the key {key!r:.20} of {field.path}")


def inspected(
    ledger: Ledger,
    unit: Unit,
    nodes: Iterable[NodeName] | None = None,
    entries_of: Callable[[NodeName], Sequence[GpuEntry]] | None = None,
) -> list[InspectedNode]:
    """The named nodes, or all of them; by name. `entries_of`: the GPUs of a node as they are shown."""
    entries_of = entries_of or ledger.entries
    return [
        InspectedNode(name, [_gpu(entry, unit) for entry in entries_of(name)])
        for name in sorted(ledger.nodes if nodes is None else nodes)
    ]


def _gpu(entry: GpuEntry, unit: Unit) -> InspectedGpu:
    pods = []
    for share in entry.shares.values():
        holder = share.holder
        pods.append(InspectedPod(holder.name or holder.uid, holder.namespace, entry.held(share) // unit.mib))
    return InspectedGpu(entry.gpu.index, total_of(entry.gpu.memory) // unit.mib, pods)


DIALECT = Dialect(
    name="gpushare",
    words=GPU_MEM,
    example="gpushare-memory.yaml",
    request_of=request_of,
    resources=(GPU_MEM, GPU_COUNT),
    bind_annotations=bind_annotations,
    told_gpus=told_gpus,
    variables=variables,
    variable_names=(*TOLD, CONTAINER_UNITS),
    variable_sources=(carrel.CGPU_DISABLE,),
    written_annotations=WRITTEN,
    advertises=(GPU_MEM,),
    node_labels=(NODE_LABEL,),
    filtered_out=filtered_out,
)
