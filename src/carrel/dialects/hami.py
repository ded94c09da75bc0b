"""HAMi's words: parts of a GPU by memory, beside the name of NVIDIA's whole GPUs.

    resources.limits     nvidia.com/gpu: 1                   how many GPUs; 1 if only one of the next three is said
                         nvidia.com/gpumem: 3000             MiB of each of them
                         nvidia.com/gpumem-percentage: 50    or percent of the memory of each of them
                         nvidia.com/gpucores: 30             percent of the cores: recorded and shown, not enforced;
                                                             100 is a GPU that no other pod shares, as in HAMi
    pod annotations      nvidia.com/use-gputype: A100,V100   parts of model names, one of which must match
                         nvidia.com/nouse-gputype            none of which may match
                         nvidia.com/use-gpuuuid: GPU-…,GPU-… only these GPUs
                         nvidia.com/nouse-gpuuuid            not these GPUs
                         hami.io/gpu-scheduler-policy        binpack, spread or topology-aware: which GPUs of a node
                         hami.io/node-scheduler-policy       binpack or spread: which node
    written on the pod   carrel.dev/hami: {…}                what it asked for, by Carrel's webhook
    read, of pods that   hami.io/vgpu-devices-allocated: GPU-…,NVIDIA,3000,30:;
      HAMi placed        which GPUs they have, and MiB of each: `:` ends a GPU, `;` a container
    env of a container   CUDA_DEVICE_MEMORY_LIMIT, CUDA_DEVICE_SM_LIMIT: what HAMi-core reads, if the image has it

A pod with `nvidia.com/gpu` and none of the other words asks for whole GPUs, in NVIDIA's dialect.

No node advertises these resources, and the kubelet would count a whole GPU for each pod. So the webhook takes all of
them off the pod and records them in `carrel.dev/hami`, under its seal. From then on everybody reads the record.

All containers of a pod that ask for a part get the same GPUs, and their parts are added up. What HAMi could do and
Carrel cannot is refused: `nvidia.com/priority`, MIG and MPS by `nvidia.com/vgpu-mode`, `nvidia.com/numa-bind` for
several GPUs. `gpumem` together with `gpumem-percentage` is refused as in HAMi's manual.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from carrel.dialects import nvidia
from carrel.dialects.interface import Dialect, Json, Reading, ToldGpus
from carrel.ids import GpuUuid
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import SIDECAR, annotation_field, most_at_once, resource_asked, subject
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Amount, ContainerNeed, GpuPolicy, GpuSelector, Memory, Portion, Request
from carrel.parsing.fields import Field, whole_number
from carrel.parsing.malformed import Malformed

MEMORY = "nvidia.com/gpumem"
PERCENTAGE = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
RESOURCES = (nvidia.GPU, MEMORY, PERCENTAGE, CORES, PRIORITY)

USE_MODEL = "nvidia.com/use-gputype"
NOT_MODEL = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
NOT_UUID = "nvidia.com/nouse-gpuuuid"
MODE = "nvidia.com/vgpu-mode"
NUMA_BIND = "nvidia.com/numa-bind"
NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
ANNOTATIONS = (USE_MODEL, NOT_MODEL, USE_UUID, NOT_UUID, MODE, NUMA_BIND, NODE_POLICY, GPU_POLICY)

RECORD = "carrel.dev/hami"
ALLOCATED = "hami.io/vgpu-devices-allocated"

MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
CORE_LIMIT = "CUDA_DEVICE_SM_LIMIT"
"""HAMi-core reads them. Without it in the image, nobody enforces them."""

SCHEDULER = "hami-scheduler"
HAMI_CORE = "hami-core"
"""The one `vgpu-mode` that does not change how the GPU works."""

T = TypeVar("T")

_POLICIES = {
    "": GpuPolicy.PACK,
    "binpack": GpuPolicy.PACK,
    "spread": GpuPolicy.SPREAD,
    "topology-aware": GpuPolicy.PACK,
}
_SPREADS = {"": None, "binpack": False, "spread": True}
_YES_OR_NO = {"": False, "true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


@dataclass(frozen=True, slots=True)
class HamiRequest:
    """What HAMi's resources and annotations on a pod say."""

    containers: Mapping[str, Mapping[str, int]]
    """Container → resource → amount, of those that ask for anything."""
    annotations: Mapping[str, str]


# --- reading ---------------------------------------------------------------------------------------------------------


