"""Carrel's own words, all under `carrel.dev/`.

    a user asks, on a pod
      carrel.dev/gpu-cards: "2"             so many cards of one node (1 if not said)
      carrel.dev/gpu-memory-mib: "8138"     on each of them; whole cards if not said
      carrel.dev/gpu-model: NVIDIA-A100-SXM4-80GB     for any dialect
      carrel.dev/gang-size: "4"             how many pods the gang has, for dialects that name a gang but not its size
    Carrel writes, on a pod
      carrel.dev/tier: booked | opportunistic
      carrel.dev/user: alice@lab.example    whose pod it is
      carrel.dev/handed-over: {…}           it has no GPU any more, and why (`handover`)
      carrel.dev/devices: GPU-…,GPU-…       the cards of the pod
      carrel.dev/woken-at: 2026-…Z          when kube-scheduler was last made to look at it again
      devices.carrel.dev/<container>: GPU-… the cards of one container, where containers differ
    Carrel writes, on the Lease of a card (`gpu-<node>-<index>` in Carrel's own namespace)
      carrel.dev/gpu: GPU-…                 identity: an index may belong to another card after a reboot
      carrel.dev/shares: {"<uid>": {"pod": "lab/train", "mib": 8138, "state": "assigned", "tries": […]}}
                                            no mib: the whole card; tries: the binds that rely on it
      carrel.dev/kept-for: {"uid": "…", "pod": "lab/urgent"}
      holderIdentity                        uid of the pod that has the whole card, as the peers write it

A Lease is the truth about its card. A `holderIdentity` always counts as the whole card: an annotation never lowers it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from carrel.core.gpus import MiB
from carrel.core.requests import WHOLE, Amount, Memory, Request
from carrel.core.shares import Holder, Share, ShareState
from carrel.protocols.gpuclaim import lease_labels, lease_name, read_lease_name
from carrel.protocols.kubernetes.pods import annotation_field, subject
from carrel.protocols.kubernetes.resources import LEASES
from carrel.protocols.kubernetes.shapes import Lease, Pod
from carrel.protocols.kubernetes.time import micro_seconds
from carrel.protocols.malformed import Malformed
from carrel.protocols.reading import Field, whole_number

GPU_CARDS = "carrel.dev/gpu-cards"
GPU_MEMORY = "carrel.dev/gpu-memory-mib"
GPU_MODEL = "carrel.dev/gpu-model"
GANG_SIZE = "carrel.dev/gang-size"
ASKED = frozenset({GPU_CARDS, GPU_MEMORY, GPU_MODEL, GANG_SIZE})
"""What a user may write."""

PREFIXES = ("carrel.dev/", "devices.carrel.dev/")
TIER = "carrel.dev/tier"
BOOKED = "booked"
OPPORTUNISTIC = "opportunistic"
USER = "carrel.dev/user"
HANDED_OVER = "carrel.dev/handed-over"
BOOKED_PRIORITY = "carrel-booked"
OPPORTUNISTIC_PRIORITY = "carrel-opportunistic"
"""Names of PriorityClasses."""
DEVICES = "carrel.dev/devices"
WOKEN_AT = "carrel.dev/woken-at"

LEASE_GPU = "carrel.dev/gpu"
LEASE_SHARES = "carrel.dev/shares"
LEASE_KEPT_FOR = "carrel.dev/kept-for"

_MARKS = 8
"""Binds of one pod that are remembered on a Lease; of more than a few, the oldest have long ended."""

_STATES = {state.value: state for state in ShareState if state is not ShareState.GONE}


# --- what a pod asks for ---------------------------------------------------------------------------------------------


def request_of(pod: Pod) -> Request | None:
    notes, where = pod.metadata.annotations, subject(pod.metadata)
    if GPU_CARDS not in notes and GPU_MEMORY not in notes:
        return None
    amount: Amount = WHOLE
    if GPU_MEMORY in notes:
        amount = Memory(MiB(whole_number(notes[GPU_MEMORY], where, annotation_field(GPU_MEMORY), at_least=1)))
    return Request(whole_number(notes.get(GPU_CARDS, "1"), where, annotation_field(GPU_CARDS), at_least=1), amount)


def gang_size_of(pod: Pod) -> int | None:
    """None if the pod does not say."""
    text = pod.metadata.annotations.get(GANG_SIZE)
    return None if text is None else whole_number(text, subject(pod.metadata), annotation_field(GANG_SIZE), at_least=1)


# --- what a pod was given --------------------------------------------------------------------------------------------


def devices_key(container: str = "") -> str:
    """The annotation with the cards of the pod, or of one container; its environment refers to it by this name.

    A container's name may be as long as the part of a key after the slash, so it stands there alone.
    """
    return f"devices.carrel.dev/{container}" if container else DEVICES


def write_devices(uuids: Sequence[str], container: str = "") -> dict[str, str]:
    return {devices_key(container): ",".join(uuids)}


def read_devices(pod: Pod, container: str = "") -> tuple[str, ...]:
    """Empty if the pod has none. Only a copy: ask the ledger who holds what."""
    text = pod.metadata.annotations.get(devices_key(container), "")
    uuids = tuple(text.split(",")) if text else ()
    if not all(uuids):
        raise Malformed(subject(pod.metadata), annotation_field(devices_key(container)), text, "UUIDs joined by commas")
    return uuids


def write_woken(now: datetime) -> dict[str, str]:
    return {WOKEN_AT: micro_seconds(now)}


# --- the Lease of a card ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CardRecord:
    """What the Lease of a card says."""

    node: str
    index: int
    gpu: str
    """UUID. Empty on a Lease that Carrel did not write."""
    shares: tuple[Share, ...] = ()
    kept_for: Holder | None = None
    tries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """uid → the marks of the binds that rely on its share. Two replicas may bind the same pod at once: a bind that
    failed takes its own mark off, and the share only if no other mark is left."""

    @property
    def is_empty(self) -> bool:
        """It says nothing about anybody."""
        return not self.shares and self.kept_for is None

    def names(self, uid: str) -> bool:
        return any(holder.uid == uid for holder in self.holders())

    def holders(self) -> tuple[Holder, ...]:
        """The pods that hold a share, and the one that the card is kept for."""
        return (*(share.holder for share in self.shares), *([self.kept_for] if self.kept_for else []))

    def without(self, uid: str) -> "CardRecord":
        """The same, less one pod."""
        kept_for = None if self.kept_for and self.kept_for.uid == uid else self.kept_for
        shares = tuple(share for share in self.shares if share.holder.uid != uid)
        tries = {holder: marks for holder, marks in self.tries.items() if holder != uid}
        return replace(self, shares=shares, kept_for=kept_for, tries=tries)

    def taking(self, share: Share, mark: str) -> "CardRecord":
        """The same, with that share. What is kept for its holder stays kept until it is bound: a bind may fail."""
        uid, others = share.holder.uid, self.without(share.holder.uid)
        marks = (*self.tries.get(uid, ()), mark)[-_MARKS:]
        shares, tries = (*others.shares, share), {**others.tries, uid: marks}
        return replace(others, shares=shares, tries=tries, kept_for=self.kept_for)

    def given_back(self, uid: str, mark: str) -> "CardRecord":
        """The same, after that bind of the pod has failed."""
        marks = tuple(each for each in self.tries.get(uid, ()) if each != mark)
        if marks:
            return replace(self, tries={**self.tries, uid: marks})
        return replace(self.without(uid), kept_for=self.kept_for)

    def kept_for_nobody(self) -> "CardRecord":
        return replace(self, kept_for=None)


def read_lease(lease: Lease) -> CardRecord | None:
    """None if it is not the Lease of a card."""
    place = read_lease_name(lease.metadata.name)
    if place is None:
        return None
    notes, where = lease.metadata.annotations, subject(lease.metadata, "Lease")
    gpu = notes.get(LEASE_GPU, "")
    recorded = Field.parse(notes.get(LEASE_SHARES, "{}"), where, annotation_field(LEASE_SHARES))
    shares = {uid: _share(uid, gpu, entry) for uid, entry in recorded.entries().items()}
    if holder := lease.spec.holder_identity:
        listed = shares.get(holder, Share(Holder(holder), gpu, None))
        shares[holder] = Share(listed.holder, gpu, None, listed.state)
    kept = Field.parse(notes.get(LEASE_KEPT_FOR, "null"), where, annotation_field(LEASE_KEPT_FOR))
    kept_for = Holder(kept["uid"].some_text(), kept["pod"].text()) if kept.present else None
    tries = {uid: entry["tries"].strings() for uid, entry in recorded.entries().items() if entry["tries"].present}
    return CardRecord(*place, gpu, tuple(shares.values()), kept_for, tries)


def write_lease(record: CardRecord, namespace: str, now: datetime) -> dict[str, Any]:
    """The whole Lease; whoever updates one adds the resourceVersion that was read."""
    whole = next((share.holder for share in record.shares if share.memory is None), None)
    shares = {share.holder.uid: _entry(share, record.tries.get(share.holder.uid, ())) for share in record.shares}
    annotations = {LEASE_GPU: record.gpu, LEASE_SHARES: _json(shares)}
    if record.kept_for is not None:
        annotations[LEASE_KEPT_FOR] = _json({"uid": record.kept_for.uid, "pod": record.kept_for.name})
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {
            "name": lease_name(record.node, record.index),
            "namespace": namespace,
            "labels": lease_labels(whole.name.rpartition("/")[2] if whole else ""),
            "annotations": annotations,
        },
        "spec": {"renewTime": micro_seconds(now), **({"holderIdentity": whole.uid} if whole else {})},
    }


def _share(uid: str, gpu: str, entry: Field) -> Share:
    state, mib = entry["state"], entry["mib"]
    if state.text() not in _STATES:
        raise state.malformed(", ".join(_STATES))
    if not uid:
        raise entry.malformed("the uid of a pod as its key")
    memory = MiB(mib.integer(at_least=1)) if mib.present else None
    return Share(Holder(uid, entry["pod"].text()), gpu, memory, _STATES[state.text()])


def _entry(share: Share, marks: Sequence[str]) -> dict[str, Any]:
    if share.state is ShareState.GONE:
        raise ValueError(f"the share of {share.holder} is gone; a Lease records only what is held")
    entry: dict[str, Any] = {"pod": share.holder.name, "state": share.state.value}
    if share.memory is not None:
        entry["mib"] = share.memory
    return {**entry, "tries": list(marks)} if marks else entry


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
