"""What people are told about their bookings, in which words. A letter may arrive twice; its id is the same then."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum

from carrel.bookings.rules import Booking, moment, words


class Occasion(Enum):
    BOOKED = "booked"
    CHANGED = "changed"
    CANCELLED = "cancelled"
    ENDS_IN_A_DAY = "ends-in-24h"
    ENDS_IN_AN_HOUR = "ends-in-1h"
    REVOKED = "revoked"


PATIENCE = timedelta(days=3)
"""After that, news is history."""
REMINDERS = {Occasion.ENDS_IN_AN_HOUR: timedelta(hours=1), Occasion.ENDS_IN_A_DAY: timedelta(hours=24)}
"""The nearest first: who is late with the one sends only the other."""


@dataclass(frozen=True, slots=True)
class Notification:
    id: str
    """The same for the same occasion, so that whoever gets it twice can know. Letters, digits and `-`."""
    occasion: Occasion
    person: str
    at: datetime
    booking: str = ""
    sequence: int = 0
    """Rises with what happens to one booking."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """`model`, `cards`, `start`, `end` (RFC 3339), `actor`, `why`; of a revocation `pod`, `namespace`, `node`."""

    @property
    def span(self) -> tuple[datetime, datetime] | None:
        """Of the booking it is about, if it is about one."""
        start, end = self.facts.get("start"), self.facts.get("end")
        return (datetime.fromisoformat(start), datetime.fromisoformat(end)) if start and end else None

    @property
    def useless_after(self) -> datetime:
        """A reminder is of no use once the booking has ended."""
        if self.occasion in REMINDERS and self.span:
            return self.span[1]
        return self.at + PATIENCE


def reminder(booking: Booking, now: datetime) -> Notification | None:
    """What a running booking's person must be told now, if anything. A later end makes it another letter."""
    left = booking.ends - now
    for occasion, before in REMINDERS.items():
        # Who has just booked for so short a time knows when it ends.
        if booking.is_active(now) and left <= before < booking.ends - booking.start:
            end = booking.ends.astimezone(UTC)
            facts = {"model": booking.model, "cards": str(booking.cards)}
            facts |= {"start": booking.start.isoformat(), "end": end.isoformat()}
            id = f"{occasion.value}-{booking.id}-{end:%Y%m%dT%H%M%SZ}"
            return Notification(id, occasion, booking.user, now, booking.id, facts=facts)
    return None


def subject(letter: Notification, zone: tzinfo) -> str:
    model = letter.facts.get("model", "a card")
    end = moment(letter.span[1], zone) if letter.span else ""
    return {
        Occasion.BOOKED: f"Booked: {model} until {end}",
        Occasion.CHANGED: f"Your booking of {model} was changed: it ends {end}",
        Occasion.CANCELLED: f"Your booking of {model} was cancelled",
        Occasion.ENDS_IN_A_DAY: f"Your booking of {model} ends {end}",
        Occasion.ENDS_IN_AN_HOUR: f"Your booking of {model} ends soon: {end}",
        Occasion.REVOKED: f"{letter.facts.get('pod', 'Your pod')} lost its card to a booking",
    }[letter.occasion]


def text(letter: Notification, zone: tzinfo, link: str = "") -> str:
    """Plain sentences: what, when, who did it and why, what next."""
    lines = [subject(letter, zone) + ".", ""]
    if letter.span:
        start, end = letter.span
        lines.append(f"Model: {letter.facts.get('model', '')} ({letter.facts.get('cards', '1')})")
        lines.append(f"From:  {moment(start, zone)}")
        lines.append(f"Until: {moment(end, zone)}" + (f" ({words(end - start)})" if end > start else ""))
    lines += [
        f"{title} {letter.facts[name]}"
        for name, title in (("namespace", "Namespace:"), ("pod", "Pod:"), ("node", "Node:"))
        if letter.facts.get(name)
    ]
    actor, why = letter.facts.get("actor", ""), letter.facts.get("why", "")
    if actor and actor != letter.person:
        lines.append(f"Done by {actor}" + (f": {why}" if why else "."))
    lines += ["", _advice(letter)]
    return "\n".join(lines) + (f"\n\n{link}" if link else "") + "\n"


def _advice(letter: Notification) -> str:
    if letter.occasion in REMINDERS:
        return "Pods that use its cards are ended then: save what you need. To go on:  carrel extend --days 1"
    if letter.occasion is Occasion.REVOKED:
        return "It goes on without a card where that is possible. A card of your own:  carrel free"
    if letter.occasion is Occasion.CANCELLED:
        return "When you may book again:  carrel free"
    return "To look at it:  carrel show"