def hami_request_of(pod: Pod) -> HamiRequest:
    """What the webhook recorded; before that, what the pod's author wrote."""
    notes = pod.metadata.annotations
    if RECORD in notes:
        field = Field.parse(notes[RECORD], subject(pod.metadata), annotation_field(RECORD))
        containers = {
            name: {word: amount.integer(at_least=0) for word, amount in asked.entries().items()}
            for name, asked in field["containers"].entries().items()
        }
        return HamiRequest(containers, {key: each.text() for key, each in field["annotations"].entries().items()})
    asked: dict[str, dict[str, int]] = {}
    for word in RESOURCES:
        for ask in resource_asked(pod, word).containers:
            asked.setdefault(ask.container, {})[word] = ask.amount
    for each in (*pod.spec.init_containers, *pod.spec.containers):
        if each.name in asked and (nvidia.GPU in each.resources.limits or nvidia.GPU in each.resources.requests):
            asked[each.name].setdefault(nvidia.GPU, 0)  # it is said, and zero: then the container has no GPU
    return HamiRequest(asked, {key: notes[key] for key in ANNOTATIONS if key in notes})


def record_of(pod: Pod) -> str:
    requested = hami_request_of(pod)
    said: dict[str, Any] = {"containers": requested.containers}
    if requested.annotations:
        said["annotations"] = requested.annotations
    return json.dumps(said, separators=(",", ":"))


def request_of(pod: Pod, reading: Reading) -> Request | Refusal | None:
    where = subject(pod.metadata)
    if RECORD in pod.metadata.annotations and any(resource_asked(pod, word).total for word in RESOURCES):
        return Refusal(f"{where} has {RECORD}, which only Carrel's webhook writes, and HAMi's resources; leave it out")
    requested = hami_request_of(pod)
    refusal = _not_honoured(requested, where)
    if refusal is not None:
        return refusal
    asked = {name: _container(name, amounts, where) for name, amounts in requested.containers.items()}
    for each in asked.values():
        if isinstance(each, Refusal):
            return each
    needs = {name: each for name, each in asked.items() if not isinstance(each, Refusal) and each.gpus}
    request = _together(pod, needs, where)
    if isinstance(request, Refusal):
        return request
    if request.gpus > 1 and _one_of(_YES_OR_NO, NUMA_BIND, requested, where):
        return Refusal(f"{where} asks for {request.gpus} GPUs of one NUMA node ({NUMA_BIND}), which Carrel cannot do")
    return Request(
        request.gpus,
        request.amount,
        selector=GpuSelector(
            models=_list(USE_MODEL, requested, where),
            not_models=_list(NOT_MODEL, requested, where),
            uuids=frozenset(map(GpuUuid, _list(USE_UUID, requested, where))),
            not_uuids=frozenset(map(GpuUuid, _list(NOT_UUID, requested, where))),
        ),
        policy=_one_of(_POLICIES, GPU_POLICY, requested, where),
        containers=request.containers,
        spreads_over_nodes=_one_of(_SPREADS, NODE_POLICY, requested, where),
        remark=_remark(requested),
    )


def _not_honoured(requested: HamiRequest, where: str) -> Refusal | None:
    if any(amounts.get(PRIORITY) for amounts in requested.containers.values()):
        return Refusal(f"{where} asks for {PRIORITY}, which Carrel cannot enforce between pods on a GPU; leave it out")
    mode = requested.annotations.get(MODE, HAMI_CORE)
    if HAMI_CORE not in mode:
        return Refusal(f"{where} asks for {MODE} {mode!r}, which Carrel cannot give; ask {HAMI_CORE} or leave it out")
    return None


def _container(name: str, amounts: Mapping[str, int], where: str) -> ContainerNeed | Refusal:
    """What one container asks for. Of how many GPUs it says nothing, it asks for one."""
    memory, percentage, cores = (amounts.get(word, 0) for word in (MEMORY, PERCENTAGE, CORES))
    for word, percent in ((PERCENTAGE, percentage), (CORES, cores)):
        if percent > 100:
            raise Malformed(where, f"{word} of container {name}", percent, "a percentage, at most 100")
    if memory and percentage:
        return Refusal(f"container {name} of {where} has both {MEMORY} and {PERCENTAGE}; keep one of them")
    gpus = amounts.get(nvidia.GPU, 1)
    amount: Amount = WHOLE
    if cores < 100 and memory:
        amount = Memory(MiB(memory))
    elif cores < 100 and percentage:
        amount = Portion(Fraction(percentage, 100))
    return ContainerNeed(name, gpus, amount)


