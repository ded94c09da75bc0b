"""Makes what pods, Leases and bookings say about coverage follow the bookings.

`cluster.coverage.covered_pods` knows which booking covers which pod now. What was written before may be out of date: a
booking has started, was cancelled, shortened, extended, or a covered pod has ended and the next one is covered. Then

    on the Leases      the record of a share is written: which booking covers it, since when
    on the pod         tier and `terminate-at` are written, and an Event says what has changed
    on the Booking     how many of its GPUs are used, and by which pods
    the gate           of a pod that waits for a booking is removed when that starts, or no longer exists

Nothing is taken away by an old cache: before a pod loses its coverage, bookings and Leases are read again. A pod whose
booking has come to its regular end is left to `expiry`, which ends it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from carrel.cluster.coverage.coverage_reader import CoverageReader
from carrel.cluster.pod_progress import holder_of, is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import BOOKINGS, KEPT_AFTER_END, BookingObject, write_status
from carrel.dialects.carrel import BOOKING, TIER, WAITS_UNTIL
from carrel.dialects.tier import TERMINATE_AT, person_of, tier_of, write_tier
from carrel.ids import BookingId
from carrel.kubernetes.cluster import Cluster, Invalid, Json, MergePatch, NotFound
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.isolation import title
from carrel.kubernetes.objects.events import NORMAL, WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.coverage import Covered, records_of
from carrel.ledger.shares import Coverage
from carrel.ledger.tiers import AtEnd, Tier
from carrel.lifecycle.handing_over.notices import end_of
from carrel.lifecycle.reporting.pod_events import COMPONENT
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

COVERED = "CoveredByBooking"
NOT_COVERED = "NotCoveredByBooking"
RELEASED = "BookingStarted"
CANCELLED = "BookingCancelled"


@dataclass(frozen=True, slots=True)
class Correction:
    """What a pod or its Leases say is not what is true."""

    pod: Pod
    covered: Covered | None

    @property
    def takes_away(self) -> bool:
        return self.covered is None


class CoverageCorrection:
    def __init__(self, state: ClusterState, at_end: AtEnd = AtEnd.CPU) -> None:
        self._state = state
        self._cluster: Cluster = state.cluster
        self._at_end = at_end
        self._events = EventRecorder(state.cluster, COMPONENT, state.options.now)
        self._reader = CoverageReader(state)
        self._isolation = state.isolation

    async def round(self) -> tuple[int, int]:
        """How many pods have got a booking's cover, and how many have lost it."""
        gated = self._isolation.found("gate", self._state.pods.store, _if_gated)
        await self._isolation.each("gate", gated, self._open_gate)
        due = self.due()
        if any(each.takes_away for each in due):
            due = self.due() if await self._state.reread() else [each for each in due if not each.takes_away]
        corrected = await self._isolation.each("coverage", due, self._correct, lambda each: title(each.pod))
        await self._isolation.each("booking_status", self._state.bookings.store, self._write_status)
        taken = sum(each.takes_away for each in corrected)
        return len(corrected) - taken, taken

    # --- pods and Leases ---------------------------------------------------------------------------------------------

    def due(self) -> list[Correction]:
        return self._isolation.found("coverage", self._state.pods.store, self._correction_of)

    def _correction_of(self, pod: Pod) -> Correction | None:
        if TIER not in pod.metadata.annotations or is_ending(pod) or tier_of(pod) is None:
            return None
        covered = self._state.covered_pods.of(pod.metadata.uid)
        if covered is None and self._is_at_regular_end(pod):
            return None
        is_wrong = _told(pod) != write_tier(_until(covered)) or self._is_misrecorded(pod, covered)
        return Correction(pod, covered) if is_wrong else None

    def _is_at_regular_end(self, pod: Pod) -> bool:
        """Whether `expiry` ends the pod. If its booking's object went too early for a regular end, it was cancelled
        while nobody looked."""
        end, now = end_of(pod), self._state.options.now()
        if tier_of(pod) is not Tier.BOOKED or end is None or now < end or self._at_end is AtEnd.KEEP:
            return False
        bookings = {record.booking for record in records_of(self._state.ledger, *self._state.holders.held_by(pod))}
        is_known = any(self._state.covered_pods.booking(booking) is not None for booking in bookings)
        return is_known or not bookings or now >= end + KEPT_AFTER_END

    def _is_misrecorded(self, pod: Pod, covered: Covered | None) -> bool:
        wanted = covered.entitlement.booking if covered else ""
        shares = self._state.pod_facts.shares_of(pod)
        recorded = {share.coverage.booking if share.coverage else "" for share in shares}
        return bool(recorded - {wanted})

    async def _correct(self, correction: Correction) -> Correction:
        pod, covered = correction.pod, correction.covered
        await self._record(pod, covered)
        told, wanted = _told(pod), write_tier(_until(covered))
        if told == wanted:
            return correction
        metadata = pod.metadata
        as_seen = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        await self._write(pod, as_seen, wanted)
        log.info("tier_follows_booking pod=%s was=%s is=%s", holder_of(pod), told.get(TIER), wanted[TIER])
        await self._events.record(pod, self._note(pod, covered))
        return correction

    async def _write(self, pod: Pod, as_seen: Json, notes: Mapping[str, str]) -> None:
        metadata = pod.metadata
        patch = MergePatch({"metadata": {**as_seen, "annotations": dict(notes)}})
        try:
            await self._cluster.patch(PODS, metadata.name, patch, metadata.namespace)
        except Invalid:
            # The pod's annotations may be full, and a longer one does not fit. MAIA's mark alone says the same.
            shorter = MergePatch({"metadata": {**as_seen, "annotations": {**notes, TIER: None}}})
            await self._cluster.patch(PODS, metadata.name, shorter, metadata.namespace)

    def _note(self, pod: Pod, covered: Covered | None) -> Note:
        if covered is not None:
            return Note(COVERED, f"this pod is {self._state.words.covered(covered.entitlement)}", NORMAL)
        return Note(
            NOT_COVERED,
            f"no booking covers this pod any more: {self._state.words.about(self._reader.of(pod))}",
            WARNING,
        )

    async def _record(self, pod: Pod, covered: Covered | None) -> None:
        uids = self._state.holders.held_by(pod)
        wanted: Coverage | None = None
        if covered is not None:
            booking = covered.entitlement.booking
            known = [record for record in records_of(self._state.ledger, *uids) if record.booking == booking]
            new = Coverage(booking, self._state.options.now())
            wanted = min(known, key=lambda record: record.since, default=new)
        for uid in uids:
            for lease in self._state.cluster_ledger.leases_of(uid):
                if any(share.coverage != wanted for share in lease.record.shares if share.holder.uid == uid):
                    await self._state.lease_writer.record_coverage(lease, uid, wanted)

    # --- pods for a booking that starts later ------------------------------------------------------------------------

    async def _open_gate(self, pod: Pod) -> None:
        name = BookingId(pod.metadata.annotations.get(BOOKING, ""))
        booking = self._state.covered_pods.booking(name)
        is_theirs = booking is not None and person_of(pod) in booking.people
        if booking is not None and is_theirs and self._state.options.now() < booking.start:
            await self._tell_start(pod, booking.start)
            return
        if booking is None and name and await self._exists(name):
            return  # the cache is old
        left = [{"name": gate} for gate in gates_of(pod) if gate != BOOKING]
        metadata = pod.metadata
        as_seen = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        notes = {WAITS_UNTIL: None}
        patch = MergePatch({"metadata": {**as_seen, "annotations": notes}, "spec": {"schedulingGates": left or None}})
        await self._cluster.patch(PODS, metadata.name, patch, metadata.namespace)
        log.info("gate_opened pod=%s booking=%s exists=%s", holder_of(pod), name, is_theirs)
        if is_theirs:
            note = Note(RELEASED, "the booking that this pod waited for has started", NORMAL)
        else:
            why = "the booking that this pod waited for was cancelled, or is no longer for its owner"
            note = Note(CANCELLED, f"{why}; the pod continues without a booking, on what is free", WARNING)
        await self._events.record(pod, note)

    async def _tell_start(self, pod: Pod, start: datetime) -> None:
        if pod.metadata.annotations.get(WAITS_UNTIL) == seconds(start):
            return
        notes = {"uid": pod.metadata.uid, "annotations": {WAITS_UNTIL: seconds(start)}}
        await self._cluster.patch(PODS, pod.metadata.name, MergePatch({"metadata": notes}), pod.metadata.namespace)

    async def _exists(self, booking: BookingId) -> bool:
        try:
            await self._cluster.get(BOOKINGS, booking)
        except NotFound:
            return False
        return True

    # --- bookings ----------------------------------------------------------------------------------------------------

    async def _write_status(self, booking: BookingObject) -> None:
        wanted, status = self._status_of(booking), booking.status
        if wanted is None or wanted == {"used": status.used, "pods": list(status.pods)}:
            return
        name = booking.metadata.name
        await self._cluster.patch(BOOKINGS, name, MergePatch({"status": wanted}), subresource="status")

    def _status_of(self, booking: BookingObject) -> Json | None:
        """None: it does not run, and never did."""
        name = booking.metadata.name
        use = self._state.covered_pods.use_of(name)
        if use is None and booking.status.used is None:
            return None
        pods = [holder_of(pod).full_name for pod in self._state.covered_pods.covered_by(name)]
        return write_status(len(use.gpus) if use else 0, pods)


def _if_gated(pod: Pod) -> Pod | None:
    return pod if BOOKING in gates_of(pod) and not is_ending(pod) else None


def _told(pod: Pod) -> dict[str, str]:
    """What is written on the pod about its tier."""
    notes = pod.metadata.annotations
    return {key: notes[key] for key in (TIER, TERMINATE_AT) if key in notes}


def _until(covered: Covered | None) -> datetime | None:
    return covered.entitlement.ends if covered is not None else None
