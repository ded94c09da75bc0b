"""Treats each object by itself, so that one that cannot be treated does not stop what is done for the others.

Whatever a step raises about an object is logged with the object's name, counted by step, and tried again with growing
delays; the rest goes on. Two things pass through: that the process is stopped, and that it no longer leads. An object
that has changed or is gone is no failure: the next round looks at it again.

Questions that are asked of every object (`found`, `ask`) wait for nothing and have no delays: an object that cannot be
read is left out each time, and said to be so from time to time.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from carrel.kubernetes.cluster import ClusterError, Conflict, NotFound
from carrel.kubernetes.leader_election import LeadershipLost
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.timing import Backoff
from carrel.parsing import Malformed

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)

RETRY = Backoff(first_s=0.2, limit_s=10.0)
"""As late as that an object may be treated after an API server was away."""
LOOK = "?"
"""A question that is answered says nothing about the step that failed."""
REMEMBERED = 10_000
"""Objects that failed. If more do, the oldest failures are forgotten."""


@dataclass(frozen=True, slots=True)
class _Failure:
    times: int
    not_before: float


def title(item: object) -> str:
    """How logs name an object: `lab/train`."""
    if not isinstance(item, Object):
        return str(item)
    return f"{item.metadata.namespace}/{item.metadata.name}" if item.metadata.namespace else item.metadata.name


class Isolation:
    def __init__(self, clock: Callable[[], float] = time.monotonic, backoff: Backoff = RETRY) -> None:
        """`clock`: seconds; only differences mean something."""
        self._clock = clock
        self._backoff = backoff
        self._failures: OrderedDict[tuple[str, str], _Failure] = OrderedDict()
        self.failures: Counter[str] = Counter()
        """How often each step failed: for a metric."""

    async def each(
        self,
        step: str,
        objects: Iterable[T],
        act: Callable[[T], Awaitable[R]],
        name: Callable[[T], str] = title,
    ) -> list[R]:
        """Does the step for each object that is not waiting for its next try. The results of those that succeeded."""
        results = []
        for item in objects:
            if not self.is_due(step, name(item)):
                continue
            try:
                results.append(await act(item))
            except (Conflict, NotFound) as error:
                log.info("object_changed step=%s object=%s: %s", step, name(item), error)
            except LeadershipLost:
                raise
            except Exception as error:
                self.failed(step, name(item), error)
            else:
                self._failures.pop((step, name(item)), None)
        return results

    def found(
        self, step: str, objects: Iterable[T], look: Callable[[T], R | None], name: Callable[[T], str] = title
    ) -> list[R]:
        """What `look` finds: its answers about each object, but for None."""
        answers = (self.ask(step, item, look, None, name) for item in objects)
        return [answer for answer in answers if answer is not None]

    def ask(self, step: str, item: T, look: Callable[[T], R], otherwise: R, name: Callable[[T], str] = title) -> R:
        """The answer about one object; `otherwise`, if it cannot be given."""
        try:
            answer = look(item)
        except LeadershipLost:
            raise
        except Exception as error:
            self.failed(step, name(item), error, LOOK)
            return otherwise
        if self._failures:
            self._failures.pop((step + LOOK, name(item)), None)
        return answer

    def attempt(self, step: str, act: Callable[[], object]) -> None:
        """A step that is about no object in particular, and comes again by itself."""
        self.ask(step, step, lambda _: act(), None)

    def count(self, step: str) -> None:
        """A step has failed for an object that somebody else names in the log and tries again."""
        self.failures[step] += 1

    def is_due(self, step: str, name: str) -> bool:
        """False: the step failed for the object, and it is too early to try again."""
        failure = self._failures.get((step, name)) if self._failures else None
        return failure is None or self._clock() >= failure.not_before

    def failed(self, step: str, name: str, error: Exception, kind: str = "") -> None:
        """Counts it. Logs it, unless the object is waiting for its next try: then that was said."""
        self.count(step)
        now, before = self._clock(), self._failures.get((step + kind, name))
        if before is not None and now < before.not_before:
            return
        times = before.times + 1 if before is not None else 1
        delay_s = self._backoff.after(times)
        self._failures[step + kind, name] = _Failure(times, now + delay_s)
        self._failures.move_to_end((step + kind, name))
        if len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)
        # An answer of the API server needs no stack trace, nor does another's mistake; one of ours does, once.
        is_ours = times == 1 and not isinstance(error, ClusterError | Malformed)
        words = "object_failed step=%s object=%s failures=%d again_in_s=%.1f: %s"
        log.warning(words, step, name, times, delay_s, error, exc_info=error if is_ours else None)
