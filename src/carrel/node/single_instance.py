"""One agent at a time on a node: two would take the kubelet's attention from each other, again and again.

The lock is a file in a folder of its own beside the sockets, because the kubelet removes every file that it finds
there. It is gone with the process that holds it, however that ends. The folder stays, and that is good: a kubelet that
finds this place empty takes its node for a new one, and makes all that it does not count itself zero.
"""

import asyncio
import contextlib
import fcntl
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

LOOK_S = 0.5


@contextlib.asynccontextmanager
async def alone(plugin_folder: Path) -> AsyncIterator[None]:
    """Waits until no other agent is on this node, and the folder can be written."""
    told = ""
    while isinstance(lock := _take(plugin_folder / "carrel"), str):
        if lock != told:
            log.warning("waiting: %s", lock)
        told = lock
        await asyncio.sleep(LOOK_S)
    with lock:
        yield


def _take(folder: Path) -> IO[str] | str:
    """The lock, or why it cannot be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "agent.lock").open("a")
    except OSError as error:
        return str(error)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return f"another agent serves this node: it holds {lock.name}"
    return lock
