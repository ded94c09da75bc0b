"""Carrel's own words, all under `carrel.dev/`.

    a user asks, on a pod
      carrel.dev/gpu-gpus: "2"             so many GPUs of one node (1 if not said)
      carrel.dev/gpu-memory-mib: "8138"     on each of them; whole GPUs if not said
      carrel.dev/gpu-model: NVIDIA-A100-SXM4-80GB     for any dialect
      carrel.dev/gang-size: "4"             how many pods the gang has, for dialects that name a gang but not its size
      carrel.dev/booking: next | <id>       it is for a booking that may start later, and waits for it; also the name of
                                            the scheduling gate that holds it until then
      carrel.dev/no-successor: "true"       if it loses its GPU it is not created again; also on a pod that is ending
    a hub in `--spawners` says, on a pod that it creates
      carrel.dev/hub-address: ada@lab.example    under which address its user books
    an admin decides, on a Namespace
      carrel.dev/exempt: "true"             its pods have no tier and never lose their GPUs
      carrel.dev/when-full: cpu | wait      what its pods do when no GPU is free
      carrel.dev/revocation-grace: 5m       how long its pods may stay after they were told that they lose their GPU
      carrel.dev/sees-gpus: "true"          as a label: its pods see GPUs that they do not ask for
    the chart, or an admin, writes, on the ClusterRole `carrel-installation`
      carrel.dev/installed-in: carrel       the namespace of the one Carrel of this cluster
    Carrel writes, on a pod
      carrel.dev/tier: booked | opportunistic
      carrel.dev/user: alice@lab.example    whose pod it is
      carrel.dev/unlisted-spawner: system:serviceaccount:jhub:hub
                                            who created it for a user of a hub, and may not say for whom
      carrel.dev/devices: GPU-…,GPU-…       the GPUs of the pod
      carrel.dev/cgpu-disable: "true"       whether its node keeps the memory of containers apart (gpushare's label)
      carrel.dev/waits-until: 2026-…Z       when the booking starts that it is for; a gate holds it until then
      carrel.dev/woken-at: 2026-…Z          when kube-scheduler was last made to look at it again
      carrel.dev/gpus-lent: {…}             on a booked pod that was not placed: who else may use its GPUs, and until
                                            when, see `lent_gpus`
      carrel.dev/leave-by: 2026-…Z          when it is going to lose its GPU, for a hook that saves its work
      carrel.dev/notice: this pod …         what the person in the pod should know now; its containers may read it in
                                            a file
      carrel.dev/warned: 2026-…Z 15m        of which end, and how long before, it was last warned
      carrel.dev/handed-over: {…}           on the successor of a pod that lost its GPU, see `hand_over_record`
      carrel.dev/runs-without-gpu: …        on a pod that runs without the GPU that it asked for: why, in a sentence
      carrel.dev/asked-for: {"gpus": 1, "model": "NVIDIA-A100"}
                                            and what it asked for, see `without_gpu`
      devices.carrel.dev/<container>: GPU-… the GPUs of one container, where containers differ
      carrel.dev/indices: 0,1               by the setting --cuda-devices index: the same GPUs by their numbers on the
      indices.carrel.dev/<container>: 0     node, for CUDA_VISIBLE_DEVICES
      carrel.dev/slots: n1/0,n1/1           what its Leases are for, where they do not name a UUID: slots, on a node
                                            where the kubelet chooses the GPUs; GPUs whose UUID nobody reports
    Carrel writes, on a reservation pod
      carrel.dev/lease: gpu-n1-0            the slot it is made for
    Carrel writes, on the Lease of a GPU (`gpu-<node>-<index>` in Carrel's own namespace)
      carrel.dev/gpu: GPU-…                 identity: an index may belong to another GPU after a reboot
      carrel.dev/shares: {"<uid>": {"pod": "lab/train", "mib": 8138, "state": "assigned", "tries": […],
                                    "booking": "<id>", "covered": "2026-…Z"}}
                                            no mib: the whole GPU; tries: the binds that rely on it; booking and
                                            covered: which booking covers it, and since when; "claim" instead of
                                            "pod": a ResourceClaim holds it
      carrel.dev/kept-for: {"uid": "…", "pod": "lab/urgent", "from": {"<uid>": "lab/train"}, "booking": "<id>"}
                                            the booked pod that gets the GPU, and who has to give it back for it; when
                                            that pod is gone, uid is the booking's id, and until says for how long
      carrel.dev/reservation: {"state": "held", "gpu": "GPU-…", "pod": "…"}
                                            of a slot (carrel.dev/gpu is `<node>/<index>` there): which GPU it is;
                                            refused and until: why the kubelet gave none, and when the next try is
      holderIdentity                        uid of the pod that has the whole GPU, as the peers write it
    Carrel writes, on the Lease `carrel-extender` there
      carrel.dev/rules: {"memoryUnit": "GiB", …}    by which settings the extender places pods; see
                                            `cluster.placement_rules`
    Carrel writes, on devices and ResourceClaims (`resource_claims.shadows`)
      carrel.dev/unusable, carrel.dev/shadow, carrel.dev/holder    what no pod may have; what pods hold, and who

A Lease is the truth about its GPU. A `holderIdentity` always counts as the whole GPU: an annotation never lowers it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from carrel.dialects.gpuclaim import lease_labels, lease_name, read_lease_name
from carrel.dialects.interface import Dialect, Reading
from carrel.dialects.lease_shares import (
    Shares,
    WrittenShare,
    holder_named,
    read_shares,
    to_json,
    write_shares,
)
from carrel.kubernetes.objects.kinds import Lease, Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.kubernetes.objects.resources import LEASES
from carrel.ledger.gpus import MiB
from carrel.ledger.requests import WHOLE, Amount, Memory, Request
from carrel.ledger.shares import Coverage, Holder, HolderKind, Share
from carrel.ledger.slots import WANTED, Reservation, ReservationState
from carrel.parsing.fields import Field, whole_number
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant, micro_seconds

GPU_COUNT = "carrel.dev/gpu-gpus"
GPU_MEMORY = "carrel.dev/gpu-memory-mib"
GPU_MODEL = "carrel.dev/gpu-model"
GANG_SIZE = "carrel.dev/gang-size"
BOOKING = "carrel.dev/booking"
NEXT = "next"
"""As the booking's id: the person's booking that starts next."""
NO_SUCCESSOR = "carrel.dev/no-successor"
ASKED = frozenset({GPU_COUNT, GPU_MEMORY, GPU_MODEL, GANG_SIZE, BOOKING, NO_SUCCESSOR})
"""What a user may write."""
EXEMPT = "carrel.dev/exempt"
WHEN_FULL = "carrel.dev/when-full"
REVOCATION_GRACE = "carrel.dev/revocation-grace"
"""What an admin may write on a Namespace."""
SEES_GPUS = "carrel.dev/sees-gpus"
"""What an admin may write on a Namespace as a label: the API server must be able to select it."""
INSTALLED_IN = "carrel.dev/installed-in"
"""On the ClusterRole that marks the one installation of a cluster: its namespace."""

PREFIXES = ("carrel.dev/", "devices.carrel.dev/", "indices.carrel.dev/")
TIER = "carrel.dev/tier"
BOOKED = "booked"
OPPORTUNISTIC = "opportunistic"
USER = "carrel.dev/user"
PRIORITY_CLASS = "carrel-gpu"
"""Of all pods with a tier: a pod's priority can never change, while its tier follows its booking."""
DEVICES = "carrel.dev/devices"
INDICES = "carrel.dev/indices"
SLOTS = "carrel.dev/slots"
CGPU_DISABLE = "carrel.dev/cgpu-disable"
WAITS_UNTIL = "carrel.dev/waits-until"
WOKEN_AT = "carrel.dev/woken-at"
GPUS_LENT = "carrel.dev/gpus-lent"
LEAVE_BY = "carrel.dev/leave-by"
NOTICE = "carrel.dev/notice"
WARNED = "carrel.dev/warned"
HANDED_OVER = "carrel.dev/handed-over"
RUNS_WITHOUT_GPU = "carrel.dev/runs-without-gpu"
ASKED_FOR = "carrel.dev/asked-for"
UNLISTED_SPAWNER = "carrel.dev/unlisted-spawner"
HUB_ADDRESS = "carrel.dev/hub-address"
"""Only a hub that is listed may write it; from others it is removed like what only Carrel writes."""
RESERVED_LEASE = "carrel.dev/lease"

