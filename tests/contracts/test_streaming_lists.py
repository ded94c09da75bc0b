"""Streaming lists: a watch that begins with everything there is and marks where that ends.

It is how client-go lists by default since 1.35: kube-scheduler, controllers, kubectl. Our own client lists in pages;
here the calls are made as those clients make them.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Json, MergePatch
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, PODS
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from tests.contracts.backends import Backend
from tests.contracts.objects import config_map, lease, pod
from tests.kit.eventually import LIMIT_S

STREAMING = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
AS_JSON = "application/json"
AS_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
AS_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
AS_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
MARK = {"k8s.io/initial-events-end": "true"}


class Stream:
    def __init__(self, lines: AsyncIterator[Json]) -> None:
        self._lines = lines

    async def next_event(self) -> tuple[str, Json]:
        async with asyncio.timeout(LIMIT_S):
            event = await anext(self._lines)
        return event["type"], event["object"]

    async def next_named(self) -> tuple[str, str]:
        change, found = await self.next_event()
        return change, found["metadata"].get("name", "")


async def _events_of(stream: AsyncIterator[bytes]) -> AsyncIterator[Json]:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


async def _get(backend: Backend, path: str, query: Mapping[str, str], accept: str) -> ResponseLike:
    return await backend.wire.send(ApiRequest("GET", path, query, {"accept": accept}))


@asynccontextmanager
async def streaming(
    backend: Backend, path: str, query: Mapping[str, str] = STREAMING, accept: str = AS_JSON
) -> AsyncIterator[Stream]:
    answer = await _get(backend, path, {"watch": "true", **query}, accept)
    assert answer.stream is not None, answer.body
    try:
        yield Stream(_events_of(answer.stream))
    finally:
        await answer.stream.aclose()


def leases_of(namespace: str) -> str:
    return LEASES.path(namespace)


async def test_a_streaming_list_has_all_objects_then_a_mark_then_changes(
    backend: Backend, cluster: Client, namespace: str
) -> None:
    made = [await cluster.create(LEASES, lease(name), namespace) for name in ("a", "b")]
    async with streaming(backend, leases_of(namespace)) as stream:
        assert sorted([await stream.next_named(), await stream.next_named()]) == [("ADDED", "a"), ("ADDED", "b")]
        change, mark = await stream.next_event()
        assert (change, mark["metadata"]["annotations"]) == ("BOOKMARK", MARK)
        assert (mark["kind"], mark["apiVersion"]) == ("Lease", "coordination.k8s.io/v1")
        assert int(mark["metadata"]["resourceVersion"]) >= int(made[1]["metadata"]["resourceVersion"])
        await cluster.create(LEASES, lease("c"), namespace)
        assert await stream.next_named() == ("ADDED", "c")


async def test_a_streaming_list_of_nothing_is_only_the_mark(backend: Backend, namespace: str) -> None:
    async with streaming(backend, leases_of(namespace)) as stream:
        change, mark = await stream.next_event()
    assert (change, mark["metadata"]["annotations"]) == ("BOOKMARK", MARK)


async def test_a_watch_from_the_mark_goes_on_where_the_streaming_list_ended(
    backend: Backend, cluster: Client, namespace: str
) -> None:
    await cluster.create(LEASES, lease("a"), namespace)
    async with streaming(backend, leases_of(namespace)) as stream:
        await stream.next_event()
        _, mark = await stream.next_event()
    await cluster.delete(LEASES, "a", namespace)
    later = {"resourceVersion": mark["metadata"]["resourceVersion"]}
    async with streaming(backend, leases_of(namespace), later) as stream:
        assert await stream.next_named() == ("DELETED", "a")


async def test_a_streaming_list_shows_what_is_selected(backend: Backend, cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("a", labels={"tier": "free"}), namespace)
    await cluster.create(CONFIG_MAPS, config_map("b", labels={"tier": "booked"}), namespace)
    query = {**STREAMING, "labelSelector": "tier=booked"}
    async with streaming(backend, CONFIG_MAPS.path(namespace), query) as stream:
        assert await stream.next_named() == ("ADDED", "b")
        assert (await stream.next_event())[0] == "BOOKMARK"
        await cluster.patch(CONFIG_MAPS, "a", MergePatch({"metadata": {"labels": {"tier": "booked"}}}), namespace)
        assert await stream.next_named() == ("ADDED", "a")


async def test_a_version_that_exists_already_is_accepted(backend: Backend, cluster: Client, namespace: str) -> None:
    first = await cluster.create(LEASES, lease("a"), namespace)
    await cluster.create(LEASES, lease("b"), namespace)
    query = {**STREAMING, "resourceVersion": first["metadata"]["resourceVersion"]}
    async with streaming(backend, leases_of(namespace), query) as stream:
        seen = [await stream.next_named() for _ in range(3)]
    # The list may be as old as the version that was asked for. Then the second object comes after the mark.
    assert sorted(seen) == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
    assert seen.index(("ADDED", "a")) < seen.index(("BOOKMARK", ""))


async def test_a_version_that_does_not_exist_yet_ends_the_stream_with_a_timeout(
    backend: Backend, cluster: Client, namespace: str
) -> None:
    made = await cluster.create(LEASES, lease("a"), namespace)
    future = str(int(made["metadata"]["resourceVersion"]) + 1_000_000)
    async with streaming(backend, leases_of(namespace), {**STREAMING, "resourceVersion": future}) as stream:
        change, why = await stream.next_event()
    assert (change, why["code"], why["reason"]) == ("ERROR", 504, "Timeout")
    assert [cause["reason"] for cause in why["details"]["causes"]] == ["ResourceVersionTooLarge"]


async def test_without_bookmarks_there_is_no_mark(backend: Backend, cluster: Client, namespace: str) -> None:
    await cluster.create(LEASES, lease("a"), namespace)
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    async with streaming(backend, leases_of(namespace), query) as stream:
        assert await stream.next_named() == ("ADDED", "a")
        await cluster.create(LEASES, lease("b"), namespace)
        assert await stream.next_named() == ("ADDED", "b")


async def test_a_watch_that_wants_no_initial_events_gets_none(
    backend: Backend, cluster: Client, namespace: str
) -> None:
    await cluster.create(LEASES, lease("before"), namespace)
    query = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    async with streaming(backend, leases_of(namespace), query) as stream:
        await cluster.create(LEASES, lease("after"), namespace)
        assert await stream.next_named() == ("ADDED", "after")


@pytest.mark.parametrize(
    "query",
    [pytest.param({}, id="no version"), pytest.param({"resourceVersion": "0"}, id="any version")],
)
async def test_a_watch_without_the_option_gets_initial_events_with_the_mark(
    backend: Backend, cluster: Client, namespace: str, query: Mapping[str, str]
) -> None:
    await cluster.create(LEASES, lease("a"), namespace)
    # A version of 0 may be old. Whoever asks for the newest first makes the server look.
    async with streaming(backend, leases_of(namespace)) as stream:
        await stream.next_event()
    async with streaming(backend, leases_of(namespace), {**query, "allowWatchBookmarks": "true"}) as stream:
        assert await stream.next_named() == ("ADDED", "a")
        change, mark = await stream.next_event()
    assert (change, mark["metadata"]["annotations"]) == ("BOOKMARK", MARK)


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        pytest.param(
            {"watch": "true", "sendInitialEvents": "true"},
            ["resourceVersionMatch"],
            id="initial events, but of which version?",
        ),
        pytest.param(
            {"watch": "true", "sendInitialEvents": "false"},
            ["resourceVersionMatch"],
            id="no initial events, but of which version?",
        ),
        pytest.param(
            {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "Exact", "resourceVersion": "1"},
            ["resourceVersionMatch", "resourceVersionMatch"],
            id="initial events of exactly one version",
        ),
        pytest.param(
            {"watch": "true", "resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"},
            ["resourceVersionMatch"],
            id="a watch that matches a version, without a word on initial events",
        ),
        pytest.param({"sendInitialEvents": "true"}, ["sendInitialEvents"], id="a list with initial events"),
        pytest.param({"resourceVersionMatch": "NotOlderThan"}, ["resourceVersionMatch"], id="a list older than what?"),
        pytest.param(
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
            ["resourceVersionMatch"],
            id="a list of exactly any version",
        ),
        pytest.param(
            {"resourceVersionMatch": "Nearly", "resourceVersion": "1"}, ["resourceVersionMatch"], id="an unknown match"
        ),
    ],
)
async def test_contradicting_options_are_refused(
    backend: Backend, namespace: str, query: Mapping[str, str], fields: list[str]
) -> None:
    answer = await _get(backend, leases_of(namespace), query, AS_JSON)
    told = json.loads(answer.body)
    assert (answer.status, told["reason"], told["details"]["kind"]) == (422, "Invalid", "ListOptions")
    assert [cause["field"] for cause in told["details"]["causes"]] == fields


async def test_a_streaming_list_as_a_table(backend: Backend, cluster: Client, namespace: str) -> None:
    """Each event is a table of one row; the columns are said once; the mark is in the row's metadata."""
    await cluster.create(PODS, pod("train"), namespace)
    async with streaming(backend, PODS.path(namespace), accept=AS_TABLE) as stream:
        _, first = await stream.next_event()
        change, mark = await stream.next_event()
    columns = [column["name"] for column in first["columnDefinitions"]]
    assert (first["kind"], columns[:5]) == ("Table", ["Name", "Ready", "Status", "Restarts", "Age"])
    assert first["rows"][0]["cells"][:4] == ["train", "0/1", "Pending", "0"]
    assert (change, mark["kind"], mark.get("columnDefinitions")) == ("BOOKMARK", "Table", None)
    assert mark["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert mark["rows"][0]["object"]["metadata"]["annotations"] == MARK


async def test_a_streaming_list_of_metadata(backend: Backend, cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("a", labels={"mine": "yes"}), namespace)
    query = {**STREAMING, "labelSelector": "mine"}
    async with streaming(backend, CONFIG_MAPS.path(namespace), query, AS_METADATA) as stream:
        _, first = await stream.next_event()
        _, mark = await stream.next_event()
    assert (first["kind"], first["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert (first["metadata"]["name"], "data" in first) == ("a", False)
    assert (mark["kind"], mark["metadata"]["annotations"]) == ("PartialObjectMetadata", MARK)


async def test_a_list_of_metadata(backend: Backend, cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("a", labels={"mine": "yes"}), namespace)
    answer = await _get(backend, CONFIG_MAPS.path(namespace), {"labelSelector": "mine"}, AS_METADATA_LIST)
    found = json.loads(answer.body)
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert [(item["metadata"]["name"], "data" in item) for item in found["items"]] == [("a", False)]
    assert found["metadata"]["resourceVersion"].isdecimal()


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        pytest.param("application/vnd.kubernetes.protobuf,application/json", 200, id="protobuf or JSON"),
        pytest.param("application/vnd.kubernetes.protobuf, */*", 200, id="protobuf or anything: kube-scheduler"),
        pytest.param("application/json;as=Picture;g=meta.k8s.io;v=v1,application/json", 200, id="a picture or JSON"),
        pytest.param("text/html", 406, id="only a web page"),
        pytest.param("application/json;as=Picture;g=meta.k8s.io;v=v1", 406, id="only a picture"),
        pytest.param(AS_METADATA.split(",")[0], 406, id="a list as the metadata of one object"),
    ],
)
async def test_the_answer_is_in_a_form_that_the_client_accepts(
    backend: Backend, namespace: str, accept: str, status: int
) -> None:
    answer = await _get(backend, leases_of(namespace), {}, accept)
    assert answer.status == status
    given = answer.headers["content-type"].partition(";")[0]
    assert status == 406 or given in ("application/json", "application/vnd.kubernetes.protobuf")
