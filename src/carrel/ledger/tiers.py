"""The two tiers of pods, and what becomes of a booked pod."""

from dataclasses import dataclass
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


@dataclass(slots=True)
class TierPolicy:
    """What the cluster's admin decides about the two tiers. It changes while a process runs, with the configuration."""

    opportunistic_gpus: int = 0
    """How many GPUs one person may hold without a booking; 0: any number."""
    older_pods_are_revocable: bool = False
    """Pods that were there before Carrel may lose their GPUs to booked pods, too."""
    nobodys_pods_keep: bool = False
    """Pods without an owner never lose their GPUs."""
