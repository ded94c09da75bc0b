"""What a pod asks for, in whichever dialect: the one place where all of them are read side by side.

A pod speaks one dialect. Two on one pod are refused by name, because each would be promised its own card. What is well
written but cannot be had is a `Refusal`; what cannot be understood raises `Malformed`; a pod that asks for no card is
None, and none of Carrel's business.

Some words go with every dialect: the model (`carrel.dev/gpu-model`, or `nvidia.com/gpu.product` in the node selector),
and the size of a gang. A gang is as large as the claim (`gangSize`) or the pod (`carrel.dev/gang-size`,
`kai.scheduler/batch-min-member`) says, else as `gang_size` counts; a gang of one is none.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from carrel.dialects import carrel, gpuclaim, gpushare, kai, nvidia
from carrel.dialects.gpuclaim_objects import GpuClaim
from carrel.dialects.gpushare import Unit
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, resource_asked, subject
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request
from carrel.parsing.malformed import Malformed

ClaimNamed = Callable[[str, str], GpuClaim | None]
"""The GpuClaim of a namespace and a name."""
GangSize = Callable[[str, str], int]
"""How many pods the gang of a namespace and a name has, where neither pod nor claim says."""


class Dialect(Enum):
    NVIDIA = "nvidia.com/gpu"
    GPUSHARE = "aliyun.com/gpu-mem"
    GPUCLAIM = "gpu.scheduling/claim"
    KAI = "gpu-fraction or gpu-memory"
    CARREL = "carrel.dev/gpu-cards or carrel.dev/gpu-memory-mib"


RESOURCES = {Dialect.NVIDIA: nvidia.GPU, Dialect.GPUSHARE: gpushare.GPU_MEM}
"""The resource by which a dialect asks; zero of it is not asked for."""
ANNOTATIONS = {
    Dialect.GPUCLAIM: (gpuclaim.CLAIM,),
    Dialect.KAI: (kai.FRACTION, kai.MEMORY, kai.NUM_DEVICES),
    Dialect.CARREL: (carrel.GPU_CARDS, carrel.GPU_MEMORY),
}
"""The annotations by which a dialect asks. The API server knows all these words too: `manifests/webhooks.yaml`."""


@dataclass(frozen=True, slots=True)
class DialectOptions:
    """What the cluster's admin decides about the dialects."""

    memory_unit: Unit = Unit.MIB
    """What one `aliyun.com/gpu-mem` is."""
    shared_claims_per_card: int = 4
    """How many shared GpuClaims that name no memory fit on a card."""


DEFAULT_DIALECT_OPTIONS = DialectOptions()


@dataclass(frozen=True, slots=True)
class PodRequest:
    dialect: Dialect
    request: Request
    claim: str = ""
    """The GpuClaim it came from, in the pod's namespace."""


def alone(namespace: str, gang: str) -> int:
    return 1


def request_of(
    pod: Pod,
    claim_named: ClaimNamed,
    gang_size: GangSize = alone,
    dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS,
) -> PodRequest | Refusal | None:
    spoken = dialects_of(pod)
    if not spoken:
        return None
    if len(spoken) > 1:
        words = " and ".join(dialect.value for dialect in spoken)
        return Refusal(f"{subject(pod.metadata)} asks for cards in {len(spoken)} ways: {words}; keep one of them")
    dialect, claim = spoken[0], None
    if dialect is Dialect.GPUCLAIM:
        claim = claim_named(pod.metadata.namespace, claim_name(pod))
        if claim is None:
            where = f"{subject(pod.metadata)} names the GpuClaim {claim_name(pod)!r}"
            return Refusal(f"{where}, which does not exist in namespace {pod.metadata.namespace!r}; create it")
    request, model = _read(pod, dialect, claim, dialect_options), model_of(pod)
    if request is None or isinstance(request, Refusal):
        return request
    if isinstance(model, Refusal):
        return model
    gang = _gang_of(pod, claim, gang_size)
    if model or gang:
        request = replace(request, model=model, gang=gang)
    return PodRequest(dialect, request, claim.metadata.name if claim else "")


def dialects_of(pod: Pod) -> tuple[Dialect, ...]:
    """Whose words are on the pod. A resource of which it asks zero is not asked for."""
    notes = pod.metadata.annotations
    by_resource = (dialect for dialect, word in RESOURCES.items() if resource_asked(pod, word).total > 0)
    by_annotation = (dialect for dialect, words in ANNOTATIONS.items() if any(word in notes for word in words))
    return (*by_resource, *by_annotation)


def _read(
    pod: Pod, dialect: Dialect, claim: GpuClaim | None, dialect_options: DialectOptions
) -> Request | Refusal | None:
    if claim is not None:
        return gpuclaim.request_of(claim, dialect_options.shared_claims_per_card)
    if dialect is Dialect.GPUSHARE:
        return gpushare.request_of(pod, dialect_options.memory_unit)
    if dialect is Dialect.KAI:
        return kai.request_of(pod)
    if dialect is Dialect.CARREL:
        return carrel.request_of(pod)
    return nvidia.request_of(pod)


def model_of(pod: Pod) -> str | Refusal:
    """Which model the pod itself names, in its annotations or its node selector; empty if none."""
    asked = pod.metadata.annotations.get(carrel.GPU_MODEL, "")
    selected = pod.spec.node_selector.get(nvidia.PRODUCT, "")
    if asked and selected and asked != selected:
        words = f"{carrel.GPU_MODEL} says {asked}, its node selector {nvidia.PRODUCT} says {selected}"
        return Refusal(f"{subject(pod.metadata)} asks for two models: {words}; keep one of them")
    return asked or selected


def _gang_of(pod: Pod, claim: GpuClaim | None, gang_size: GangSize) -> Gang | None:
    namespace = pod.metadata.namespace
    name = (claim.spec.gang_ref if claim else "") or pod.metadata.annotations.get(kai.POD_GROUP, "")
    if not name:
        return None
    said = (claim.spec.gang_size if claim else None) or carrel.gang_size_of(pod) or kai.gang_size_of(pod)
    size = said or gang_size(namespace, name)
    return Gang(f"{namespace}/{name}", size) if size > 1 else None


def claim_name(pod: Pod) -> str:
    """Of a pod that names one."""
    name = pod.metadata.annotations[gpuclaim.CLAIM]
    if not name:
        raise Malformed(subject(pod.metadata), annotation_field(gpuclaim.CLAIM), name, "the name of a GpuClaim")
    return name
