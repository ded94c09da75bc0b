"""What people are told whose booking is refused: who has the GPUs that it would need, and what would work. Pure."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.calendar import Span
from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.maintenance import Maintenance
from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import RULES, Booking, Broken, RuleInput
from carrel.configuration.schema import BookingRules
from carrel.ids import short_id
from carrel.parsing.time import moment, words

MOST_NAMED = 4
"""How many of those who have the GPUs are named; the timeline shows all."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    wanted: Booking
    stock: ModelCapacity
    missing: Span
    """The first time within the wanted one that has too little room."""
    bookings: Sequence[BookingRecord]
    windows: Sequence[Maintenance]
    """Those that take GPUs in that time."""
    room_from: datetime | None = None
    """When there is room for all of it; None: never, or it is a change."""
    room_until: datetime | None = None
    """Until when there is room, if it is long enough to be booked."""

    def sentences(self, zone: tzinfo) -> str:
        wanted, stock = self.wanted, self.stock
        if not wanted.share and wanted.gpus > stock.gpus:
            are = f"is {stock.gpus} GPU" if stock.gpus == 1 else f"are {stock.gpus} GPUs"
            return f"There {are} of {stock.model} to book; {wanted.gpus} are asked for.{self._others}"
        return " ".join(self._sentences(zone))

    def _sentences(self, zone: tzinfo) -> Iterator[str]:
        wanted, free = self.wanted, max(0, self.missing.free)
        when = f"from {moment(self.missing.start, zone)} to {moment(self.missing.end, zone)}"
        if wanted.share:
            yield f"No share of a {self.stock.model} is free {when}.{self._others}"
        else:
            gpus = f"{free} of {self.stock.gpus} GPUs of {self.stock.model} {'is' if free == 1 else 'are'} free {when}"
            yield f"{gpus}; {wanted.gpus} {'is' if wanted.gpus == 1 else 'are'} asked for.{self._others}"
        if takers := self._takers(zone):
            more = len(takers) - MOST_NAMED
            named = [*takers[:MOST_NAMED], *([f"{more} more on the timeline"] * (more > 0))]
            yield f"Taken: {'; '.join(named)}."
        if self.room_until is not None:
            yield f"There is room until {moment(self.room_until, zone)}."
        if self.room_from is not None:
            yield f"There is room for {words(wanted.end - wanted.start)} from {moment(self.room_from, zone)}."

    @property
    def _others(self) -> str:
        """Why further GPUs of the model cannot be booked."""
        return f" {self.stock.why_set_aside}." if self.stock.why_set_aside else ""

    def _takers(self, zone: tzinfo) -> list[str]:
        """Those that end first come first."""

        def line(who: str, start: datetime, end: datetime) -> tuple[datetime, str]:
            return end, f"{who} from {moment(start, zone)} to {moment(end, zone)}"

        lines = [
            line(f"{_amount(gpus)} by maintenance{f' ({each.why})' if each.why else ''}", each.start, each.end)
            for each in self.windows
            if (gpus := each.gpus_of(self.stock))
        ]
        for record in self.bookings:
            each = record.booking
            who = f"the group {each.group}" if each.group else each.user
            amount = "a share" if each.share else _amount(each.gpus)
            lines.append(line(f"{amount} by {who}", each.start, each.ends))
        return [text for _, text in sorted(lines)]


def _amount(gpus: int) -> str:
    return f"{gpus} GPU{'s' * (gpus != 1)}"


HINT_FREE, HINT_LIST = "carrel free", "carrel list"


def hint_for(legal: Booking, problems: tuple[Broken, ...], earliest: datetime | None, given: RuleInput) -> str:
    """A command that would work, or one that shows why none would."""
    only_new = {row.name for row in RULES if row.only_new}
    if any(problem.rule in only_new for problem in problems):
        return HINT_LIST
    if earliest is None or any(problem.rule == "shares" for problem in problems):
        return HINT_FREE
    words_ = ["carrel book", legal.model.lower(), f"--days {days_of(legal.end - legal.start, given.rules)}"]
    if legal.gpus > 1:
        words_.append(f"--gpus {legal.gpus}")
    if legal.share:
        words_.append("--share")
    if legal.group:
        words_.append(f"--group {shlex.quote(legal.group)}")
    if earliest > given.now:
        words_.append(f"--from {from_option(earliest, given.zone)}")
    return " ".join(words_)


def hint_for_change(given: RuleInput, problems: tuple[Broken, ...], missing: Span | None) -> str:
    """A command that would work: the latest end that all rules allow, or to cancel the booking that gets too short."""
    new, old, names = given.booking, given.old, {problem.rule for problem in problems}
    assert old is not None
    if names & {"min-duration", "end-after-start"} or new.end <= given.now:
        return f"carrel cancel {short_id(old.id)}"
    later = [each.start - given.rules.cooldown for each in given.others if each.start >= old.start]
    latest = min([old.start + given.rules.max_duration, *later, *([missing.start] if missing else [])])
    is_extension = (new.start, new.gpus, new.model) == (old.start, old.gpus, old.model)
    if not is_extension or latest < old.end + timedelta(minutes=1) or names - {"max-duration", "cooldown", "capacity"}:
        return f"carrel show {short_id(old.id)}"
    return f"carrel extend {short_id(old.id)} --until {at_option(latest.replace(second=0, microsecond=0), given.zone)}"


def days_of(length: timedelta, rules: BookingRules) -> str:
    """In days, rounded to what a person would type, within the limits of the rules."""
    whole = max(1, round(length / timedelta(days=1)))
    if rules.min_duration <= timedelta(days=whole) <= rules.max_duration:
        return str(whole)
    return f"{length / timedelta(days=1):g}"


def from_option(start: datetime, zone: tzinfo) -> str:
    """A date if it is midnight in the lab; otherwise an instant with its offset, not before `start`."""
    full = start if start == start.replace(second=0) else start.replace(second=0) + timedelta(minutes=1)
    return at_option(full, zone)


def at_option(instant: datetime, zone: tzinfo) -> str:
    """A whole minute, as people type it: a date if it is midnight in the lab."""
    local = instant.astimezone(zone)
    return local.strftime("%Y-%m-%d") if (local.hour, local.minute) == (0, 0) else local.isoformat(timespec="minutes")
