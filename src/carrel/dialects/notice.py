"""What the person in a pod should know now: an annotation, which the pod's containers can read in a file.

    annotation   carrel.dev/notice   one sentence; absent if there is nothing to say
    volume       carrel-notice       downward API: the file `notice`, mounted read-only at /etc/carrel

Only pods of a hub get the volume: people work in them. The kubelet writes a change into the file when it next looks at
the pod, which may take a minute and a half.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from carrel.dialects.carrel import NO_SUCCESSOR, NOTICE
from carrel.kubernetes.objects.pods import annotation_field
from carrel.parsing.time_words import in_utc

Json = dict[str, Any]

VOLUME = "carrel-notice"
DIRECTORY = "/etc/carrel"
_INSIDE = f"{DIRECTORY}/"
FILE = "notice"

AGAIN_WITHOUT_GPU = "is created again without a GPU"
REPLACED_WITHOUT_GPU = "is replaced without a GPU"
ENDED = "is not created again"


def write_notice(text: str) -> dict[str, str]:
    return {NOTICE: text} if text else {}


def wants_no_successor(annotations: Mapping[str, str]) -> bool:
    return annotations.get(NO_SUCCESSOR) == "true"


def what_follows(annotations: Mapping[str, str], *, has_controller: bool) -> str:
    """What happens to a pod that loses its GPU, after it has ended."""
    if has_controller:
        return REPLACED_WITHOUT_GPU
    return ENDED if wants_no_successor(annotations) else AGAIN_WITHOUT_GPU


# --- sentences -------------------------------------------------------------------------------------------------------


def revocation_notice(due: datetime, then: str) -> str:
    """`then`: what happens to the pod when it has ended."""
    return f"your GPU is needed for a booked pod: this pod ends at {in_utc(due)} and {then}; save your work now"


def booking_notice(end: datetime, then: str) -> str:
    return f"your booking ends at {in_utc(end)}: this pod ends then and {then}; extend your booking to keep the GPU"


def loss_notice(at: datetime, cause: str) -> str:
    """`cause`: `for a booked pod`. Empty: nothing is said."""
    return f"this pod lost its GPU at {in_utc(at)} {cause}; it runs without a GPU now" if cause else ""


# --- the file --------------------------------------------------------------------------------------------------------


def with_notice_file(spec: Mapping[str, Any]) -> Json:
    """The spec of a pod whose containers can read the notice.

    A volume of that name that is not ours is the user's own, and then nothing is added. A container that mounts
    something there, or around it, keeps what it has: another mount inside it could prevent its start.
    """
    ours: Json = {"name": VOLUME, "downwardAPI": {"items": [_item()]}}
    volumes = list(spec.get("volumes") or ())
    same = [each for each in volumes if each.get("name") == VOLUME]
    if not all(map(_is_ours, same)):
        return dict(spec)
    containers = [_mounted(each) for each in spec.get("containers") or ()]
    if not any(map(_mounts, containers)):
        return dict(spec)
    return {**spec, "volumes": volumes if same else [*volumes, ours], "containers": containers}


def _item() -> Json:
    return {"path": FILE, "fieldRef": {"fieldPath": annotation_field(NOTICE)}}


def _is_ours(volume: Mapping[str, Any]) -> bool:
    """The API server adds defaults to what we wrote."""
    items = (volume.get("downwardAPI") or {}).get("items") or ()
    paths = [(each.get("path"), (each.get("fieldRef") or {}).get("fieldPath")) for each in items]
    return paths == [(FILE, annotation_field(NOTICE))]


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
