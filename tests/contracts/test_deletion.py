"""Deletion: preconditions, finalizers, grace, and what goes with an owner."""

from contextlib import suppress
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import (
    Conflict,
    DeleteOptions,
    Invalid,
    JsonPatch,
    MergePatch,
    NotFound,
    Selection,
    StrategicPatch,
)
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, NAMESPACES, PODS, SERVICES, Resource
from tests.contracts.backends import eventually, unique
from tests.contracts.objects import config_map, lease, owned_by, pod, service

OTHER_UID = "6f2c0f4e-0000-4000-8000-000000000000"
AT_ONCE = DeleteOptions(grace_seconds=0)


async def is_gone(cluster: Client, resource: Resource[Any], name: str, namespace: str = "") -> bool:
    with suppress(NotFound):
        await cluster.get(resource, name, namespace)
        return False
    return True


async def test_a_deleted_object_is_gone(cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    await cluster.delete(CONFIG_MAPS, "one", namespace)
    assert await is_gone(cluster, CONFIG_MAPS, "one", namespace)
    with pytest.raises(NotFound):
        await cluster.delete(CONFIG_MAPS, "one", namespace)


async def test_a_dry_deletion_deletes_nothing(cluster: Client, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    await cluster.delete(CONFIG_MAPS, "one", namespace, how=DeleteOptions(dry_run=True))
    assert await cluster.get(CONFIG_MAPS, "one", namespace) == made


async def test_a_deletion_with_another_uid_is_a_conflict(cluster: Client, namespace: str) -> None:
    made = await cluster.create(LEASES, lease("lock"), namespace)
    with pytest.raises(Conflict):
        await cluster.delete(LEASES, "lock", namespace, how=DeleteOptions(uid=OTHER_UID))
    assert await cluster.get(LEASES, "lock", namespace) == made
    await cluster.delete(LEASES, "lock", namespace, how=DeleteOptions(uid=made["metadata"]["uid"]))
    assert await is_gone(cluster, LEASES, "lock", namespace)


async def test_a_deletion_of_an_old_version_is_a_conflict(cluster: Client, namespace: str) -> None:
    old = await cluster.create(LEASES, lease("lock"), namespace)
    new = await cluster.update(LEASES, {**old, "spec": {"holderIdentity": "another"}})
    versions = [made["metadata"]["resourceVersion"] for made in (old, new)]
    with pytest.raises(Conflict):
        await cluster.delete(LEASES, "lock", namespace, how=DeleteOptions(resource_version=versions[0]))
    await cluster.delete(LEASES, "lock", namespace, how=DeleteOptions(resource_version=versions[1]))
    assert await is_gone(cluster, LEASES, "lock", namespace)


class TestFinalizers:
    NAME = "carrel.dev/hand-over"

    async def test_a_deleted_object_stays_until_its_finalizer_is_removed(self, cluster: Client, namespace: str) -> None:
        await cluster.create(CONFIG_MAPS, config_map("one", finalizers=[self.NAME]), namespace)
        await cluster.delete(CONFIG_MAPS, "one", namespace)
        going = await cluster.get(CONFIG_MAPS, "one", namespace)
        assert going["metadata"]["deletionTimestamp"]
        await cluster.patch(CONFIG_MAPS, "one", MergePatch({"metadata": {"finalizers": None}}), namespace)
        assert await is_gone(cluster, CONFIG_MAPS, "one", namespace)

    async def test_one_of_two_finalizers_is_enough_to_stay(self, cluster: Client, namespace: str) -> None:
        await cluster.create(CONFIG_MAPS, config_map("one", finalizers=[self.NAME, "carrel.dev/other"]), namespace)
        await cluster.delete(CONFIG_MAPS, "one", namespace)
        for left in (1, 0):
            await cluster.patch(
                CONFIG_MAPS, "one", JsonPatch([{"op": "remove", "path": "/metadata/finalizers/0"}]), namespace
            )
            assert await is_gone(cluster, CONFIG_MAPS, "one", namespace) is (left == 0)

    async def test_an_object_that_is_being_deleted_gets_no_new_finalizer(self, cluster: Client, namespace: str) -> None:
        await cluster.create(CONFIG_MAPS, config_map("one", finalizers=[self.NAME]), namespace)
        await cluster.delete(CONFIG_MAPS, "one", namespace)
        with pytest.raises(Invalid) as refused:
            await cluster.patch(
                CONFIG_MAPS,
                "one",
                MergePatch({"metadata": {"finalizers": [self.NAME, "carrel.dev/late"]}}),
                namespace,
            )
        assert refused.value.status == 422
        await cluster.patch(CONFIG_MAPS, "one", MergePatch({"metadata": {"finalizers": None}}), namespace)

    async def test_the_moment_of_deletion_cannot_be_taken_back(self, cluster: Client, namespace: str) -> None:
        await cluster.create(CONFIG_MAPS, config_map("one", finalizers=[self.NAME]), namespace)
        await cluster.delete(CONFIG_MAPS, "one", namespace)
        going = await cluster.get(CONFIG_MAPS, "one", namespace)
        stamp = going["metadata"].pop("deletionTimestamp")
        going["data"] = {"colour": "blue"}
        assert (await cluster.update(CONFIG_MAPS, going))["metadata"]["deletionTimestamp"] == stamp
        await cluster.patch(CONFIG_MAPS, "one", MergePatch({"metadata": {"finalizers": None}}), namespace)


class TestAPod:
    async def test_without_a_node_is_deleted_at_once(self, cluster: Client, namespace: str) -> None:
        await cluster.create(PODS, pod("one"), namespace)
        await cluster.delete(PODS, "one", namespace)
        assert await is_gone(cluster, PODS, "one", namespace)

    async def test_on_a_node_has_its_grace_period(self, cluster: Client, namespace: str) -> None:
        spec = {"nodeName": unique("node"), "terminationGracePeriodSeconds": 7}
        await cluster.create(PODS, pod("one", spec=spec), namespace)
        await cluster.delete(PODS, "one", namespace)
        going = await cluster.get(PODS, "one", namespace)
        assert going["metadata"]["deletionGracePeriodSeconds"] == 7
        assert going["metadata"]["deletionTimestamp"] > going["metadata"]["creationTimestamp"]
        [seen] = (await cluster.list(PODS, Selection(namespace))).items
        assert seen.metadata.deletion_timestamp == going["metadata"]["deletionTimestamp"]
        await cluster.delete(PODS, "one", namespace, how=AT_ONCE)
        assert await is_gone(cluster, PODS, "one", namespace)

    async def test_the_grace_period_can_be_given(self, cluster: Client, namespace: str) -> None:
        await cluster.create(PODS, pod("one", spec={"nodeName": unique("node")}), namespace)
        going = await cluster.delete(PODS, "one", namespace, how=DeleteOptions(grace_seconds=3))
        assert going["metadata"]["deletionGracePeriodSeconds"] == 3
        await cluster.delete(PODS, "one", namespace, how=AT_ONCE)

    async def test_the_grace_period_can_become_shorter_but_not_longer(self, cluster: Client, namespace: str) -> None:
        await cluster.create(PODS, pod("one", spec={"nodeName": unique("node")}), namespace)
        for asked, given in ((2**62, 2**62), (20, 20), (5, 5), (60, 5)):  # the first is longer than all years
            going = await cluster.delete(PODS, "one", namespace, how=DeleteOptions(grace_seconds=asked))
            assert going["metadata"]["deletionGracePeriodSeconds"] == given
        await cluster.delete(PODS, "one", namespace, how=AT_ONCE)


async def collector_knows(cluster: Client, resource: Resource[Any], namespace: str) -> None:
    """Wait until the garbage collector knows what was created so far. On a real cluster it learns of objects from
    watches: an owner that goes before is gone without what it owns. It takes objects one after the other, so one that
    is created later tells, if its owner never existed: the collector deletes it."""
    make = {LEASES: lease, SERVICES: service}[resource]
    nobody = owned_by(config_map("nobody", uid=OTHER_UID))
    await cluster.create(resource, make("later", ownerReferences=nobody), namespace)
    assert await eventually(lambda: is_gone(cluster, resource, "later", namespace))


class TestOwners:
    async def test_dependents_are_deleted_after_their_owner(self, cluster: Client, namespace: str) -> None:
        owner = await cluster.create(CONFIG_MAPS, config_map("owner"), namespace)
        await cluster.create(LEASES, lease("owned", ownerReferences=owned_by(owner)), namespace)
        await cluster.create(LEASES, lease("free"), namespace)
        await cluster.delete(CONFIG_MAPS, "owner", namespace)
        assert await eventually(lambda: is_gone(cluster, LEASES, "owned", namespace))
        assert not await is_gone(cluster, LEASES, "free", namespace)

    async def test_an_orphan_stays_without_its_owner(self, cluster: Client, namespace: str) -> None:
        owner = await cluster.create(CONFIG_MAPS, config_map("owner"), namespace)
        await cluster.create(LEASES, lease("owned", ownerReferences=owned_by(owner)), namespace)
        await collector_knows(cluster, LEASES, namespace)
        await cluster.delete(CONFIG_MAPS, "owner", namespace, how=DeleteOptions(propagation="Orphan"))
        assert await eventually(lambda: is_gone(cluster, CONFIG_MAPS, "owner", namespace))
        assert "ownerReferences" not in (await cluster.get(LEASES, "owned", namespace))["metadata"]

    async def test_what_a_pod_owns_becomes_an_orphan_while_the_pod_is_still_ending(
        self, cluster: Client, namespace: str
    ) -> None:
        owner = await cluster.create(PODS, pod("owner", spec={"nodeName": unique("node")}), namespace)
        await cluster.create(SERVICES, service("owned", ownerReferences=owned_by(owner)), namespace)
        await collector_knows(cluster, SERVICES, namespace)
        going = await cluster.delete(
            PODS, "owner", namespace, how=DeleteOptions(grace_seconds=300, propagation="Orphan")
        )
        assert going["metadata"]["deletionGracePeriodSeconds"] == 300

        async def is_orphan() -> bool:
            return "ownerReferences" not in (await cluster.get(SERVICES, "owned", namespace))["metadata"]

        assert await eventually(is_orphan)
        assert (await cluster.get(PODS, "owner", namespace))["metadata"]["deletionGracePeriodSeconds"] == 300
        await cluster.delete(
            PODS, "owner", namespace, how=AT_ONCE
        )  # as the kubelet does, with no word about dependents
        assert await eventually(lambda: is_gone(cluster, PODS, "owner", namespace))
        assert not await is_gone(cluster, SERVICES, "owned", namespace)

    async def test_an_orphan_that_gets_its_dead_owner_back_is_deleted(self, cluster: Client, namespace: str) -> None:
        owner = await cluster.create(CONFIG_MAPS, config_map("owner"), namespace)
        made = await cluster.create(SERVICES, service("owned", ownerReferences=owned_by(owner)), namespace)
        await collector_knows(cluster, SERVICES, namespace)
        await cluster.delete(CONFIG_MAPS, "owner", namespace, how=DeleteOptions(propagation="Orphan"))
        assert await eventually(lambda: is_gone(cluster, CONFIG_MAPS, "owner", namespace))
        again = {"metadata": {"uid": made["metadata"]["uid"], "ownerReferences": owned_by(owner)}}
        await cluster.patch(SERVICES, "owned", StrategicPatch(again), namespace)
        assert await eventually(lambda: is_gone(cluster, SERVICES, "owned", namespace))

    async def test_an_owner_is_added_to_others(self, cluster: Client, namespace: str) -> None:
        first, second = [await cluster.create(CONFIG_MAPS, config_map(name), namespace) for name in ("one", "two")]
        made = await cluster.create(SERVICES, service("owned", ownerReferences=owned_by(first)), namespace)
        for _ in range(2):
            owner = {**owned_by(second)[0], "controller": False}
            added = {"metadata": {"uid": made["metadata"]["uid"], "ownerReferences": [owner]}}
            await cluster.patch(SERVICES, "owned", StrategicPatch(added), namespace)
        owners = (await cluster.get(SERVICES, "owned", namespace))["metadata"]["ownerReferences"]
        assert {each["uid"] for each in owners} == {each["metadata"]["uid"] for each in (first, second)}
        other = {"metadata": {"uid": OTHER_UID, "labels": {"colour": "red"}}}
        with pytest.raises(Conflict):
            await cluster.patch(SERVICES, "owned", StrategicPatch(other), namespace)

    async def test_in_the_foreground_the_owner_waits_for_its_dependents(self, cluster: Client, namespace: str) -> None:
        owner = await cluster.create(CONFIG_MAPS, config_map("owner"), namespace)
        body = lease("owned", ownerReferences=owned_by(owner), finalizers=["carrel.dev/hand-over"])
        await cluster.create(LEASES, body, namespace)
        await collector_knows(cluster, LEASES, namespace)
        await cluster.delete(CONFIG_MAPS, "owner", namespace, how=DeleteOptions(propagation="Foreground"))
        going = await cluster.get(CONFIG_MAPS, "owner", namespace)
        assert going["metadata"]["deletionTimestamp"]
        assert "foregroundDeletion" in going["metadata"]["finalizers"]

        async def is_owned_going() -> bool:
            return "deletionTimestamp" in (await cluster.get(LEASES, "owned", namespace))["metadata"]

        assert await eventually(is_owned_going)
        assert not await is_gone(cluster, CONFIG_MAPS, "owner", namespace)
        await cluster.patch(LEASES, "owned", MergePatch({"metadata": {"finalizers": None}}), namespace)
        assert await eventually(lambda: is_gone(cluster, CONFIG_MAPS, "owner", namespace))

    async def test_an_owner_that_never_existed_does_not_keep_its_dependents(
        self, cluster: Client, namespace: str
    ) -> None:
        owner = await cluster.create(CONFIG_MAPS, config_map("owner"), namespace)
        owner["metadata"]["uid"] = OTHER_UID
        await cluster.create(LEASES, lease("owned", ownerReferences=owned_by(owner)), namespace)
        assert await eventually(lambda: is_gone(cluster, LEASES, "owned", namespace))


async def test_deleting_a_namespace_deletes_its_content(cluster: Client, namespace: str) -> None:
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace)
    await cluster.create(PODS, pod("one"), namespace)
    await cluster.delete(NAMESPACES, namespace)
    assert await eventually(lambda: is_gone(cluster, NAMESPACES, namespace))
    assert await is_gone(cluster, CONFIG_MAPS, "one", namespace)
    assert await is_gone(cluster, PODS, "one", namespace)
