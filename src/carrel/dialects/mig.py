"""The words about MIG slices: parts of a GPU that its admin has made, each with memory and processors of its own.

resources.limits nvidia.com/mig-1g.10gb: 1    how many slices of a profile
pod annotation carrel.dev/gpu-model     NVIDIA-A100-SXM4-80GB-MIG-1g.10gb    a slice by its model, in any dialect
Node label     nvidia.com/mig.strategy  single: where all GPUs of a node are slices of one profile, `nvidia.com/gpu`
                                        means them; `mixed`, and without the label: by their profile

In the ledger a slice is a GPU with this model, the health of the GPU that it is a part of, and no links.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from carrel.dialects import nvidia
from carrel.dialects.interface import Dialect, Reading
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import extended_resources, resource_asked, subject
from carrel.ledger.gpus import Gpu
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, ContainerNeed, Request

PREFIX = "nvidia.com/mig-"
STRATEGY = "nvidia.com/mig.strategy"
SINGLE = "single"
UUID = "MIG-"
"""How the UUID of a slice begins."""

IN_A_MODEL = "-MIG-"
"""Between the model of a GPU and the profile of its slice."""
PROFILE = r"^(\d{1,2}c\.)?\d{1,2}g\.(\d{1,4})gb(\.[a-z]{1,20}){0,3}$"
_PROFILE = re.compile(PROFILE)


def is_profile(text: str) -> bool:
    return _PROFILE.fullmatch(text) is not None


def gib_of(profile: str) -> int:
    """How much memory a profile names; a slice has a little less."""
    found = _PROFILE.fullmatch(profile)
    return int(found[2]) if found else 0


def model_of(parent: str, profile: str) -> str:
    """The model of a slice, as NVIDIA's feature discovery spells it."""
    return f"{parent}{IN_A_MODEL}{profile}"


def advertised_as_gpus(gpus: Sequence[Gpu], labels: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs of a node; its slices are plain GPUs where the node says so, and all are alike."""
    if labels.get(STRATEGY) != SINGLE:
        return tuple(gpus)
    profiles = {gpu.slice.profile if gpu.slice else "" for gpu in gpus if gpu.slice or not gpu.unusable}
    if len(profiles) != 1:
        return tuple(gpus)
    return tuple(replace(gpu, slice=replace(gpu.slice, is_gpu=True)) if gpu.slice else gpu for gpu in gpus)


def why_no_part(pod: Pod, request: Request) -> Refusal | None:
    """Why a request for slices is refused that wants a part of each; None if it is not."""
    if request.gpus == 1 or request.amount == WHOLE:
        return None
    why = f"asks for a part of {request.gpus} MIG slices, which no program can use as one"
    return Refusal(f"{subject(pod.metadata)} {why}; ask for whole slices, or for a part of one")


def resource_of(gpu: Gpu) -> str:
    """The resource by which a device plugin advertises the GPU."""
    return resource_named(gpu.kind)


def resource_named(profile: str) -> str:
    """The resource of the slices of a profile; of GPUs, without one."""
    return f"{PREFIX}{profile}" if profile else nvidia.GPU


def is_device(resource: str) -> bool:
    """Whether each device of the resource is a GPU, or a slice of one."""
    return resource == nvidia.GPU or resource.startswith(PREFIX)


def request_of(pod: Pod, reading: Reading) -> Request | Refusal | None:
    words = sorted(word for word in extended_resources(pod) if word.startswith(PREFIX))
    asked = {word: ask for word in words if (ask := resource_asked(pod, word)).total}
    if not asked:
        return None
    if len(asked) > 1:
        why = f"asks for MIG slices of {len(asked)} profiles: {' and '.join(asked)}"
        return Refusal(f"{subject(pod.metadata)} {why}; keep one of them")
    ((word, ask),) = asked.items()
    profile = word.removeprefix(PREFIX)
    if not is_profile(profile):
        return Refusal(f"{subject(pod.metadata)} asks for {word}, which no profile of MIG slices is called")
    needs = tuple(ContainerNeed(each.container, each.amount, WHOLE, each.init) for each in ask.containers)
    return Request(ask.total, WHOLE, slices=profile, containers=needs, by_kubelet=True)


DIALECT = Dialect(
    name="mig",
    words=f"{PREFIX}<profile>",
    example="mig-slice.yaml",
    request_of=request_of,
    resource_prefix=PREFIX,
    node_labels=(STRATEGY,),
)
