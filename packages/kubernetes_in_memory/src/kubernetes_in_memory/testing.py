"""The embedded API in a thread of its own, for tests and for clients that block."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kubernetes_in_memory.handler import EmbeddedApi, Settings
from kubernetes_in_memory.http_server import Served, serve
from kubernetes_in_memory.kubeconfig import kubeconfig_for

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class RunningApi:
    url: str
    kubeconfig: str
    """The content of a kubeconfig for it."""


@contextmanager
def running_api(settings: Settings | None = None, *, tls: bool = False) -> Iterator[RunningApi]:
    """Serves a new, empty API on a free loopback port while the block runs."""
    loop = asyncio.new_event_loop()
    started: asyncio.Future[Served] = loop.create_future()
    stop = asyncio.Event()

    async def run() -> None:
        api = EmbeddedApi(settings)
        async with serve(api, tls=tls) as served:
            started.set_result(served)
            await stop.wait()
        await api.aclose()

    async def wait_started() -> Served:
        return await started

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), name="kubernetes-api", daemon=True)
    thread.start()
    try:
        served = asyncio.run_coroutine_threadsafe(wait_started(), loop).result(LIMIT_S)
        yield RunningApi(served.url, kubeconfig_for(served))
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        loop.close()
