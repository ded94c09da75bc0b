"""An event loop in a thread of its own, for the few things that may never wait for a long decision of the process.

What runs there shares no connection with the rest: whoever uses it makes a client for it.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnLoop:
    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> "OwnLoop":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Runs it there. The future belongs to the caller's loop; if it is cancelled, so is the work."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
