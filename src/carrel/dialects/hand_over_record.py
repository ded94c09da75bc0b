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
           manifest: handover-…                   the Secret with the successor of a bare pod
           services: {"jupyter-ada": "<uid>"}     what the pod owns and its successor gets
           withdrawn: "true"                      somebody else deleted it while it was ending: no successor

The successor says which pod it succeeds: `carrel.dev/handed-over: {"at": …, "why": "revoked", "from": "<uid>"}`.

Webhook and booking service read records, so nothing in one may be a secret. A pod's environment may hold tokens and
passwords. So from before the pod is ended until its successor exists, the successor's manifest is in a Secret, which
only the controller reads. The record owns it: Kubernetes deletes it with the record.

    type   carrel.dev/handover
    name   handover-<uid of the record>-<version of the pod>     so what it holds never changes
    data   successor      JSON, compressed
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from enum import Enum
from typing import Annotated, Any

import msgspec

from carrel.dialects.carrel import HANDED_OVER, NOTICE, USER
from carrel.dialects.cpu_manifest import on_cpu
from carrel.dialects.interface import NOTHING_CLAIMED, ClaimedGpus
from carrel.dialects.notice import (
    WithoutGpu,
    asked_by_manifest,
    loss_notice,
    read_without_gpu,
    without_gpu,
    write_without_gpu,
)
from carrel.ids import NO_BOOKING, BookingId, PodUid
from carrel.kubernetes.objects.kinds import ConfigMap, Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.kubernetes.objects.resources import CONFIG_MAPS, SECRETS
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import local, seconds
from carrel.parsing.validation import malformed

LABEL = "carrel.dev/handover"
BARE = "bare"
OWNED = "owned"
TRUE = "true"
_PREFIX = "handover-"
LONGEST_USER, LONGEST_UID = 320, 128
"""An e-mail address has no more characters, and no uid of Kubernetes has. People write what they like there, and a
record that is too large would be refused: then its pod could never be ended."""

MOST_BYTES = 1_000_000
"""Of the compressed manifest. Kubernetes takes a Secret of 1 MiB."""
_MOST_UNPACKED = 16 * 1024 * 1024
"""Far more than any pod has; what is unpacked has to be bounded."""
_KEY = "successor"

