"""What is written on a pod for the person in it.

What the person should know now is an annotation, which the pod's containers can read in a file:

    annotation   carrel.dev/notice   one sentence; absent if there is nothing to say
    volume       carrel-notice       downward API, mounted read-only at /etc/carrel: the file `notice`, and for
                                     programs that count down (`packages/carrel_gpu_notebook`) the files `leave-by` and
                                     `terminate-at`, with the instants that the notice is about

Only pods of a hub get the volume: people work in them. The kubelet writes a change into the files when it next looks at
the pod, which may take a minute and a half.

A pod that runs without the GPU that it asked for says so:

    carrel.dev/runs-without-gpu: this pod runs without a GPU: none was free on Mon 16 Nov 12:00 UTC; …
    carrel.dev/asked-for: {"gpus": 1, "model": "NVIDIA-A100-SXM4-80GB"}

The sentence is for people and stands alone. What the pod asked for is no longer in its manifest; it is kept in few
words, so that somebody can say later when such a GPU will be free. No decision is taken from either.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

import msgspec

from carrel.dialects.carrel import ASKED_FOR, LEAVE_BY, NO_SUCCESSOR, NOTICE, RUNS_WITHOUT_GPU
from carrel.dialects.interface import PodRequest
from carrel.dialects.registry import request_of
from carrel.dialects.tier import TERMINATE_AT
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.ledger.requests import Request
from carrel.parsing.fields import Field
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import local

Json = dict[str, Any]

VOLUME = "carrel-notice"
DIRECTORY = "/etc/carrel"
_INSIDE = f"{DIRECTORY}/"
FILES = {
    "notice": annotation_field(NOTICE),
    "leave-by": annotation_field(LEAVE_BY),
    "terminate-at": annotation_field(TERMINATE_AT),
}
"""File → the field of the pod that is in it; empty if the pod has no such annotation."""

AGAIN_WITHOUT_GPU = "is created again without a GPU"
REPLACED_WITHOUT_GPU = "is replaced without a GPU"
ENDED = "is not created again"

LONGEST = 900
"""Of the sentence of a pod that runs without its GPU, in characters: it must fit into an Event."""


def wants_no_successor(annotations: Mapping[str, str]) -> bool:
    return annotations.get(NO_SUCCESSOR) == "true"


def what_follows(annotations: Mapping[str, str], *, has_controller: bool) -> str:
    """What happens to a pod that loses its GPU, after it has ended."""
    if has_controller:
        return REPLACED_WITHOUT_GPU
    return ENDED if wants_no_successor(annotations) else AGAIN_WITHOUT_GPU


# --- sentences -------------------------------------------------------------------------------------------------------


def revocation_notice(due: datetime, then: str, zone: tzinfo) -> str:
    """`then`: what happens to the pod when it has ended."""
    return f"your GPU is needed for a booked pod: this pod ends at {local(due, zone)} and {then}; save your work now"


def booking_notice(end: datetime, then: str, zone: tzinfo) -> str:
    return f"your booking ends at {local(end, zone)}: this pod ends then and {then}; extend your booking to keep it"


def loss_notice(at: datetime, cause: str, zone: tzinfo) -> str:
    """`cause`: `for a booked pod`."""
    return f"this pod lost its GPU at {local(at, zone)} {cause}; it runs without a GPU now"


# --- a pod that runs without its GPU ---------------------------------------------------------------------------------


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


# --- the file --------------------------------------------------------------------------------------------------------


def with_notice_file(spec: Mapping[str, Any]) -> Json:
    """The spec of a pod whose containers can read the notice.

    A volume of that name that is not ours is the user's own, and then nothing is added. A container that mounts
    something there, or around it, keeps what it has: another mount inside it could prevent its start.
    """
    items = [{"path": path, "fieldRef": {"fieldPath": field}} for path, field in FILES.items()]
    ours: Json = {"name": VOLUME, "downwardAPI": {"items": items}}
    volumes = list(spec.get("volumes") or ())
    same = [each for each in volumes if each.get("name") == VOLUME]
    if not all(map(_is_ours, same)):
        return dict(spec)
    containers = [_mounted(each) for each in spec.get("containers") or ()]
    if not any(map(_mounts, containers)):
        return dict(spec)
    return {**spec, "volumes": volumes if same else [*volumes, ours], "containers": containers}


def _is_ours(volume: Mapping[str, Any]) -> bool:
    """The API server adds defaults to what we wrote."""
    items = (volume.get("downwardAPI") or {}).get("items") or ()
    return {each.get("path"): (each.get("fieldRef") or {}).get("fieldPath") for each in items} == FILES


def _mounts(container: Mapping[str, Any]) -> bool:
    # The last one first: there is ours, if it was just added.
    return any(each.get("name") == VOLUME for each in reversed(container.get("volumeMounts") or ()))


def _mounted(container: Mapping[str, Any]) -> Json:
    mounts = list(container.get("volumeMounts") or ())
    if any(_touches(str(each.get("mountPath") or "")) for each in mounts):
        return dict(container)
    return {**container, "volumeMounts": [*mounts, {"name": VOLUME, "mountPath": DIRECTORY, "readOnly": True}]}


def _touches(path: str) -> bool:
    """Whether it is the directory, lies in it, or is around it."""
    here = f"{path.rstrip('/')}/"
    return here.startswith(_INSIDE) or _INSIDE.startswith(here)
