"""The `Warning` headers of API servers: about a field that they do not know and have dropped, a deprecated API version,
or from a webhook. Each text is logged once; the warnings about the latest write of an object can be looked up.
"""

import logging
import re
from collections import OrderedDict
from typing import TypeVar

from carrel.kubernetes.transport import ApiRequest, ResponseLike

log = logging.getLogger(__name__)

V = TypeVar("V")

MOST_REMEMBERED = 1_000
"""Texts, and objects. A text may name an object, so their number has no limit."""

# RFC 7234: a code, an agent and a quoted text. One header may contain several, and there may be several headers.
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Warnings:
    def __init__(self) -> None:
        self._logged: OrderedDict[str, None] = OrderedDict()
        self._latest: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def add(self, request: ApiRequest, response: ResponseLike) -> None:
        header = response.headers.get("warning", "")
        texts = texts_of(header) if header else ()
        for text in texts:
            if text not in self._logged:
                log.warning("api_server_warns method=%s path=%s text=%r", request.method, request.path, text)
            _remember(self._logged, text, None)
        if request.method == "GET":
            return
        if texts:
            _remember(self._latest, request.path, texts)
        else:
            self._latest.pop(request.path, None)

    def latest(self, path: str) -> tuple[str, ...]:
        """The warnings about the latest write to this path."""
        return self._latest.get(path, ())


def texts_of(header: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_ESCAPED.sub(r"\1", text) for text in _WARNING.findall(header)))


def _remember(known: OrderedDict[str, V], key: str, value: V) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > MOST_REMEMBERED:
        known.popitem(last=False)
