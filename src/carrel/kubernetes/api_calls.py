"""Counts the calls of this process to the API server, for its metrics.

Plain numbers: a command that shows no metrics loads no library for them.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from carrel.kubernetes.transport import ApiRequest

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds."""
NO_ANSWER = "none"
"""Instead of a status code."""


@dataclass(slots=True)
class _Durations:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """Up to each of the buckets, and beyond the last."""
    total_s: float = 0.0


class ApiCalls:
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """By verb, resource and status code."""
        self._durations: dict[str, _Durations] = {}  # by verb

    def add(self, request: ApiRequest, code: str, seconds: float) -> None:
        """A watch takes until its answer begins."""
        verb = "WATCH" if "watch" in request.query else request.method
        self.counts[verb, resource_in(request.path), code] += 1
        durations = self._durations.get(verb)
        if durations is None:
            durations = self._durations[verb] = _Durations()
        durations.counts[bisect_left(BUCKETS, seconds)] += 1
        durations.total_s += seconds

    def durations(self) -> dict[str, tuple[list[tuple[str, int]], float]]:
        """By verb: how many took up to so many seconds, the last up to `+Inf`; and the seconds of all together."""
        limits = [*map(str, BUCKETS), "+Inf"]
        return {
            verb: (list(zip(limits, accumulate(each.counts), strict=True)), each.total_s)
            for verb, each in self._durations.items()
        }


def resource_in(path: str) -> str:
    """`pods/binding` of the path of a pod's binding: never the name of an object, of which there are too many."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return "/".join(rest[::2][:2]) or "other"
