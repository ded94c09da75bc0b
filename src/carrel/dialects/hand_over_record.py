"""The record of a hand-over: which pod gives its GPU back, why, and what takes its place.

A ConfigMap `handover-<uid of the pod>` in Carrel's own namespace, labelled `carrel.dev/handover`, written before
anything happens to the pod and deleted when its successor exists:

    label  carrel.dev/handover: bare | owned      who brings the successor: Carrel, or the pod's own controller
    data   pod: lab/train
           why: revoked | expired | full          for a booked pod; its booking ended; it waited, and no GPU was free
           decided: 2026-…Z       due: 2026-…Z    when it is told, and when it has to go
           phase: announced | ending              from `ending` on it is Carrel who ends it: then it has a successor
           for: lab/urgent                        the booked pod that needs the GPU
           booking: <id>                          which covers that pod
           owner: <uid>                           its controller, whose next pod is admitted without a GPU
           gone: 2026-…Z                          of a pod with a controller: since when that is awaited
           user: ada@lab.org                      whose pod it is, who is told
           grace: "30"                            seconds that Carrel gives a bare pod between SIGTERM and its end
           manifest: handover-…                   the Secret with the successor of a bare pod (`successor_manifest`)
           services: {"jupyter-ada": "<uid>"}     what the pod owns and its successor gets
           withdrawn: "true"                      somebody else deleted it while it was ending: no successor

Webhook and booking service read records, so nothing in one may be a secret. The successor says which pod it succeeds:
`carrel.dev/handed-over: {"at": …, "why": "revoked", "from": "<uid>"}`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from carrel.dialects.carrel import HANDED_OVER, USER
from carrel.dialects.cpu_manifest import on_cpu
from carrel.dialects.interface import NOTHING_CLAIMED, ClaimedGpus
from carrel.dialects.notice import loss_notice, write_notice
from carrel.dialects.without_gpu import asked_by_manifest, without_gpu, write_without_gpu
from carrel.kubernetes.objects.kinds import ConfigMap, Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.ledger.requests import Request
from carrel.parsing.fields import Field, whole_number
from carrel.parsing.time import instant, seconds
from carrel.parsing.time_words import in_utc

LABEL = "carrel.dev/handover"
BARE = "bare"
OWNED = "owned"
TRUE = "true"
_PREFIX = "handover-"
LONGEST_USER, LONGEST_UID = 320, 128
"""An e-mail address has no more characters, and no uid of Kubernetes has. People write what they like there, and a
record that is too large would be refused: then its pod could never be ended."""

W = TypeVar("W", bound=Enum)


class Why(Enum):
    REVOKED = "revoked"
    EXPIRED = "expired"
    FULL = "full"
    """It waited for a GPU and never had one."""


_CAUSES = {Why.REVOKED: "for a booked pod", Why.EXPIRED: "when your booking ended"}


class HandOverPhase(Enum):
    ANNOUNCED = "announced"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class HandOver:
    uid: str
    """Of the pod that goes."""
    pod: str
    """Its namespace and name, `lab/train`."""
    why: Why
    decided: datetime
    due: datetime
    phase: HandOverPhase
    needed_by: str = ""
    """The booked pod that needs the GPU."""
    booking: str = ""
    """The booking that covers it."""
    owner: str = ""
    """uid of the controller that will replace it. Empty: nobody would, so Carrel does."""
    user: str = ""
    """Whose pod it is, if anybody knows."""
    gone: datetime | None = None
    """When it was found gone, without a replacement by its controller."""
    grace_s: int = 0
    """What Carrel asks for when it deletes the pod. Whoever asks for less afterwards is somebody else."""
    manifest: str = ""
    """The Secret with the manifest of the successor. Empty: Carrel has not ended the pod, or it gets no successor."""
    services: Mapping[str, str] = field(default_factory=dict)
    """Name → uid of the Services that the pod owns."""
    is_withdrawn: bool = False

    @property
    def name(self) -> str:
        return record_name(self.uid)

    @property
    def lost_at(self) -> datetime:
        """When the pod lost its GPU, by plan."""
        return max(self.decided, self.due)

    @property
    def place(self) -> tuple[str, str]:
        namespace, _, name = self.pod.partition("/")
        return namespace, name


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a successor says of itself."""

    at: datetime
    why: Why
    origin: str
    """uid of the pod that it succeeds."""


def record_name(uid: str) -> str:
    """The name of the record of the pod with that uid."""
    return f"{_PREFIX}{uid}"


def pod_of(name: str) -> str:
    """The uid of the pod that the record of that name is about."""
    return name.removeprefix(_PREFIX)


