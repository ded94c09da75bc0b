"""The Kubernetes client: each method of `Cluster` is one call on a `Transport`.

It decides nothing: the caller knows what a lost answer or a conflict means. Names become part of paths, so a name that
would make another path (empty, `..`, with a slash) is refused before anything is sent: `delete` with an empty name
would delete everything in the namespace.

It repeats one kind of call: one that the server rejected *before* processing it, with 429 and `Retry-After`. Every API
server does so under load, and for a moment after a custom resource was defined. Before each try the guard is asked
again whether this process may write. An eviction is not repeated: there 429 comes from a disruption budget.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import msgspec

from carrel.kubernetes.api_calls import ApiCalls
from carrel.kubernetes.cluster import (
    DEFAULT_DELETE_OPTIONS,
    EVERYTHING,
    Apply,
    BindTarget,
    ChangeType,
    DeleteOptions,
    FieldValidation,
    Invalid,
    Json,
    ListPage,
    OutcomeUnknown,
    Patch,
    Selection,
    Unavailable,
    WatchEvent,
    error_in_stream,
    error_of,
    status_in,
    unreadable,
)
from carrel.kubernetes.decoding import read_list, reader_of
from carrel.kubernetes.objects.kinds import ListMetadata, Object
from carrel.kubernetes.objects.release import Release, read_release
from carrel.kubernetes.objects.resources import PODS, Resource
from carrel.kubernetes.server_clock import ServerClock
from carrel.kubernetes.timing import REAL_TIME, Timing
from carrel.kubernetes.transport import ApiRequest, ResponseLike, Transport

V = TypeVar("V", bound=Object)


@dataclass(frozen=True, slots=True)
class PodPort:
    """A port of a pod that speaks HTTP."""

    namespace: str
    name: str
    port: int
    scheme: str = ""
    """`https`; empty: plain HTTP."""


@dataclass(frozen=True, slots=True)
class PodAnswer:
    status: int
    text: str
    date: str
    """By the pod's own clock, as HTTP writes it; empty if it says none."""


NOTHING: Mapping[str, str] = {}
_TOO_MANY = 429
_LONGEST_WAIT_S = 15.0
"""Total wait of one call that the server asks to repeat later; shorter than the time-outs of our own callers."""


