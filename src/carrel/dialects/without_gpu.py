"""What is written on a pod that runs without the GPU that it asked for.

    carrel.dev/runs-without-gpu: this pod runs without a GPU: none was free on Mon 16 Nov 12:00 UTC; …
    carrel.dev/asked-for: {"gpus": 1, "model": "NVIDIA-A100-SXM4-80GB"}

The sentence is for people and stands alone. What the pod asked for is no longer in its manifest; it is kept in few
words, so that somebody can say later when such a GPU will be free. No decision is taken from either.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from carrel.dialects.carrel import ASKED_FOR, RUNS_WITHOUT_GPU
from carrel.dialects.interface import PodRequest
from carrel.dialects.registry import request_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.ledger.requests import Request
from carrel.parsing.fields import Field
from carrel.parsing.malformed import Malformed

LONGEST = 900
"""Of the sentence, in characters: it must fit into an Event."""


@dataclass(frozen=True, slots=True)
class WithoutGpu:
    sentence: str
    gpus: int = 1
    """How many it asked for, all of one node."""
    model: str = ""
    """Empty: any."""


def without_gpu(why: str, request: Request | None) -> WithoutGpu:
    """`why` ends the sentence. None: nobody can say any more what the pod asked for; then one GPU is assumed."""
    sentence = f"this pod runs without a GPU: {why}"
    short = sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 1]}…"
    return WithoutGpu(short, request.gpus, request.model) if request else WithoutGpu(short)


def write_without_gpu(mark: WithoutGpu) -> dict[str, str]:
    asked = {"gpus": mark.gpus, **({"model": mark.model} if mark.model else {})}
    return {RUNS_WITHOUT_GPU: mark.sentence, ASKED_FOR: json.dumps(asked)}


def read_without_gpu(pod: Pod) -> WithoutGpu | None:
    """None: the pod does not say that it runs without a GPU."""
    notes = pod.metadata.annotations
    sentence = notes.get(RUNS_WITHOUT_GPU, "")
    if not sentence:
        return None
    try:
        field = Field.parse(notes.get(ASKED_FOR, "{}"), subject(pod.metadata), annotation_field(ASKED_FOR))
        return WithoutGpu(sentence, field["gpus"].integer(at_least=1), field["model"].text())
    except Malformed:
        return WithoutGpu(sentence)


def written_by_us(pod: Pod) -> dict[str, str]:
    """The annotations, if they are as Carrel writes them: that is all that can be said without a seal."""
    mark = read_without_gpu(pod)
    if mark is None or not mark.sentence.isprintable() or len(mark.sentence) > LONGEST:
        return {}
    written = write_without_gpu(mark)
    return written if all(pod.metadata.annotations.get(key) == value for key, value in written.items()) else {}


def asked_by_manifest(manifest: Mapping[str, Any]) -> Request | None:
    """What a pod asks for, by its manifest alone; None: it cannot be read, or a GpuClaim says it."""
    try:
        found = request_of(msgspec.convert(manifest, Pod), lambda namespace, name: None)
    except (Malformed, msgspec.ValidationError):
        return None
    return found.request if isinstance(found, PodRequest) else None
