"""The booking rules: one table, read by the service, the API, the pages, the settings and the command line.

A rule is one row of `RULES`: its name, words for people, the field of the configuration that sets its limit, and its
check. To add a rule, add a row, its check, and a field to `BookingRules`; nothing else has a list of rules.

Instants carry a time zone, intervals are half open (`start ≤ t < end`), a day is 24 hours. A booking that was cancelled
before it began, or at once (`BookingRecord.cancelled_at`), does not count; one that has begun ended then, and its
cooldown starts there. A change is judged like a new booking, but for what it adds only: no rule looks again at the
time and the GPUs that the booking has. It may become shorter, down to the shortest booking; to end it earlier, people
cancel it.

A booking is a person's or a group's. What counts per person for people counts per group for groups: a person's own
bookings and those of their groups do not look at each other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from carrel.configuration.schema import BookingRules
from carrel.ids import BookingId
from carrel.parsing.time import moment, words

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FIRST_YEAR, LAST_YEAR = 1970, 2199
"""The years that people may give. MAIA's dialect marks a pod that may be revoked at any time by the year 1900, so a
real time must not come near it; and after the last year there must be room for the longest booking and its cooldown."""


@dataclass(frozen=True, slots=True)
class Booking:
    id: BookingId
    user: str
    """The person who has it. Of a group's booking: the manager who made it, who gets its mails."""
    model: str
    start: datetime
    end: datetime
    gpus: int = 1
    """The number of GPUs."""
    cancelled_at: datetime | None = None
    share: bool = False
    """Not whole GPUs but one share of a GPU's memory, of the size that the lab has set."""
    group: str = ""
    """The group whose members share it; empty: it is a person's own."""

    def __post_init__(self) -> None:
        for name in ("start", "end", "cancelled_at"):
            instant = getattr(self, name)
            if instant is not None and instant.tzinfo is not UTC:
                if instant.utcoffset() is None:
                    raise ValueError(f"{name} of booking {self.id} has no time zone: {instant.isoformat()}")
                # Python subtracts datetimes of the same zone by their clock faces, which is wrong across DST.
                object.__setattr__(self, name, instant.astimezone(UTC))

    @property
    def ends(self) -> datetime:
        """When it ended, or will end."""
        return self.end if self.cancelled_at is None else min(self.end, self.cancelled_at)

    @property
    def counts(self) -> bool:
        """False if it was cancelled before it began, or before it took effect."""
        return self.start <= self.ends

    def is_active(self, now: datetime) -> bool:
        return self.start <= now < self.ends

    def is_planned(self, now: datetime) -> bool:
        return self.counts and now < self.start

    def has_same_subject(self, other: "Booking") -> bool:
        """Whether both are of the same group, or of the same person: only such bookings limit each other."""
        return self.group == other.group and (bool(self.group) or self.user == other.user)


