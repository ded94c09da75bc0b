"""Ends GPU pods when their booking does, and warns them before.

A pod must go when its `terminate-at` has passed, with whatever offset it is written, and never before. MAIA's year-1900
mark is no end: such a pod may be revoked at any time, which is not the business of the clock.

A booking may be extended while its pod runs. So before a booked pod is warned or ended, the booking service is asked
whether it ends later by now, and the pod is told; if the service is silent, what the pod was told counts. And what it
was told is read again from the API server before it is ended.

A warning is told once for each of the lead times. The pod itself remembers the last one, because Kubernetes forgets an
Event after an hour; a pod that is started late is told only the one that is true then.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from carrel.bookings.client.interface import BookingService, NoAnswer
from carrel.dialects.carrel import GPU_MODEL, USER, WARNED
from carrel.dialects.hand_over_record import Why
from carrel.dialects.maia import TERMINATE_AT, read_terminate_at, write_terminate_at
from carrel.dialects.registry import dialects_of
from carrel.dialects.tier import tier_of
from carrel.kubernetes.announce import announce
from carrel.kubernetes.cluster import Cluster, Conflict, Deletion, MergePatch, NotFound
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.pods import is_going
from carrel.ledger.tiers import Tier
from carrel.lifecycle.hand_over import HandOvers, Order
from carrel.parsing import Malformed
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

ENDS = "BookingEnds"
UNREADABLE = "TerminateAtUnreadable"

LEAD_TIMES = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "24h": timedelta(hours=24)}
"""The shortest first."""


@dataclass(frozen=True, slots=True)
class ExpiryOptions:
    now: Callable[[], datetime]
    go_on_without_gpu: bool = True
    """Whether the work of a pod whose booking is over goes on without a GPU, or ends."""
    bookings: BookingService | None = None
    """None: nobody can be asked, and no booking is ever extended."""


@dataclass(frozen=True, slots=True)
class Warn:
    pod: Pod
    note: Note
    memory: str
    """What the pod remembers of it."""


class Expiry:
    def __init__(
        self, cluster: Cluster, pods: Callable[[], Iterable[Pod]], hand_overs: HandOvers, options: ExpiryOptions
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._hand_overs = hand_overs
        self._now = options.now
        self._go_on = options.go_on_without_gpu
        self._bookings = options.bookings

    def over(self) -> list[Pod]:
        """The pods whose time is over, who was to go first first."""
        now = self._now()
        ends = [(end, pod) for pod in self._mortal() if (end := end_of(pod)) is not None and end <= now]
        return [pod for _, pod in sorted(ends, key=lambda each: (each[0], each[1].metadata.uid))]

    async def end(self, pod: Pod) -> str:
        """Ends one whose time is over. The name of its hand-over; empty if it has none, or if its time is not over."""
        if await self._is_extended(pod):
            return ""
        if self._go_on:
            return await self._hand_overs.intend(pod, Order(Why.EXPIRED, due=end_of(pod) or self._now()))
        metadata = pod.metadata
        try:
            found = await self._cluster.get(PODS, metadata.name, metadata.namespace)
            if found["metadata"].get("annotations", {}).get(TERMINATE_AT) == metadata.annotations[TERMINATE_AT]:
                only_it = Deletion(uid=metadata.uid, resource_version=found["metadata"]["resourceVersion"])
                await self._cluster.delete(PODS, metadata.name, metadata.namespace, how=only_it)
                log.info("pod_ended pod=%s/%s uid=%s why=expired", metadata.namespace, metadata.name, metadata.uid)
        except (NotFound, Conflict):
            pass  # it is gone, or has changed: then it is looked at again
        return ""

    def warnings(self) -> list[Warn]:
        """Whom to warn now: who has to go soon, and whose end cannot be read, so that nobody will end it."""
        now, due = self._now(), []
        for pod in self._mortal():
            try:
                end = read_terminate_at(pod)
            except Malformed as malformed:
                text = pod.metadata.annotations[TERMINATE_AT]
                due.append(Warn(pod, Note(UNREADABLE, str(malformed), WARNING), f"unreadable {text}"))
                continue
            if isinstance(end, datetime):
                lead = next((name for name, time in LEAD_TIMES.items() if now < end <= now + time), "")
                if lead and not _was_warned(pod, end, lead):
                    due.append(Warn(pod, self._ends_note(end, lead), f"{seconds(end)} {lead}"))
        return [each for each in due if each.pod.metadata.annotations.get(WARNED) != each.memory]

    async def warn(self, warning: Warn) -> None:
        if await self._is_extended(warning.pod):
            return
        metadata = warning.pod.metadata
        await announce(self._cluster, warning.pod, warning.note, self._now())
        memory = MergePatch({"metadata": {"uid": metadata.uid, "annotations": {WARNED: warning.memory}}})
        await self._cluster.patch(PODS, metadata.name, memory, metadata.namespace)

    async def _is_extended(self, pod: Pod) -> bool:
        """Whether its booking ends later than the pod was told; then it is told so."""
        metadata, end = pod.metadata, end_of(pod)
        user, model = metadata.annotations.get(USER, ""), metadata.annotations.get(GPU_MODEL, "")
        if self._bookings is None or not user or end is None or tier_of(pod) is not Tier.BOOKED:
            return False
        try:
            booking = await self._bookings.status(user, metadata.namespace)
        except NoAnswer as silence:
            log.warning("booking_not_asked pod=%s/%s: %s", metadata.namespace, metadata.name, silence)
            return False
        is_its_own = not model or not booking.model or booking.model == model
        if not is_its_own or booking.ends is None or booking.ends <= end:
            return False
        as_seen = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        later = MergePatch({"metadata": {**as_seen, "annotations": write_terminate_at(booking.ends)}})
        try:
            await self._cluster.patch(PODS, metadata.name, later, metadata.namespace)
            log.info("booking_extended pod=%s/%s until=%s", metadata.namespace, metadata.name, seconds(booking.ends))
        except (Conflict, NotFound):
            pass  # it has changed: then it is looked at again
        return True

    def _ends_note(self, end: datetime, lead: str) -> Note:
        then = "it is created again without a GPU" if self._go_on else "it is ended"
        return Note(ENDS, f"its booking ends at {seconds(end)}, in less than {lead}; then {then}", WARNING)

    def _mortal(self) -> Iterable[Pod]:
        """The GPU pods that somebody gave an end."""
        for pod in self._pods():
            if TERMINATE_AT in pod.metadata.annotations and not is_going(pod) and _asks_for_gpus(pod):
                yield pod


def end_of(pod: Pod) -> datetime | None:
    """None: it has no end that a clock could tell."""
    try:
        end = read_terminate_at(pod)
    except Malformed:
        return None
    return end if isinstance(end, datetime) else None


def _asks_for_gpus(pod: Pod) -> bool:
    try:
        return bool(dialects_of(pod))
    except Malformed:
        return True  # it does, in words that nobody understands


def _was_warned(pod: Pod, end: datetime, lead: str) -> bool:
    """Of this end, as long before or later."""
    of_which, _, told = pod.metadata.annotations.get(WARNED, "").partition(" ")
    return of_which == seconds(end) and told in LEAD_TIMES and LEAD_TIMES[told] <= LEAD_TIMES[lead]