LEASE_GPU = "carrel.dev/gpu"
LEASE_SHARES = "carrel.dev/shares"
LEASE_KEPT_FOR = "carrel.dev/kept-for"
LEASE_RESERVATION = "carrel.dev/reservation"
RULES = "carrel.dev/rules"
UNUSABLE = "carrel.dev/unusable"
SHADOW = "carrel.dev/shadow"
SHADOW_HOLDER = "carrel.dev/holder"

NEXT_POD = "the next pod of a booking"
_MARKS = 8
"""Binds of one pod that are remembered on a Lease; of more than a few, the oldest have long ended."""

_VICTIMS = {"from": HolderKind.POD, "fromClaims": HolderKind.CLAIM}
"""Who has to give a GPU back."""
_RESERVATION_STATES = {state.value: state for state in ReservationState}


# --- what a pod asks for ---------------------------------------------------------------------------------------------


def request_of(pod: Pod, reading: Reading) -> Request | None:
    notes, where = pod.metadata.annotations, subject(pod.metadata)
    if GPU_COUNT not in notes and GPU_MEMORY not in notes:
        return None
    amount: Amount = WHOLE
    if GPU_MEMORY in notes:
        amount = Memory(MiB(whole_number(notes[GPU_MEMORY], where, annotation_field(GPU_MEMORY), at_least=1)))
    return Request(whole_number(notes.get(GPU_COUNT, "1"), where, annotation_field(GPU_COUNT), at_least=1), amount)


