"""Whether a node's agent has reported lately: PURE."""

from datetime import datetime, timedelta, tzinfo

from carrel.dialects import gpuclaim
from carrel.dialects.gpuclaim_objects import GpuNodeStatus
from carrel.parsing import Malformed
from carrel.parsing.time import moment

STALE_AFTER = timedelta(seconds=120)
"""How old an agent's last report may be: it reports every 30 s, so three in a row were lost."""


def why_silent(status: GpuNodeStatus, now: datetime, zone: tzinfo) -> str:
    """Why the report is too old, or from a clock that cannot be believed; empty if it is neither."""
    try:
        beat = gpuclaim.heartbeat_of(status)
    except Malformed as malformed:
        return str(malformed)
    if beat is None or abs(now - beat) <= STALE_AFTER:
        return ""  # without a heartbeat in it, a report counts as long as the object exists
    # The instant, not the age: a reason that changes by itself would cause a new Event on every pod that waits.
    wrong = ", which is in the future: the clock of its node is wrong" if beat > now else ""
    return f"the agent's last heartbeat was at {moment(beat, zone)}{wrong}"
