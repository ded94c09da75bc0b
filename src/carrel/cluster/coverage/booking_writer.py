"""Brings the object of one booking to what it should be, while others may write the same object.

The order makes it safe without a lock. The object is read first; then the caller says what it should be, by what is
true at that moment; then it is written only if it is still the object that was read. So what is written was never
decided before what it replaces. A creation has no such condition: after it, the caller is asked once more.

If the answer is lost, or somebody else was faster, everything is read again. A crash leaves nothing half done.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import Enum

from carrel.dialects.booking_objects import BOOKINGS, BookingObject, says_the_same, write_change
from carrel.kubernetes.cluster import (
    AlreadyExists,
    Cluster,
    ClusterError,
    Conflict,
    DeleteOptions,
    Json,
    NotFound,
    OutcomeUnknown,
)
from carrel.kubernetes.decoding import read_object

TRIES = 6


class Leave(Enum):
    AS_IT_IS = "as it is"


Decision = Json | Leave | None
"""What the object should be; None: there should be none."""


class BookingWriter:
    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        """`now`: by the API server's clock."""
        self._cluster = cluster
        self._now = now

    async def write(self, name: str, decide: Callable[[BookingObject | None], Awaitable[Decision]]) -> bool:
        """`decide` is given the object as it was read just before; None: there is none. Returns whether anything was
        written. Raises `ClusterError`."""
        last: ClusterError | None = None
        created: BookingObject | None = None
        has_written = False
        for _ in range(TRIES):
            seen, created = created or await self._read(name), None
            wanted = await decide(seen)
            try:
                if wanted is Leave.AS_IT_IS or _is(seen, wanted):
                    return has_written
                if seen is None and isinstance(wanted, dict):
                    created = read_object(BOOKINGS, await self._cluster.create(BOOKINGS, wanted))
                    has_written = True
                    continue
                await self._replace(seen, wanted)
                return True
            except (AlreadyExists, Conflict, NotFound, OutcomeUnknown) as error:
                if isinstance(error, NotFound) and seen is None:
                    raise  # the kind is missing
                has_written |= isinstance(error, OutcomeUnknown)
                last = error
        raise last or Conflict(409, "Conflict", f"booking {name} changes faster than it can be written")

    async def _read(self, name: str) -> BookingObject | None:
        try:
            return read_object(BOOKINGS, await self._cluster.get(BOOKINGS, name))
        except NotFound:
            return None

    async def _replace(self, seen: BookingObject | None, wanted: Decision) -> None:
        """Only if it is still the object that was read."""
        if seen is None:
            return
        uid, version = seen.metadata.uid, seen.metadata.resource_version
        if isinstance(wanted, dict):
            metadata = {**wanted["metadata"], "uid": uid, "resourceVersion": version}
            body = write_change(seen, wanted, self._now())
            await self._cluster.update(BOOKINGS, {**body, "metadata": metadata})
        else:
            await self._cluster.delete(BOOKINGS, seen.metadata.name, how=DeleteOptions(uid, version))


def _is(seen: BookingObject | None, wanted: Decision) -> bool:
    if seen is None or not isinstance(wanted, dict):
        return seen is None and wanted is None
    return says_the_same(seen, wanted)
