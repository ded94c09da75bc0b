"""Who may book what, when: the house rules for one person.

Instants carry a time zone, intervals are half open (`start ≤ t < end`), a day is 24 hours. A booking that was cancelled
before it began never was; one that was cancelled while it ran ended at that instant, and its cooldown starts there.
A change is judged as a new wish would be, except that what only gets smaller needs no permission.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo


@dataclass(frozen=True, slots=True)
class Booking:
    id: str
    user: str
    model: str
    start: datetime
    end: datetime
    cards: int = 1
    cancelled_at: datetime | None = None
    share: bool = False
    """Not whole cards but one share of a card's memory, as the lab divides it."""

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
        """When it ended, or will."""
        return self.end if self.cancelled_at is None else min(self.end, self.cancelled_at)

    @property
    def counts(self) -> bool:
        """False if it was cancelled before it began."""
        return self.start < self.ends

    def is_active(self, now: datetime) -> bool:
        return self.start <= now < self.ends

    def is_planned(self, now: datetime) -> bool:
        return self.counts and now < self.start


@dataclass(frozen=True, slots=True)
class Rules:
    """The defaults are the manual's; each lab may change them."""

    min_duration: timedelta = timedelta(days=1)
    max_duration: timedelta = timedelta(days=14)
    cooldown: timedelta = timedelta(days=14)
    """From the end of a booking to the next start, for the same person. Zero: none."""
    planned: int = 1
    """How many bookings a person may have ahead."""
    shares_per_card: int = 1
    """Into how many equal shares a card's memory may be booked. One: whole cards only."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a wish breaks, in words that say what to do about it."""

    rule: str
    message: str

    @property
    def title(self) -> str:
        return TITLES[self.rule]


TITLES = {
    "end-after-start": "The end is not after the start",
    "min-duration": "Too short",
    "max-duration": "Too long",
    "not-in-the-past": "The time has passed",
    "no-active-overlap": "A booking is running",
    "future-limit": "Enough is planned",
    "cooldown": "Cooldown not over",
    "shares": "No such share",
    "begun": "The booking has begun",
    "over": "The booking is over",
    "unknown-model": "No such model",
    "capacity": "Not enough cards",
}
"""Every rule there is, and what breaking it is called."""


@dataclass(frozen=True, slots=True)
class Verdict:
    broken: tuple[Broken, ...]
    """All broken rules, so that the wish is corrected once. Empty: it may be booked."""
    earliest_start: datetime
    """The first start that the cooldown allows. Whether a card is free then, the calendar knows."""


def check(wish: Booking, own: Iterable[Booking], now: datetime, rules: Rules, zone: tzinfo = UTC) -> Verdict:
    """Judges a new booking against the person's other bookings. `zone` is only for the words."""
    others = [booking for booking in own if booking.counts and booking.id != wish.id]
    earliest = earliest_start(others, now, rules)
    broken = (
        *_check_length(wish, rules),
        *_check_shares(wish, rules),
        *_check_past(wish, now, zone),
        *_check_active(others, now, zone),
        *_check_planned(others, now, rules, zone),
        *_check_cooldown(wish, others, rules, earliest, zone),
    )
    return Verdict(broken, earliest)


def check_change(
    old: Booking, new: Booking, own: Iterable[Booking], now: datetime, rules: Rules, zone: tzinfo = UTC
) -> Verdict:
    """Judges another start, end or number of cards. To end a running booking before its shortest length, cancel it."""
    others = [booking for booking in own if booking.counts and booking.id != old.id]
    earliest = earliest_start(others, now, rules)
    if not (old.is_planned(now) or old.is_active(now)):
        return Verdict((Broken("over", f"This booking ended {moment(old.ends, zone)}; make a new one."),), earliest)
    is_smaller = old.start <= new.start and new.end <= old.end
    broken = [*_check_length(new, rules), *_check_shares(new, rules), *_check_moved(old, new, now, zone)]
    if is_smaller:  # the rules may have become stricter since it was made: that must not keep it from shrinking
        broken = [rule for rule in broken if rule.rule != "max-duration"]
    else:
        broken += _check_cooldown(new, others, rules, earliest, zone)
    return Verdict(tuple(broken), earliest)


