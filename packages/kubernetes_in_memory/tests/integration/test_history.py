"""Versions, pages and watches: what was at a version can be listed and watched from, until it is forgotten."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kubernetes_in_memory.store import HistoryExpired, ObjectStore
from packages.kubernetes_in_memory.tests.integration.caller import (
    PODS,
    Caller,
    api_of,
    config_map,
    embedded,
    names,
    pod,
)

MAPS = "/api/v1/namespaces/default/configmaps"
STORAGE = ("", "things")
WRITES = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30)


@given(WRITES, st.integers(min_value=2, max_value=40))
def test_every_state_in_the_history_can_be_restored(writes: list[tuple[str, bool]], remembered: int) -> None:
    store = ObjectStore(remembered)
    collection = store.collection(STORAGE)
    states = {store.version: dict[str, int]()}
    for name, remove in writes:
        present = dict(states[store.version])
        before = collection.get("", name)
        if remove and before is not None:
            store.remove(STORAGE, before)
            del present[name]
        else:
            after = store.write(STORAGE, before, {"metadata": {"name": name, "uid": name}})
            present[name] = after.version
        states[store.version] = present
    for version, state in states.items():
        if version < collection.forgotten:
            try:
                collection.items_at(version)
            except HistoryExpired as gone:
                assert gone.oldest == collection.forgotten
            else:
                raise AssertionError(f"version {version} is older than {collection.forgotten}")
        else:
            assert {item.key[1]: item.version for item in collection.items_at(version)} == state


async def test_later_pages_show_the_state_of_the_first(call: Caller) -> None:
    for name in "abcde":
        await call.made(MAPS, config_map(name))
    first = await call("GET", MAPS, limit="2")
    assert names(first) == ["a", "b"]
    assert first.body["metadata"]["remainingItemCount"] == 3
    await call("DELETE", f"{MAPS}/c")
    await call.made(MAPS, config_map("bb"))
    second = await call("GET", MAPS, limit="2", **{"continue": first.body["metadata"]["continue"]})
    assert names(second) == ["c", "d"]
    assert second.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]
    third = await call("GET", MAPS, limit="2", **{"continue": second.body["metadata"]["continue"]})
    assert names(third) == ["e"]
    assert "continue" not in third.body["metadata"]


async def test_a_page_of_a_state_outside_the_history_has_expired(call: Caller) -> None:
    for name in "abc":
        await call.made(MAPS, config_map(name))
    first = await call("GET", MAPS, limit="1")
    await call.made(MAPS, config_map("d"))
    api_of(call).forget_history()
    answer = await call("GET", MAPS, limit="1", **{"continue": first.body["metadata"]["continue"]})
    assert (answer.status, answer.body["reason"]) == (410, "Expired")


async def test_a_watch_from_a_list_misses_no_change_and_repeats_none(call: Caller) -> None:
    await call.made(MAPS, config_map("before"))
    listed = await call("GET", MAPS)
    await call.made(MAPS, config_map("between"))
    async with call.watching(MAPS, resourceVersion=listed.body["metadata"]["resourceVersion"]) as events:
        assert (await events.next())["object"]["metadata"]["name"] == "between"
        await call.made(MAPS, config_map("after"))
        assert (await events.next())["object"]["metadata"]["name"] == "after"


async def test_an_object_enters_and_leaves_what_a_watch_selects(call: Caller) -> None:
    made = await call.made(PODS, pod(labels={"queue": "a"}))
    version = made["metadata"]["resourceVersion"]
    async with call.watching(PODS, resourceVersion=version, labelSelector="queue=b") as events:
        await call("PATCH", f"{PODS}/train", {"metadata": {"labels": {"queue": "b"}}}, "application/merge-patch+json")
        assert (await events.next())["type"] == "ADDED"
        changed = await call(
            "PATCH", f"{PODS}/train", {"metadata": {"labels": {"queue": "c"}}}, "application/merge-patch+json"
        )
        left = await events.next()
        assert left["type"] == "DELETED"
        assert left["object"]["metadata"]["labels"] == {"queue": "b"}
        assert left["object"]["metadata"]["resourceVersion"] == changed.body["metadata"]["resourceVersion"]


async def test_a_watcher_that_falls_behind_gets_410() -> None:
    call = embedded(remembered_changes=8)
    version = (await call("GET", MAPS)).body["metadata"]["resourceVersion"]
    async with call.watching(MAPS, resourceVersion=version) as events:
        for number in range(30):
            await call.made(MAPS, config_map(f"m{number}"))
        told = await events.all()
    assert told[-1]["type"] == "ERROR"
    assert told[-1]["object"]["code"] == 410


async def test_a_watch_with_initial_events_marks_their_end(call: Caller) -> None:
    await call.made(MAPS, config_map("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with call.watching(MAPS, **query) as events:
        assert (await events.next())["object"]["metadata"]["name"] == "a"
        mark = await events.next()
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_bookmarks_are_sent_as_often_as_configured() -> None:
    call = embedded(bookmark_every_s=0.01)
    async with call.watching(MAPS, allowWatchBookmarks="true") as events:
        assert (await events.next())["type"] == "BOOKMARK"
        made = await call.made(PODS, pod())
        while (mark := await events.next())["object"]["metadata"]["resourceVersion"] != made["metadata"][
            "resourceVersion"
        ]:
            assert mark["type"] == "BOOKMARK"


async def test_a_watch_ends_after_its_timeout(call: Caller) -> None:
    """The first bookmark marks the end of what was there, the last one says how far the watch has come."""
    async with call.watching(MAPS, timeoutSeconds="1", allowWatchBookmarks="true") as events:
        told = await events.all()
    assert [event["type"] for event in told] == ["BOOKMARK", "BOOKMARK"]
    assert ["annotations" in event["object"]["metadata"] for event in told] == [True, False]


async def test_all_watches_end_when_the_api_closes(call: Caller) -> None:
    async with call.watching(MAPS) as maps, call.watching(PODS) as pods:
        ends = asyncio.gather(maps.all(), pods.all())
        await asyncio.sleep(0)
        await call.transport.aclose()
        assert list(await ends) == [[], []]


async def test_a_version_from_the_future_is_refused_for_now(call: Caller) -> None:
    answer = await call("GET", MAPS, resourceVersion="999999")
    assert (answer.status, answer.body["reason"]) == (504, "Timeout")
    assert answer.headers["retry-after"] == "1"


async def test_versions_of_all_kinds_are_in_one_order(call: Caller) -> None:
    first = await call.made(MAPS, config_map("a"))
    second = await call.made(PODS, pod())
    third = await call.made("/api/v1/namespaces", {"metadata": {"name": "lab"}})
    versions = [int(made["metadata"]["resourceVersion"]) for made in (first, second, third)]
    assert versions == sorted(set(versions))
