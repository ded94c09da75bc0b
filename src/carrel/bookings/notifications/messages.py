"""What a notification says, as plain text that is the same in every channel. It may arrive twice, with the same id."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from hashlib import sha256

from carrel.bookings.rules import Booking
from carrel.ids import short_id
from carrel.parsing.time import moment, words


class Occasion(Enum):
    BOOKED = "booked"
    CHANGED = "changed"
    CANCELLED = "cancelled"
    ENDS_IN_A_DAY = "ends-in-24h"
    ENDS_IN_AN_HOUR = "ends-in-1h"
    REVOKED = "revoked"
    OVERBOOKED = "overbooked"
    ENOUGH_AGAIN = "enough-gpus-again"
    MAINTENANCE = "maintenance"
    MAINTENANCE_OFF = "maintenance-called-off"


USEFUL_FOR = timedelta(days=3)
"""How long it makes sense to try to deliver a notification."""
REMINDERS = {Occasion.ENDS_IN_AN_HOUR: timedelta(hours=1), Occasion.ENDS_IN_A_DAY: timedelta(hours=24)}
"""The nearest first: if the first is due already, the other is not sent any more."""


@dataclass(frozen=True, slots=True)
class Notification:
    id: str
    """The same for the same occasion, so that a repetition can be recognised. Letters, digits and `-`."""
    occasion: Occasion
    person: str
    at: datetime
    booking: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """`model`, `gpus`, `start`, `end` (RFC 3339), `version`, `actor`, `why`; of a group's booking `group`; of a
    revocation `pod`, `namespace`, `node`, `ends` (when the pod ends) and `then` (what happens to it); of maintenance
    its own `start` and `end`, `maintenance` (the nodes and GPUs), `pods`, `lacking` (how many bookings lack GPUs)."""

    @property
    def span(self) -> tuple[datetime, datetime] | None:
        """Start and end of the booking, or of the maintenance, if the notification is about one."""
        start, end = self.facts.get("start"), self.facts.get("end")
        return (datetime.fromisoformat(start), datetime.fromisoformat(end)) if start and end else None

    @property
    def is_maintenance(self) -> bool:
        return self.occasion in (Occasion.MAINTENANCE, Occasion.MAINTENANCE_OFF)

    @property
    def pod_ends(self) -> datetime | None:
        """When a pod ends that loses its GPU."""
        ends = self.facts.get("ends")
        return datetime.fromisoformat(ends) if ends else None

    @property
    def useless_after(self) -> datetime:
        """A reminder is of no use once the booking has ended."""
        if self.occasion in REMINDERS and self.span:
            return self.span[1]
        return self.at + USEFUL_FOR


def ends_soon(start: datetime, ends: datetime, now: datetime) -> bool:
    """Whether a page warns of the end. Not of a booking that is shorter than the time between the warning and the end:
    who has just booked a day knows when it ends."""
    return any(ends - now <= before < ends - start for before in REMINDERS.values())


@dataclass(frozen=True, slots=True)
class Link:
    """A button in a message."""

    title: str
    url: str = field(repr=False)
    """Whoever has it can press it."""


def facts_of(booking: Booking) -> dict[str, str]:
    facts = {"model": booking.model, "gpus": str(booking.gpus), "start": booking.start.isoformat()}
    facts |= {"end": booking.ends.astimezone(UTC).isoformat()}
    return facts | ({"group": booking.group} if booking.group else {})


def subject(notification: Notification, zone: tzinfo) -> str:
    model, group = notification.facts.get("model", "a GPU"), notification.facts.get("group", "")
    booking = f"The booking of {model} for {group}" if group else f"Your booking of {model}"
    end = moment(notification.span[1], zone) if notification.span else ""
    closed = notification.facts.get("maintenance", "")
    return {
        Occasion.BOOKED: f"Booked{f' for {group}' if group else ''}: {model} until {end}",
        Occasion.CHANGED: f"{booking} was changed: it ends {end}",
        Occasion.CANCELLED: f"{booking} was cancelled",
        Occasion.ENDS_IN_A_DAY: f"{booking} ends {end}",
        Occasion.ENDS_IN_AN_HOUR: f"{booking} ends soon: {end}",
        Occasion.REVOKED: _lost(notification, zone),
        Occasion.OVERBOOKED: f"{booking} may lack a GPU: more are booked than can be used now",
        Occasion.ENOUGH_AGAIN: f"{booking}: all GPUs that are booked can be used again",
        Occasion.MAINTENANCE: f"Maintenance of {closed} may affect you, until {end}",
        Occasion.MAINTENANCE_OFF: f"The maintenance of {closed} was called off",
    }[notification.occasion]


def _lost(notification: Notification, zone: tzinfo) -> str:
    pod, ends = notification.facts.get("pod", "Your pod"), notification.pod_ends
    if ends is None or ends <= notification.at:
        return f"{pod} lost its GPU to a booking"
    return f"{pod} loses its GPU to a booking: it ends {moment(ends, zone)}"


def text(notification: Notification, zone: tzinfo, link: str = "", buttons: Sequence[Link] = ()) -> str:
    """What happened, when, who did it and why, and what to do next."""
    lines = [subject(notification, zone) + ".", ""]
    if notification.span:
        start, end = notification.span
        if not notification.is_maintenance:
            lines.append(f"Model: {notification.facts.get('model', '')} ({notification.facts.get('gpus', '1')})")
        lines.append(f"From:  {moment(start, zone)}")
        lines.append(f"Until: {moment(end, zone)}" + (f" ({words(end - start)})" if end > start else ""))
    lines += [
        f"{title} {notification.facts[name]}"
        for name, title in (
            *(("group", "Group:"), ("namespace", "Namespace:"), ("pod", "Pod:"), ("node", "Node:")),
            ("pods", "Your pods there now:"),
        )
        if notification.facts.get(name)
    ]
    if ends := notification.pod_ends:
        lines.append(f"Ends: {moment(ends, zone)}, then it {notification.facts.get('then', 'is ended')}")
    if lacking := notification.facts.get("lacking"):
        lines.append(f"More GPUs are booked in that time than are left: {lacking} of your bookings may lack some.")
    actor, why = notification.facts.get("actor", ""), notification.facts.get("why", "")
    if notification.occasion is Occasion.OVERBOOKED:
        lines.append(f"Why:   {why}")
    elif notification.occasion is not Occasion.ENOUGH_AGAIN and actor and actor != notification.person:
        lines.append(f"Done by {actor}" + (f": {why}" if why else "."))
    lines += ["", _advice(notification)]
    if buttons:
        lines += ["", "Or with one click, once:", *(f"{each.title}:  {each.url}" for each in buttons)]
    return "\n".join(lines) + (f"\n\n{link}" if link else "") + "\n"


def _advice(notification: Notification) -> str:
    # Without an id the commands mean the person's own booking.
    which = f"{short_id(notification.booking)} " if notification.facts.get("group") else ""
    if notification.occasion in REMINDERS:
        return f"Pods that use its GPUs are ended then: save your work. To go on:  carrel extend {which}--days 1"
    if notification.occasion is Occasion.REVOKED:
        ends = notification.pod_ends
        now = "Save your work now. " if ends is not None and ends > notification.at else ""
        return (
            f"{now}It ran on a GPU that was free: no booking covered it, or it was beyond your booking."
            " It continues without a GPU if possible. To book a GPU:  carrel free"
        )
    if notification.occasion is Occasion.OVERBOOKED:
        return (
            "Pods that run keep their GPUs. New pods of this booking stay booked, and may have to wait."
            " You are told when it is over."
        )
    if notification.occasion is Occasion.MAINTENANCE:
        return (
            "Your bookings stay, and Carrel stops no pod for it; whoever works on the machine may. Save your work"
            " before it begins. What is free meanwhile:  carrel free"
        )
    if notification.occasion is Occasion.MAINTENANCE_OFF:
        return "Nothing changes for you. To see your bookings:  carrel list"
    if notification.occasion is Occasion.CANCELLED:
        return "When you may book again:  carrel free"
    return f"To look at it:  carrel show {which}".rstrip()


@dataclass(frozen=True, slots=True)
class Message:
    """What one reader is sent, in words for that reader."""

    id: str
    """The same for the same occasion, also when it is sent again."""
    person: str
    at: datetime
    subject: str
    text: str
    """All of it, the subject included."""
    notifications: tuple[Notification, ...]
    """That it tells."""
    zone: tzinfo
    links: tuple[Link, ...] = ()
    """The buttons, which are in the text too."""


NO_LINKS: Mapping[str, Sequence[Link]] = {}


def digest_of(
    notifications: Sequence[Notification],
    morning: datetime,
    zone: tzinfo,
    link: str = "",
    links: Mapping[str, Sequence[Link]] = NO_LINKS,
) -> Message:
    """What was held in the night, as one message."""
    person = notifications[0].person
    says = f"{len(notifications)} messages from the night"
    parts = [
        f"{number} of {len(notifications)}: {text(each, zone, '', links.get(each.id, ())).rstrip()}"
        for number, each in enumerate(notifications, 1)
    ]
    all = "\n\n".join([f"{says}.", *parts]) + "\n" + (f"\n{link}\n" if link else "")
    # A person has one such message in a morning: sent again, it has the same id.
    id = f"digest-{morning.astimezone(UTC):%Y%m%dT%H%M%SZ}-{sha256(person.encode()).hexdigest()[:16]}"
    every = tuple(button for each in notifications for button in links.get(each.id, ()))
    return Message(id, person, morning, says, all, tuple(notifications), zone, every)


def message_of(
    notification: Notification, zone: tzinfo, link: str = "", links: Mapping[str, Sequence[Link]] = NO_LINKS
) -> Message:
    own = tuple(links.get(notification.id, ()))
    said = subject(notification, zone), text(notification, zone, link, own)
    return Message(notification.id, notification.person, notification.at, *said, (notification,), zone, own)


def trial(person: str, id: str, now: datetime, zone: tzinfo, link: str = "") -> Message:
    """The message of the test button."""
    says = "A test message from Carrel"
    why = f"You asked for it on {moment(now, zone)}. Messages about your bookings and GPUs arrive here."
    return Message(id, person, now, says, f"{says}.\n\n{why}\n" + (f"\n{link}\n" if link else ""), (), zone)