# --- what a rule is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuleInput:
    """What the checks look at: a booking that somebody wants, and what is known about it."""

    booking: Booking
    others: Sequence[Booking]
    """The other bookings of the same person or group that count."""
    now: datetime
    rules: BookingRules
    zone: tzinfo = UTC
    """For the messages only."""
    old: Booking | None = None
    """The booking as it is, if this is a change of it."""
    unknown_model: str = ""
    """Why there is no such model; empty if there is."""
    shortage: str = ""
    """Why there is no room in the calendar; empty if there is."""

    @property
    def length(self) -> timedelta:
        return self.booking.end - self.booking.start

    @property
    def earliest_start(self) -> datetime:
        """The first start that the cooldown allows. Whether a GPU is free then, the calendar knows."""
        return earliest_start(self.others, self.now, self.rules)

    @property
    def is_over(self) -> bool:
        return self.old is not None and not (self.old.is_planned(self.now) or self.old.is_active(self.now))

    @property
    def is_shorter(self) -> bool:
        """A change that lies within what is booked already."""
        return self.old is not None and self.old.start <= self.booking.start and self.booking.end <= self.old.end

    @property
    def added(self) -> list[tuple[datetime, datetime]]:
        """The time that needs room in the calendar: of a change, what it adds; with more GPUs or another model, all
        that lies ahead."""
        new, old = self.booking, self.old
        ahead = max(new.start, self.now)
        if old is None or new.gpus > old.gpus or new.model != old.model:
            return [(ahead, new.end)]
        return [(ahead, min(new.end, old.start)), (max(ahead, old.end), new.end)]

    @property
    def neighbours(self) -> list[Booking]:
        """The others to which this one comes nearer. A later end changes nothing about those before it."""
        new, old = self.booking, self.old
        if old is None:
            return list(self.others)
        is_earlier, is_later = new.start < old.start, new.end > old.end
        return [each for each in self.others if (is_earlier if each.start < old.start else is_later)]

    @property
    def is_group(self) -> bool:
        return bool(self.booking.group)

    def moment(self, instant: datetime) -> str:
        return moment(instant, self.zone)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    name: str
    """The problem's code in the API."""
    title: str
    """What it is called when it is broken."""
    check: Callable[[RuleInput], Iterable[str]]
    """A message for each thing that breaks it, which says what to do about it."""
    label: Callable[[BookingRules, int], str] | None = None
    """The rule in a few words, by the lab's limits and the number of GPUs asked for; empty: it does not apply."""
    shown_with: str = ""
    """The rule whose label stands for this one, too. A rule with neither is only shown when it is broken."""
    limit: str = ""
    """The field of `BookingRules` that sets it; empty: nothing to set."""
    only_new: bool = False
    """Only a new booking can break it, because of the person's other bookings: no other start would help."""
    is_for_groups: bool | None = None
    """True: only groups' bookings are judged by it. False: only people's own. None: all."""

    def applies(self, is_group: bool) -> bool:
        return self.is_for_groups in (None, is_group)

    def broken(self, message: str) -> "Broken":
        return Broken(self.name, message, self.title)


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a booking breaks, in words that say what to do about it."""

    rule: str
    message: str
    title: str = ""


# --- the checks ------------------------------------------------------------------------------------------------------


def _end_after_start(given: RuleInput) -> Iterable[str]:
    if given.length <= timedelta(0):
        yield "The end must be after the start."


def _min_duration(given: RuleInput) -> Iterable[str]:
    # One that was made under other rules may become longer, also if it stays too short.
    is_longer = given.old is not None and given.length >= given.old.end - given.old.start
    if timedelta(0) < given.length < given.rules.min_duration and not is_longer:
        instead = " To end it earlier, cancel it." if given.old is not None else ""
        yield f"A booking lasts at least {words(given.rules.min_duration)}; this is {words(given.length)}.{instead}"


def _max_duration(given: RuleInput) -> Iterable[str]:
    # The rules may have become stricter since the booking was made: that must not keep it from becoming shorter.
    if given.length > given.rules.max_duration and not given.is_shorter:
        latest = given.moment(given.booking.start + given.rules.max_duration)
        most = f" It ends {latest} at the latest." if given.old is not None else ""
        yield f"A booking lasts at most {words(given.rules.max_duration)}; this is {words(given.length)}.{most}"


def _max_gpus(given: RuleInput) -> Iterable[str]:
    most, asked = given.rules.most_gpus(given.is_group), given.booking.gpus
    is_less = given.is_shorter and given.old is not None and asked <= given.old.gpus
    if 0 < most < asked and not is_less:
        whose = "A booking of a group" if given.is_group else "A booking"
        is_longer = given.old is not None and asked == given.old.gpus
        what = "this one has more, and can only get shorter or smaller" if is_longer else f"{asked} are asked for"
        yield f"{whose} has at most {most} GPU{'s' * (most != 1)}; {what}."


def _shares(given: RuleInput) -> Iterable[str]:
    if given.booking.share and given.rules.shares_per_gpu < 2:
        yield "Only whole GPUs can be booked here, not shares of a GPU."
    elif given.booking.share and given.booking.gpus != 1:
        yield f"A share is of one GPU; {given.booking.gpus} are asked for."


def _begun(given: RuleInput) -> Iterable[str]:
    if given.old is not None and given.booking.start != given.old.start and given.old.is_active(given.now):
        yield f"It began {given.moment(given.old.start)}; that cannot be changed any more."
    if given.old is not None and given.booking.model != given.old.model and given.old.is_active(given.now):
        yield f"It began {given.moment(given.old.start)}; its model cannot be changed any more."


def _not_in_the_past(given: RuleInput) -> Iterable[str]:
    wanted, old = given.booking, given.old
    is_moved = old is None or (wanted.start != old.start and not old.is_active(given.now))
    if is_moved and wanted.start < given.now:
        yield f"The start, {given.moment(wanted.start)}, has passed."
    if old is not None and wanted.start < wanted.end <= given.now:
        yield f"The end, {given.moment(wanted.end)}, has passed; to end it now, cancel it."


def _over(given: RuleInput) -> Iterable[str]:
    if given.old is not None and given.is_over:
        yield f"This booking ended {given.moment(given.old.ends)}; make a new one."


def _no_active_overlap(given: RuleInput) -> Iterable[str]:
    for booking in given.others if given.old is None else ():
        if booking.is_active(given.now):
            whose = "The group's" if given.is_group else "Your"
            yield (
                f"{whose} booking of {booking.model} is active until {given.moment(booking.ends)};"
                " a new one can be made after it has ended."
            )


def _future_limit(given: RuleInput) -> Iterable[str]:
    planned = sorted((each for each in given.others if each.is_planned(given.now)), key=lambda each: each.start)
    most = given.rules.planned
    if given.old is None and len(planned) >= most:
        starts = " and ".join(f"{each.model} from {given.moment(each.start)}" for each in planned) or "none"
        who, has = ("The group", "it has") if given.is_group else ("You", "you have")
        yield f"{who} may have {most} planned booking{'s' * (most != 1)} at a time; {has} {starts}."


def _cooldown(given: RuleInput) -> Iterable[str]:
    """In both directions: a booking may also end too shortly before one that is planned."""
    wanted, cooldown = given.booking, given.rules.cooldown
    near = [
        each for each in given.neighbours if wanted.start < each.ends + cooldown and each.start < wanted.end + cooldown
    ]
    if near:
        last = max(near, key=lambda booking: booking.ends)
        whose = "the group's" if given.is_group else "yours"
        yield (
            f"{words(cooldown)} must lie between two bookings; {whose} of {last.model} ends"
            f" {given.moment(last.ends)}. The next may start {given.moment(given.earliest_start)}."
        )


def _unknown_model(given: RuleInput) -> Iterable[str]:
    if given.unknown_model:
        yield given.unknown_model


def _capacity(given: RuleInput) -> Iterable[str]:
    if given.shortage:
        yield given.shortage


# --- the table -------------------------------------------------------------------------------------------------------

END_AFTER_START = Rule("end-after-start", "The end is not after the start", _end_after_start, shown_with="min-duration")
OVER = Rule("over", "The booking is over", _over, shown_with="not-in-the-past")
UNKNOWN_MODEL = Rule("unknown-model", "No such model", _unknown_model, shown_with="capacity")

RULES: tuple[Rule, ...] = (
    END_AFTER_START,
    Rule(
        "min-duration",
        "Too short",
        _min_duration,
        lambda rules, _: f"at least {words(rules.min_duration)}",
        limit="min_duration",
    ),
    Rule(
        "max-duration",
        "Too long",
        _max_duration,
        lambda rules, _: f"at most {words(rules.max_duration)}",
        limit="max_duration",
    ),
    Rule(
        "max-gpus",
        "Too many GPUs",
        _max_gpus,
        lambda rules, _: _at_most_gpus(rules.max_gpus),
        is_for_groups=False,
        limit="max_gpus",
    ),
    Rule(
        "group-max-gpus",
        "Too many GPUs for a group",
        _max_gpus,
        lambda rules, _: _at_most_gpus(rules.group_max_gpus, " for a group"),
        is_for_groups=True,
        limit="group_max_gpus",
    ),
    Rule(
        "shares",
        "No such share",
        _shares,
        limit="shares_per_gpu",
    ),
    Rule("begun", "The booking has begun", _begun, shown_with="not-in-the-past"),
    Rule("not-in-the-past", "The time has passed", _not_in_the_past, lambda *_: "not in the past"),
    OVER,
    Rule(
        "no-active-overlap",
        "A booking is active",
        _no_active_overlap,
        lambda *_: "no other booking is active",
        only_new=True,
    ),
    Rule(
        "future-limit",
        "Too many planned bookings",
        _future_limit,
        lambda rules, _: f"{rules.planned} planned at a time",
        only_new=True,
        limit="planned",
    ),
    Rule(
        "cooldown",
        "Cooldown not over",
        _cooldown,
        lambda rules, _: f"{words(rules.cooldown)} since the last one" if rules.cooldown else "",
        limit="cooldown",
    ),
    UNKNOWN_MODEL,
    Rule(
        "capacity",
        "Not enough GPUs",
        _capacity,
        lambda _, gpus: "a GPU is free" if gpus == 1 else f"{gpus} GPUs are free",
    ),
)


def broken_rules(given: RuleInput) -> tuple[Broken, ...]:
    """All of them, so that the booking is corrected once. None: it may be booked. A booking that is over cannot be
    changed, whatever the change."""
    rows = (OVER,) if given.is_over else [row for row in RULES if row.applies(given.is_group)]
    return tuple(row.broken(message) for row in rows for message in row.check(given))


def rule_input(
    wanted: Booking,
    own: Iterable[Booking],
    now: datetime,
    rules: BookingRules,
    zone: tzinfo = UTC,
    old: Booking | None = None,
) -> RuleInput:
    """A new booking, or with `old` a change of that one, beside the bookings of the same person or group.

    Bookings of others are left out. What models and capacity say about it is added by whoever knows it.
    """
    others = [each for each in own if each.counts and each.id != wanted.id and each.has_same_subject(wanted)]
    return RuleInput(wanted, others, now, rules, zone, old)


def earliest_start(own: Iterable[Booking], now: datetime, rules: BookingRules) -> datetime:
    """After every booking that the person had, has or plans, and the cooldown that follows it."""
    return max([now.astimezone(UTC), *(booking.ends + rules.cooldown for booking in own if booking.counts)])


# --- words for people ------------------------------------------------------------------------------------------------


def _at_most_gpus(most: int, of: str = "") -> str:
    return f"at most {most} GPU{'s' * (most != 1)}{of}" if most else ""
