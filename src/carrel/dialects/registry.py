"""The dialects, one line each, and what a pod asks for in whichever of them.

A pod speaks one dialect. Two on one pod are refused by name, because each would be promised its own GPU. What is well
written but cannot be had is a `Refusal`; what cannot be understood raises `Malformed`; None: the pod asks for no GPU.

Some words go with every dialect: the model (`carrel.dev/gpu-model`, or `nvidia.com/gpu.product` in the node selector),
and the size of a gang. A gang is as large as the claim (`gangSize`) or the pod (`carrel.dev/gang-size`,
`kai.scheduler/batch-min-member`) says, else as `gang_of` finds out. A gang of one pod is no gang.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from carrel.dialects import carrel, gpuclaim, gpushare, hami, kai, memory_limits, mig, nvidia
from carrel.dialects.gpuclaim_objects import GpuClaim
from carrel.dialects.interface import Dialect, PodRequest, Reading
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import resource_asked, resources_by_claim, subject
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ANY_SLICE, Gang

DIALECTS = (
    nvidia.DIALECT,
    mig.DIALECT,
    gpushare.DIALECT,
    gpuclaim.DIALECT,
    kai.DIALECT,
    carrel.DIALECT,
    hami.DIALECT,
)

ClaimNamed = Callable[[str, str], GpuClaim | None]
"""The GpuClaim of a namespace and a name."""
GangOf = Callable[[Pod, str], Gang | None]
"""The gang of this name to which a pod belongs, where neither pod nor claim says how large it is."""


class DialectTable:
    """All dialects, and their words by kind. Made once: every pod is looked up in it."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self.dialects = tuple(dialects)
        self.by_resource = {word: each for each in dialects for word in each.resources}
        self.by_annotation = {word: each for each in dialects for word in each.annotations}
        self.annotations = frozenset(self.by_annotation)
        self.qualified = tuple(each for each in dialects if each.qualifiers)
        self.resources = frozenset(word for each in dialects for word in (*each.resources, *each.takes_over))
        """All resources by which pods ask for GPUs, but for those that only a prefix names."""
        self.by_prefix = {each.resource_prefix: each for each in dialects if each.resource_prefix}
        self.prefixes = tuple(self.by_prefix)
        self.recorded = tuple(each.recorded for each in dialects if each.recorded)
        self.asked = frozenset(
            word for each in dialects for word in (*each.annotations, *each.other_annotations, *each.qualifiers)
        )
        """All annotations that say what a pod asks for."""
        self.settled = self.asked.difference(self.recorded, *(each.may_change for each in dialects))
        """Those of them that a user writes, and may not change later: `manifests/policies.yaml` has the same words."""
        self.written_annotations = frozenset(word for each in dialects for word in each.written_annotations)
        self.written_labels = frozenset(word for each in dialects for word in each.written_labels)
        self.written_label_prefixes = tuple(word for each in dialects for word in each.written_label_prefixes)
        self.variable_names = frozenset(word for each in dialects for word in each.variable_names)
        self.variable_sources = frozenset(word for each in dialects for word in each.variable_sources)
        self.node_labels = frozenset(word for each in dialects for word in each.node_labels)
        self.advertises = frozenset(word for each in dialects for word in each.advertises)
        self.scheduler_names = frozenset(word for each in dialects for word in each.scheduler_names)

    def is_resource(self, word: str) -> bool:
        """Whether pods ask for GPUs by this resource."""
        return word in self.resources or word.startswith(self.prefixes)


ALL = DialectTable(DIALECTS)


def request_of(
    pod: Pod,
    claim_named: ClaimNamed,
    gang_of: GangOf = lambda pod, name: None,
    dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS,
    spoken: tuple[Dialect, ...] | None = None,
) -> PodRequest | Refusal | None:
    """`spoken` are the dialects of the pod, for a caller that knows them already."""
    spoken = dialects_of(pod) if spoken is None else spoken
    if not spoken:
        return None
    if len(spoken) > 1:
        return asked_in_ways(pod, [dialect.words for dialect in spoken])
    dialect, claim = spoken[0], None
    if dialect.claim_name is not None:
        name = dialect.claim_name(pod)
        claim = claim_named(pod.metadata.namespace, name)
        if claim is None:
            return missing_claim(pod, name)
    request, model = dialect.request_of(pod, Reading(dialect_options, claim)), model_of(pod)
    if request is None or isinstance(request, Refusal):
        return request
    if isinstance(model, Refusal):
        return model
    name = _gang_named(pod, claim)
    gang = _gang_of(pod, name, claim, gang_of) if name else None
    if mig.IN_A_MODEL in model and not (request.by_kubelet or request.slices):
        request = replace(request, slices=ANY_SLICE)
    if request.slices and (why := mig.why_no_part(pod, request)) is not None:
        return why
    if model or gang:
        request = replace(request, model=model, gang=gang)
    if any(key.startswith(carrel.LIMITS_PREFIX) for key in pod.metadata.annotations):
        request = memory_limits.limited(pod, request)
    return PodRequest(dialect, request, claim.metadata.name if claim else "")


