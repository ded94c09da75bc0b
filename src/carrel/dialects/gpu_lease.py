"""The Lease of a GPU, lock and record: its name, what it says, and how that is read and written. The words are in
`carrel`; name and labels are those of the GpuClaim scheduler.

The shares are JSON in one annotation:

    {"<uid>": {"pod": "lab/train", "mib": 8138, "state": "assigned", "tries": […],
               "booking": "<id>", "covered": "2026-…Z"}}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any

import msgspec

from carrel.dialects.carrel import LEASE_GPU, LEASE_KEPT_FOR, LEASE_RESERVATION, LEASE_SHARES
from carrel.dialects.gpuclaim import HIGHEST_INDEX, MANAGED_LABEL, POD_LABEL
from carrel.ids import NO_BOOKING, BookingId, GpuUuid, HolderId, NodeName, PodUid, ResourceClaimUid
from carrel.kubernetes.objects.kinds import Lease
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.kubernetes.objects.resources import LEASES
from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Coverage, Holder, HolderKind, Share, ShareState
from carrel.ledger.slots import WANTED, Reservation, ReservationState
from carrel.parsing import Malformed
from carrel.parsing.fields import Field
from carrel.parsing.time import instant, micro_seconds
from carrel.parsing.validation import malformed

_PREFIX = "gpu-"
_LONGEST_LABEL = 63
NEXT_POD = "the next pod of a booking"
_MARKS = 8
"""Binds of one pod that are remembered on a Lease; of more than a few, the oldest have long ended."""

_VICTIMS = {"from": HolderKind.POD, "fromClaims": HolderKind.CLAIM}
"""Who has to give a GPU back."""
_RESERVATION_STATES = {state.value: state for state in ReservationState}

Shares = tuple[dict[HolderId, Share], dict[HolderId, tuple[str, ...]]]
"""By uid: the shares, and the marks of the binds that rely on them."""

SomeText = Annotated[str, msgspec.Meta(min_length=1)]
_STATES = {state.value: state for state in ShareState if state is not ShareState.GONE}


def lease_name(node: NodeName, index: int) -> str:
    return f"{_PREFIX}{node}-{index}"


def read_lease_name(name: str) -> tuple[NodeName, int] | None:
    """The node and the index of the GPU; None if it is not the Lease of a GPU."""
    before, dash, index = name.removeprefix(_PREFIX).rpartition("-")
    node = NodeName(before)
    if not (name.startswith(_PREFIX) and node and dash and lease_name(node, _index(index)) == name):
        return None
    return node, int(index)


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(HIGHEST_INDEX)) else -1


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the Lease of a GPU says."""

    node: NodeName
    index: int
    gpu: GpuUuid
    """UUID. Empty on a Lease that Carrel did not write."""
    shares: tuple[Share, ...] = ()
    kept_for: Holder | None = None
    tries: Mapping[HolderId, tuple[str, ...]] = field(default_factory=dict)
    """uid → the marks of the binds that rely on its share. Two replicas may bind the same pod at once: a bind that
    failed takes its own mark off, and the share only if no other mark is left."""
    reservation: Reservation | None = None
    """Of a slot whose holders do not ask the kubelet themselves."""
    kept_from: tuple[Holder, ...] = ()
    """Who has to give a share of this GPU back for the pod that it is kept for. Named in the same write that keeps the
    GPU, so that whoever decides again, from however old a cache, does not choose others too."""
    kept_booking: BookingId = NO_BOOKING
    """The booking that covers the pod which the GPU is kept for. If that pod goes, the GPU is kept for the booking."""
    kept_until: datetime | None = None
    """How long, after the pod is gone; None: as long as the pod waits."""

    @property
    def is_empty(self) -> bool:
        """It says nothing about anybody."""
        return not self.shares and self.kept_for is None and self.reservation is None

    def names(self, uid: HolderId) -> bool:
        return any(holder.uid == uid for holder in self.holders())

    def holders(self) -> tuple[Holder, ...]:
        """The pods that hold a share, and the one that the GPU is kept for."""
        return (*(share.holder for share in self.shares), *([self.kept_for] if self.kept_for else []))

    def has_room_for(self, share: Share, memory: MiB) -> bool:
        """Of a GPU with so much memory. What is kept for somebody is no room."""
        if self.kept_for is not None or self.reservation is not None:
            return False
        held = sum(memory if each.memory is None else each.memory for each in self.shares)
        return held + (memory if share.memory is None else share.memory) <= memory

    def without(self, uid: HolderId) -> "LeaseRecord":
        """The same, less one pod."""
        shares = tuple(share for share in self.shares if share.holder.uid != uid)
        tries = {holder: marks for holder, marks in self.tries.items() if holder != uid}
        victims = tuple(victim for victim in self.kept_from if victim.uid != uid)
        left = replace(self, shares=shares, tries=tries, kept_from=victims)
        return left.kept_for_nobody() if self.kept_for and self.kept_for.uid == uid else left

    def taking(self, share: Share, mark: str) -> "LeaseRecord":
        """The same, with that share. What is kept for its holder stays kept until it is bound: a bind may fail."""
        uid = share.holder.uid
        marks = (*self.tries.get(uid, ()), mark)[-_MARKS:]
        others = [each for each in self.shares if each.holder.uid != uid]
        tries = dict(self.tries)
        tries.pop(uid, None)  # so that it comes last
        tries[uid] = marks
        return replace(self, shares=(*others, share), tries=tries)

    def given_back(self, uid: HolderId, mark: str) -> "LeaseRecord":
        """The same, after that bind of the pod has failed."""
        marks = tuple(each for each in self.tries.get(uid, ()) if each != mark)
        if marks:
            return replace(self, tries={**self.tries, uid: marks})
        others = self.without(uid)
        return replace(self, shares=others.shares, tries=others.tries)

    def keeping(self, holder: Holder, victims: Sequence[Holder], booking: BookingId = NO_BOOKING) -> "LeaseRecord":
        """The same, kept for that pod, which the booking covers; the victims have to give it back."""
        return replace(self, kept_for=holder, kept_from=tuple(victims), kept_booking=booking, kept_until=None)

    def kept_for_next(self, until: datetime) -> "LeaseRecord":
        """The same, after the pod that it was kept for is gone: the next pod of its booking may have it."""
        return replace(self, kept_for=Holder(self.kept_booking, name=NEXT_POD), kept_until=until)

    def kept_for_nobody(self) -> "LeaseRecord":
        return replace(self, kept_for=None, kept_from=(), kept_booking=NO_BOOKING, kept_until=None)

    def covered(self, uid: HolderId, coverage: Coverage | None) -> "LeaseRecord":
        """The same, with that record for the share of one pod."""
        shares = (replace(each, coverage=coverage) if each.holder.uid == uid else each for each in self.shares)
        return replace(self, shares=tuple(shares))

    def reserved(self) -> "LeaseRecord":
        """The same, with a reservation."""
        return self if self.reservation is not None else replace(self, reservation=WANTED)