def gang_size_of(pod: Pod) -> int | None:
    """None if the pod does not say."""
    text = pod.metadata.annotations.get(GANG_SIZE)
    return None if text is None else whole_number(text, subject(pod.metadata), annotation_field(GANG_SIZE), at_least=1)


# --- what a pod was given --------------------------------------------------------------------------------------------


def devices_key(container: str = "") -> str:
    """The annotation with the GPUs of the pod, or of one container; its environment refers to it by this name.

    A container's name may be as long as the part of a key after the slash, so it stands there alone.
    """
    return f"devices.carrel.dev/{container}" if container else DEVICES


def write_devices(uuids: Sequence[str], container: str = "") -> dict[str, str]:
    return {devices_key(container): ",".join(uuids)}


def indices_key(container: str = "") -> str:
    """The annotation with the numbers of these GPUs on their node."""
    return f"indices.carrel.dev/{container}" if container else INDICES


def write_indices(indices: Sequence[int], container: str = "") -> dict[str, str]:
    return {indices_key(container): ",".join(map(str, indices))}


def read_devices(pod: Pod, container: str = "") -> tuple[str, ...]:
    """Empty if the pod has none. Only a copy: ask the ledger who holds what."""
    text = pod.metadata.annotations.get(devices_key(container), "")
    uuids = tuple(text.split(",")) if text else ()
    if not all(uuids):
        raise Malformed(subject(pod.metadata), annotation_field(devices_key(container)), text, "UUIDs joined by commas")
    return uuids


def write_slots(slots: Sequence[str]) -> dict[str, str]:
    return {SLOTS: ",".join(slots)}


def bound_gpus(annotations: Mapping[str, str]) -> frozenset[str]:
    """What the pod was bound with, as its Leases name it: slots, or GPUs. Only a copy."""
    text = annotations.get(SLOTS) or annotations.get(DEVICES, "")
    return frozenset(text.split(",")) if text else frozenset()


def write_woken(now: datetime) -> dict[str, str]:
    return {WOKEN_AT: micro_seconds(now)}


# --- the Lease of a GPU ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the Lease of a GPU says."""

    node: str
    index: int
    gpu: str
    """UUID. Empty on a Lease that Carrel did not write."""
    shares: tuple[Share, ...] = ()
    kept_for: Holder | None = None
    tries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """uid → the marks of the binds that rely on its share. Two replicas may bind the same pod at once: a bind that
    failed takes its own mark off, and the share only if no other mark is left."""
    reservation: Reservation | None = None
    """Of a slot whose holders do not ask the kubelet themselves."""
    kept_from: tuple[Holder, ...] = ()
    """Who has to give a share of this GPU back for the pod that it is kept for. Named in the same write that keeps the
    GPU, so that whoever decides again, from however old a cache, does not choose others too."""
    kept_booking: str = ""
    """The booking that covers the pod which the GPU is kept for. If that pod goes, the GPU is kept for the booking."""
    kept_until: datetime | None = None
    """How long, after the pod is gone; None: as long as the pod waits."""
    written: dict[str, WrittenShare] = field(default_factory=dict, compare=False, repr=False)
    """uid → its share as it was last written, here or in a record that this one was made from: mostly one of dozens
    of shares is new."""

    @property
    def is_empty(self) -> bool:
        """It says nothing about anybody."""
        return not self.shares and self.kept_for is None and self.reservation is None

    def names(self, uid: str) -> bool:
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

    def without(self, uid: str) -> "LeaseRecord":
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

    def given_back(self, uid: str, mark: str) -> "LeaseRecord":
        """The same, after that bind of the pod has failed."""
        marks = tuple(each for each in self.tries.get(uid, ()) if each != mark)
        if marks:
            return replace(self, tries={**self.tries, uid: marks})
        others = self.without(uid)
        return replace(self, shares=others.shares, tries=others.tries)

    def keeping(self, holder: Holder, victims: Sequence[Holder], booking: str = "") -> "LeaseRecord":
        """The same, kept for that pod, which the booking covers; the victims have to give it back."""
        return replace(self, kept_for=holder, kept_from=tuple(victims), kept_booking=booking, kept_until=None)

    def kept_for_next(self, until: datetime) -> "LeaseRecord":
        """The same, after the pod that it was kept for is gone: the next pod of its booking may have it."""
        return replace(self, kept_for=Holder(self.kept_booking, name=NEXT_POD), kept_until=until)

    def kept_for_nobody(self) -> "LeaseRecord":
        return replace(self, kept_for=None, kept_from=(), kept_booking="", kept_until=None)

    def covered(self, uid: str, coverage: Coverage | None) -> "LeaseRecord":
        """The same, with that record for the share of one pod."""
        shares = (replace(each, coverage=coverage) if each.holder.uid == uid else each for each in self.shares)
        return replace(self, shares=tuple(shares))

    def reserved(self) -> "LeaseRecord":
        """The same, with a reservation."""
        return self if self.reservation is not None else replace(self, reservation=WANTED)


