"""PURE: by which channels a person wants to be told, and of what.

Who has chosen nothing gets everything by mail. `LAB`, the lab's own webhook, is no person's choice: it gets everything.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from carrel.bookings.notifications.messages import Occasion

MAIL, LAB = "mail", "lab"
MATRIX = "matrix"
OWN = ("slack", "teams", "webhook")
"""The channels at an address that the person has made there, and that is as good as a password."""

TOPICS: Mapping[str, tuple[str, tuple[Occasion, ...]]] = {
    "bookings": (
        "A booking of mine was made, changed or cancelled",
        (Occasion.BOOKED, Occasion.CHANGED, Occasion.CANCELLED),
    ),
    "ends": ("A booking of mine ends soon", (Occasion.ENDS_IN_A_DAY, Occasion.ENDS_IN_AN_HOUR)),
    "gpu-needed": ("My GPU is needed, and a pod of mine loses it", (Occasion.REVOKED,)),
    "lacks-gpus": ("A booking of mine may lack GPUs", (Occasion.OVERBOOKED, Occasion.ENOUGH_AGAIN)),
    "maintenance": ("Maintenance hits me", (Occasion.MAINTENANCE, Occasion.MAINTENANCE_OFF)),
}
"""What a person can switch off: its name, its words, the occasions."""
TOPIC_OF = {occasion: name for name, (_, occasions) in TOPICS.items() for occasion in occasions}


@dataclass(frozen=True, slots=True)
class MessageChoices:
    by_mail: bool = True
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Channel → the person's address there, or the room of Matrix."""
    muted: frozenset[str] = frozenset()
    """The topics of which they want to hear nothing."""

    @property
    def stored(self) -> dict[str, Any]:
        return {"mail": self.by_mail, "addresses": dict(self.addresses), "muted": sorted(self.muted)}

    def channels(self) -> frozenset[str]:
        return frozenset(self.addresses) | ({MAIL} if self.by_mail else frozenset())


def choices_of(stored: Mapping[str, Any] | None) -> MessageChoices:
    """None: the person has chosen nothing."""
    if stored is None:
        return MessageChoices()
    return MessageChoices(stored["mail"], stored["addresses"], frozenset(stored["muted"]))


@dataclass(frozen=True, slots=True)
class Recipient:
    """How a person wants to be told things."""

    person: str
    zone: ZoneInfo | None = None
    """That they chose; None: the lab's."""
    choices: MessageChoices = MessageChoices()

    def channels_for(self, occasion: Occasion, available: Collection[str]) -> list[str]:
        """Return those of the lab's channels by which the occasion is told."""
        wanted = frozenset() if TOPIC_OF[occasion] in self.choices.muted else self.choices.channels()
        return [channel for channel in available if channel == LAB or channel in wanted]

    def address(self, channel: str) -> str:
        """Where they are reached by it; empty: they do not use it (any more)."""
        if channel == MAIL:
            return self.person if self.choices.by_mail else ""
        return self.choices.addresses.get(channel, "")


def shown_address(channel: str, address: str) -> str:
    """An address for its own person to recognise. What makes it work as a password stays away from screens."""
    if channel == MATRIX or not address:
        return address
    host = address.partition("//")[2].partition("/")[0]
    return f"{host}/…{address[-4:]}"
