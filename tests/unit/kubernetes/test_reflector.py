"""The reflector: the store becomes equal to the server, whatever fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Busy, Expired, Forbidden, ListPage, NotFound, Selection, Unavailable, WatchEvent
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PODS
from carrel.kubernetes.reflector import Reflector, WatchTiming
from carrel.kubernetes.store import Store
from carrel.kubernetes.timing import Backoff
from kubernetes_in_memory import EmbeddedApi
from tests.unit.kubernetes.fake_time import FakeTime
from tests.unit.kubernetes.scripted_cluster import (
    SILENCE,
    ScriptedCluster,
    added,
    bookmark,
    deleted,
    modified,
    page,
    pod,
)

DOWN = Unavailable(503, "ServiceUnavailable", "down")
GONE = Expired(410, "Expired", "too old")
RHYTHM = WatchTiming(silence_s=180, resync_s=1800, backoff=Backoff(first_s=1, limit_s=8))


class Reflected:
    """A reflector that runs, and the story that its handler heard."""

    def __init__(self, cluster: Any, time: FakeTime, optional: bool = False) -> None:
        self.cluster = cluster
        self.time = time
        self.reflector: Reflector[Any] = Reflector(
            cluster, PODS, Store(), optional=optional, watch_timing=RHYTHM, timing=time.timing()
        )
        self.heard: list[str] = []
        self.reflector.on_change(self._hear)

    def _hear(self, old: Any, new: Any) -> None:
        def shown(item: Any) -> str:
            return f"{item.metadata.name}@{item.metadata.resource_version}" if item is not None else "-"

        self.heard.append(f"{shown(old)} → {shown(new)}")

    @property
    def names(self) -> dict[str, str]:
        return {item.metadata.name: item.metadata.resource_version for item in self.reflector.store}


@contextlib.asynccontextmanager
async def reflecting(
    lists: Sequence[ListPage[Any] | Exception], watches: Sequence[Sequence[object]] = (), optional: bool = False
) -> AsyncIterator[Reflected]:
    reflected = Reflected(ScriptedCluster(lists, watches), FakeTime(), optional)
    running = asyncio.create_task(reflected.reflector.run())
    await reflected.time.settle()
    try:
        yield reflected
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert reflected.cluster.open_watches == 0


async def test_lists_page_by_page_and_then_watches_from_there() -> None:
    lists = [page(10, pod("a", 1), token="next"), page(10, pod("b", 2), token="last"), page(10, pod("c", 3))]
    async with reflecting(lists) as seen:
        await seen.reflector.wait_synced()
        assert seen.names == {"a": "1", "b": "2", "c": "3"}
        assert seen.heard == ["- → a@1", "- → b@2", "- → c@3"]
        assert seen.cluster.tokens == ["", "next", "last"]
        assert seen.cluster.watched_from == ["10"]


async def test_what_was_just_read_is_followed_from_there_and_not_listed_again() -> None:
    seen = Reflected(ScriptedCluster([page(10, pod("a", 1))], [[added("b", 11), SILENCE]]), FakeTime())
    await seen.reflector.read_once()
    running = asyncio.create_task(seen.reflector.run())
    await seen.time.settle()
    running.cancel()
    await asyncio.wait([running])

    assert (seen.cluster.tokens, seen.cluster.watched_from) == ([""], ["10"])
    assert seen.heard == ["- → a@1", "- → b@11"]


async def test_it_is_known_why_nothing_is_heard_until_a_watch_is_open() -> None:
    async with reflecting([page(10), DOWN, page(20)], [[GONE], [SILENCE]]) as seen:
        assert "too old" in seen.reflector.why_cut_off
        await seen.time.advance(1)
        assert "down" in seen.reflector.why_cut_off
        await seen.time.advance(2)
        assert (seen.reflector.why_cut_off, seen.cluster.open_watches) == ("", 1)


async def test_a_kind_that_went_and_may_be_missing_is_not_waited_for() -> None:
    forbidden = Forbidden(403, "Forbidden", "not any more")
    async with reflecting([page(10), forbidden], [[GONE]], optional=True) as seen:
        assert seen.reflector.why_cut_off
        await seen.time.advance(1)
        assert seen.reflector.why_cut_off == ""


async def test_handlers_get_changes_in_order_with_the_old_object() -> None:
    watch = [added("b", 11), modified("a", 12), modified("b", 13), deleted("a", 14), SILENCE]
    async with reflecting([page(10, pod("a", 1))], [watch]) as seen:
        assert seen.heard == ["- → a@1", "- → b@11", "a@1 → a@12", "b@11 → b@13", "a@12 → -"]
        assert seen.names == {"b": "13"}


async def test_is_not_synced_before_the_whole_list_is_read() -> None:
    async with reflecting([page(10, pod("a", 1), token="next"), DOWN, page(11, pod("a", 1))]) as seen:
        assert not seen.reflector.is_synced
        assert len(seen.reflector.store) == 0
        await seen.time.advance(1)
        assert seen.reflector.is_synced
        assert seen.heard == ["- → a@1"]


async def test_a_handler_that_is_added_late_gets_the_existing_objects() -> None:
    async with reflecting([page(10, pod("a", 1))]) as seen:
        late: list[Any] = []
        seen.reflector.on_change(lambda old, new: late.append((old, new)))
        assert late == [(None, seen.reflector.store.get("a", "lab"))]


async def test_a_stream_that_ends_is_opened_again_where_it_was() -> None:
    async with reflecting([page(10)], [[added("a", 11)], [bookmark(20)], [added("b", 21), SILENCE]]) as seen:
        await seen.time.until(lambda: "b" in seen.names)
        assert seen.cluster.watched_from == ["10", "11", "20"]
        assert seen.cluster.tokens == [""]
        assert seen.names == {"a": "11", "b": "21"}


@pytest.mark.parametrize(
    "watch",
    [
        pytest.param([added("b", 11), GONE], id="as an event in the stream"),
        pytest.param([GONE], id="as the answer"),
    ],
)
async def test_objects_deleted_while_the_version_expired_are_reported_as_deleted(watch: list[object]) -> None:
    lists = [page(10, pod("a", 1), pod("b", 2)), page(30, pod("b", 25), pod("c", 26))]
    async with reflecting(lists, [watch]) as seen:
        await seen.time.advance(1)
        assert seen.names == {"b": "25", "c": "26"}
        assert seen.heard[-3:] in (
            ["a@1 → -", "b@11 → b@25", "- → c@26"],
            ["a@1 → -", "b@2 → b@25", "- → c@26"],
        )
        assert seen.cluster.watched_from[-1] == "30"


async def test_another_object_of_the_same_name_is_a_deletion_and_an_addition() -> None:
    lists = [page(10, pod("a", 1, "uid-1")), page(30, pod("a", 25, "uid-2"))]
    async with reflecting(lists, [[GONE]]) as seen:
        await seen.time.advance(1)
        assert seen.heard == ["- → a@1", "a@1 → -", "- → a@25"]


async def test_retries_are_delayed_longer_each_time_until_one_succeeds() -> None:
    lists: list[ListPage[Any] | Exception] = [DOWN, Forbidden(403, "Forbidden", "no right"), *[DOWN] * 4, page(10)]
    async with reflecting(lists, [[added("a", 11), DOWN], [added("b", 12), SILENCE]]) as seen:
        await seen.time.until(lambda: "b" in seen.names)
        waits = [slept for slept in seen.time.slept if slept <= 8]
        assert waits == [1, 2, 4, 8, 8, 8, 1]
        assert seen.reflector.failures == 0
        assert seen.cluster.tokens.count("") == 7


async def test_waits_as_long_as_the_server_asks() -> None:
    busy = Busy(429, "TooManyRequests", "slow down", {"retryAfterSeconds": 30})
    async with reflecting([busy, page(10)]) as seen:
        assert seen.time.slept == [30]


async def test_a_server_that_ends_every_watch_at_once_is_called_with_delays() -> None:
    async with reflecting([page(10)], [[] for _ in range(5)]) as seen:
        assert len(seen.cluster.watched_from) == 1
        await seen.time.advance(100)
        assert [slept for slept in seen.time.slept if slept <= 8] == [1, 2, 4, 8, 8]


async def test_a_server_whose_versions_expire_at_once_is_listed_with_delays() -> None:
    async with reflecting([page(10)], [[GONE] for _ in range(4)]) as seen:
        await seen.time.until(lambda: len(seen.cluster.watched_from) == 5)
        assert [slept for slept in seen.time.slept if slept <= 8] == [1, 2, 4, 8]


async def test_a_silent_watch_is_opened_again_where_it_was() -> None:
    async with reflecting([page(10)], [[added("a", 11), SILENCE], [added("b", 12), SILENCE]]) as seen:
        await seen.time.advance(179)
        assert seen.cluster.watched_from == ["10"]
        assert seen.reflector.silent_s == 179
        await seen.time.advance(2)
        assert seen.cluster.watched_from == ["10", "11"]
        assert seen.names == {"a": "11", "b": "12"}
        assert seen.cluster.tokens == [""]


async def test_everything_is_listed_again_from_time_to_time() -> None:
    lists = [page(10, pod("a", 1), pod("b", 2)), page(50, pod("b", 40))]
    async with reflecting(lists) as seen:
        await seen.time.advance(1799)
        assert seen.names == {"a": "1", "b": "2"}
        await seen.time.advance(2)
        assert seen.names == {"b": "40"}
        assert seen.heard[2:] == ["a@1 → -", "b@2 → b@40"]


class TestOlderStatesAreIgnored:
    async def test_a_list_from_a_replica_that_lags_is_not_used(self) -> None:
        lists = [page(10, pod("a", 1)), page(9), page(31, pod("a", 20))]
        async with reflecting(lists, [[modified("a", 20), GONE]]) as seen:
            await seen.time.advance(1)
            assert seen.names == {"a": "20"}
            await seen.time.advance(2)
            assert seen.heard == ["- → a@1", "a@1 → a@20"]
            assert seen.cluster.watched_from == ["10", "31"]

    @pytest.mark.parametrize(
        ("watch", "expected"),
        [
            pytest.param([modified("a", 12), modified("a", 12)], {"a": "12"}, id="doubled"),
            pytest.param([modified("a", 13), modified("a", 12)], {"a": "13"}, id="swapped"),
            pytest.param([deleted("a", 13), modified("a", 12)], {}, id="changed after it was deleted"),
            pytest.param([deleted("a", 13), deleted("a", 13)], {}, id="deleted twice"),
            pytest.param([added("b", 12), added("c", 11)], {"a": "1", "b": "12", "c": "11"}, id="two objects swapped"),
            pytest.param([deleted("a", 12), added("a", 13)], {"a": "13"}, id="left the selection and came back"),
            pytest.param(
                [added("a", 13, "uid-2"), deleted("a", 12)], {"a": "13"}, id="deletion of its predecessor late"
            ),
            pytest.param(
                [deleted("a", 12), added("a", 13), deleted("a", 12)],
                {"a": "13"},
                id="an old deletion after coming back",
            ),
        ],
    )
    async def test_an_outdated_event_changes_nothing(self, watch: list[object], expected: dict[str, str]) -> None:
        async with reflecting([page(10, pod("a", 1))], [[*watch, SILENCE]]) as seen:
            assert seen.names == expected

    async def test_the_version_to_watch_from_never_decreases(self) -> None:
        async with reflecting([page(10)], [[added("a", 15), added("b", 12)], [SILENCE]]) as seen:
            await seen.time.until(lambda: len(seen.cluster.watched_from) == 2)
            assert seen.cluster.watched_from == ["10", "15"]


async def test_a_handler_that_raises_about_one_object_is_told_of_the_others_and_so_are_other_handlers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    isolation = Isolation()
    reflector: Reflector[Any] = Reflector(
        cast("Any", ScriptedCluster([page(10, pod("a", 1), pod("b", 2))])),
        PODS,
        Store(),
        timing=FakeTime().timing(),
        isolation=isolation,
    )
    broken_saw, other_saw = list[str](), list[str]()

    def broken(old: Any, new: Any) -> None:
        if new.metadata.name == "a":
            raise LookupError("the ledger does not know the node")
        broken_saw.append(new.metadata.name)

    reflector.on_change(broken)
    reflector.on_change(lambda old, new: other_saw.append(new.metadata.name if new else ""))
    await reflector.read_once()
    assert (broken_saw, other_saw, isolation.failures) == (["b"], ["a", "b"], {"watch": 1})
    assert "Pod lab/a" in caplog.text


@given(st.data())
async def test_after_repeated_swapped_or_lost_events_the_next_list_corrects_the_store(data: st.DataObject) -> None:
    """A true history is played to the reflector as a bad network would; handlers always tell one story per object."""
    truth: dict[str, tuple[int, str]] = {}
    events: list[WatchEvent[Any]] = []
    steps = data.draw(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12))
    for version, (name, is_deletion) in enumerate(steps, start=11):
        if name not in truth:
            truth[name] = (version, f"uid-{version}")
            events.append(added(name, version, f"uid-{version}"))
        elif is_deletion:
            _, uid = truth.pop(name)
            events.append(deleted(name, version, uid))
        else:
            truth[name] = (version, truth[name][1])
            events.append(modified(name, version, truth[name][1]))
    played = data.draw(st.lists(st.sampled_from(events), max_size=20)) if events else []
    end = 11 + len(steps)
    final = page(end, *(pod(name, version, uid) for name, (version, uid) in truth.items()))
    async with reflecting([page(10), final], [[*played, GONE]]) as seen:
        told: dict[str, str] = {}
        await seen.time.advance(1)
        for line in seen.heard:
            old, new = line.split(" → ")
            name = (old if new == "-" else new).split("@")[0]
            assert told.get(name, "-") == old
            told[name] = new
        assert {name: item for name, item in told.items() if item != "-"} == {
            name: f"{name}@{version}" for name, (version, _) in truth.items()
        }
        assert seen.names == {name: str(version) for name, (version, _) in truth.items()}


async def test_follows_the_embedded_api_and_misses_no_deletion_while_it_was_stopped() -> None:
    api = EmbeddedApi()
    client = Client(api)
    time = FakeTime()
    reflector: Reflector[Any] = Reflector(client, CONFIG_MAPS, Store(), Selection("default"), timing=time.timing())

    async def make(name: str) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        await client.create(CONFIG_MAPS, body, "default")

    @contextlib.asynccontextmanager
    async def running() -> AsyncIterator[None]:
        task = asyncio.create_task(reflector.run())
        await reflector.wait_synced()
        yield
        await time.settle()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def names() -> set[str]:
        return {item.metadata.name for item in reflector.store} & {"a", "b", "c", "d"}

    await make("a")
    async with running():
        await make("b")
        await make("c")
        await client.delete(CONFIG_MAPS, "a", "default")
    assert names() == {"b", "c"}
    await client.delete(CONFIG_MAPS, "b", "default")
    await make("d")
    api.forget_history()
    async with running():
        await time.settle()
    assert names() == {"c", "d"}
    await api.aclose()


@pytest.mark.parametrize(
    "absent",
    [
        pytest.param(NotFound(404, "NotFound", "no such kind"), id="there is no such kind"),
        pytest.param(Forbidden(403, "Forbidden", "not for you"), id="it is not for us"),
    ],
)
async def test_an_optional_kind_may_be_missing_and_is_found_when_it_appears(absent: Exception) -> None:
    async with reflecting([absent, page(10, pod("a", 1))], optional=True) as seen:
        assert seen.reflector.is_synced, "nobody waits for it"
        assert (seen.names, seen.reflector.failures) == ({}, 0)

        await seen.time.advance(RHYTHM.absent_s)

        assert seen.names == {"a": "1"}
        assert seen.cluster.watched_from == ["10"]


async def test_an_optional_kind_that_is_removed_leaves_no_objects_in_the_store() -> None:
    missing = NotFound(404, "NotFound", "no such kind")
    async with reflecting([page(10, pod("a", 1)), missing], [[missing]], optional=True) as seen:
        await seen.time.until(lambda: not seen.names)

        assert seen.heard == ["- → a@1", "a@1 → -"]


async def test_a_required_kind_that_is_missing_is_waited_for() -> None:
    async with reflecting([NotFound(404, "NotFound", "no such kind"), page(10, pod("a", 1))]) as seen:
        assert not seen.reflector.is_synced
        await seen.time.advance(1)
        assert seen.names == {"a": "1"}
