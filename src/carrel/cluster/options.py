"""What the cluster's admin has decided, as far as it concerns what every component knows of the cluster."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from carrel.cluster.holders import Holders
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions
from carrel.dialects.seal import Seal
from carrel.kubernetes.isolation import RETRY
from carrel.kubernetes.reflector import DEFAULT_WATCH_TIMING, WatchTiming
from carrel.kubernetes.timing import Backoff
from carrel.ledger.tiers import TierPolicy

RESERVE_S = 15.0
"""How long a bind waits for a reservation. Together with the Binding well below the collector's `TIME_TO_BIND_S`."""

NAMESPACE = "carrel"
"""Where Carrel's own Leases are, unless the setting says otherwise."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the cluster's admin has decided, and the clocks."""

    namespace: str = NAMESPACE
    dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS
    reserve_s: float = RESERVE_S
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    watch_timing: WatchTiming = DEFAULT_WATCH_TIMING
    retry: Backoff = RETRY
    """How long an object for which a step failed waits for the next try."""
    zone: tzinfo = UTC
    """The lab's: in which times are written for people. What one person sees of bookings may be in another."""
    seal: Seal | None = None
    """With it, only pods that came through the webhook get a GPU."""
    tier_policy: TierPolicy = field(default_factory=TierPolicy)
    holders: type[Holders] = Holders
    """Who may hold GPUs: pods, or pods and ResourceClaims."""
    reads_makers: bool = True
    """Whether what made the pods of a gang is read, to learn its size: only who places pods, or says why they wait."""


DEFAULT_CLUSTER_OPTIONS = ClusterOptions()
