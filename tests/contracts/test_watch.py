"""Watches: nothing missed between a list and its watch, in order, until the version is too old."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ChangeType, Expired, MergePatch, Selection, WatchEvent
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, PODS, Resource
from tests.contracts.objects import config_map, desk, lease, pod
from tests.kit.eventually import LIMIT_S


async def take(events: AsyncIterator[WatchEvent[Any]], count: int) -> list[tuple[str, str]]:
    """The next changes as (change, name); bookmarks are passed over."""
    taken = []
    async with asyncio.timeout(LIMIT_S):
        async for event in events:
            if event.item is not None:
                taken.append((event.change.value, event.item.metadata.name))
                if len(taken) == count:
                    return taken
    raise AssertionError(f"the watch ended after {taken}")


async def test_changes_after_the_list_are_in_order(cluster: Client, namespace: str) -> None:
    selection = Selection(namespace)
    await cluster.create(LEASES, lease("before"), namespace)
    page = await cluster.list(LEASES, selection)
    async with cluster.watch(LEASES, selection, resource_version=page.resource_version) as events:
        made = await cluster.create(LEASES, lease("a"), namespace)
        await cluster.create(LEASES, lease("b"), namespace)
        await cluster.update(LEASES, {**made, "spec": {"holderIdentity": "another"}})
        await cluster.delete(LEASES, "a", namespace)
        assert await take(events, 4) == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_what_happened_between_list_and_watch_is_replayed(cluster: Client, namespace: str) -> None:
    selection = Selection(namespace)
    page = await cluster.list(LEASES, selection)
    await cluster.create(LEASES, lease("a"), namespace)
    await cluster.delete(LEASES, "a", namespace)
    async with cluster.watch(LEASES, selection, resource_version=page.resource_version) as events:
        assert await take(events, 2) == [("ADDED", "a"), ("DELETED", "a")]


async def test_a_watch_can_continue_where_another_ended(cluster: Client, namespace: str) -> None:
    selection = Selection(namespace)
    version = (await cluster.list(LEASES, selection)).resource_version
    for name in ("a", "b", "c"):
        await cluster.create(LEASES, lease(name), namespace)
    seen = []
    for _ in range(3):
        async with cluster.watch(LEASES, selection, resource_version=version) as events:
            async with asyncio.timeout(LIMIT_S):
                event = await anext(event async for event in events if event.item is not None)
            assert event.item is not None
            seen.append(event.item.metadata.name)
            version = event.resource_version
    assert seen == ["a", "b", "c"]


async def test_versions_grow_along_the_watch(cluster: Client, namespace: str) -> None:
    selection = Selection(namespace)
    page = await cluster.list(LEASES, selection)
    made = await cluster.create(LEASES, lease("a"), namespace)
    updated = await cluster.update(LEASES, {**made, "spec": {"holderIdentity": "another"}})
    await cluster.delete(LEASES, "a", namespace)
    versions = [int(page.resource_version)]
    async with cluster.watch(LEASES, selection, resource_version=page.resource_version) as events:
        async with asyncio.timeout(LIMIT_S):
            while len(versions) < 4:
                event = await anext(events)
                if event.item is not None:
                    versions.append(int(event.resource_version))
    assert versions == sorted(set(versions))
    assert versions[1] == int(made["metadata"]["resourceVersion"])
    assert versions[2] == int(updated["metadata"]["resourceVersion"])


async def test_a_deletion_shows_the_last_state(cluster: Client, namespace: str) -> None:
    selection = Selection(namespace)
    made = await cluster.create(LEASES, lease("a", "the holder"), namespace)
    async with cluster.watch(LEASES, selection, resource_version=made["metadata"]["resourceVersion"]) as events:
        await cluster.delete(LEASES, "a", namespace)
        async with asyncio.timeout(LIMIT_S):
            event = await anext(event async for event in events if event.item is not None)
    assert event.change is ChangeType.DELETED
    assert event.item is not None
    assert event.item.spec.holder_identity == "the holder"
    assert int(event.resource_version) > int(made["metadata"]["resourceVersion"])


async def test_an_update_that_changes_nothing_is_no_event(cluster: Client, namespace: str) -> None:
    made = await cluster.create(LEASES, lease("a"), namespace)
    version = made["metadata"]["resourceVersion"]
    async with cluster.watch(LEASES, Selection(namespace), resource_version=version) as events:
        await cluster.update(LEASES, made)
        await cluster.create(LEASES, lease("b"), namespace)
        assert await take(events, 1) == [("ADDED", "b")]


async def test_an_object_enters_and_leaves_a_label_selection(cluster: Client, namespace: str) -> None:
    selection = Selection(namespace, labels="tier=booked")
    page = await cluster.list(CONFIG_MAPS, selection)
    async with cluster.watch(CONFIG_MAPS, selection, resource_version=page.resource_version) as events:
        await cluster.create(CONFIG_MAPS, config_map("a"), namespace)
        for tier in ("booked", "free", "booked"):
            await cluster.patch(CONFIG_MAPS, "a", MergePatch({"metadata": {"labels": {"tier": tier}}}), namespace)
        await cluster.delete(CONFIG_MAPS, "a", namespace)
        assert await take(events, 4) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a"), ("DELETED", "a")]


async def test_an_object_leaves_a_field_selection(cluster: Client, namespace: str) -> None:
    selection = Selection(namespace, fields="status.phase=Pending")
    page = await cluster.list(PODS, selection)
    async with cluster.watch(PODS, selection, resource_version=page.resource_version) as events:
        await cluster.create(PODS, pod("a"), namespace)
        await cluster.patch(PODS, "a", MergePatch({"status": {"phase": "Running"}}), namespace, subresource="status")
        await cluster.create(PODS, pod("b"), namespace)
        assert await take(events, 3) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "b")]


async def test_a_watch_sees_its_own_namespace_only(cluster: Client, namespace: str) -> None:
    page = await cluster.list(LEASES, Selection(namespace))
    async with cluster.watch(LEASES, Selection(namespace), resource_version=page.resource_version) as events:
        await cluster.create(LEASES, lease(f"{namespace}-elsewhere"), "default")
        await cluster.delete(LEASES, f"{namespace}-elsewhere", "default")
        await cluster.create(LEASES, lease("here"), namespace)
        assert await take(events, 1) == [("ADDED", "here")]


async def test_many_watches_all_get_the_same_events(cluster: Client, namespace: str) -> None:
    selection = Selection(namespace)
    page = await cluster.list(LEASES, selection)

    async def listen() -> list[tuple[str, str]]:
        async with cluster.watch(LEASES, selection, resource_version=page.resource_version) as events:
            return await take(events, 20)

    async with asyncio.TaskGroup() as group:
        heard = [group.create_task(listen()) for _ in range(5)]
        for index in range(20):
            await cluster.create(LEASES, lease(f"lease-{index}"), namespace)
    assert {tuple(task.result()) for task in heard} == {tuple(("ADDED", f"lease-{index}") for index in range(20))}


async def test_a_list_and_its_watch_have_everything_once_while_many_write(cluster: Client, namespace: str) -> None:
    count, selection = 40, Selection(namespace)

    async def write() -> None:
        for index in range(count):
            await cluster.create(LEASES, lease(f"lease-{index:02}"), namespace)
            # In process nothing waits by itself; the reader gets its turn here.
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        await asyncio.sleep(0)
        page = await cluster.list(LEASES, selection)
        found = [item.metadata.name for item in page.items]
        async with cluster.watch(LEASES, selection, resource_version=page.resource_version) as events:
            if len(found) < count:
                found += [name for _, name in await take(events, count - len(found))]
    assert found == [f"lease-{index:02}" for index in range(count)]


async def test_a_bookmark_moves_the_version_on_without_an_object(
    cluster: Client, namespace: str, desks: Resource[Any]
) -> None:
    made = await cluster.create(desks, desk(desks, "d1"), namespace)
    version = made["metadata"]["resourceVersion"]
    async with cluster.watch(desks, Selection(namespace), resource_version=version) as events:
        # Something must happen: a real server gives no bookmarks where nothing moves.
        later = await cluster.create(desks, desk(desks, "d2"), namespace)
        async with asyncio.timeout(LIMIT_S):
            event = await anext(event async for event in events if event.change is ChangeType.BOOKMARK)
    assert event.item is None
    assert int(event.resource_version) >= int(later["metadata"]["resourceVersion"])


async def test_a_version_older_than_the_history_has_expired(
    cluster: Client, namespace: str, desks: Resource[Any]
) -> None:
    await cluster.create(desks, desk(desks, "d1"), namespace)
    with pytest.raises(Expired) as expired:
        async with cluster.watch(desks, Selection(namespace), resource_version="1") as events:
            async with asyncio.timeout(LIMIT_S):
                await anext(events)
    assert expired.value.status == 410
