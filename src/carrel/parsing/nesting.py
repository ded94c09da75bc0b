"""How deeply JSON may be nested. The limit of Python itself differs between its versions."""

import re
from itertools import accumulate

MOST_LEVELS = 200
"""Objects of Kubernetes have about 20."""

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))


def is_nested_too_deeply(text: bytes) -> bool:
    """Return whether JSON has more levels than anybody needs. Mostly two counts say that it has not."""
    if text.count(b"[") + text.count(b"{") <= MOST_LEVELS:
        return False
    steps = memoryview(_STRINGS.sub(b"", text).translate(_STEPS, delete=_OTHERS)).cast("b")
    return max(accumulate(steps), default=0) > MOST_LEVELS
