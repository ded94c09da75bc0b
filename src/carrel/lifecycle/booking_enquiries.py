"""Writes what a booking service elsewhere says into the cluster: MAIA's dashboard, or Carrel's own of another cluster.

Such a service cannot write objects here, and says only whether one person has a booking now. So people whose pods hold
or want GPUs are asked about, at once and then every minute, and their bookings become objects with the label
`carrel.dev/source: enquiry`:

- silence changes nothing: the object stays, and entitles until its end
- a clear "no" before the end is a cancellation: the object goes at once
- an object whose booking has ended regularly stays for a while, as those of Carrel's own service do

The answer names one booking of a person; in MAIA there is at most one. It does not say for which namespace: if the
answers for several namespaces differ, the object is for the one whose answer names the booking.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from carrel.bookings.client import BookingService, BookingStatus, NoAnswer
from carrel.cluster.coverage.booking_writer import BookingWriter, Decision, Leave
from carrel.cluster.pod_progress import is_waiting
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import (
    ENQUIRY,
    KEPT_AFTER_END,
    BookingObject,
    is_from_enquiry,
    namespace_named,
    person_named,
    write_booking,
)
from carrel.dialects.tier import person_of
from carrel.ids import NO_PERSON, BookingId, PersonId
from carrel.kubernetes.leader_election import LeadershipLost
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.coverage import Entitlement
from carrel.parsing import Malformed
from carrel.parsing.time import instant

log = logging.getLogger(__name__)

EVERY_S = 60.0
AT_ONCE = 8
"""Questions at the same time."""
CLOCKS_DIFFER = timedelta(seconds=30)
"""A "no" so shortly before the end is the regular end, by a clock that is ahead of ours."""


@dataclass(frozen=True, slots=True)
class _Question:
    person: PersonId
    namespace: str


class BookingEnquiries:
    """Only the elected controller runs rounds."""

    def __init__(self, carrel: ClusterState, service: BookingService) -> None:
        self._carrel = carrel
        self._service = service
        self._writer = BookingWriter(carrel.cluster, carrel.options.now)
        self._asked_at: dict[_Question, float] = {}
        self._answers: dict[_Question, BookingStatus] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self.failures = 0
        """Questions without an answer, and objects that could not be written."""

    async def round(self) -> None:
        """Asks about everybody who is due, and deletes the objects of bookings that are long over. Raises nothing that
        concerns one person only."""
        due = self._due()
        people = {question.person for question in due}
        await asyncio.gather(*map(self._ask, due))
        await asyncio.gather(*map(self._write_person, sorted(people)), *map(self._write_object, self._over()))

    # --- asking ------------------------------------------------------------------------------------------------------

    def _due(self) -> list[_Question]:
        now, still_asked, due = self._carrel.options.clock(), set[_Question](), set[str]()
        for pod in self._carrel.pods.store:
            question = _Question(person_of(pod), pod.metadata.namespace)
            if not question.person or question in still_asked:
                continue
            if not self._carrel.isolation.ask("enquiry", pod, self._concerns_gpus, False):
                continue
            still_asked.add(question)
            if now >= self._asked_at.get(question, float("-inf")) + EVERY_S:
                due.add(question.person)
        for question in self._asked_at.keys() - still_asked:
            # Whoever comes back is asked about at once, unless that was less than a minute ago.
            if now >= self._asked_at[question] + EVERY_S:
                del self._asked_at[question]
                self._answers.pop(question, None)
        # All namespaces of a person together: their answers are compared.
        return [question for question in still_asked if question.person in due]

    def _concerns_gpus(self, pod: Pod) -> bool:
        if self._carrel.pod_facts.shares_of(pod):
            return True
        return is_waiting(pod) and self._carrel.pod_facts.asked(pod) is not None

    async def _ask(self, question: _Question) -> None:
        async with self._at_once:
            self._asked_at[question] = self._carrel.options.clock()
            try:
                self._answers[question] = await self._service.status(question.person, question.namespace)
            except NoAnswer as silence:
                self.failures += 1
                log.warning("booking_enquiry_failed user=%s: %s", question.person, silence)
            except Exception as error:
                self.failures += 1
                self._carrel.isolation.failed("enquiry", question.person, error)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _write_person(self, person: PersonId) -> None:
        """The bookings that the answers name, and the objects of those that they no longer name."""
        answers = {asked.namespace: answer for asked, answer in self._answers.items() if asked.person == person}
        if not answers:
            return  # silence since the start
        named = {status.id for status in answers.values() if status.ends is not None}
        is_complete = not any(asked.person == person and asked not in self._answers for asked in self._asked_at)
        known = {each.metadata.name for each in self._objects() if person_named(each.spec.user) == person}
        # As long as one namespace was never answered for, a booking that no answer names may be known there.
        not_named = known - named if is_complete else set[str]()
        for name in (*sorted(named), *sorted(not_named)):
            await self._write_object(name, person, answers)

    async def _write_object(
        self, name: str, person: PersonId = NO_PERSON, answers: Mapping[str, BookingStatus] | None = None
    ) -> None:
        async def decide(seen: BookingObject | None) -> Decision:
            if seen is not None and not is_from_enquiry(seen):
                return Leave.AS_IT_IS  # a booking of Carrel's own service
            now = self._carrel.options.now()
            told = {where: each for where, each in (answers or {}).items() if each.id == name and _runs(each, now)}
            if told and answers is not None:
                return _object(seen, person, told, answers.keys(), now)
            ends = _end_of(seen) if seen is not None else None
            if ends is None or now >= ends + KEPT_AFTER_END:
                return None
            return Leave.AS_IT_IS if answers is None or now >= ends - CLOCKS_DIFFER else None

        async with self._at_once:
            # Without delays: each person is asked about once a minute.
            try:
                await self._writer.write(name, decide)
            except LeadershipLost:
                raise
            except Exception as error:
                self.failures += 1
                self._carrel.isolation.failed("enquiry", name, error)

    def _over(self) -> list[str]:
        """The objects of bookings that ended long ago, also of people whom nobody asks about any more."""
        now = self._carrel.options.now()
        return [
            each.metadata.name
            for each in self._objects()
            if (ends := _end_of(each)) is None or now >= ends + KEPT_AFTER_END
        ]

    def _objects(self) -> Iterable[BookingObject]:
        return filter(is_from_enquiry, self._carrel.bookings.store)


def _runs(status: BookingStatus, now: datetime) -> bool:
    """An answer may be old, if there was none since."""
    return status.ends is not None and now < status.ends


def _object(
    seen: BookingObject | None,
    person: PersonId,
    told: Mapping[str, BookingStatus],
    asked: Iterable[str],
    now: datetime,
) -> Decision:
    """`told` are the answers that name the booking, by namespace."""
    status = max(told.values(), key=lambda each: each.ends or now)
    if status.ends is None:
        return Leave.AS_IT_IS
    entitlement = Entitlement(
        booking=BookingId(status.id),
        people=frozenset({person}),
        model=status.model,
        gpus=max(1, status.gpus),
        start=_start_of(seen) or now,  # the answer does not say it; it has started
        ends=status.ends,
        namespace="" if told.keys() == set(asked) else namespace_named(min(told)),
    )
    return write_booking(entitlement, person, version=0, source=ENQUIRY)


def _end_of(booking: BookingObject) -> datetime | None:
    try:
        return instant(booking.spec.end, "Booking", "spec.end")
    except Malformed:
        return None


def _start_of(booking: BookingObject | None) -> datetime | None:
    try:
        return instant(booking.spec.start, "Booking", "spec.start") if booking is not None else None
    except Malformed:
        return None
