"""KAI's words: fractions of a GPU beside NVIDIA's own device plugin.

pod annotations      gpu-fraction: "0.5"               a part of a GPU, 0 < x < 1
                     gpu-memory: "4096"                or MiB of a GPU
                     gpu-fraction-num-devices: "2"     of each of so many GPUs
                     gpu-fraction-container-name       who uses it; else the first container
                     pod-group-name                    its gang: see the PodGroup below
                     kai.scheduler/batch-min-member    how many pods the gang has
  label              kai.scheduler/subgroup-name       its sub group
without effect       labels kai.scheduler/queue, runai/queue and priorityClassName; as labels or annotations
                     kai.scheduler/preemptibility, preemption-delay, staleness-grace-period, node-pool, topology…;
                     annotations mps, nvidia.com/container.….gpu-memory.… and .gpu-compute.mode: people are told so
written on the pod   received-resource-type: Fraction | Regular
                     runai/shared-gpu-configmap        prefix of its ConfigMaps
  labels             runai-gpu-group: <group>          several: runai-gpu-group/<group>: <group>
ConfigMaps           <prefix>-<i> (init: <prefix>-i<i>), and the same with `-evar` for envFrom
                     NVIDIA_VISIBLE_DEVICES, RUNAI-VISIBLE-DEVICES, RUNAI_NUM_OF_GPUS, GPU_PORTION
PodGroup             where KAI is installed: spec.minMember, how many pods the gang needs; or spec.subGroups (name,
                     minMember or minSubGroup, parent: a sub group may consist of others), of which the gang needs
                     spec.minSubGroup; without it, all of them
reservation pod      takes one whole GPU on a node and says which: `kai_reservation`
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from carrel.dialects import nvidia
from carrel.dialects.interface import Dialect, PodBinding, Reading
from carrel.kubernetes.objects.kinds import Object, ObjectPart, Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.kubernetes.objects.quantity import quantity
from carrel.kubernetes.objects.resources import Resource
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Amount, ContainerNeed, Memory, Portion, Request
from carrel.parsing.fields import whole_number
from carrel.parsing.malformed import Malformed

FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"
NUM_DEVICES = "gpu-fraction-num-devices"
CONTAINER_NAME = "gpu-fraction-container-name"
POD_GROUP = "pod-group-name"
MIN_MEMBER = "kai.scheduler/batch-min-member"
SUB_GROUP = "kai.scheduler/subgroup-name"

RECEIVED_TYPE = "received-resource-type"
CONFIG_MAP_PREFIX = "runai/shared-gpu-configmap"
GPU_GROUP = "runai-gpu-group"
WRITTEN = (RECEIVED_TYPE, CONFIG_MAP_PREFIX)
"""What only a scheduler writes in a pod's annotations."""

IGNORED_LABELS = ("kai.scheduler/queue", "runai/queue", "priorityClassName")
IGNORED_ANYWHERE = (
    "kai.scheduler/preemptibility",
    "kai.scheduler/preemption-delay",
    "kai.scheduler/staleness-grace-period",
    "kai.scheduler/node-pool",
    "kai.scheduler/topology",
    "kai.scheduler/topology-required-placement",
    "kai.scheduler/topology-preferred-placement",
)
"""KAI reads some of them from labels, and some from annotations."""
_IGNORED_ANNOTATION = re.compile(
    r"mps|nvidia\.com/container\..+\.(gpu-memory\.(request|limit)|gpu-compute\.mode)", re.ASCII
)
"""Also those by which the next release of KAI asks for parts of a GPU."""

_LONGEST_OWNER = 200
"""The name of a ConfigMap has room for so much of a pod's."""

# Both of the peer's parsers must take it: Go's ParseFloat, which knows no suffixes, and Kubernetes' quantities.
_NUMBER = re.compile(r"[0-9.]+([eE][+-]?[0-9]+)?", re.ASCII)


