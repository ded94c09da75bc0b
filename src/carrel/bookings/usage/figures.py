"""PURE. What was booked, held, active, idle and unknown, side by side: the same rows for page, API and command line.

Bookings say what was booked, to the second; sums of whole days of the lab say what was held. Hours that pods held are
of a person, and not of the group whose booking covered them: a row of a group has booked hours only.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from enum import Enum
from typing import NamedTuple

from carrel.bookings.capacity import BookedTime, booked_gpus
from carrel.bookings.people import Person
from carrel.bookings.usage.sums import HOUR, By, Step, UsageQuery, UsageSum, hour_of, steps
from carrel.ledger.tiers import Tier


class RowsBy(Enum):
    """What there is a row of."""

    PERSON = "person"
    """And of each model that they used."""
    MODEL = "model"
    """Of everybody together."""
    GPU = "gpu"


KEPT_APART: Mapping[RowsBy, Collection[By]] = {
    RowsBy.PERSON: (By.PERSON, By.MODEL, By.TIER),
    RowsBy.MODEL: (By.MODEL, By.TIER),
    RowsBy.GPU: (By.GPU, By.MODEL, By.TIER),
}


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    start: datetime
    end: datetime
    by: RowsBy = RowsBy.PERSON
    step: Step = Step.WHOLE

    def about(self, person: Person) -> str | None:
        """Return whose figures alone this person may see; None: everybody's. Sums of everybody are for everybody."""
        return None if self.by is RowsBy.MODEL or person.may_see_everybodys_figures else person.email

    def query(self, person: Person) -> UsageQuery:
        return UsageQuery(self.start, self.end, self.step, KEPT_APART[self.by], self.about(person))


@dataclass(frozen=True, slots=True)
class HeldHours:
    """GPU hours that pods held."""

    held: float = 0.0
    active: float = 0.0
    idle: float = 0.0
    covered: float = 0.0
    """Of the held ones, those that a booking covered."""
    opportunistic: float = 0.0
    """And those beyond a booking, or without one. Pods without a tier held the rest."""

    @property
    def unknown(self) -> float:
        return max(self.held - self.active - self.idle, 0.0)

    def __add__(self, other: "HeldHours") -> "HeldHours":
        return HeldHours(
            self.held + other.held,
            self.active + other.active,
            self.idle + other.idle,
            self.covered + other.covered,
            self.opportunistic + other.opportunistic,
        )


NOTHING_HELD = HeldHours()


@dataclass(frozen=True, slots=True)
class UsageRow:
    """GPU hours of one step."""

    start: datetime
    """When the step begins."""
    end: datetime
    person: str = ""
    """By person: empty are pods without a person, and people whose names were forgotten."""
    group: str = ""
    """For which they booked; empty: for themselves."""
    model: str = ""
    gpu: str = ""
    bookings: int = 0
    booked: float | None = None
    """None: bookings are of models, and not of GPUs; or they are made elsewhere."""
    held: HeldHours | None = None
    """None: there is no cluster, or the row is of a group."""

    @property
    def most(self) -> float:
        return max(self.booked or 0.0, self.held.held if self.held else 0.0)


def total(rows: Iterable[UsageRow]) -> HeldHours:
    found = NOTHING_HELD
    for row in rows:
        found += row.held or NOTHING_HELD
    return found


@dataclass(frozen=True, slots=True)
class UsageSources:
    """What is known. None: it is not."""

    bookings: Iterable[BookedTime] | None
    sums: Iterable[UsageSum] | None
    shares_per_gpu: int = 1
    parts: Mapping[str, float] = field(default_factory=dict)
    """Model → how much of a physical GPU one is. Without an entry: all of it."""


class _Key(NamedTuple):
    """What a row is of."""

    step: int
    person: str = ""
    group: str = ""
    model: str = ""
    gpu: str = ""


def times_of(question: UsageQuestion, zone: tzinfo) -> list[tuple[datetime, datetime]]:
    """Return when each step begins and ends. The first begins and the last ends when the question does."""
    starts = [question.start, *_starts(question, zone)[1:]]
    return list(zip(starts, [*starts[1:], question.end], strict=True))


def _starts(question: UsageQuestion, zone: tzinfo) -> list[datetime]:
    """Return when each step begins that the time touches."""
    if question.step is not Step.HOUR:
        return [each.start for each in steps(question.query(NOBODY), zone)]
    found = [hour_of(question.start, zone)]
    while (following := hour_of(found[-1] + HOUR, zone)) < question.end:
        found.append(following)
    return found


def usage_rows(question: UsageQuestion, sources: UsageSources, zone: tzinfo) -> list[UsageRow]:
    """In the order of the steps; in each, the most hours first. `zone`: the lab's."""
    times = times_of(question, zone)
    booked = _booked(question, sources, times)
    held = _held(question, sources.sums, _starts(question, zone))
    has_booked = sources.bookings is not None and question.by is not RowsBy.GPU
    rows = []
    for key in dict.fromkeys([*booked, *held]):
        bookings, hours = booked.get(key, (0, 0.0))
        rows.append(
            UsageRow(
                *(*times[key.step], key.person, key.group, key.model, key.gpu),
                bookings=bookings,
                booked=hours if has_booked else None,
                held=held.get(key, NOTHING_HELD) if sources.sums is not None and not key.group else None,
            )
        )
    return sorted(rows, key=lambda row: (row.start, -row.most, row.person, row.group, row.model, row.gpu))


NOBODY = Person("", roles=frozenset())


def _booked(
    question: UsageQuestion, sources: UsageSources, times: Sequence[tuple[datetime, datetime]]
) -> Mapping[_Key, tuple[int, float]]:
    """Return how many bookings there were, and how many of their hours, in each step that they touch."""
    if sources.bookings is None or question.by is RowsBy.GPU:
        return {}
    found: dict[tuple[int, str, str, str, str], list[float]] = {}
    starts, ends = [start.timestamp() for start, _ in times], [end.timestamp() for _, end in times]
    is_named = question.by is RowsBy.PERSON
    for booking in sources.bookings:
        gpus = booked_gpus(booking, sources.shares_per_gpu) * sources.parts.get(booking.model, 1.0)
        person, group = (booking.user, booking.group) if is_named else ("", "")
        start, end = max(booking.start_s, starts[0]), min(booking.ends_s, ends[-1])
        step = bisect_right(starts, start) - 1
        while start < end:
            until = min(end, ends[step])
            of = found.setdefault((step, person, group, booking.model, ""), [0, 0.0])
            of[0] += 1
            of[1] += gpus * (until - start) / 3600
            start, step = until, step + 1
    return {_Key(*key): (int(bookings), hours) for key, (bookings, hours) in found.items()}


def _held(
    question: UsageQuestion, sums: Iterable[UsageSum] | None, starts: Sequence[datetime]
) -> Mapping[_Key, HeldHours]:
    found = dict[_Key, HeldHours]()
    for each in sums or ():
        step = max(bisect_right(starts, each.start) - 1, 0)  # hours of another zone may begin between
        key = _Key(step, person=each.person or "", model=each.model or "", gpu=each.gpu or "")
        covered = each.held if each.tier == Tier.BOOKED.value else 0.0
        opportunistic = each.held if each.tier == Tier.OPPORTUNISTIC.value else 0.0
        of = HeldHours(each.held, each.active, each.idle, covered, opportunistic)
        found[key] = found[key] + of if key in found else of
    return found
