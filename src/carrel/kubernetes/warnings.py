"""What API servers say beside their answer, in `Warning` headers: a field that they do not know and have dropped, an
old API version, a webhook's remark. Each text is logged once; what was said about the latest write of an object can be
looked up.
"""

import logging
import re
from collections import OrderedDict
from typing import TypeVar

from carrel.kubernetes.transport import ApiRequest, ResponseLike

log = logging.getLogger(__name__)

V = TypeVar("V")

MOST_REMEMBERED = 1_000
"""Texts, and objects. A text may name an object, so there is no end to them."""

# RFC 7234: a code, who says it, and a quoted text. Several stand in one header, or in several.
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Warnings:
    def __init__(self) -> None:
        self._said: OrderedDict[str, None] = OrderedDict()
        self._latest: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def hear(self, request: ApiRequest, response: ResponseLike) -> None:
        texts = texts_of(response.headers.get("warning", ""))
        for text in texts:
            if text not in self._said:
                log.warning("api_server_warns method=%s path=%s text=%r", request.method, request.path, text)
            _remember(self._said, text, None)
        if request.method == "GET":
            return
        if texts:
            _remember(self._latest, request.path, texts)
        else:
            self._latest.pop(request.path, None)

    def about(self, path: str) -> tuple[str, ...]:
        """What was said when this path was last written to."""
        return self._latest.get(path, ())


def texts_of(header: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_ESCAPED.sub(r"\1", text) for text in _WARNING.findall(header)))


def _remember(known: OrderedDict[str, V], key: str, value: V) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > MOST_REMEMBERED:
        known.popitem(last=False)
