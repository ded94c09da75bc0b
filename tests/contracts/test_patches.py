"""The four ways to change a part of an object."""

from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Apply, Conflict, Invalid, Json, JsonPatch, MergePatch, NotFound, StrategicPatch
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, PODS, Resource
from tests.contracts.objects import config_map, desk, lease, pod

OTHER_UID = "6f2c0f4e-0000-4000-8000-000000000000"


async def test_a_json_patch_is_applied_in_order(cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("one", {"a": "1", "b": "2"}), namespace)
    patched = await cluster.patch(
        CONFIG_MAPS,
        "one",
        JsonPatch(
            [
                {"op": "test", "path": "/data/a", "value": "1"},
                {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
                {"op": "add", "path": "/metadata/labels/carrel.dev~1tier", "value": "booked"},
                {"op": "move", "from": "/data/a", "path": "/data/c"},
                {"op": "replace", "path": "/data/b", "value": "3"},
            ]
        ),
        namespace,
    )
    assert patched["data"] == {"b": "3", "c": "1"}
    assert patched["metadata"]["labels"] == {"x": "y", "carrel.dev/tier": "booked"}


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "test", "path": "/data/colour", "value": "blue"}, id="a test that does not hold"),
        pytest.param({"op": "remove", "path": "/data/missing"}, id="removing what is not there"),
    ],
)
async def test_a_json_patch_that_does_not_fit_changes_nothing(cluster: Client, namespace: str, operation: Json) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    first = {"op": "add", "path": "/data/size", "value": "big"}
    with pytest.raises(Invalid) as refused:
        await cluster.patch(CONFIG_MAPS, "one", JsonPatch([first, operation]), namespace)
    assert refused.value.status == 422
    assert await cluster.get(CONFIG_MAPS, "one", namespace) == made


async def test_a_merge_patch_sets_and_removes_keys(cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("one", {"a": "1", "b": "2"}, labels={"keep": "me"}), namespace)
    patched = await cluster.patch(
        CONFIG_MAPS, "one", MergePatch({"metadata": {"labels": {"new": "x"}}, "data": {"a": None, "c": "3"}}), namespace
    )
    assert patched["data"] == {"b": "2", "c": "3"}
    assert patched["metadata"]["labels"] == {"keep": "me", "new": "x"}


async def test_a_merge_patch_replaces_lists(cluster: Client, namespace: str, desks: Resource[Any]) -> None:
    await cluster.create(desks, desk(desks, "d1", {"seats": 1, "lamps": ["left", "right"]}), namespace)
    patched = await cluster.patch(desks, "d1", MergePatch({"spec": {"lamps": ["top"]}}), namespace)
    assert patched["spec"] == {"seats": 1, "lamps": ["top"], "floor": "ground"}


@pytest.mark.parametrize("precondition", ["resourceVersion", "uid"])
async def test_a_precondition_in_a_merge_patch_must_hold(cluster: Client, namespace: str, precondition: str) -> None:
    old = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    new = await cluster.patch(CONFIG_MAPS, "one", MergePatch({"data": {"colour": "blue"}}), namespace)
    wrong = {"resourceVersion": old["metadata"]["resourceVersion"], "uid": OTHER_UID}[precondition]
    patch = {"metadata": {precondition: wrong}, "data": {"colour": "green"}}
    with pytest.raises(Conflict):
        await cluster.patch(CONFIG_MAPS, "one", MergePatch(patch), namespace)
    assert await cluster.get(CONFIG_MAPS, "one", namespace) == new
    patch["metadata"] = {precondition: new["metadata"][precondition]}
    patched = await cluster.patch(CONFIG_MAPS, "one", MergePatch(patch), namespace)
    assert patched["data"] == {"colour": "green"}


