"""The garbage collector of Python while a large cluster is loaded.

It looks at all objects again whenever a quarter more of them exist: a sixth of the CPU time of a start, to find
nothing, as the copies of Kubernetes' objects do not refer to each other in circles. It is not switched off: while the
API server is away, a process waits for its first lists for as long as that takes, and each failed call leaves a circle.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = (100_000, 50, 1_000)
"""New objects until the youngest are looked at, and how often until older ones are: of 50,000 pods never all."""

_loading = 0
_usual = gc.get_threshold()


@contextmanager
def rare_collections() -> Iterator[None]:
    """May be nested, and used by several components of one process."""
    global _loading, _usual  # the collector is the process's
    if not _loading:
        _usual = gc.get_threshold()
        gc.set_threshold(*RARELY)
    _loading += 1
    try:
        yield
    finally:
        _loading -= 1
        if not _loading:
            gc.set_threshold(*_usual)
