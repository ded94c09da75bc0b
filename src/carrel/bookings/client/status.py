"""Has a person an active booking now? The answer, and its JSON on the booking service's own route.

POST /api/v1/booking-status  {user, namespace}  →  {tier, ends, model, gpus, id}
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from carrel.dialects.booking_objects import person_named
from carrel.ledger.tiers import Tier
from carrel.parsing.fields import Field
from carrel.parsing.time import instant, seconds

STATUS_PATH = "/api/v1/booking-status"


@dataclass(frozen=True, slots=True)
class BookingStatus:
    """Without arguments: the person has no active booking."""

    ends: datetime | None = None
    """When the active booking ends; None: there is none."""
    model: str = ""
    gpus: int = 0
    id: str = ""
    """The active booking's; MAIA's have none: `id_without_name`."""

    @property
    def tier(self) -> Tier:
        return Tier.OPPORTUNISTIC if self.ends is None else Tier.BOOKED


def id_without_name(user: str, model: str) -> str:
    """For a booking whose service gives no id, as MAIA's does: the same person and model always have the same one."""
    words = "\n".join((person_named(user), model))
    return f"maia-{hashlib.sha256(words.encode()).hexdigest()[:24]}"


def read_status(body: object) -> BookingStatus:
    """Raises `Malformed`."""
    field = Field(body, "booking status")
    tier = field["tier"].some_text()
    if tier not in {each.value for each in Tier}:
        raise field["tier"].malformed("booked or opportunistic")
    if Tier(tier) is Tier.OPPORTUNISTIC:
        return BookingStatus()
    ends = instant(field["ends"].some_text(), field.subject, "ends")
    return BookingStatus(ends, field["model"].text(), field["gpus"].integer(), field["id"].some_text())


def write_status(status: BookingStatus) -> dict[str, Any]:
    ends = seconds(status.ends) if status.ends else None
    return {"tier": status.tier.value, "ends": ends, "model": status.model, "gpus": status.gpus, "id": status.id}