def missing_claim(pod: Pod, name: str) -> Refusal:
    where = f"{subject(pod.metadata)} names the GpuClaim {name!r}"
    return Refusal(f"{where}, which does not exist in namespace {pod.metadata.namespace!r}; create it")


def asked_in_ways(pod: Pod, ways: Sequence[str]) -> Refusal:
    """Refuse a pod that would be promised GPUs more than once."""
    return Refusal(f"{subject(pod.metadata)} asks for GPUs in {len(ways)} ways: {' and '.join(ways)}; keep one of them")


def dialects_of(pod: Pod) -> tuple[Dialect, ...]:
    """The dialects whose words are on the pod. A resource of which it asks zero is not asked for, nor is one that
    kube-scheduler has made a ResourceClaim for: the claim asks."""
    table, notes = ALL, pod.metadata.annotations
    named = set[str]()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for amounts in (container.resources.limits, container.resources.requests):
            if not table.resources.isdisjoint(amounts):
                named |= table.resources.intersection(amounts)
            for word in amounts:
                if word.startswith(table.prefixes):
                    named.add(word)
    if pod.status.extended_resource_claim_status is not None:
        named -= resources_by_claim(pod)
    asked = {word for word in named if resource_asked(pod, word).total}
    spoken = {table.by_resource[word] for word in asked if word in table.by_resource}
    spoken.update(each for prefix, each in table.by_prefix.items() for word in asked if word.startswith(prefix))
    if notes:
        spoken.update(map(table.by_annotation.__getitem__, table.annotations.intersection(notes)))
        for dialect in table.qualified if asked else ():
            if not asked.isdisjoint(dialect.takes_over) and any(word in notes for word in dialect.qualifiers):
                spoken.add(dialect)
    if len(spoken) > 1:
        taken = {word for dialect in spoken for word in dialect.takes_over}
        spoken = {dialect for dialect in spoken if not taken.issuperset(dialect.resources) or not dialect.resources}
        return tuple(dialect for dialect in table.dialects if dialect in spoken)
    return tuple(spoken)


def model_of(pod: Pod) -> str | Refusal:
    """Which model the pod itself names, in its annotations or its node selector; empty if none."""
    asked = pod.metadata.annotations.get(carrel.GPU_MODEL, "")
    selected = pod.spec.node_selector.get(nvidia.PRODUCT, "")
    if asked and selected and asked != selected:
        words = f"{carrel.GPU_MODEL} says {asked}, its node selector {nvidia.PRODUCT} says {selected}"
        return Refusal(f"{subject(pod.metadata)} asks for two models: {words}; keep one of them")
    return asked or selected


def gang_name(pod: Pod, claim_named: ClaimNamed) -> str:
    """The gang that the pod names, by itself or by its claim; empty: none, or it asks for no GPU."""
    claim_name = pod.metadata.annotations.get(gpuclaim.CLAIM, "")
    name = _gang_named(pod, claim_named(pod.metadata.namespace, claim_name) if claim_name else None)
    return name if name and dialects_of(pod) else ""


def _gang_named(pod: Pod, claim: GpuClaim | None) -> str:
    return (claim.spec.gang_ref if claim else "") or pod.metadata.annotations.get(kai.POD_GROUP, "")


def _gang_of(pod: Pod, name: str, claim: GpuClaim | None, gang_of: GangOf) -> Gang | None:
    said = (claim.spec.gang_size if claim else None) or carrel.gang_size_of(pod) or kai.gang_size_of(pod)
    if said:
        return Gang(f"{pod.metadata.namespace}/{name}", said) if said > 1 else None
    return gang_of(pod, name)
