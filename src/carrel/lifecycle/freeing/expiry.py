"""Ends GPU pods when their booking ends, and warns their owners before.

A pod ends when its `terminate-at` has passed, with whatever offset it is written, and never before. MAIA's year-1900
value is no end: such a pod may be revoked at any time, but it does not expire.

A booking may be extended while its pod runs, and another one may cover the pod when its own ends. So a pod that a
booking covers at this moment never ends: `coverage_correction` moves its `terminate-at`. Before a booked pod is ended,
the bookings are read again, and the annotation too.

A warning is written once for each of the lead times. An annotation of the pod remembers the last one, because
Kubernetes deletes an Event after an hour. A pod that is created late gets only the warning that is true then.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import is_from_enquiry
from carrel.dialects.carrel import WARNED
from carrel.dialects.hand_over_record import Why
from carrel.dialects.registry import dialects_of
from carrel.dialects.tier import TERMINATE_AT, read_terminate_at, tier_of
from carrel.kubernetes.cluster import Conflict, DeleteOptions, MergePatch, NotFound
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.isolation import title
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.tiers import AtEnd, Tier
from carrel.lifecycle.handing_over.hand_over import HandOverOrder, HandOvers
from carrel.lifecycle.handing_over.notices import end_of
from carrel.lifecycle.reporting.pod_events import COMPONENT
from carrel.parsing import Malformed
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

LONGEST_MARK = 64
ENDS = "BookingEnds"
UNREADABLE = "TerminateAtUnreadable"

LEAD_TIMES = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "24h": timedelta(hours=24)}
"""The shortest first. Of a booking that is known, only those shorter than it count, as in mails: who has just booked a
day knows that it ends tomorrow."""


@dataclass(frozen=True, slots=True)
class ExpiryWarning:
    pod: Pod
    note: Note
    remembered: str
    """What the annotation of the pod remembers."""


class Expiry:
    def __init__(self, state: ClusterState, hand_overs: HandOvers, at_end: AtEnd = AtEnd.CPU) -> None:
        self._state = state
        self._hand_overs = hand_overs
        self._at_end = at_end
        self._now = state.options.now
        self._isolation = state.isolation
        self._events = EventRecorder(hand_overs.cluster, COMPONENT, self._now)

    async def end_expired(self) -> list[str]:
        """Ends all pods whose time is over. The names of the hand-overs that were begun."""
        return [name for name in await self._isolation.each("expiry", self.expired(), self.end) if name]

    async def warn_all(self) -> list[Note]:
        """Writes all warnings that are due. Which were written."""
        return await self._isolation.each("warning", self.warnings(), self.warn, lambda warning: title(warning.pod))

    def expired(self) -> list[Pod]:
        """The pods whose time is over, the earliest end first."""
        now = self._now()

        def over(pod: Pod) -> tuple[datetime, str, Pod] | None:
            end = end_of(pod) if self._has_end(pod) else None
            return (end, pod.metadata.uid, pod) if end is not None and end <= now and not self._stays(pod) else None

        found = self._isolation.found("expiry", self._state.pods.store, over)
        return [pod for _, _, pod in sorted(found, key=lambda each: each[:2])]

    async def end(self, pod: Pod) -> str:
        """Ends an expired pod. The name of its hand-over; empty if there is none, or if a booking covers it now."""
        if tier_of(pod) is Tier.BOOKED and (not await self._state.reread() or self._stays(pod)):
            return ""
        if self._at_end is not AtEnd.END:
            return await self._hand_overs.begin(pod, HandOverOrder(Why.EXPIRED, due=end_of(pod) or self._now()))
        metadata = pod.metadata
        try:
            found = await self._hand_overs.cluster.get(PODS, metadata.name, metadata.namespace)
            if found["metadata"].get("annotations", {}).get(TERMINATE_AT) == metadata.annotations[TERMINATE_AT]:
                only_it = DeleteOptions(uid=metadata.uid, resource_version=found["metadata"]["resourceVersion"])
                await self._hand_overs.cluster.delete(PODS, metadata.name, metadata.namespace, how=only_it)
                log.info("pod_ended pod=%s/%s uid=%s why=expired", metadata.namespace, metadata.name, metadata.uid)
        except (NotFound, Conflict):
            pass  # it is gone, or has changed: the next round reads it again
        return ""

    def warnings(self) -> list[ExpiryWarning]:
        """The warnings that are due: for pods that end soon, and for pods whose end cannot be read: they never end."""
        now = self._now()
        due = self._isolation.found("warning", self._state.pods.store, lambda pod: self._warning(pod, now))
        return [each for each in due if each.pod.metadata.annotations.get(WARNED) != each.remembered]

    def _warning(self, pod: Pod, now: datetime) -> ExpiryWarning | None:
        if not self._has_end(pod):
            return None
        try:
            end = read_terminate_at(pod)
        except Malformed as malformed:
            return ExpiryWarning(pod, _unreadable_note(malformed), _unreadable_mark(pod))
        if not isinstance(end, datetime) or self._stays_at_end(pod):
            return None
        start = self._booked_from(pod)
        leads = lead_times(end - start) if start is not None else LEAD_TIMES
        lead = next((name for name, time in leads.items() if now < end <= now + time), "")
        if not lead or _was_warned(pod, end, lead):
            return None
        return ExpiryWarning(pod, self._ends_note(end, lead), f"{seconds(end)} {lead}")

    async def warn(self, warning: ExpiryWarning) -> Note:
        metadata = warning.pod.metadata
        await self._events.record(warning.pod, warning.note)
        remembered = MergePatch({"metadata": {"uid": metadata.uid, "annotations": {WARNED: warning.remembered}}})
        await self._hand_overs.cluster.patch(PODS, metadata.name, remembered, metadata.namespace)
        return warning.note

    def _has_end(self, pod: Pod) -> bool:
        """Whether it is a GPU pod with `terminate-at`."""
        if TERMINATE_AT not in pod.metadata.annotations or is_ending(pod):
            return False
        # A claim that a scheduler made for `nvidia.com/gpu` is not in the pod's spec; its class may be gone, too.
        return (
            _asks_for_gpus(pod)
            or self._state.requests.asks_any_scheduler(pod)
            or bool(self._state.pod_facts.shares_of(pod))
        )

    def _booked_from(self, pod: Pod) -> datetime | None:
        """The start of the booking that covers the pod. None: there is none, or it is not known: a booking service
        elsewhere does not say it."""
        covered = self._state.covered_pods.of(pod.metadata.uid)
        booking = self._state.bookings.store.get(covered.entitlement.booking) if covered is not None else None
        if covered is None or booking is None or is_from_enquiry(booking):
            return None
        return covered.entitlement.start

    def _stays(self, pod: Pod) -> bool:
        """Also one that may stay beyond its booking's end is not ended: it becomes opportunistic."""
        return self._state.covered_pods.of(pod.metadata.uid) is not None or self._stays_at_end(pod)

    def _stays_at_end(self, pod: Pod) -> bool:
        return self._at_end is AtEnd.KEEP and tier_of(pod) is Tier.BOOKED

    def _ends_note(self, end: datetime, lead: str) -> Note:
        then = "the pod is ended" if self._at_end is AtEnd.END else "the pod is created again without a GPU"
        ends = f"the booking of this pod ends at {self._state.words.when(end)}, in less than {lead}"
        return Note(ENDS, f"{ends}; then {then}", WARNING)


def lead_times(booked: timedelta) -> dict[str, timedelta]:
    """How long before its end a booking of that length is warned of, the shortest first."""
    return {name: lead for name, lead in LEAD_TIMES.items() if lead < booked}


def _unreadable_note(malformed: Malformed) -> Note:
    return Note(UNREADABLE, f"this pod does not end with its booking: {malformed}", WARNING)


def _unreadable_mark(pod: Pod) -> str:
    """By a hash: annotations have little room, and somebody may have filled them with this one."""
    text = pod.metadata.annotations[TERMINATE_AT]
    return f"unreadable {text if len(text) <= LONGEST_MARK else sha256(text.encode()).hexdigest()[:16]}"


def _asks_for_gpus(pod: Pod) -> bool:
    try:
        return bool(dialects_of(pod))
    except Malformed:
        return True  # it does, in a way that cannot be read


def _was_warned(pod: Pod, end: datetime, lead: str) -> bool:
    """Of this end, with this lead time or a shorter one."""
    of_which, _, last = pod.metadata.annotations.get(WARNED, "").partition(" ")
    return of_which == seconds(end) and last in LEAD_TIMES and LEAD_TIMES[last] <= LEAD_TIMES[lead]
