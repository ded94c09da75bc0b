"""Extenders as real processes on a real API server, which end by SIGKILL on command, at one of their writes.

Each is forked from a process that has all modules loaded, so that dozens of them start in seconds.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import aiohttp

from carrel.cluster.state import ClusterState
from carrel.http.serving import Address, serving
from carrel.ids import NodeName
from carrel.kubernetes.client import Client
from carrel.kubernetes.config import access_to
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.transport import ApiRequest, ResponseLike, Transport
from carrel.scheduling.assembly import extender_app, handlers_on, scheduler_on
from carrel.scheduling.bind_check import BindCheck

Json = dict[str, Any]

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class DeathOrder:
    """To end at the n-th write from now on: before it is sent, or when it is answered but the answer is not read.

    Before the next write is the same moment as after reading this answer.
    """

    write: int
    is_sent: bool


class DiesAtWrite:
    """A transport that counts writes, and kills its process at the ordered one."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.order: DeathOrder | None = None
        self.writes = 0

    async def send(self, request: ApiRequest) -> ResponseLike:
        if request.method == "GET":
            return await self._inner.send(request)
        self.writes += 1
        number = self.writes
        self._die_at(DeathOrder(number, is_sent=False))
        answer = await self._inner.send(request)
        self._die_at(DeathOrder(number, is_sent=True))
        return answer

    def _die_at(self, moment: DeathOrder) -> None:
        if self.order == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _live(kubeconfig: Path, told: Connection) -> None:
    async def serve() -> None:
        transport = DiesAtWrite(HttpTransport(access_to(kubeconfig, {})))
        carrel = ClusterState(Client(transport))
        gone = asyncio.Event()

        def listen() -> None:
            try:
                order = told.recv()
            except EOFError:  # the test has ended
                gone.set()
                asyncio.get_running_loop().remove_reader(told.fileno())
                return
            if order == "count":
                told.send(transport.writes)
            transport.order, transport.writes = order if isinstance(order, DeathOrder) else None, 0

        # A cache that is behind: only the API server knows that a pod is bound already.
        patch.object(BindCheck, "why_not", AsyncMock(return_value=None)).start()
        async with serving(extender_app(handlers_on(carrel, scheduler_on(carrel))), Address()) as url:
            mirroring = asyncio.ensure_future(carrel.informers.run())
            await carrel.informers.wait_synced()
            asyncio.get_running_loop().add_reader(told.fileno(), listen)
            told.send(url)
            await gone.wait()
            mirroring.cancel()

    asyncio.run(serve())


class Replica:
    """The handle of such a process."""

    def __init__(self, url: str, process: Any, told: Connection, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._process = process
        self._told = told
        self._session = session

    def die_at(self, order: DeathOrder) -> None:
        self._told.send(order)

    async def writes(self) -> int:
        """How many there were since the last order or count."""
        self._told.send("count")
        return int(await asyncio.to_thread(self._told.recv))

    async def wait_killed(self) -> None:
        await asyncio.to_thread(self._process.join, 60)
        assert self._process.exitcode == -signal.SIGKILL, self._process.exitcode

    async def ask(self, verb: str, body: Json) -> Json:
        """Raises `aiohttp.ClientError` if the process ends meanwhile."""
        async with self._session.post(f"{self._url}/carrel/{verb}", json=body) as answer:
            told: Json = await answer.json()
            return told

    async def knows(self, node: str) -> bool:
        async with self._session.get(f"{self._url}/gpushare-scheduler/inspect/{node}") as answer:
            return answer.status == 200

    async def fitting(self, pod: Json, nodes: list[NodeName]) -> list[NodeName]:
        found = await self.ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        return found["NodeNames"] or []

    async def bind(self, pod: Json, node: str) -> str:
        """Why not; empty: bound."""
        meta = pod["metadata"]
        names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        return str((await self.ask("bind", {**names, "Node": node}))["Error"])


@asynccontextmanager
async def a_replica(kubeconfig: Path) -> AsyncIterator[Replica]:
    """Its ledger is rebuilt from the cluster. When the block ends it is stopped, if it still runs."""
    ours, theirs = _forks.Pipe()
    process = _forks.Process(target=_live, args=(kubeconfig, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert await asyncio.to_thread(ours.poll, 60), "the extender did not start"
        limits = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=limits, timeout=aiohttp.ClientTimeout(120)) as session:
            yield Replica(ours.recv(), process, ours, session)
    finally:
        ours.close()
        await asyncio.to_thread(process.join, 20)
        if process.is_alive():
            process.kill()
