"""The proof that a pod came through Carrel's webhook, of whose pod it is, and of what it asks for.

    carrel.dev/admitted: 2026-11-16T12:00:00Z 3f1c… 5f70…     when, in which review, and a MAC over what was decided

The API server refuses GPU pods while the webhook does not answer. But while the webhook's configuration is missing, a
GPU pod is created without it, with whatever its author wrote on it. Whoever places pods therefore looks for the seal.
It is made with a key that only Carrel's processes have, over the pod's namespace and name, its user, the GPUs that it
asks for (resources and annotations), the review and the instant. So it is worthless on a pod of another name or
namespace, on one that asks for more, and on one that is created more than a minute later. A pod has no uid before it is
created, and a name that the API server generates is not known yet; then the seal is over its prefix, and of several
pods with the same seal only one is served.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from carrel.dialects import registry
from carrel.dialects.carrel import ASKED_FOR, GPU_MODEL, RUNS_WITHOUT_GPU, USER
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import CLASS_RESOURCE, annotation_field, subject
from carrel.ledger.refusals import Refusal
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant, seconds

ADMITTED = "carrel.dev/admitted"
LIFE = timedelta(minutes=1)
"""Between the webhook's clock when it sealed and the API server's when it made the pod. Clocks differ a little, and
other webhooks take their time; no request takes longer than this."""
SEALED_WORDS = tuple(
    sorted({USER, GPU_MODEL, RUNS_WITHOUT_GPU, ASKED_FOR, *registry.ALL.settled, *registry.ALL.recorded})
)

Amounts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SealedPod:
    """What a seal is over."""

    place: str
    annotations: Mapping[str, str]
    gpus: list[tuple[str, str, str]] = field(default_factory=list)
    """Container, resource and amount."""


@dataclass(frozen=True, slots=True)
class Seal:
    keys: tuple[bytes, ...] = field(repr=False)
    """The first one makes seals; all are believed, so that a key can be changed without a pod that waits."""

    def write(self, pod: SealedPod, review: str, now: datetime) -> dict[str, str]:
        """`review` is the uid of the review."""
        when = f"{seconds(now)} {hashlib.sha256(review.encode()).hexdigest()[:16]}"
        return {ADMITTED: f"{when} {_mac(self.keys[0], when, pod)}"}

    def is_on(self, pod: SealedPod, made: datetime) -> bool:
        """`made`: when the pod was made, by the API server's clock; of one that is being made, now."""
        when, _, mac = pod.annotations.get(ADMITTED, "").rpartition(" ")
        try:
            sealed = instant(when.partition(" ")[0], "seal", annotation_field(ADMITTED))
        except Malformed:
            return False
        if abs(made - sealed) > LIFE:
            return False
        return any(hmac.compare_digest(mac.encode(), _mac(key, when, pod).encode()) for key in self.keys)

    def missing_on(self, pod: Pod, others: Iterable[Pod] = ()) -> Refusal | None:
        """Why a pod may not have a GPU; None if it carries a good seal. `others` carry the same seal. The pod itself
        may be among them, as it is later: a scheduler may still ask about a pod whose bind a cache shows already."""
        made = instant(pod.metadata.creation_timestamp, subject(pod.metadata), "metadata.creationTimestamp")
        if not self.is_on(as_sealed(pod), made):
            why = "it was not admitted by Carrel's webhook, or what that wrote was changed"
        elif first := min((each for each in others if _is_before(each, pod)), key=_order, default=None):
            why = f"its {ADMITTED} is a copy of that of {subject(first.metadata)}"
        else:
            return None
        return Refusal(f"{subject(pod.metadata)} gets no GPU: {why}; delete the pod and create it again")


def place_of(namespace: str, name: str, generate_name: str) -> str:
    """What is known of where a pod will be before it is made, and still when it is. No name has a star in it."""
    return f"{namespace}/{generate_name}*" if generate_name else f"{namespace}/{name}"


def asked_amounts(containers: Iterable[tuple[str, Amounts, Amounts]]) -> list[tuple[str, str, str]]:
    """What is asked, by the name, the limits and the requests of each container: for GPUs both are the same."""
    is_resource = registry.ALL.is_resource
    return sorted(
        (name, word, str(amount))
        for name, limits, requests in containers
        if limits or requests
        for word, amount in {**requests, **limits}.items()
        if is_resource(word) or word.startswith(CLASS_RESOURCE)
    )


def as_sealed(pod: Pod) -> SealedPod:
    meta, spec = pod.metadata, pod.spec
    containers = (*spec.init_containers, *spec.containers)
    asked = asked_amounts((each.name, each.resources.limits, each.resources.requests) for each in containers)
    return SealedPod(place_of(meta.namespace, meta.name, meta.generate_name), meta.annotations, asked)


def _order(pod: Pod) -> tuple[bool, str, str]:
    """The order of pods with the same seal. The first is served: the one that is placed, else the oldest."""
    return not pod.spec.node_name, pod.metadata.creation_timestamp, pod.metadata.uid


def _is_before(other: Pod, pod: Pod) -> bool:
    return other.metadata.uid != pod.metadata.uid and _order(other) < _order(pod)


def _mac(key: bytes, when: str, pod: SealedPod) -> str:
    notes = pod.annotations
    said = [when, pod.place, {word: notes[word] for word in SEALED_WORDS if word in notes}, pod.gpus]
    made = _keyed(key).copy()
    made.update(msgspec.json.encode(said))
    return made.hexdigest()


@lru_cache(maxsize=8)
def _keyed(key: bytes) -> hmac.HMAC:
    """To be copied: to begin anew with a key takes as long as all the rest."""
    return hmac.new(key, digestmod="sha256")