def request_of(pod: Pod, reading: Reading) -> Request | Refusal | None:
    """What a pod asks for, but for its gang."""
    notes, where = pod.metadata.annotations, subject(pod.metadata)
    if FRACTION in notes and MEMORY in notes:
        return Refusal(f"{where} has both {FRACTION} and {MEMORY}; one of them says how much of a GPU it needs")
    if FRACTION in notes:
        amount: Amount = Portion(_fraction(notes[FRACTION], where))
    elif MEMORY in notes:
        amount = Memory(MiB(whole_number(notes[MEMORY], where, annotation_field(MEMORY), at_least=1)))
    elif NUM_DEVICES in notes:
        return Refusal(f"{where} has {NUM_DEVICES}, but neither {FRACTION} nor {MEMORY}; add one of them")
    else:
        return None
    gpus = whole_number(notes.get(NUM_DEVICES, "1"), where, annotation_field(NUM_DEVICES), at_least=1)
    return Request(gpus, amount, containers=(_need(pod, gpus, amount),))


def gang_size_of(pod: Pod) -> int | None:
    """None if the pod does not say."""
    text = pod.metadata.annotations.get(MIN_MEMBER) or pod.metadata.labels.get(MIN_MEMBER)
    return whole_number(text, subject(pod.metadata), f"'{MIN_MEMBER}'", at_least=1) if text else None


def without_effect(pod: Pod) -> tuple[str, ...]:
    """The words of KAI on the pod that Carrel does not heed: it has no queues, no quotas and no KAI topologies."""
    labels, notes = pod.metadata.labels, pod.metadata.annotations
    by_label = (key for key in (*IGNORED_LABELS, *IGNORED_ANYWHERE) if key in labels)
    by_note = (key for key in IGNORED_ANYWHERE if key in notes)
    return tuple(dict.fromkeys((*by_label, *by_note, *filter(_IGNORED_ANNOTATION.fullmatch, notes))))


def _fraction(text: str, where: str) -> Fraction:
    field, expected = annotation_field(FRACTION), "a number between 0 and 1, such as 0.5"
    if not _NUMBER.fullmatch(text):
        raise Malformed(where, field, text, expected)
    part = quantity(text, where, field)
    if not 0 < part < 1:
        raise Malformed(where, field, text, expected)
    return part


def _need(pod: Pod, gpus: int, amount: Amount) -> ContainerNeed:
    containers, inits = ([c.name for c in group] for group in (pod.spec.containers, pod.spec.init_containers))
    name = pod.metadata.annotations.get(CONTAINER_NAME) or next(iter(containers), "")
    if name not in containers and name not in inits:
        names = ", ".join(containers + inits) or "a container; the pod has none"
        raise Malformed(subject(pod.metadata), annotation_field(CONTAINER_NAME), name, names)
    return ContainerNeed(name, gpus, amount, init=name in inits)


# --- what a pod was given --------------------------------------------------------------------------------------------


def group_labels(groups: Sequence[str]) -> dict[str, str]:
    if len(groups) == 1:
        return {GPU_GROUP: groups[0]}
    return {f"{GPU_GROUP}/{group}": group for group in groups}