def earliest_start(own: Iterable[Booking], now: datetime, rules: Rules) -> datetime:
    """After every booking that the person had, has or plans, and the cooldown that follows it."""
    return max([now.astimezone(UTC), *(booking.ends + rules.cooldown for booking in own if booking.counts)])


def _check_length(wish: Booking, rules: Rules) -> Iterable[Broken]:
    length = wish.end - wish.start
    if length <= timedelta(0):
        yield Broken("end-after-start", "The end must be after the start.")
    elif length < rules.min_duration:
        yield Broken("min-duration", f"A booking lasts at least {words(rules.min_duration)}; this is {words(length)}.")
    elif length > rules.max_duration:
        yield Broken("max-duration", f"A booking lasts at most {words(rules.max_duration)}; this is {words(length)}.")


def _check_shares(wish: Booking, rules: Rules) -> Iterable[Broken]:
    if wish.share and rules.shares_per_card < 2:
        yield Broken("shares", "Whole cards are booked here; shares of a card are not.")
    elif wish.share and wish.cards != 1:
        yield Broken("shares", f"A share is of one card; {wish.cards} are asked for.")


def _check_moved(old: Booking, new: Booking, now: datetime, zone: tzinfo) -> Iterable[Broken]:
    if new.start != old.start and old.is_active(now):
        yield Broken("begun", f"It began {moment(old.start, zone)}; that cannot be changed any more.")
    elif new.start != old.start:
        yield from _check_past(new, now, zone)
    if new.start < new.end <= now:
        yield Broken("not-in-the-past", f"The end, {moment(new.end, zone)}, has passed; to end it now, cancel it.")


def _check_past(wish: Booking, now: datetime, zone: tzinfo) -> Iterable[Broken]:
    if wish.start < now:
        yield Broken("not-in-the-past", f"The start, {moment(wish.start, zone)}, has passed.")


def _check_active(others: Sequence[Booking], now: datetime, zone: tzinfo) -> Iterable[Broken]:
    for booking in others:
        if booking.is_active(now):
            yield Broken(
                "no-active-overlap",
                f"Your booking of {booking.model} runs until {moment(booking.ends, zone)};"
                " a new one can be made after it has ended.",
            )


def _check_planned(others: Sequence[Booking], now: datetime, rules: Rules, zone: tzinfo) -> Iterable[Broken]:
    planned = sorted((booking for booking in others if booking.is_planned(now)), key=lambda booking: booking.start)
    if len(planned) >= rules.planned:
        starts = " and ".join(f"{booking.model} from {moment(booking.start, zone)}" for booking in planned) or "none"
        plural = "s" * (rules.planned != 1)
        yield Broken(
            "future-limit", f"You may have {rules.planned} planned booking{plural} at a time; you have {starts}."
        )


def _check_cooldown(
    wish: Booking, others: Sequence[Booking], rules: Rules, earliest: datetime, zone: tzinfo
) -> Iterable[Broken]:
    """In both directions: a wish may also end too shortly before a booking that is planned."""
    near = [
        booking
        for booking in others
        if wish.start < booking.ends + rules.cooldown and booking.start < wish.end + rules.cooldown
    ]
    if near:
        last = max(near, key=lambda booking: booking.ends)
        yield Broken(
            "cooldown",
            f"{words(rules.cooldown)} must lie between two bookings; yours of {last.model} ends"
            f" {moment(last.ends, zone)}. The next may start {moment(earliest, zone)}.",
        )


def moment(instant: datetime, zone: tzinfo) -> str:
    """`Tue 24 Nov 2026 14:00 CET`; seconds only if there are any."""
    local = instant.astimezone(zone)
    clock = "%H:%M:%S" if local.second or local.microsecond else "%H:%M"
    return local.strftime(f"%a %d %b %Y {clock} %Z")


def words(length: timedelta) -> str:
    """`3 d 4 h`, exact to the second: `14 d 23 h 59 min 59 s`."""
    seconds = int(abs(length).total_seconds())
    parts = [
        (seconds // 86400, "d"),
        (seconds % 86400 // 3600, "h"),
        (seconds % 3600 // 60, "min"),
        (seconds % 60, "s"),
    ]
    shown = " ".join(f"{amount} {unit}" for amount, unit in parts if amount)
    return ("-" if length < timedelta(0) else "") + (shown or "0 s")
