"""Commands that would work where a booking was refused, ready to run. Pure."""

import shlex
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.calendar import Span
from carrel.bookings.rules import Booking, BookingRules, Broken, RuleInput

HINT_FREE, HINT_LIST = "carrel free", "carrel list"


def hint_for(legal: Booking, problems: tuple[Broken, ...], earliest: datetime | None, given: RuleInput) -> str:
    """A command that would work, or one that shows why none would."""
    only_new = {row.name for row in given.rules.rows if row.only_new}
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
        return f"carrel cancel {old.id}"
    later = [each.start - given.rules.cooldown for each in given.others if each.start >= old.start]
    latest = min([old.start + given.rules.max_duration, *later, *([missing.start] if missing else [])])
    is_extension = (new.start, new.gpus) == (old.start, old.gpus)
    if not is_extension or latest < old.end + timedelta(minutes=1) or names - {"max-duration", "cooldown", "capacity"}:
        return f"carrel show {old.id}"
    return f"carrel extend {old.id} --until {at_option(latest.replace(second=0, microsecond=0), given.zone)}"


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