async def test_a_patch_that_changes_nothing_keeps_the_version(cluster: Client, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    again = await cluster.patch(CONFIG_MAPS, "one", MergePatch({"data": {"colour": "red"}}), namespace)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_patch_cannot_rename(cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    with pytest.raises(Invalid):
        await cluster.patch(CONFIG_MAPS, "one", MergePatch({"metadata": {"name": "two"}}), namespace)


async def test_a_strategic_patch_merges_conditions_by_their_type(cluster: Client, namespace: str) -> None:
    await cluster.create(PODS, pod("one"), namespace)
    for kind in ("Ready", "carrel.dev/Placed"):
        patch = {"status": {"conditions": [{"type": kind, "status": "False", "reason": "Waiting"}]}}
        await cluster.patch(PODS, "one", StrategicPatch(patch), namespace, subresource="status")
    patch = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    patched = await cluster.patch(PODS, "one", StrategicPatch(patch), namespace, subresource="status")
    conditions = {c["type"]: (c["status"], c["reason"]) for c in patched["status"]["conditions"]}
    assert conditions == {"Ready": ("True", "Waiting"), "carrel.dev/Placed": ("False", "Waiting")}


async def test_a_strategic_patch_merges_annotations(cluster: Client, namespace: str) -> None:
    await cluster.create(PODS, pod("one", annotations={"a": "1", "b": "2"}), namespace)
    patch = {"metadata": {"annotations": {"a": None, "c": "3"}}}
    patched = await cluster.patch(PODS, "one", StrategicPatch(patch), namespace)
    assert patched["metadata"]["annotations"] == {"b": "2", "c": "3"}


async def test_a_custom_resource_takes_no_strategic_patch(
    cluster: Client, namespace: str, desks: Resource[Any]
) -> None:
    await cluster.create(desks, desk(desks, "d1"), namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.patch(desks, "d1", StrategicPatch({"spec": {"seats": 2}}), namespace)
    assert (refused.value.status, refused.value.reason) == (415, "UnsupportedMediaType")


async def test_a_patch_of_what_does_not_exist_creates_nothing(cluster: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await cluster.patch(CONFIG_MAPS, "one", MergePatch({"data": {"a": "1"}}), namespace)


async def test_a_patched_object_is_checked(cluster: Client, namespace: str) -> None:
    made = await cluster.create(LEASES, lease("lock"), namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.patch(LEASES, "lock", MergePatch({"spec": {"leaseDurationSeconds": -1}}), namespace)
    assert refused.value.status == 422
    assert await cluster.get(LEASES, "lock", namespace) == made


async def test_a_dry_patch_changes_nothing(cluster: Client, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    shown = await cluster.patch(CONFIG_MAPS, "one", MergePatch({"data": {"a": "1"}}), namespace, dry_run=True)
    assert shown["data"] == {"colour": "red", "a": "1"}
    assert await cluster.get(CONFIG_MAPS, "one", namespace) == made


class TestServerSideApply:
    async def test_creates_what_does_not_exist(self, cluster: Client, namespace: str) -> None:
        made = await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one"), "carrel"), namespace)
        assert made["data"] == {"colour": "red"}
        assert [(f["manager"], f["operation"]) for f in made["metadata"]["managedFields"]] == [("carrel", "Apply")]

    async def test_removes_what_the_manager_no_longer_wants(self, cluster: Client, namespace: str) -> None:
        await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one", {"a": "1", "b": "2"}), "carrel"), namespace)
        patched = await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one", {"a": "1"}), "carrel"), namespace)
        assert patched["data"] == {"a": "1"}

    async def test_leaves_what_others_set(self, cluster: Client, namespace: str) -> None:
        await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one", {"a": "1"}), "carrel"), namespace)
        await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one", {"b": "2"}), "somebody"), namespace)
        patched = await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one", {"a": "3"}), "carrel"), namespace)
        assert patched["data"] == {"a": "3", "b": "2"}

    async def test_two_managers_who_want_different_values_are_in_conflict(
        self, cluster: Client, namespace: str
    ) -> None:
        await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one", {"a": "1"}), "somebody"), namespace)
        ours = config_map("one", {"a": "2"})
        with pytest.raises(Conflict) as refused:
            await cluster.patch(CONFIG_MAPS, "one", Apply(ours, "carrel"), namespace)
        assert [cause["field"] for cause in refused.value.details["causes"]] == [".data.a"]
        forced = await cluster.patch(CONFIG_MAPS, "one", Apply(ours, "carrel", force=True), namespace)
        assert forced["data"] == {"a": "2"}

    async def test_applying_the_same_twice_keeps_the_version(self, cluster: Client, namespace: str) -> None:
        first = await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one"), "carrel"), namespace)
        again = await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one"), "carrel"), namespace)
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]

    async def test_an_update_may_say_that_no_field_has_a_manager(self, cluster: Client, namespace: str) -> None:
        await cluster.patch(CONFIG_MAPS, "one", Apply(config_map("one", {"a": "1"}), "carrel"), namespace)
        reset = config_map("one", {"a": "2"})
        reset["metadata"] |= {"namespace": namespace, "managedFields": [{}]}
        assert not (await cluster.update(CONFIG_MAPS, reset))["metadata"].get("managedFields")
        later = await cluster.patch(CONFIG_MAPS, "one", MergePatch({"data": {"a": "3"}}), namespace)
        assert later["data"] == {"a": "3"}
        assert not later["metadata"].get("managedFields")
