"""The two tiers of pods."""

from enum import Enum


class Tier(Enum):
    """Whether a pod may rely on its GPU: a booked pod may, an opportunistic pod gives it back when it is needed."""

    BOOKED = "booked"
    OPPORTUNISTIC = "opportunistic"
