"""What a new pod asks for, as far as it is known: the GpuClaim, the ResourceClaim or the template that it names may be
created after it."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from carrel.cluster.waiting.starts_soon import why_never_covers
from carrel.dialects import dra
from carrel.dialects.interface import Dialect, PodRequest, Reading
from carrel.dialects.kai import POD_GROUP
from carrel.dialects.registry import dialects_of, missing_claim, model_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Request
from carrel.parsing import Malformed

RequestOf = Callable[[Pod, tuple[Dialect, ...]], PodRequest | Refusal | None]
"""What a pod asks for in these dialects. Raises `Malformed`."""

ASSUMED_OF_CLAIMS = Request(1, WHOLE)


class AskedGpus(NamedTuple):
    dialect: Dialect
    request: Request
    why_unknown: str = ""
    """The pod's GpuClaim, ResourceClaim or template does not exist yet, or cannot be read. Then something is
    assumed."""
    is_in_gang: bool = False

    @property
    def is_by_claims(self) -> bool:
        """By ResourceClaims: a scheduler chooses the GPUs, and the container runtime shows them."""
        return self.dialect is dra.DIALECT

    @property
    def is_known(self) -> bool:
        return not self.why_unknown

    @property
    def may_be_none(self) -> bool:
        """Its ResourceClaims may turn out to be for other devices."""
        return self.is_by_claims and not self.is_known


def asked_gpus(pod: Pod, request_of: RequestOf, unknown_claims: Callable[[Pod], str]) -> AskedGpus | Refusal | None:
    """None if the pod asks for no GPU. Raises `Malformed` if its request cannot be read. `unknown_claims`: which of its
    ResourceClaims are not known yet."""
    spoken = dialects_of(pod)
    if len(spoken) == 1 and spoken[0].claim_name is not None:
        return _by_claim(pod, spoken[0], request_of)
    found = request_of(pod, spoken)
    if found is None and (unknown := unknown_claims(pod)):
        return AskedGpus(
            dra.DIALECT, ASSUMED_OF_CLAIMS, why_unknown=unknown, is_in_gang=_is_in_gang(pod, ASSUMED_OF_CLAIMS)
        )
    if not isinstance(found, PodRequest):
        return found
    return AskedGpus(found.dialect, found.request, is_in_gang=_is_in_gang(pod, found.request))


def _by_claim(pod: Pod, dialect: Dialect, request_of: RequestOf) -> AskedGpus | Refusal:
    assert dialect.claim_name is not None
    name = dialect.claim_name(pod)  # raises if it is no valid name
    model = model_of(pod)
    if isinstance(model, Refusal):
        return model
    try:
        found = request_of(pod, (dialect,))
    except Malformed as malformed:
        found = Refusal(str(malformed))  # the claim is at fault, and may be corrected before the pod is placed
    else:
        if isinstance(found, Refusal) and found != missing_claim(pod, name):
            return found
    if isinstance(found, PodRequest):
        return AskedGpus(dialect, found.request, is_in_gang=_is_in_gang(pod, found.request))
    assert found is not None, "a pod that names a claim asks for GPUs"
    assumed = replace(dialect.assumed(pod, Reading()), model=model)
    return AskedGpus(dialect, assumed, why_unknown=found.reason, is_in_gang=_is_in_gang(pod, assumed))


def _is_in_gang(pod: Pod, request: Request) -> bool:
    """Also if it is not known yet how large the gang is."""
    return request.gang is not None or bool(pod.metadata.annotations.get(POD_GROUP))


def why_never_covered(asked: AskedGpus, entitlement: Entitlement, sizes: Collection[MiB] = ()) -> str:
    """Why a booking can never cover a pod that asks for this; empty if it can."""
    return why_never_covers(entitlement, asked.request, sizes, is_known=asked.is_known)
