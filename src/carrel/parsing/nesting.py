"""How deeply JSON may be nested. The limit of Python itself differs between its versions."""

import re
from itertools import accumulate

MOST_LEVELS = 200
"""Objects of Kubernetes have about 20."""

_STRINGS = re.compile(rb'"[^"]*"?')
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_ALL_BUT_MARKS = bytes(set(range(256)) - set(b'[{]}"'))


def is_nested_too_deeply(text: bytes) -> bool:
    """Return whether JSON has more levels than anybody needs. Mostly two counts say that it has not.

    Only brackets and quotes matter. Two quotes without a bracket between them go first: a list of nodes has millions.
    """
    if text.count(b"[") + text.count(b"{") <= MOST_LEVELS:
        return False
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = text.translate(None, delete=_ALL_BUT_MARKS).replace(b'""', b"")
    steps = memoryview(_STRINGS.sub(b"", marks).translate(_STEPS)).cast("b")
    return max(accumulate(steps), default=0) > MOST_LEVELS
