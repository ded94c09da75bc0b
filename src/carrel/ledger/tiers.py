"""The two tiers: booked pods may rely on their GPU; opportunistic pods use what is free, and give it back."""

from enum import Enum


class Tier(Enum):
    BOOKED = "booked"
    OPPORTUNISTIC = "opportunistic"
