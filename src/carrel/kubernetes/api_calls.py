"""What is remembered of the calls of this process to the API server: counts for its metrics, and the server's warnings.

Counts are plain numbers: a command that shows no metrics loads no library for them. `Warning` headers are about a field
that the server does not know and has dropped, about a deprecated API version, or from a webhook. Each text is logged
once.
"""

import logging
import re
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from carrel.kubernetes.transport import ApiRequest, ResponseLike

log = logging.getLogger(__name__)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds."""
NO_ANSWER = "none"
"""Instead of a status code."""
MOST_REMEMBERED = 1_000
"""Texts. One may name an object, so their number has no limit."""

# RFC 7234: a code, an agent and a quoted text. One header may contain several, and there may be several headers.
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


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
        self._logged: OrderedDict[str, None] = OrderedDict()  # the texts of warnings

    def add(self, request: ApiRequest, response: ResponseLike | None, seconds: float) -> None:
        """`response`: None if there was no answer. A watch takes until its answer begins."""
        verb = "WATCH" if "watch" in request.query else request.method
        code = NO_ANSWER if response is None else str(response.status)
        self.counts[verb, resource_in(request.path), code] += 1
        durations = self._durations.get(verb)
        if durations is None:
            durations = self._durations[verb] = _Durations()
        durations.counts[bisect_left(BUCKETS, seconds)] += 1
        durations.total_s += seconds
        if response is not None and (header := response.headers.get("warning", "")):
            self._log(request, texts_of(header))

    def _log(self, request: ApiRequest, texts: Iterable[str]) -> None:
        for text in texts:
            if text not in self._logged:
                log.warning("api_server_warns method=%s path=%s text=%r", request.method, request.path, text)
            self._logged[text] = None
            self._logged.move_to_end(text)
            if len(self._logged) > MOST_REMEMBERED:
                self._logged.popitem(last=False)

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


def texts_of(header: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_ESCAPED.sub(r"\1", text) for text in _WARNING.findall(header)))
