"""One agent at a time on a node: two would replace each other's registration with the kubelet again and again.

The lock is on a file in a folder of its own beside the sockets, because the kubelet removes every file there. The lock
ends with the process that holds it, however that ends. The folder stays, on purpose: a kubelet that finds the place
empty treats its node as new, and sets all resources that it does not manage to zero.
"""

import asyncio
import contextlib
import fcntl
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

POLL_S = 0.5


@contextlib.asynccontextmanager
async def only_agent_on_node(plugin_folder: Path) -> AsyncIterator[None]:
    """Waits until no other agent runs on this node and the folder is writable."""
    logged = ""
    while isinstance(lock := _take(plugin_folder / "carrel"), str):
        if lock != logged:
            log.warning("waiting: %s", lock)
        logged = lock
        await asyncio.sleep(POLL_S)
    with lock:
        yield


def _take(folder: Path) -> IO[str] | str:
    """The lock, or why it is not available."""
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
