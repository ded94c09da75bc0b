"""What a person should know who lost a GPU these days: when, for whom, why theirs, and what to do.

From the log, which has an entry for each pod that Carrel told to give its GPU back (`notifications.watches`). Names of
others are those that the map shows to everybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord, LogEntry
from carrel.cluster.pod_progress import is_ending
from carrel.dialects.carrel import LEAVE_BY
from carrel.ids import PodUid

SHOWN_FOR = timedelta(days=7)
MOST = 5


@dataclass(frozen=True, slots=True)
class LostGpu:
    pod: str
    at: datetime
    is_past: bool
    needed_by: BookingRecord | None
    """The booking that the GPU is needed for; None: it is not known any more."""
    held: int
    """How many GPUs the person's pods held without a booking, this one included; 0: not known."""
    then: str
    """What happens to the pod after its end."""


async def recent_losses(queries: BookingQueries, view: ClusterView | None, email: str) -> Sequence[LostGpu]:
    """The newest first."""
    now = queries.now()
    entries = await queries.losses(email, now - SHOWN_FOR)
    found: list[LostGpu] = []
    for entry in entries:
        if len(found) < MOST and not _is_called_off(entry, view):
            needed_by = await queries.get(entry.details.get("for", ""))
            found.append(_lost(entry, needed_by, now))
    return sorted(found, key=lambda each: each.at, reverse=True)


def _lost(entry: LogEntry, needed_by: BookingRecord | None, now: datetime) -> LostGpu:
    details = entry.details
    at = datetime.fromisoformat(details["ends"])
    held = details.get("held", "")
    pod = f"{details.get('namespace', '')}/{details.get('pod', '')}"
    return LostGpu(pod, at, at <= now, needed_by, int(held) if held.isdigit() else 0, details.get("then", ""))


def _is_called_off(entry: LogEntry, view: ClusterView | None) -> bool:
    """Whether the pod was left alone after all: it is there, and is not told to leave."""
    pod = view.pod(PodUid(entry.details.get("uid", ""))) if view else None
    return pod is not None and not is_ending(pod) and LEAVE_BY not in pod.metadata.annotations
