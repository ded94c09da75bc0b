"""The embedded API in a thread of its own, for clients that block, and a kubeconfig to it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.http_server import Served, serve
from kubernetes_in_memory.kubeconfig import kubeconfig_for

LIMIT_S = 60.0


@contextmanager
def embedded_api(folder: Path, *, tls: bool) -> Iterator[Path]:
    """Gives the kubeconfig."""
    loop = asyncio.new_event_loop()
    started: asyncio.Future[Served] = loop.create_future()
    stop = asyncio.Event()

    async def run() -> None:
        api = EmbeddedApi()
        async with serve(api, tls=tls) as served:
            started.set_result(served)
            await stop.wait()
        await api.aclose()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()

    async def wait_started() -> Served:
        return await started

    try:
        served = asyncio.run_coroutine_threadsafe(wait_started(), loop).result(LIMIT_S)
        config = folder / "kubeconfig"
        config.write_text(kubeconfig_for(served))
        yield config
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        loop.close()
