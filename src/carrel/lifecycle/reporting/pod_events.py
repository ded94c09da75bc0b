"""Writes Events about pods: why a pod waits for a GPU, and which GPUs it got.

    WaitingForGPU    the reason; written when it changes, and again while it stays true, before Kubernetes deletes the
                     Event (after an hour)
    GPUAssigned      which GPUs, once
    RunsWithoutGPU   why a pod runs without the GPU that it asked for, once
    WithoutEffect    words of KAI on the pod that Carrel does not heed: once in a namespace, about one of its pods

A hub shows its users only the message of an Event, never its reason: each message is a sentence that stands alone.

Nothing is written twice, also not after a restart or by another leader: the name of an Event is made from its content,
and the last Event is looked up in the cluster. The rate of Events is limited for each pod and for all pods together:
what is held back is written later, with the reason that is true then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from carrel.cluster.pod_progress import bound_at, created_at
from carrel.cluster.record.known_lease import KnownLease
from carrel.dialects import carrel
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.notice import read_without_gpu
from carrel.ids import HolderId
from carrel.kubernetes.cluster import Cluster, OutcomeUnknown
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import NORMAL, WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpus import named, place_name
from carrel.ledger.never import Never
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed
from carrel.parsing.time import instant

COMPONENT = "carrel-controller"
"""Who writes the Events of the controller."""
WAITING = "WaitingForGPU"
ASSIGNED = "GPUAssigned"
WITHOUT_GPU = "RunsWithoutGPU"
ONCE = (ASSIGNED, WITHOUT_GPU)
HELD_BY = "; held: "
"""Between why a pod waits, and who holds what it waits for."""
WITHOUT_EFFECT = "WithoutEffect"

QUIET = timedelta(seconds=15)
"""Between two Events about one pod: in a busy cluster the free memory changes all the time."""
REMIND = timedelta(minutes=30)
RECENT = timedelta(minutes=10)
"""A pod that was bound longer ago has its Event, or no controller was running: after this time none is written."""
STILL_THERE = timedelta(minutes=50)
"""An Event that was written at the start of a pod still exists, so it cannot be written twice."""


@dataclass(frozen=True, slots=True)
class EventRate:
    """How fast Events may be written, all pods together."""

    per_s: float = 5.0
    burst: int = 50


DEFAULT_EVENT_RATE = EventRate()


# --- what there is to tell -------------------------------------------------------------------------------------------


def waiting_note(refusal: Refusal, beyond: str = "") -> Note:
    """`beyond`: why a booking of its person does not cover the pod, which matters only if it could start."""
    if isinstance(refusal, Never):
        return Note(WAITING, refusal.reason, WARNING)
    why = f"this pod waits for a GPU: {refusal.reason}"
    return Note(WAITING, f"{why}; {beyond}" if beyond else why, WARNING)


def without_gpu_note(pod: Pod, now: datetime) -> Note | None:
    """None if the pod does not say that it runs without a GPU, or was created long ago: it has its Event, which
    Kubernetes may have deleted since."""
    mark = read_without_gpu(pod)
    return Note(WITHOUT_GPU, mark.sentence, WARNING) if mark and now - created_at(pod) <= STILL_THERE else None


def without_effect_note(words: Sequence[str]) -> Note:
    what = f"{', '.join(words)} {'has' if len(words) == 1 else 'have'} no effect in this namespace"
    why = "Carrel has no queues and no quotas; bookings say who goes first"
    return Note(WITHOUT_EFFECT, f"{what}: {why}", WARNING)


def assigned_note(pod: Pod, leases: Sequence[KnownLease], now: datetime) -> Note | None:
    """None if the pod is not bound with the GPUs that the Leases give it, or was bound long ago."""
    here = sorted((lease for lease in leases if lease.record.node == pod.spec.node_name), key=lambda each: each.name)
    bound = bound_at(pod)
    if not here or bound is None or now - bound > RECENT:
        return None
    by_index = sorted(here, key=lambda lease: lease.record.index)
    parts = {_part(lease, pod.metadata.uid) for lease in by_index}
    if len(parts) == 1:
        gpus = ", ".join(_gpu(lease.record, pod) for lease in by_index)
        return Note(ASSIGNED, f"this pod got {gpus} of {pod.spec.node_name}, {parts.pop()}", NORMAL)
    gpus = ", ".join(f"{_gpu(lease.record, pod)} ({_part(lease, pod.metadata.uid)})" for lease in by_index)
    return Note(ASSIGNED, f"this pod got {gpus} of {pod.spec.node_name}", NORMAL)


def _gpu(record: LeaseRecord, pod: Pod) -> str:
    """By its index; where that is only the number of a slot, by its UUID, once it is known."""
    if record.reservation is not None and record.reservation.gpu:
        return record.reservation.gpu
    # A GPU whose UUID nobody reports is named like a slot; but its pod was told which it is.
    is_slot = record.gpu == place_name(record.node, record.index) and carrel.DEVICES not in pod.metadata.annotations
    return "a GPU that the kubelet chooses" if is_slot else named(record.index)


def _part(lease: KnownLease, uid: HolderId) -> str:
    memory = next(share.memory for share in lease.record.shares if share.holder.uid == uid)
    return "whole" if memory is None else f"{memory:,} MiB"


# --- telling it ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Told:
    reason: str
    message: str
    at: datetime

    def says(self, note: Note) -> bool:
        """Who holds the GPUs was true when it was told."""
        is_same = self.message == note.text or self.message.startswith(f"{note.text}{HELD_BY}")
        return self.reason == note.reason and is_same


_NOTHING = _Told("", "", datetime.min.replace(tzinfo=UTC))


class PodEventWriter:
    def __init__(
        self, cluster: Cluster, now: Callable[[], datetime], allowance: EventRate = DEFAULT_EVENT_RATE
    ) -> None:
        self._events = EventRecorder(cluster, COMPONENT, now)
        self._now = now
        self._allowance = allowance
        self._left = float(allowance.burst)
        self._counted_at = now()
        self._told: dict[str, _Told] = {}
        self._told_without_effect: set[tuple[str, tuple[str, ...]]] = set()

    async def tell_without_effect(self, pod: Pod, words: Sequence[str]) -> bool:
        """The same words are told once in a namespace, however many pods have them. Raises `ClusterError`."""
        key = pod.metadata.namespace, tuple(words)
        if not words or key in self._told_without_effect or not self._may_write(self._now()):
            return False
        is_written = await self._events.record(pod, without_effect_note(words), count_again=False)
        self._told_without_effect.add(key)
        return is_written

    def forget(self, uid: HolderId) -> None:
        """The pod is gone."""
        self._told.pop(uid, None)

    async def tell(self, pod: Pod, note: Note, held_by: Callable[[], str] = str) -> bool:
        """Whether an Event was written. False: it was told before, or it is too soon; say again what is true later.

        `held_by` adds who holds what the pod waits for. It is asked only if an Event is written: it looks at many GPUs,
        and every other pod changes it. Raises `ClusterError` if the API server does not take it: try again soon.
        """
        uid, now = pod.metadata.uid, self._now()
        if uid not in self._told:
            self._told[uid] = await self._last_told(pod)
        told = self._told[uid]
        if told.says(note) and (note.reason in ONCE or now - told.at < REMIND):
            return False
        if (note.reason == WAITING and told.reason and now - told.at < QUIET) or not self._may_write(now):
            return False
        if holders := held_by():
            note = replace(note, message=f"{note.message}{HELD_BY}{holders}")
        try:
            if not await self._events.record(pod, note, count_again=note.reason not in ONCE):
                return False
        except OutcomeUnknown:
            del self._told[uid]  # looked up before the next word
            raise
        self._told[uid] = _Told(note.reason, note.text, now)
        return True

    async def _last_told(self, pod: Pod) -> _Told:
        told = [_NOTHING]
        for event in await self._events.recorded(pod):
            if event.reason == WITHOUT_EFFECT:
                continue  # it holds back no other Event
            try:
                at = instant(event.last_timestamp, f"Event {event.metadata.name}", "lastTimestamp")
            except Malformed:
                continue
            told.append(_Told(event.reason, event.message, at))
        return max(told, key=lambda each: each.at)

    def _may_write(self, now: datetime) -> bool:
        passed = max(0.0, (now - self._counted_at).total_seconds())
        self._left = min(self._allowance.burst, self._left + passed * self._allowance.per_s)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
