"""Who is connected to a server, and who has to go when there are too many.

A server has a limit of connections. When one more comes, the address with the most connections that wait for something
loses one of them: the oldest that has no complete request, else the oldest idle one. So a flood of slow or silent
connections only displaces itself. A connection whose request is being answered is never closed. If all are, a few more
are let in, for probes: their other requests are answered with 503.
"""

from collections import Counter
from enum import Enum, IntEnum
from typing import Protocol

PROBE_CONNECTIONS = 16
"""Let in when all connections are being answered."""


class Waits(IntEnum):
    """For what a connection waits; the higher, the later it is closed for the sake of others."""

    FOR_A_REQUEST = 0
    """For its first request, or for the rest of one."""
    IDLE = 1
    """Its last request was answered."""
    FOR_US = 2
    """Its request is being answered."""


class Room(Enum):
    FOR_ALL = "for all requests"
    FOR_PROBES = "for probes"
    NONE = "none"


class OpenConnection(Protocol):
    peer: str
    """The address of the caller, without the port."""

    @property
    def waits(self) -> Waits: ...

    def abort(self) -> None:
        """Closes it at once."""


class OpenConnections:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[OpenConnection, None] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, connection: OpenConnection) -> bool:
        return connection in self._open

    def snapshot(self) -> list[OpenConnection]:
        return list(self._open)

    def add(self, connection: OpenConnection) -> Room:
        """If there is no room, the connection must be closed."""
        if len(self._open) >= self._limit:
            self._close_one()
        if len(self._open) >= self._limit + PROBE_CONNECTIONS:
            return Room.NONE
        self._open[connection] = None
        return Room.FOR_ALL if len(self._open) <= self._limit else Room.FOR_PROBES

    def discard(self, connection: OpenConnection) -> None:
        self._open.pop(connection, None)

    def _close_one(self) -> None:
        waiting = [each for each in self._open if each.waits is not Waits.FOR_US]
        if not waiting:
            return
        ((most, _),) = Counter(each.peer for each in waiting).most_common(1)
        # Of equal ones, the first: it is the oldest.
        victim = min((each for each in waiting if each.peer == most), key=lambda each: each.waits)
        self.discard(victim)
        victim.abort()
