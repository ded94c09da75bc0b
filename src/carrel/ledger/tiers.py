"""The two tiers of pods, and what becomes of a booked pod."""

from enum import Enum


class Tier(Enum):
    """Whether a pod may rely on its GPU: a booked pod may, an opportunistic pod gives it back when it is needed."""

    BOOKED = "booked"
    OPPORTUNISTIC = "opportunistic"


class AtEnd(Enum):
    """What happens to a pod whose booking has come to its end."""

    CPU = "cpu"
    """It is created again without a GPU."""
    END = "end"
    KEEP = "keep"
    """It stays as an opportunistic pod."""
