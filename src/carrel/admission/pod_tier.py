"""Which tier a new pod is told: booked, if a booking of its person would cover it now; else opportunistic.

The bookings are known from the cluster. Only if there is another booking service (`--api-url`), and the cluster knows
no booking of the person that runs, that service is asked: its booking is mirrored into the cluster soon after. If it
does not answer, the pod is opportunistic; that is never an error. What the pod is told is corrected when it is bound,
and whenever its booking changes.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from carrel.admission.asked_gpus import AskedGpus, why_never_covered
from carrel.bookings.client import BookingLookup
from carrel.cluster.coverage.coverage_words import WORDS, named
from carrel.cluster.pod_progress import holder_of
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import namespace_named, person_named
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.ledger.coverage import Entitlement


class AssignedTier(NamedTuple):
    covered_until: datetime | None = None
    """None: no booking covers the pod."""
    beyond: str = ""
    """Why the booking of the person does not cover it; empty if there is none."""
    silence: str = ""
    """What is to be said about a booking service that did not answer."""


OPPORTUNISTIC = AssignedTier()


class TierLookup:
    def __init__(self, state: ClusterState, booking_lookup: BookingLookup | None) -> None:
        self._state = state
        self._covered_pods = state.covered_pods
        self._booking_lookup = booking_lookup

    async def of(self, pod: Pod, user: str, asked: AskedGpus) -> AssignedTier:
        if not user or gates_of(pod):
            return OPPORTUNISTIC  # a pod with gates does not run now: it is looked at when they are removed
        person, namespace = person_named(user), namespace_named(pod.metadata.namespace)
        covered = self._covered_pods.of_newcomer(pod, person, asked.request)
        if covered is not None:
            return AssignedTier(covered.entitlement.ends)
        if running := self._covered_pods.running_for(person, namespace):
            return AssignedTier(beyond=self._why_beyond(running, asked))
        if self._booking_lookup is not None:
            return await self._by_service(self._booking_lookup, user, pod.metadata.namespace, asked)
        return OPPORTUNISTIC

    async def _by_service(
        self, booking_lookup: BookingLookup, user: str, namespace: str, asked: AskedGpus
    ) -> AssignedTier:
        answer = await booking_lookup.status(user, namespace)
        silence = ""
        if answer.failure:
            by = f"by its answer from {answer.age_s:.0f} s ago" if answer.value else "as if no booking were active"
            what = "answers in a form that Carrel cannot use" if answer.was_answered else "does not answer"
            silence = f"the booking service {what}; decided {by}"
        now, status = self._state.options.now(), answer.value
        if status is None or status.ends is None or status.ends <= now:
            return AssignedTier(silence=silence)
        booking = Entitlement("", frozenset({user}), status.model, max(1, status.gpus), now, status.ends)
        if why_not := why_never_covered(asked, booking):
            return AssignedTier(beyond=f"{WORDS.booking(booking)} {why_not}", silence=silence)
        return AssignedTier(status.ends, silence=silence)

    def _why_beyond(self, running: Sequence[Entitlement], asked: AskedGpus) -> str:
        """Of several bookings, about the one that suits best."""
        refused = [(why_never_covered(asked, each), each) for each in running]
        why_not, booking = next((each for each in refused if not each[0]), refused[0])
        if not why_not:
            users = [holder_of(pod).full_name for pod in self._covered_pods.users_of(booking.booking)]
            why_not = f"is in use by {named(users)}" if users else "has no GPU now that this pod could have"
        return f"{WORDS.booking(booking)} {why_not}"
