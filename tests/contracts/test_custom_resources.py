"""A kind that is defined, used, checked and taken away again."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Invalid, Json, MergePatch, NotFound, Selection
from carrel.kubernetes.objects.resources import CRDS, Resource
from tests.contracts.backends import eventually, unique
from tests.contracts.objects import custom_kind, definition_of, desk


async def test_what_the_schema_defaults_is_filled_in(cluster: Client, namespace: str, desks: Resource[Any]) -> None:
    made = await cluster.create(desks, desk(desks, "d1", {"seats": 2}), namespace)
    assert made["spec"] == {"seats": 2, "floor": "ground"}
    assert await cluster.get(desks, "d1", namespace) == made


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"seats": 0}, "spec.seats", id="below the minimum"),
        pytest.param({"seats": "two"}, "spec.seats", id="text for a number"),
        pytest.param({"seats": 1, "floor": "cellar"}, "spec.floor", id="not in the enum"),
        pytest.param({"floor": "upper"}, "spec.seats", id="a required field is missing"),
        pytest.param({"seats": 1, "lamps": "left"}, "spec.lamps", id="text for a list"),
    ],
)
async def test_what_the_schema_forbids_is_refused_with_the_field(
    cluster: Client, namespace: str, desks: Resource[Any], spec: Json, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(desks, desk(desks, "d1", spec), namespace)
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")
    assert field in {cause["field"] for cause in refused.value.details["causes"]}
    with pytest.raises(NotFound):
        await cluster.get(desks, "d1", namespace)


async def test_an_update_is_checked_too(cluster: Client, namespace: str, desks: Resource[Any]) -> None:
    made = await cluster.create(desks, desk(desks, "d1"), namespace)
    with pytest.raises(Invalid):
        await cluster.patch(desks, "d1", MergePatch({"spec": {"seats": 0}}), namespace)
    assert await cluster.get(desks, "d1", namespace) == made


async def test_an_update_needs_a_version(cluster: Client, namespace: str, desks: Resource[Any]) -> None:
    await cluster.create(desks, desk(desks, "d1"), namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.update(desks, desk(desks, "d1", {"seats": 2}, namespace=namespace))
    assert refused.value.details["causes"][0]["field"] == "metadata.resourceVersion"


class TestTheStatusSubresource:
    async def test_status_is_dropped_on_create(self, cluster: Client, namespace: str, desks: Resource[Any]) -> None:
        made = await cluster.create(desks, {**desk(desks, "d1"), "status": {"reader": "alice"}}, namespace)
        assert "status" not in made

    async def test_keeps_spec_and_status_apart(self, cluster: Client, namespace: str, desks: Resource[Any]) -> None:
        made = await cluster.create(desks, desk(desks, "d1"), namespace)
        both: Json = {**made, "spec": {"seats": 3, "floor": "ground"}, "status": {"reader": "alice"}}
        both["metadata"] = {**made["metadata"], "labels": {"a": "b"}}
        read = await cluster.update(desks, both, subresource="status")
        assert (read["spec"]["seats"], read["status"]) == (1, {"reader": "alice"})
        assert "labels" not in read["metadata"]
        assert read["metadata"]["generation"] == 1
        wanted = await cluster.update(desks, {**read, "spec": {"seats": 3}, "status": {"reader": "bob"}})
        assert (wanted["spec"]["seats"], wanted["status"]) == (3, {"reader": "alice"})
        assert wanted["metadata"]["generation"] == 2

    async def test_is_checked_by_the_schema(self, cluster: Client, namespace: str, desks: Resource[Any]) -> None:
        await cluster.create(desks, desk(desks, "d1"), namespace)
        with pytest.raises(Invalid):
            await cluster.patch(desks, "d1", MergePatch({"status": {"reader": 7}}), namespace, subresource="status")


async def test_a_watch_of_a_custom_kind_shows_its_changes(
    cluster: Client, namespace: str, desks: Resource[Any]
) -> None:
    page = await cluster.list(desks, Selection(namespace))
    async with cluster.watch(desks, Selection(namespace), resource_version=page.resource_version) as events:
        await cluster.create(desks, desk(desks, "d1"), namespace)
        await cluster.delete(desks, "d1", namespace)
        seen = []
        async with asyncio.timeout(90):
            async for event in events:
                if event.item is not None:
                    seen.append((event.change.value, event.item.metadata.name))
                    if len(seen) == 2:
                        break
    assert seen == [("ADDED", "d1"), ("DELETED", "d1")]


async def test_deleting_a_definition_deletes_its_objects(cluster: Client, namespace: str) -> None:
    kind = custom_kind(f"{unique('library')}.example")
    definition = definition_of(kind)
    name = definition["metadata"]["name"]

    async def is_served() -> bool:
        with suppress(NotFound):
            await cluster.list(kind)
            return True
        return False

    async def is_gone() -> bool:
        return not await is_served()

    for _ in range(2):
        await cluster.create(CRDS, definition)
        await eventually(is_served)
        assert list((await cluster.list(kind)).items) == []
        await cluster.create(kind, desk(kind, "d1"), namespace)
        await cluster.delete(CRDS, name)
        await eventually(is_gone)

        async def is_undefined() -> bool:
            with suppress(NotFound):
                await cluster.get(CRDS, name)
                return False
            return True

        await eventually(is_undefined)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"scope": "Everywhere"}, "spec.scope", id="a scope that is none"),
        pytest.param({"versions": []}, "spec.versions", id="no version"),
    ],
)
async def test_a_wrong_definition_is_refused_with_the_field(cluster: Client, change: Json, field: str) -> None:
    definition = definition_of(custom_kind(f"{unique('library')}.example"))
    definition["spec"].update(change)
    with pytest.raises(Invalid) as refused:
        await cluster.create(CRDS, definition)
    assert field in {cause["field"] for cause in refused.value.details["causes"]}


async def test_a_definition_is_named_after_its_kind(cluster: Client) -> None:
    definition = definition_of(custom_kind(f"{unique('library')}.example"))
    definition["metadata"]["name"] = f"{unique('other')}.example"
    with pytest.raises(Invalid) as refused:
        await cluster.create(CRDS, definition)
    assert "metadata.name" in {cause["field"] for cause in refused.value.details["causes"]}


async def test_a_definition_without_a_schema_is_refused(cluster: Client) -> None:
    definition = definition_of(custom_kind(f"{unique('library')}.example"))
    del definition["spec"]["versions"][0]["schema"]
    with pytest.raises(Invalid):
        await cluster.create(CRDS, definition)