def read_lease(lease: Lease, known: tuple[Lease, LeaseRecord] | None = None) -> LeaseRecord | None:
    """None if it is not the Lease of a GPU. `known` is an earlier state of it, and what that says: if since then only
    shares were added, only they are read. Every replica reads each Lease that any of them writes, and one may have
    dozens of shares."""
    place = read_lease_name(lease.metadata.name)
    if place is None:
        return None
    added = _read_added(lease, *known) if known is not None else None
    if added is not None:
        return added
    notes = lease.metadata.annotations
    gpu = notes.get(LEASE_GPU, "")
    shares, tries = _shares(lease, notes.get(LEASE_SHARES, "{}"), gpu)
    if holder := lease.spec.holder_identity:
        listed = shares.get(holder, Share(Holder(holder), gpu, None))
        shares[holder] = replace(listed, memory=None)
    if LEASE_KEPT_FOR not in notes and LEASE_RESERVATION not in notes:
        return LeaseRecord(*place, gpu, tuple(shares.values()), None, tries)  # mostly
    where = subject(lease.metadata, "Lease")
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
        kept["booking"].text(),
        instant(until, where, annotation_field(LEASE_KEPT_FOR)) if until else None,
    )


def _read_added(lease: Lease, before: Lease, record: LeaseRecord) -> LeaseRecord | None:
    """None: something else has changed than that shares were added after the others."""
    notes, notes_before = lease.metadata.annotations, before.metadata.annotations
    text, text_before = notes.get(LEASE_SHARES, ""), notes_before.get(LEASE_SHARES, "")
    is_longer = text_before.endswith("}") and text.startswith(f"{text_before[:-1]},")
    if not is_longer or not record.shares or lease.spec.holder_identity or before.spec.holder_identity:
        return None
    if notes | {LEASE_SHARES: ""} != notes_before | {LEASE_SHARES: ""}:
        return None
    shares, tries = _shares(lease, "{" + text[len(text_before) :], record.gpu)
    if not shares or any(share.holder.uid in shares for share in record.shares):
        return None  # nothing after the comma: that is no JSON
    return replace(record, shares=(*record.shares, *shares.values()), tries={**record.tries, **tries})


def _shares(lease: Lease, text: str, gpu: str) -> Shares:
    """`text`: of the annotation, or a part of it."""
    return read_shares(text, subject(lease.metadata, "Lease"), annotation_field(LEASE_SHARES), gpu)


def _note(notes: Mapping[str, str], key: str, where: str) -> Field:
    """What an annotation says; most Leases have few of them."""
    field = annotation_field(key)
    return Field.parse(notes[key], where, field) if key in notes else Field(None, where, field)


def write_lease(record: LeaseRecord, namespace: str, now: datetime) -> dict[str, Any]:
    """The whole Lease; whoever updates one adds the resourceVersion that was read."""
    whole = next((share.holder for share in record.shares if share.memory is None), None)
    annotations = {LEASE_GPU: record.gpu, LEASE_SHARES: write_shares(record.shares, record.tries, record.written)}
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
            "labels": lease_labels(whole.name if whole else ""),
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
        entry["gpu"].text(),
        entry["pod"].text(),
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


# --- the dialect -----------------------------------------------------------------------------------------------------

DIALECT = Dialect(
    name="carrel",
    words=f"{GPU_COUNT} or {GPU_MEMORY}",
    example="carrel-memory.yaml",
    request_of=request_of,
    annotations=(GPU_COUNT, GPU_MEMORY),
    other_annotations=(GPU_MODEL, GANG_SIZE, BOOKING),
    may_change=(GANG_SIZE,),
)