def read_lease(lease: Lease) -> LeaseRecord | None:
    """None if it is not the Lease of a GPU. Raises `Malformed`."""
    place = read_lease_name(lease.metadata.name)
    if place is None:
        return None
    notes, where = lease.metadata.annotations, subject(lease.metadata, "Lease")
    gpu = GpuUuid(notes.get(LEASE_GPU, ""))
    shares, tries = read_shares(notes.get(LEASE_SHARES, "{}"), where, annotation_field(LEASE_SHARES), gpu)
    if holder := PodUid(lease.spec.holder_identity):
        listed = shares.get(holder, Share(Holder(holder), gpu, None))
        shares[holder] = replace(listed, memory=None)
    if LEASE_KEPT_FOR not in notes and LEASE_RESERVATION not in notes:
        return LeaseRecord(*place, gpu, tuple(shares.values()), None, tries)  # mostly
    kept = _note(notes, LEASE_KEPT_FOR, where)
    kept_for = holder_named(kept["uid"].some_text(), kept["pod"]) if kept.present else None
    victims = tuple(
        holder_named(uid, name, kind) for word, kind in _VICTIMS.items() for uid, name in kept[word].entries().items()
    )
    until = kept["until"].text()
    return LeaseRecord(
        *place,
        gpu,
        tuple(shares.values()),
        kept_for,
        tries,
        _reservation(_note(notes, LEASE_RESERVATION, where)),
        victims,
        BookingId(kept["booking"].text()),
        instant(until, where, annotation_field(LEASE_KEPT_FOR)) if until else None,
    )


def _note(notes: Mapping[str, str], key: str, where: str) -> Field:
    """What an annotation says; most Leases have few of them."""
    field = annotation_field(key)
    return Field.parse(notes[key], where, field) if key in notes else Field(None, where, field)


