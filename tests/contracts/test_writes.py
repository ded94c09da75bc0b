"""Create, get, update: versions, preconditions, names, dry runs, and what is refused."""

import re
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import AlreadyExists, Conflict, Invalid, Json, NotFound, Selection
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, NAMESPACES, PODS, PRIORITY_CLASSES, Resource
from tests.contracts.backends import unique
from tests.contracts.objects import config_map, desk, lease, pod


async def test_a_created_object_has_a_uid_a_version_and_a_time(cluster: Client, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    metadata = made["metadata"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", metadata["uid"])
    assert metadata["resourceVersion"].isdecimal()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert (metadata["namespace"], made["kind"], made["apiVersion"]) == (namespace, "ConfigMap", "v1")
    assert await cluster.get(CONFIG_MAPS, "one", namespace) == made


async def test_a_name_is_taken_once(cluster: Client, namespace: str) -> None:
    first = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    with pytest.raises(AlreadyExists) as refused:
        await cluster.create(CONFIG_MAPS, config_map("one", {"colour": "blue"}), namespace)
    assert refused.value.details["name"] == "one"
    assert await cluster.get(CONFIG_MAPS, "one", namespace) == first


async def test_a_name_can_be_taken_again_after_deletion_with_another_uid(cluster: Client, namespace: str) -> None:
    first = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    await cluster.delete(CONFIG_MAPS, "one", namespace)
    second = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert int(first["metadata"]["resourceVersion"]) < int(second["metadata"]["resourceVersion"])


async def test_generate_name_makes_different_names(cluster: Client, namespace: str) -> None:
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}}
    names = {(await cluster.create(CONFIG_MAPS, body, namespace))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(re.fullmatch(r"made-[a-z0-9]{5}", name) for name in names)


async def test_what_is_missing_is_named(cluster: Client, namespace: str) -> None:
    with pytest.raises(NotFound) as missing:
        await cluster.get(CONFIG_MAPS, "nothing", namespace)
    assert (missing.value.status, missing.value.reason) == (404, "NotFound")
    assert missing.value.details["name"] == "nothing"
    assert missing.value.details["kind"] == "configmaps"


async def test_a_kind_that_nobody_defined_is_missing(cluster: Client, namespace: str) -> None:
    unknown: Resource[Any] = Resource(Object, "nobody.example", "v1", "things", "Thing")
    with pytest.raises(NotFound):
        await cluster.list(unknown, Selection(namespace))


async def test_nothing_is_created_in_a_namespace_that_does_not_exist(cluster: Client) -> None:
    with pytest.raises(NotFound) as missing:
        await cluster.create(CONFIG_MAPS, config_map("one"), unique("nowhere"))
    assert missing.value.details["kind"] == "namespaces"


async def test_an_update_replaces_and_moves_the_version_on(cluster: Client, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one", {"a": "1", "b": "2"}), namespace)
    made["data"] = {"a": "3"}
    updated = await cluster.update(CONFIG_MAPS, made)
    assert updated["data"] == {"a": "3"}
    assert int(updated["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    for unchanged in ("uid", "creationTimestamp", "name"):
        assert updated["metadata"][unchanged] == made["metadata"][unchanged]


async def test_an_update_that_changes_nothing_keeps_the_version(cluster: Client, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    again = await cluster.update(CONFIG_MAPS, made)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_an_update_of_an_old_version_is_a_conflict(cluster: Client, namespace: str) -> None:
    old = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    new = await cluster.update(CONFIG_MAPS, {**old, "data": {"colour": "blue"}})
    with pytest.raises(Conflict) as refused:
        await cluster.update(CONFIG_MAPS, {**old, "data": {"colour": "green"}})
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert await cluster.get(CONFIG_MAPS, "one", namespace) == new


async def test_an_update_that_names_another_uid_is_a_conflict(cluster: Client, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    other = config_map("one", {"colour": "blue"}, namespace=namespace, uid="6f2c0f4e-0000-4000-8000-000000000000")
    with pytest.raises(Conflict):
        await cluster.update(CONFIG_MAPS, other)
    assert await cluster.get(CONFIG_MAPS, "one", namespace) == made


async def test_an_update_without_a_version_overwrites_what_allows_it(cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    updated = await cluster.update(CONFIG_MAPS, config_map("one", {"colour": "blue"}, namespace=namespace))
    assert updated["data"] == {"colour": "blue"}


async def test_a_lease_is_never_updated_without_a_version(cluster: Client, namespace: str) -> None:
    made = await cluster.create(LEASES, lease("lock"), namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.update(LEASES, lease("lock", "thief", namespace=namespace))
    assert refused.value.details["causes"][0]["field"] == "metadata.resourceVersion"
    assert await cluster.get(LEASES, "lock", namespace) == made


async def test_an_update_of_what_does_not_exist_creates_nothing(cluster: Client, namespace: str) -> None:
    with pytest.raises(NotFound):
        await cluster.update(CONFIG_MAPS, config_map("one", namespace=namespace))
    with pytest.raises(NotFound):
        await cluster.get(CONFIG_MAPS, "one", namespace)


async def test_an_update_that_names_its_uid_does_not_bring_a_deleted_lease_back(
    cluster: Client, namespace: str
) -> None:
    made = await cluster.create(LEASES, lease("lock"), namespace)
    await cluster.delete(LEASES, "lock", namespace)
    with pytest.raises(Conflict):
        await cluster.update(LEASES, made)
    with pytest.raises(NotFound):
        await cluster.get(LEASES, "lock", namespace)


async def test_generation_counts_changes_of_what_is_wanted_only(
    cluster: Client, namespace: str, desks: Resource[Any]
) -> None:
    made = await cluster.create(desks, desk(desks, "d1"), namespace)
    assert made["metadata"]["generation"] == 1
    made["metadata"]["labels"] = {"window": "yes"}
    labelled = await cluster.update(desks, made)
    assert labelled["metadata"]["generation"] == 1
    labelled["spec"]["seats"] = 2
    assert (await cluster.update(desks, labelled))["metadata"]["generation"] == 2


class TestADryRunChangesNothing:
    async def test_create(self, cluster: Client, namespace: str) -> None:
        shown = await cluster.create(CONFIG_MAPS, config_map("one"), namespace, dry_run=True)
        assert shown["metadata"]["uid"]
        with pytest.raises(NotFound):
            await cluster.get(CONFIG_MAPS, "one", namespace)

    async def test_update(self, cluster: Client, namespace: str) -> None:
        made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
        shown = await cluster.update(CONFIG_MAPS, {**made, "data": {"colour": "blue"}}, dry_run=True)
        assert shown["data"] == {"colour": "blue"}
        assert await cluster.get(CONFIG_MAPS, "one", namespace) == made

    async def test_but_says_what_would_be_refused(self, cluster: Client, namespace: str) -> None:
        await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
        with pytest.raises(AlreadyExists):
            await cluster.create(CONFIG_MAPS, config_map("one"), namespace, dry_run=True)


@pytest.mark.parametrize(
    ("resource", "body", "field"),
    [
        pytest.param(CONFIG_MAPS, config_map("Not_A_Name"), "metadata.name", id="a name with capitals"),
        pytest.param(
            CONFIG_MAPS, config_map("one", labels={"a": "not a label!"}), "metadata.labels", id="a label with a blank"
        ),
        pytest.param(
            CONFIG_MAPS, config_map("one", annotations={"a/b/c": ""}), "metadata.annotations", id="two slashes in a key"
        ),
        pytest.param(PODS, pod("one", spec={"containers": []}), "spec.containers", id="a pod without containers"),
        pytest.param(
            LEASES,
            {**lease("one"), "spec": {"leaseDurationSeconds": -1}},
            "spec.leaseDurationSeconds",
            id="a lease that lasts less than nothing",
        ),
    ],
)
async def test_an_invalid_object_is_refused_with_the_field(
    cluster: Client, namespace: str, resource: Resource[Any], body: Json, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(resource, body, namespace)
    assert (refused.value.status, refused.value.reason) == (422, "Invalid")
    assert field in {cause["field"] for cause in refused.value.details["causes"]}


async def test_everything_wrong_is_told_at_once(cluster: Client, namespace: str) -> None:
    wrong = config_map("Not_A_Name", labels={"a": "not a label!"})
    with pytest.raises(Invalid) as refused:
        await cluster.create(CONFIG_MAPS, wrong, namespace)
    assert {"metadata.name", "metadata.labels"} <= {cause["field"] for cause in refused.value.details["causes"]}


async def test_a_pods_containers_cannot_change(cluster: Client, namespace: str) -> None:
    made = await cluster.create(PODS, pod("one"), namespace)
    made["spec"]["containers"][0]["env"] = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]
    with pytest.raises(Invalid) as refused:
        await cluster.update(PODS, made)
    assert refused.value.status == 422


async def test_a_body_of_another_kind_is_refused(cluster: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(CONFIG_MAPS, lease("one"), namespace)
    assert (refused.value.status, refused.value.reason) == (400, "BadRequest")


async def test_a_body_for_another_namespace_is_refused(cluster: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(CONFIG_MAPS, config_map("one", namespace="elsewhere"), namespace)
    assert refused.value.status == 400


async def test_a_namespace_is_active_once_made(cluster: Client, namespace: str) -> None:
    assert (await cluster.get(NAMESPACES, namespace))["status"]["phase"] == "Active"


async def test_a_priority_class_keeps_its_value(cluster: Client) -> None:
    name = unique("booked")
    body: Json = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 7}
    made = await cluster.create(PRIORITY_CLASSES, body)
    try:
        with pytest.raises(Invalid):
            await cluster.update(PRIORITY_CLASSES, {**made, "value": 8})
        page = await cluster.list(PRIORITY_CLASSES, Selection(fields=f"metadata.name={name}"))
        assert [(item.metadata.name, item.value, item.global_default) for item in page.items] == [(name, 7, False)]
    finally:
        await cluster.delete(PRIORITY_CLASSES, name)