def controller_of(pod: Mapping[str, Any]) -> str:
    """uid of whoever makes a new pod when this one is gone; empty if nobody does."""
    owners = pod["metadata"].get("ownerReferences") or ()
    uids = [str(owner["uid"]) for owner in owners if owner.get("controller")]
    return next((uid for uid in uids if len(uid) <= LONGEST_UID), "")


def successor_of(
    pod: Mapping[str, Any], why: Why, at: datetime, claimed: ClaimedGpus = NOTHING_CLAIMED
) -> dict[str, Any]:
    """`claimed`: what the pod asks for by ResourceClaims."""
    notes, user = pod["metadata"].get("annotations") or {}, {}
    if USER in notes:
        user[USER] = notes[USER]  # whose page shows it
    mark = HandedOver(at, why, pod["metadata"]["uid"])
    told = {**write_handed_over(mark), **write_notice(notice_of(mark))}
    asked = claimed.request or asked_by_manifest(pod)
    return on_cpu(pod, {**told, **user, **without_gpu_since(why, at, asked)}, claimed.names)


def notice_of(mark: HandedOver) -> str:
    """What the person in a successor is told."""
    if mark.why is Why.FULL:
        return without_gpu(_why_without(mark.why, mark.at), None).sentence
    return loss_notice(mark.at, _CAUSES[mark.why])


def without_gpu_since(why: Why, at: datetime, request: Request | None) -> dict[str, str]:
    """What is said of a successor, which has no GPU."""
    return write_without_gpu(without_gpu(_why_without(why, at), request))


def _why_without(why: Why, at: datetime) -> str:
    when = in_utc(at)
    if why is Why.FULL:
        return f"it waited for one, and on {when} none was free"
    if why is Why.EXPIRED:
        return f"its booking ended on {when}"
    return f"the one that it had was needed for a booked pod on {when}"


# --- on the successor ------------------------------------------------------------------------------------------------


def write_handed_over(mark: HandedOver) -> dict[str, str]:
    text = {"at": seconds(mark.at), "why": mark.why.value, "from": mark.origin}
    return {HANDED_OVER: json.dumps(text, separators=(",", ":"))}


def read_handed_over(pod: Pod) -> HandedOver | None:
    return handed_over(pod.metadata.annotations, subject(pod.metadata))


def handed_over(annotations: Mapping[str, str], where: str) -> HandedOver | None:
    text = annotations.get(HANDED_OVER)
    if text is None:
        return None
    field = Field.parse(text, where, annotation_field(HANDED_OVER))
    at = instant(field["at"].some_text(), where, field["at"].path)
    return HandedOver(at, _word(Why, field["why"]), field["from"].some_text())


# --- the record ------------------------------------------------------------------------------------------------------


def write_record(record: HandOver, namespace: str) -> dict[str, Any]:
    """The whole ConfigMap; whoever updates one adds the resourceVersion that was read."""
    data = {
        "pod": record.pod,
        "why": record.why.value,
        "decided": seconds(record.decided),
        "due": seconds(record.due),
        "phase": record.phase.value,
        "for": record.needed_by,
        "booking": record.booking,
        "owner": record.owner,
        "user": record.user if len(record.user) <= LONGEST_USER else "",
        "gone": seconds(record.gone) if record.gone else "",
        "grace": str(record.grace_s) if record.grace_s else "",
        "manifest": record.manifest,
        "services": json.dumps(dict(record.services)) if record.services else "",
        "withdrawn": TRUE if record.is_withdrawn else "",
    }
    return {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": {
            "name": record.name,
            "namespace": namespace,
            "labels": {LABEL: OWNED if record.owner else BARE},
        },
        "data": {key: value for key, value in data.items() if value},
    }


def read_record(config_map: ConfigMap) -> HandOver:
    return record_of(config_map.metadata.name, config_map.data)


def record_of(name: str, data: Mapping[str, str]) -> HandOver:
    field = Field(dict(data), f"ConfigMap {name}")
    return HandOver(
        uid=pod_of(name),
        pod=field["pod"].some_text(),
        why=_word(Why, field["why"]),
        decided=instant(field["decided"].text(), field.subject, "decided"),
        due=instant(field["due"].text(), field.subject, "due"),
        phase=_word(HandOverPhase, field["phase"]),
        needed_by=field["for"].text(),
        booking=field["booking"].text(),
        owner=field["owner"].text(),
        user=field["user"].text(),
        gone=instant(gone, field.subject, "gone") if (gone := field["gone"].text()) else None,
        grace_s=whole_number(field["grace"].text() or "0", field.subject, "grace"),
        manifest=field["manifest"].text(),
        services=Field.parse(field["services"].text() or "{}", field.subject, "services").texts(),
        is_withdrawn=field["withdrawn"].text() == TRUE,
    )


def _word(words: type[W], field: Field) -> W:
    try:
        return words(field.some_text())
    except ValueError:
        raise field.malformed(", ".join(each.value for each in words)) from None