def read_groups(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(value for key, value in labels.items() if key == GPU_GROUP or key.startswith(f"{GPU_GROUP}/"))


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """What the containers of a fraction pod are told, in ConfigMaps of its namespace that it owns."""

    prefix: str
    container: int
    init: bool
    uuids: tuple[str, ...]
    part: Fraction

    @property
    def name(self) -> str:
        return f"{self.prefix}-{'i' if self.init else ''}{self.container}"

    @property
    def env_name(self) -> str:
        """The map that the container reads as a whole, by envFrom."""
        return f"{self.name}-evar"

    def data(self) -> dict[str, str]:
        """What both maps hold."""
        visible = ",".join(self.uuids)
        return {
            nvidia.VISIBLE_DEVICES: visible,
            "RUNAI-VISIBLE-DEVICES": visible,
            "RUNAI_NUM_OF_GPUS": _hundredths(self.part),
            "GPU_PORTION": _hundredths(self.part),
        }


def config_map_prefix(owner: str, chance: str) -> str:
    """`chance` is seven random letters and digits."""
    return f"{owner}-{chance}-shared-gpu"


def prefix_for(pod: str, uid: str) -> str:
    """Always the same for a pod, so that writing its ConfigMaps twice is writing them once."""
    return config_map_prefix(pod[:_LONGEST_OWNER], uid[:7])


def received(fraction: bool, prefix: str = "") -> dict[str, str]:
    """The annotations of a pod that was placed."""
    notes = {RECEIVED_TYPE: "Fraction" if fraction else "Regular"}
    return {**notes, CONFIG_MAP_PREFIX: prefix} if prefix else notes


def _hundredths(part: Fraction) -> str:
    # Rounded up: a small part must not read as "0.00", which the peers take for "no limit".
    return f"{-(-part * 100 // 1) / 100:.2f}"


# --- KAI's PodGroup --------------------------------------------------------------------------------------------------


MOST_TOLD = 3
MOST_LEVELS = 20
LONGEST = 400
"""Of a reason, which is told for every node: whoever may write a PodGroup chooses the names and how many there are."""


class SubGroup(ObjectPart):
    name: str = ""
    min_member: int = 0
    min_sub_group: int | None = None
    parent: str | None = None
    """None, or empty: it is a part of the PodGroup itself."""


class PodGroupSpec(ObjectPart):
    min_member: int = 0
    min_sub_group: int | None = None
    sub_groups: tuple[SubGroup, ...] = ()


class PodGroup(Object):
    """KAI's word for a gang. The annotation of its pods names it."""

    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


POD_GROUPS = Resource(PodGroup, "scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")


def why_incomplete(group: PodGroup, pods: Mapping[str, int]) -> str:
    """Why a PodGroup with sub groups cannot be placed yet; empty if all that it needs is there. `pods`: how many there
    are of each sub group."""
    where, names = subject(group.metadata, "PodGroup"), [each.name for each in group.spec.sub_groups]
    if len({*names, ""}) <= len(names):  # to follow those could take for ever
        return f"{where}: two of its sub groups have the same name, or one has none (spec.subGroups)"
    below: dict[str, list[SubGroup]] = {}
    for each in group.spec.sub_groups:
        below.setdefault(each.parent or "", []).append(each)
    found, level, levels = set[str](), below.get("", []), 0
    while level:
        found.update(part.name for part in level)
        level, levels = [each for part in level for each in below.get(part.name, ())], levels + 1

    def gap(needed: int | None, parts: Sequence[SubGroup]) -> str:
        gaps = [why for part in parts if (why := gap_of(part))]
        wanted, ready = len(parts) if needed is None else needed, len(parts) - len(gaps)
        if ready >= wanted:
            return ""
        told = "; ".join(gaps[:MOST_TOLD])[:LONGEST]
        return f"it needs {wanted} of {len(parts)} sub groups, and {ready} are complete: {told}"

    def gap_of(part: SubGroup) -> str:
        if part.name in below:
            why = gap(part.min_sub_group, below[part.name])
            return f"{part.name}: {why}" if why else ""
        here, wanted = pods.get(part.name, 0), max(1, part.min_member)
        return f"{part.name} has {here} of {wanted} pods" if here < wanted else ""

    if lost := sorted(set(names) - found):
        why = f"the parent of its sub group {lost[0]} does not exist, or is a part of it (spec.subGroups)"
    elif levels > MOST_LEVELS:
        why = f"its sub groups have {levels} levels, more than {MOST_LEVELS} (spec.subGroups)"
    else:
        why = gap(group.spec.min_sub_group, below.get("", []))
    text = f"{where}: {why}" if why else ""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


# --- the dialect -----------------------------------------------------------------------------------------------------


def _bind_annotations(binding: PodBinding) -> dict[str, str]:
    # `lifecycle.reservations.kai_metadata` writes the ConfigMaps.
    prefix = prefix_for(binding.holder.name, binding.holder.uid)
    return received(binding.pod_request.request.amount != WHOLE, prefix)


DIALECT = Dialect(
    name="kai",
    words=f"{FRACTION} or {MEMORY}",
    example="kai-fraction.yaml",
    request_of=request_of,
    annotations=(FRACTION, MEMORY, NUM_DEVICES),
    other_annotations=(CONTAINER_NAME, POD_GROUP),
    may_change=(POD_GROUP,),
    scheduler_names=("kai-scheduler",),
    bind_annotations=_bind_annotations,
    written_annotations=WRITTEN,
    written_labels=(GPU_GROUP,),
    written_label_prefixes=(f"{GPU_GROUP}/",),
)
