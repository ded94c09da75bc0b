"""The extender's app on a loopback port, on a small cluster, and a client that calls it as kube-scheduler does."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from carrel.http.serving import Address, serving
from carrel.ledger.gpus import Node
from carrel.scheduling.assembly import extender_app, handlers_on
from carrel.scheduling.handlers import ExtenderHandlers
from tests.kit.lab import Lab, Replica, a_lab


@dataclass
class Answer:
    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class ExtenderClient:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def post(self, path: str, body: Any) -> Answer:
        """A body that is bytes is sent as it is."""
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self._session.post(f"{self.url}{path}", **sent) as answer:
            return await _read(answer)

    async def get(self, path: str) -> Answer:
        async with self._session.get(f"{self.url}{path}") as answer:
            return await _read(answer)

    async def filter(self, pod: Any, nodes: Sequence[str], prefix: str = "carrel") -> Any:
        answer = await self.post(f"/{prefix}/filter", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        assert answer.status == 200, answer.text
        return answer.json

    async def bind(self, pod: Any, node: str, prefix: str = "carrel") -> str:
        """The error; empty if bound."""
        metadata = pod["metadata"]
        binding = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        answer = await self.post(f"/{prefix}/bind", {**binding, "Node": node})
        assert answer.status == 200, answer.text
        return str(answer.json["Error"])


async def _read(answer: aiohttp.ClientResponse) -> Answer:
    return Answer(answer.status, await answer.text())


@dataclass
class ServedExtender:
    lab: Lab
    replica: Replica
    handlers: ExtenderHandlers
    caller: ExtenderClient


@contextlib.asynccontextmanager
async def a_served_extender(nodes: Sequence[Node]) -> AsyncIterator[ServedExtender]:
    async with a_lab(nodes, in_real_time=True) as lab, lab.replica() as replica:
        handlers = handlers_on(replica, replica.scheduler)
        async with serving(extender_app(handlers), Address()) as url, aiohttp.ClientSession() as session:
            yield ServedExtender(lab, replica, handlers, ExtenderClient(session, url))
