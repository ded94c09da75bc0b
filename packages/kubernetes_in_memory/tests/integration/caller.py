"""The embedded API, called with plain paths and JSON, as the wire sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.faults import Faulty
from kubernetes_in_memory.messages import HttpRequest

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PODS = "/api/v1/namespaces/default/pods"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Json
    headers: Mapping[str, str]

    @property
    def message(self) -> str:
        return str(self.body.get("message"))

    @property
    def fields(self) -> list[str]:
        """The fields that are wrong."""
        return [cause["field"] for cause in self.body["details"]["causes"]]


class Caller:
    def __init__(self, transport: EmbeddedApi | Faulty, token: str = "") -> None:
        self.transport = transport
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        media_type: str = "application/json",
        accept: str = "application/json",
        **query: str,
    ) -> Answer:
        headers = {"content-type": media_type, "accept": accept, **self._headers}
        content = b"" if body is None else msgspec.json.encode(body)
        answer = await self.transport.send(HttpRequest(method, path, query, headers, content))
        return Answer(answer.status, msgspec.json.decode(answer.body), answer.headers)

    async def made(self, path: str, body: Json, **query: str) -> Json:
        answer = await self("POST", path, body, **query)
        assert answer.status == 201, answer.message
        return answer.body

    @asynccontextmanager
    async def watching(self, path: str, accept: str = "application/json", **query: str) -> AsyncIterator["Watching"]:
        headers = {"accept": accept, **self._headers}
        answer = await self.transport.send(HttpRequest("GET", path, {"watch": "true", **query}, headers))
        assert answer.stream is not None, answer.body
        try:
            yield Watching(_lines(answer.stream))
        finally:
            await answer.stream.aclose()


async def _lines(stream: AsyncIterator[bytes]) -> AsyncIterator[Json]:
    async for chunk in stream:
        for line in chunk.splitlines():
            yield msgspec.json.decode(line)


class Watching:
    def __init__(self, events: AsyncIterator[Json]) -> None:
        self._events = events

    async def next(self) -> Json:
        async with asyncio.timeout(LIMIT_S):
            return await anext(self._events)

    async def all(self) -> list[Json]:
        """Until the stream ends."""
        async with asyncio.timeout(LIMIT_S):
            return [event async for event in self._events]


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what changes it has no event to wait for
            await asyncio.sleep(0.01)


def embedded(**settings: Any) -> Caller:
    return Caller(EmbeddedApi(Settings(**{"clock": lambda: NOON, **settings})))


def api_of(caller: Caller) -> EmbeddedApi:
    assert isinstance(caller.transport, EmbeddedApi)
    return caller.transport


def pod(name: str = "train", *, labels: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": name, **({"labels": labels} if labels else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "main", "image": "busybox:1.36"}], **spec},
    }


def config_map(name: str = "one", **metadata: Any) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"colour": "red"}}


def names(answer: Answer) -> list[str]:
    return [item["metadata"]["name"] for item in answer.body["items"]]