def _together(pod: Pod, needs: Mapping[str, ContainerNeed], where: str) -> Request | Refusal:
    """What the containers need at once."""
    inits = {each.name for each in pod.spec.init_containers if each.restart_policy != SIDECAR}
    order = [each.name for each in (*pod.spec.init_containers, *pod.spec.containers) if each.name in needs]
    containers = tuple(ContainerNeed(name, needs[name].gpus, needs[name].amount, init=name in inits) for name in order)
    if not containers:
        return Refusal(f"{where} asks for a part of a GPU, but in no container for a GPU; add {nvidia.GPU}: 1")
    amounts = {need.amount for need in containers}
    if amounts == {WHOLE}:
        return Request(
            most_at_once(pod, {need.container: need.gpus for need in containers}), WHOLE, containers=containers
        )
    if WHOLE in amounts:
        return Refusal(f"{where} asks for a whole GPU in one container and for a part in another; ask for one of both")
    if len({type(amount) for amount in amounts}) > 1:
        return Refusal(f"{where} has {MEMORY} in one container and {PERCENTAGE} in another; keep one of them")
    if len({need.gpus for need in containers}) > 1:
        why = "all its containers get the same GPUs"
        return Refusal(f"{where} asks for different numbers of GPUs, but {why}; ask for the same number in each")
    memory = most_at_once(pod, {n.container: n.amount.mib for n in containers if isinstance(n.amount, Memory)})
    if memory:
        return Request(containers[0].gpus, Memory(MiB(memory)), containers=containers)
    parts = {n.container: int(n.amount.part * 100) for n in containers if isinstance(n.amount, Portion)}
    percent = most_at_once(pod, parts)
    if percent > 100:
        return Refusal(f"the containers of {where} ask for {percent} % of one GPU together; ask for at most 100 %")
    return Request(containers[0].gpus, Portion(Fraction(percent, 100)), containers=containers)


def _list(key: str, requested: HamiRequest, where: str) -> tuple[str, ...]:
    if key not in requested.annotations:
        return ()
    parts = tuple(part.strip() for part in requested.annotations[key].split(","))
    if not all(parts):
        raise Malformed(where, annotation_field(key), requested.annotations[key], "words joined by commas")
    return parts


def _one_of(words: Mapping[str, T], key: str, requested: HamiRequest, where: str) -> T:
    text = requested.annotations.get(key, "").lower()
    if text not in words:
        raise Malformed(where, annotation_field(key), text, ", ".join(filter(None, words)))
    return words[text]


def _remark(requested: HamiRequest) -> str:
    cores = sorted({amounts[CORES] for amounts in requested.containers.values() if amounts.get(CORES)})
    return f"{' and '.join(map(str, cores))} % of the cores, which is not enforced" if cores else ""


def told_gpus(pod: Pod) -> ToldGpus:
    """What HAMi's own scheduler gave to the pod, also of whole GPUs, which are asked for in NVIDIA's words."""
    text = pod.metadata.annotations.get(ALLOCATED, "")
    told: dict[int | str, int] = {}
    for device in (each for container in text.split(";") for each in container.split(":") if each.strip()):
        uuid, *parts = (part.strip() for part in device.split(","))
        if not uuid or len(parts) < 2:
            expected = "GPU-…,NVIDIA,<MiB>,<percent>: of each GPU"
            raise Malformed(subject(pod.metadata), annotation_field(ALLOCATED), text, expected)
        told[uuid] = told.get(uuid, 0) + whole_number(parts[1], subject(pod.metadata), annotation_field(ALLOCATED))
    return told


# --- telling ---------------------------------------------------------------------------------------------------------


def variables(pod: Pod, container: Mapping[str, Any]) -> list[Json]:
    """A percentage of the memory is not told: before the pod is bound nobody knows of which GPU."""
    amounts = hami_request_of(pod).containers.get(str(container.get("name")), {})
    limits = {MEMORY_LIMIT: f"{amounts[MEMORY]}m"} if amounts.get(MEMORY) else {}
    limits |= {CORE_LIMIT: str(amounts[CORES])} if amounts.get(CORES) else {}
    return [{"name": name, "value": value} for name, value in limits.items()]


DIALECT = Dialect(
    name="hami",
    words=f"{MEMORY}, {PERCENTAGE}, {CORES} or another word of HAMi",
    example="hami-memory.yaml",
    request_of=request_of,
    resources=(MEMORY, PERCENTAGE, CORES, PRIORITY),
    annotations=(RECORD,),
    takes_over=(nvidia.GPU,),
    qualifiers=ANNOTATIONS,
    scheduler_names=(SCHEDULER,),
    recorded=RECORD,
    record_of=record_of,
    told_gpus=told_gpus,
    variables=variables,
    variable_names=(MEMORY_LIMIT, CORE_LIMIT),
)
