"""The proof that a pod came through Carrel's webhook, and of whose pod it is.

    carrel.dev/admitted: 2026-11-16T12:00:00Z 5f70…       when, and a MAC over what was decided

The API server refuses GPU pods while the webhook does not answer. But while the webhook's configuration is missing, a
GPU pod is created without it, with whatever its author wrote on it. Whoever places pods therefore looks for the seal.
It is made with a key that only Carrel's processes have, over the pod's namespace, name, user, model, the request
that the webhook recorded or took away, if any, and the instant: it cannot be moved to another namespace or name, and a
copy is worthless on a pod that is created later than the seal. A name that the API server generates is not known yet;
then the seal is over its prefix.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring_ascii

from carrel.dialects import registry
from carrel.dialects.carrel import ASKED_FOR, BOOKED, GPU_MODEL, OPPORTUNISTIC, RUNS_WITHOUT_GPU, USER
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.ledger.refusals import Refusal
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant, seconds

ADMITTED = "carrel.dev/admitted"
FRESH = timedelta(minutes=2)
"""Between the webhook's clock when it sealed and the API server's when it made the pod. Clocks differ a little."""


@dataclass(frozen=True, slots=True)
class Seal:
    keys: tuple[bytes, ...] = field(repr=False)
    """The first one makes seals; all are believed, so that a key can be changed without a pod that waits."""

    def write(self, place: str, annotations: Mapping[str, str], now: datetime) -> dict[str, str]:
        at = seconds(now)
        return {ADMITTED: f"{at} {_mac(self.keys[0], at, place, annotations)}"}

    def is_on(self, place: str, annotations: Mapping[str, str], made: datetime) -> bool:
        """`made`: when the pod was made, by the API server's clock; of one that is being made, now."""
        if ADMITTED not in annotations:
            return False
        at, _, mac = annotations[ADMITTED].partition(" ")
        try:
            sealed = instant(at, "seal", annotation_field(ADMITTED))
        except Malformed:
            return False
        if abs(made - sealed) > FRESH:
            return False
        # A seal of an earlier version is also over the tier, which follows the pod's booking since then.
        return any(
            hmac.compare_digest(mac.encode(), _mac(key, at, place, annotations, tier).encode())
            for key in self.keys
            for tier in ("", BOOKED, OPPORTUNISTIC)
        )

    def missing_on(self, pod: Pod) -> Refusal | None:
        """Why a pod may not have a GPU; None if it carries a good seal."""
        made = instant(pod.metadata.creation_timestamp, subject(pod.metadata), "metadata.creationTimestamp")
        place = place_of(pod.metadata.namespace, pod.metadata.name, pod.metadata.generate_name)
        if self.is_on(place, pod.metadata.annotations, made):
            return None
        why = "it was not admitted by Carrel's webhook, or what that wrote was changed"
        return Refusal(f"{subject(pod.metadata)} gets no GPU: {why}; delete the pod and create it again")


def place_of(namespace: str, name: str, generate_name: str) -> str:
    """What is known of where a pod will be before it is made, and still when it is. No name has a star in it."""
    return f"{namespace}/{generate_name}*" if generate_name else f"{namespace}/{name}"


def _mac(key: bytes, at: str, place: str, annotations: Mapping[str, str], tier: str = "") -> str:
    said = [at, place, annotations.get(USER, ""), tier, annotations.get(GPU_MODEL, "")]
    # Added only where there is any, so that a seal of an earlier version stays good.
    words = (*registry.ALL.recorded, RUNS_WITHOUT_GPU, ASKED_FOR)
    if recorded := {word: annotations[word] for word in words if word in annotations}:
        said.append(json.dumps(recorded, sort_keys=True))
    made = _keyed(key).copy()
    made.update(f"[{', '.join(map(encode_basestring_ascii, said))}]".encode())  # as json.dumps, in a third of the time
    return made.hexdigest()


@lru_cache(maxsize=8)
def _keyed(key: bytes) -> hmac.HMAC:
    """To be copied: to begin anew with a key takes as long as all the rest."""
    return hmac.new(key, digestmod="sha256")