SomeText = Annotated[str, msgspec.Meta(min_length=1)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


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
    uid: PodUid
    """Of the pod that goes."""
    pod: SomeText
    """Its namespace and name, `lab/train`."""
    why: Why
    decided: Instant
    due: Instant
    phase: HandOverPhase
    needed_by: str = ""
    """The booked pod that needs the GPU."""
    booking: BookingId = NO_BOOKING
    """The booking that covers it."""
    owner: str = ""
    """uid of the controller that will replace it. Empty: nobody would, so Carrel does."""
    user: str = ""
    """Whose pod it is, if anybody knows."""
    gone: Instant | None = None
    """When it was found gone, without a replacement by its controller."""
    grace_s: Annotated[int, msgspec.Meta(ge=0)] = 0
    """What Carrel asks for when it deletes the pod. Whoever asks for less afterwards is somebody else."""
    manifest: str = ""
    """The Secret with the manifest of the successor. Empty: Carrel has not ended the pod, or it gets no successor."""
    services: Mapping[str, str] = field(default_factory=dict)
    """Name → uid of the Services that the pod owns."""
    is_withdrawn: bool = False

    @property
    def name(self) -> str:
        return f"{_PREFIX}{self.uid}"

    @property
    def lost_at(self) -> datetime:
        """When the pod lost its GPU, by plan."""
        return max(self.decided, self.due)

    @property
    def place(self) -> tuple[str, str]:
        namespace, _, name = self.pod.partition("/")
        return namespace, name


class HandedOver(msgspec.Struct, frozen=True, rename={"origin": "from"}):
    """What a successor says of itself."""

    at: Instant
    why: Why
    origin: SomeText
    """uid of the pod that it succeeds."""


def pod_of(name: str) -> PodUid:
    """The uid of the pod that the record of that name is about."""
    return PodUid(name.removeprefix(_PREFIX))


def controller_of(pod: Mapping[str, Any]) -> str:
    """uid of whoever makes a new pod when this one is gone; empty if nobody does."""
    owners = pod["metadata"].get("ownerReferences") or ()
    uids = [str(owner["uid"]) for owner in owners if owner.get("controller")]
    return next((uid for uid in uids if len(uid) <= LONGEST_UID), "")


def successor_of(
    pod: Mapping[str, Any], why: Why, at: datetime, zone: tzinfo, claimed: ClaimedGpus = NOTHING_CLAIMED
) -> dict[str, Any]:
    """`claimed`: what the pod asks for by ResourceClaims."""
    notes, asked = pod["metadata"].get("annotations") or {}, claimed.request or asked_by_manifest(pod)
    mark = HandedOver(at, why, pod["metadata"]["uid"])
    told = {**write_handed_over(mark), NOTICE: notice_of(mark, zone), **without_gpu_since(why, at, asked, zone)}
    user = {USER: notes[USER]} if USER in notes else {}  # whose page shows it
    return on_cpu(pod, {**told, **user}, claimed.names)


def notice_of(mark: HandedOver, zone: tzinfo) -> str:
    """What the person in a successor is told."""
    if mark.why is Why.FULL:
        return without_gpu(_why_without(mark.why, mark.at, zone), None).sentence
    return loss_notice(mark.at, _CAUSES[mark.why], zone)


def without_gpu_since(why: Why, at: datetime, request: Request | None, zone: tzinfo) -> dict[str, str]:
    """What is said of a successor, which has no GPU."""
    return write_without_gpu(without_gpu(_why_without(why, at, zone), request))


def runs_without_gpu(pod: Pod, zone: tzinfo) -> WithoutGpu | None:
    """Why the pod runs without the GPU that it asked for; None: it does not say so."""
    try:
        mark = read_handed_over(pod)
    except Malformed:
        mark = None
    return read_without_gpu(pod) or (without_gpu(_why_without(mark.why, mark.at, zone), None) if mark else None)


def _why_without(why: Why, at: datetime, zone: tzinfo) -> str:
    when = local(at, zone)
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
    """Raises `Malformed`."""
    return handed_over(pod.metadata.annotations, subject(pod.metadata))


def handed_over(annotations: Mapping[str, str], where: str) -> HandedOver | None:
    """Raises `Malformed`."""
    text = annotations.get(HANDED_OVER)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=HandedOver)
    except msgspec.ValidationError as error:
        raise malformed(where, error, annotation_field(HANDED_OVER)) from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Malformed(where, annotation_field(HANDED_OVER), text, "JSON") from None


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
    """Raises `Malformed`."""
    words = {"for": "needed_by", "grace": "grace_s"}
    read: dict[str, Any] = {words.get(key, key): text for key, text in data.items() if text}
    try:
        services = msgspec.json.decode(data.get("services") or "{}", type=dict[str, str])
        read |= {"uid": pod_of(name), "services": services, "is_withdrawn": data.get("withdrawn") == TRUE}
        return msgspec.convert(read, HandOver, strict=False)
    except msgspec.MsgspecError as error:
        raise malformed(f"ConfigMap {name}", error) from None


# --- the successor's manifest ----------------------------------------------------------------------------------------


def write_manifest(
    manifest: Mapping[str, Any], record: Mapping[str, Any], pod: Mapping[str, Any]
) -> dict[str, Any] | Refusal:
    """The whole Secret for this version of the pod. `record`: the ConfigMap as the API server has it."""
    metadata, packed = record["metadata"], zlib.compress(msgspec.json.encode(manifest))
    if len(packed) > MOST_BYTES:
        sizes = f"{len(packed):,} bytes compressed, {MOST_BYTES:,} are possible"
        return Refusal(f"its manifest is too large to be kept: {sizes}")
    owner = {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind}
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "type": LABEL,
        "metadata": {
            "name": f"{_PREFIX}{metadata['uid']}-{pod['metadata']['resourceVersion']}",
            "namespace": metadata["namespace"],
            "ownerReferences": [{**owner, "name": metadata["name"], "uid": metadata["uid"]}],
        },
        "data": {_KEY: b64encode(packed).decode()},
    }


def read_manifest(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Raises `Malformed`, which does not quote what is there: it may be secret."""
    where, path = f"Secret {secret['metadata']['name']}", f"data.{_KEY}"
    text = (secret.get("data") or {}).get(_KEY) or ""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(b64decode(text, validate=True), _MOST_UNPACKED)
        if unpacking.eof:
            return msgspec.json.decode(content, type=dict[str, Any])
    except (ValueError, TypeError, zlib.error, msgspec.MsgspecError, RecursionError):
        pass
    raise Malformed(where, path, f"{len(text)} characters", "a complete compressed manifest")