def write_lease(record: LeaseRecord, namespace: str, now: datetime) -> dict[str, Any]:
    """The whole Lease; whoever updates one adds the resourceVersion that was read."""
    whole = next((share.holder for share in record.shares if share.memory is None), None)
    shares = {share.holder.uid: _entry(share, record.tries.get(share.holder.uid, ())) for share in record.shares}
    annotations, labels = {LEASE_GPU: record.gpu, LEASE_SHARES: to_json(shares)}, {MANAGED_LABEL: "true"}
    if whole is not None and whole.name:  # cut: a name may be longer than a label
        labels[POD_LABEL] = whole.name[:_LONGEST_LABEL].rstrip("-.")
    if record.kept_for is not None:
        annotations[LEASE_KEPT_FOR] = to_json(_keep(record, record.kept_for))
    if record.reservation is not None:
        known = {
            "gpu": record.reservation.gpu,
            "pod": record.reservation.pod,
            "refused": record.reservation.refused,
            "until": micro_seconds(record.reservation.retry_at) if record.reservation.retry_at else "",
        }
        told = {key: value for key, value in known.items() if value}
        annotations[LEASE_RESERVATION] = to_json({"state": record.reservation.state.value, **told})
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {
            "name": lease_name(record.node, record.index),
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {"renewTime": micro_seconds(now), **({"holderIdentity": whole.uid} if whole else {})},
    }


def _reservation(entry: Field) -> Reservation | None:
    if not entry.present:
        return None
    state = entry["state"]
    if state.text() not in _RESERVATION_STATES:
        raise state.malformed(", ".join(_RESERVATION_STATES))
    until = entry["until"].text()
    return Reservation(
        _RESERVATION_STATES[state.text()],
        GpuUuid(entry["gpu"].text()),
        PodUid(entry["pod"].text()),
        entry["refused"].text(),
        instant(until, entry.subject, entry["until"].path) if until else None,
    )


def _keep(record: LeaseRecord, holder: Holder) -> dict[str, Any]:
    optional = {
        **{
            word: {victim.uid: victim.full_name for victim in record.kept_from if victim.kind is kind}
            for word, kind in _VICTIMS.items()
        },
        "booking": record.kept_booking,
        "until": micro_seconds(record.kept_until) if record.kept_until else "",
    }
    return {"uid": holder.uid, "pod": holder.full_name, **{key: value for key, value in optional.items() if value}}


# --- the shares ------------------------------------------------------------------------------------------------------


def _entry(share: Share, marks: Sequence[str]) -> dict[str, Any]:
    if share.state is ShareState.GONE:
        raise ValueError(f"the share of {share.holder} is gone; a Lease records only what is held")
    entry: dict[str, Any] = {share.holder.kind.value: share.holder.full_name, "state": share.state.value}
    if share.memory is not None:
        entry["mib"] = share.memory
    if share.coverage is not None:
        entry |= {"booking": share.coverage.booking, "covered": micro_seconds(share.coverage.since)}
    return {**entry, "tries": list(marks)} if marks else entry


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


class _ShareEntry(msgspec.Struct, gc=False):
    state: Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(_STATES)})\Z")]
    pod: str | None = None
    claim: str | None = None
    mib: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tries: tuple[SomeText, ...] | None = None
    booking: BookingId | None = None
    covered: str | None = None


_read_entries = msgspec.json.Decoder(dict[SomeText, _ShareEntry] | None).decode


def read_shares(text: str, subject: str, field: str, gpu: GpuUuid) -> Shares:
    """Raises `Malformed`."""
    try:
        entries = _read_entries(text) or {}
    except msgspec.ValidationError as error:
        raise malformed(subject, error, field) from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Malformed(subject, field, text, "JSON") from None
    shares: dict[HolderId, Share] = {}
    tries: dict[HolderId, tuple[str, ...]] = {}
    for text_uid, entry in entries.items():
        uid = PodUid(text_uid) if entry.claim is None else ResourceClaimUid(text_uid)
        if entry.pod is not None and entry.claim is not None:
            raise Malformed(subject, f"{field}[{uid}]", "both", "either a pod or a claim")
        kind = HolderKind.POD if entry.claim is None else HolderKind.CLAIM
        namespace, _, name = (entry.pod or entry.claim or "").rpartition("/")
        memory = MiB(entry.mib) if entry.mib is not None else None
        coverage = None
        if entry.booking:
            coverage = Coverage(entry.booking, instant(entry.covered or "", subject, f"{field}[{uid}].covered"))
        shares[uid] = Share(Holder(uid, namespace, name, kind), gpu, memory, _STATES[entry.state], coverage)
        if entry.tries is not None:
            tries[uid] = entry.tries
    return shares, tries


def holder_named(uid: str, full_name: Field, kind: HolderKind = HolderKind.POD) -> Holder:
    namespace, _, name = full_name.text().rpartition("/")
    return Holder(PodUid(uid) if kind is HolderKind.POD else ResourceClaimUid(uid), namespace, name, kind)