class _WatchLine(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    """Its object has only a version; the rest is null or missing."""

    metadata: ListMetadata


_read_line = msgspec.json.Decoder(_WatchLine).decode
_read_bookmark = msgspec.json.Decoder(_Bookmark).decode


class Client:
    """Implements `kubernetes.cluster.Cluster`."""

    def __init__(
        self,
        transport: Transport,
        fields: FieldValidation = FieldValidation.STRICT,
        timing: Timing = REAL_TIME,
        clock: ServerClock | None = None,
        calls: ApiCalls | None = None,
    ) -> None:
        """Strict by default, so that tests find every misspelled field. Components pass what their settings say."""
        self._transport = transport
        self._fields = fields
        self._timing = timing
        self.clock = clock or ServerClock(monotonic=time.monotonic)
        """The time by the API server."""
        self.calls = calls or ApiCalls()

    def guarded(self, require: Callable[[], Awaitable[None] | None]) -> "Client":
        """The same client, but `require` is called, and waited for, before every write; if it raises, the write is not
        sent."""
        transport = _Guarded(self._transport, require)
        return Client(transport, self._fields, self._timing, self.clock, self.calls)

    async def aclose(self) -> None:
        await self._transport.aclose()

    # Reading

    async def release(self) -> Release:
        """The release of Kubernetes, such as (1, 37). Raises `Malformed` if something else answers."""
        return read_release(await self._call("GET", "/version"))

    async def get(self, resource: Resource[V], name: str, namespace: str = "") -> Json:
        return await self._call("GET", _path(resource, namespace, name))

    async def list(
        self,
        resource: Resource[V],
        selection: Selection = EVERYTHING,
        *,
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
    ) -> ListPage[V]:
        page = {"limit": str(limit or ""), "continue": continue_token, "resourceVersion": resource_version}
        query = _given(labelSelector=selection.labels, fieldSelector=selection.fields, **page)
        request = ApiRequest("GET", _path(resource, selection.namespace), query)
        response = await self._send(request)
        try:
            metadata, items = read_list(resource, response.body)
        except msgspec.MsgspecError as error:
            raise unreadable(request, response, str(error)) from error
        return ListPage(items, metadata.resource_version, metadata.continue_token)

    def watch(
        self, resource: Resource[V], selection: Selection = EVERYTHING, *, resource_version: str
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[V]]]:
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": resource_version}
        query |= _given(labelSelector=selection.labels, fieldSelector=selection.fields)
        return self._watching(resource, ApiRequest("GET", _path(resource, selection.namespace), query))

    @asynccontextmanager
    async def _watching(
        self, resource: Resource[V], request: ApiRequest
    ) -> AsyncIterator[AsyncIterator[WatchEvent[V]]]:
        response = await self._send(request)
        if response.stream is None:
            raise unreadable(request, response, "no stream")
        async with aclosing(response.stream), aclosing(_events(resource, request, response.stream)) as events:
            yield events

    async def ask_pod(self, pod: PodPort, path: str) -> PodAnswer:
        """What a pod answers at a path, through the API server: so it can be asked from anywhere.

        Raises `ClusterError` if the API server cannot reach it. A bad status of the pod itself is an answer.
        """
        name = f"{pod.scheme}:{pod.name}:{pod.port}" if pod.scheme else f"{pod.name}:{pod.port}"
        request = ApiRequest("GET", _path(PODS, pod.namespace, name, f"proxy{path}"))
        # The pod's clock is not the API server's, so this answer does not set the clock.
        response = await self._transport.send(request)
        if response.status >= 300 and status_in(response.body) is not None:
            raise error_of(request, response)
        return PodAnswer(response.status, response.body.decode(errors="replace"), response.headers.get("date", ""))

    # Writing

    async def create(self, resource: Resource[V], body: Json, namespace: str = "", *, dry_run: bool = False) -> Json:
        return await self._call("POST", _path(resource, namespace), body, dry_run=dry_run)

    async def update(self, resource: Resource[V], body: Json, *, subresource: str = "", dry_run: bool = False) -> Json:
        metadata = body["metadata"]
        path = _path(resource, metadata.get("namespace", ""), metadata["name"], subresource)
        return await self._call("PUT", path, body, dry_run=dry_run)

    async def patch(
        self,
        resource: Resource[V],
        name: str,
        patch: Patch,
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        path = _path(resource, namespace, name, subresource)
        query = NOTHING
        if isinstance(patch, Apply):
            query = _given(fieldManager=patch.manager, force="true" if patch.force else "")
        return await self._call("PATCH", path, patch.document, query, patch.content_type, dry_run)

    async def delete(
        self, resource: Resource[V], name: str, namespace: str = "", *, how: DeleteOptions = DEFAULT_DELETE_OPTIONS
    ) -> Json:
        return await self._call("DELETE", _path(resource, namespace, name), _delete_options(how))

    async def bind(self, target: BindTarget) -> None:
        metadata: Json = {"name": target.pod, "namespace": target.namespace, "uid": target.uid}
        if target.annotations:
            metadata["annotations"] = dict(target.annotations)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": target.node},
        }
        await self._call("POST", _path(PODS, target.namespace, target.pod, "binding"), binding)

    async def evict(self, namespace: str, pod: str, *, how: DeleteOptions = DEFAULT_DELETE_OPTIONS) -> None:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": _delete_options(how),
        }
        await self._call("POST", _path(PODS, namespace, pod, "eviction"), eviction)

    # One call

    async def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, str] = NOTHING,
        content_type: str = "application/json",
        dry_run: bool = False,
    ) -> Json:
        """The JSON object that the server answers."""
        if method in ("POST", "PUT", "PATCH"):  # a DELETE has its options in the body
            query = {**query, "fieldValidation": self._fields.value, **({"dryRun": "All"} if dry_run else {})}
        headers, content = ({}, b"") if body is None else ({"content-type": content_type}, msgspec.json.encode(body))
        request = ApiRequest(method, path, query, headers, content)
        response = await self._send(request)
        try:
            document = msgspec.json.decode(response.body)
        except msgspec.DecodeError as error:
            raise unreadable(request, response, str(error)) from error
        if not isinstance(document, dict):
            raise unreadable(request, response, f"a {type(document).__name__} instead of an object")
        return document

    async def _send(self, request: ApiRequest) -> ResponseLike:
        waited_s = 0.0
        while True:
            sent, began = self.clock.machine(), time.perf_counter()
            try:
                response = await self._transport.send(request)
            except (OutcomeUnknown, Unavailable) as lost:
                self.calls.add(request, None, time.perf_counter() - began)
                if request.method != "GET" or isinstance(lost, Unavailable):
                    raise
                # A read whose answer was lost has written nothing.
                raise Unavailable(lost.status, lost.reason, lost.message, lost.details) from lost
            self.calls.add(request, response, time.perf_counter() - began)
            if date := response.headers.get("date"):
                # A watch has a connection of its own; all other calls share a few, and one voice.
                self.clock.observe(date, sent, request.path if "watch" in request.query else "")
            if response.status < 300:
                return response
            asked = response.headers.get("retry-after", "")
            may_repeat = response.status == _TOO_MANY and asked.isdecimal() and not request.path.endswith("/eviction")
            wait_s = max(1.0, float(asked)) if may_repeat else inf
            waited_s += wait_s
            if waited_s > _LONGEST_WAIT_S:
                raise error_of(request, response)
            await self._timing.sleep(wait_s)


