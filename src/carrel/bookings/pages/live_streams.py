"""How many live streams may be open: a few per person, and together a part of the server's connections.

A stream takes a connection for minutes. One more than a person may have displaces the oldest of theirs; one more than
all may have, the oldest of whoever has the most. So streams never take the connections that pages need. A stream that
is displaced ends at its next poll, unless its reader is slow: until then it counts, and a person with too many of those
gets no other.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

from carrel.http.limits import DEFAULT_LIMITS
from carrel.http.problems import Problem

PER_PERSON = 4
"""A few windows. Browsers open six connections to one host, and the pages need some of them."""
SLOW_TO_END = 2
"""How many times as many connections as streams may be taken, while displaced streams end."""


class LiveStream:
    def __init__(self, person: str) -> None:
        self.person = person
        self.is_displaced = False


class LiveStreams:
    def __init__(self, most: int | None = None) -> None:
        """`most`: of all people together. By default a quarter of the server's connections."""
        self._most = DEFAULT_LIMITS.within_open_files().connections // 4 if most is None else most
        self._open: dict[LiveStream, None] = {}  # the oldest first

    def require_room(self, person: str) -> None:
        """Raises `Problem` if too many displaced streams have not ended yet."""
        own = sum(stream.person == person for stream in self._open)
        if own >= PER_PERSON * SLOW_TO_END or len(self._open) >= max(1, self._most) * SLOW_TO_END:
            why = "Others that are open have to end first."
            problem = Problem(429, "too-many-streams", "Too many live maps are open", why, "close other windows")
            raise problem.with_headers({"retry-after": "60"})

    @contextlib.contextmanager
    def opened(self, person: str) -> Iterator[LiveStream]:
        """A stream that is open while the block runs. Others may be displaced for it."""
        stream = LiveStream(person)
        self._open[stream] = None
        try:
            self._displace(person)
            yield stream
        finally:
            del self._open[stream]

    def _displace(self, person: str) -> None:
        staying = [stream for stream in self._open if not stream.is_displaced]
        own = [stream for stream in staying if stream.person == person]
        if len(own) > PER_PERSON:
            own[0].is_displaced = True
        elif len(staying) > max(1, self._most):
            ((most, _),) = Counter(stream.person for stream in staying).most_common(1)
            next(stream for stream in staying if stream.person == most).is_displaced = True