class _Guarded:
    def __init__(self, transport: Transport, require: Callable[[], Awaitable[None] | None]) -> None:
        self._transport = transport
        self._require = require

    async def send(self, request: ApiRequest) -> ResponseLike:
        if request.method != "GET" and (waiting := self._require()) is not None:
            await waiting
        return await self._transport.send(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


async def _events(
    resource: Resource[V], request: ApiRequest, stream: AsyncGenerator[bytes, None]
) -> AsyncGenerator[WatchEvent[V], None]:
    read = reader_of(resource)
    async for line in _lines(stream):
        try:
            event = _read_line(line)
            if event.type == "ERROR":
                raise error_in_stream(request, bytes(event.object))
            if event.type == "BOOKMARK":
                yield WatchEvent(ChangeType.BOOKMARK, None, _read_bookmark(event.object).metadata.resource_version)
                continue
            change, item = ChangeType(event.type), read(event.object)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unavailable(200, "UnreadableAnswer", f"{request.method} {request.path}: {error}") from error
        yield WatchEvent(change, item, item.metadata.resource_version)


async def _lines(stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Whole lines from chunks of any size. A last line without a line end is incomplete and dropped."""
    rest: list[bytes] = []
    async for chunk in stream:
        *whole, last = chunk.split(b"\n")
        if whole:
            rest.append(whole[0])
            whole[0] = b"".join(rest)
            rest.clear()
        rest.append(last)
        for line in whole:
            if line:
                yield line


def _path(resource: Resource[V], namespace: str, name: str | None = None, subresource: str = "") -> str:
    for field, part in (("namespace", namespace), ("name", name)):
        if (part == "" and field == "name") or (part and (part in (".", "..") or "/" in part or "%" in part)):
            raise Invalid(400, "BadRequest", f"{resource.plural}: {field} {part!r} is not one path segment")
    return resource.path(namespace, name or "", subresource)


def _delete_options(how: DeleteOptions) -> Json:
    options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
    named = {"uid": how.uid, "resourceVersion": how.resource_version}
    if preconditions := {key: value for key, value in named.items() if value}:
        options["preconditions"] = preconditions
    if how.grace_seconds is not None:
        options["gracePeriodSeconds"] = how.grace_seconds
    if how.propagation:
        options["propagationPolicy"] = how.propagation
    if how.dry_run:
        options["dryRun"] = ["All"]
    return options


def _given(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}
