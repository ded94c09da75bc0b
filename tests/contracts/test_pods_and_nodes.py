"""What only pods and nodes have: binding, eviction and their status."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import (
    BindTarget,
    Conflict,
    DeleteOptions,
    Json,
    JsonPatch,
    MergePatch,
    NotFound,
    Selection,
)
from carrel.kubernetes.objects.resources import NODES, PODS
from tests.contracts.backends import unique
from tests.contracts.objects import pod

OTHER_UID = "6f2c0f4e-0000-4000-8000-000000000000"
AT_ONCE = DeleteOptions(grace_seconds=0)


@pytest.fixture
async def waiting(cluster: Client, namespace: str) -> AsyncIterator[Json]:
    """A pod that waits for a node."""
    made = await cluster.create(PODS, pod("waiting", annotations={"old": "1", "kept": "yes"}), namespace)
    yield made
    with suppress(NotFound):
        await cluster.delete(PODS, "waiting", namespace, how=AT_ONCE)


def target_of(made: Json, node: str = "n1", **annotations: str) -> BindTarget:
    metadata = made["metadata"]
    return BindTarget(metadata["namespace"], metadata["name"], metadata["uid"], node, annotations)


class TestBinding:
    async def test_sets_the_node_and_merges_the_annotations(
        self, cluster: Client, namespace: str, waiting: Json
    ) -> None:
        await cluster.bind(target_of(waiting, "n1", old="2", new="3"))
        bound = await cluster.get(PODS, "waiting", namespace)
        assert bound["spec"]["nodeName"] == "n1"
        assert bound["metadata"]["annotations"] == {"old": "2", "kept": "yes", "new": "3"}
        scheduled = [c["status"] for c in bound["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert scheduled == ["True"]

    async def test_is_one_change(self, cluster: Client, namespace: str, waiting: Json) -> None:
        version = waiting["metadata"]["resourceVersion"]
        async with cluster.watch(PODS, Selection(namespace), resource_version=version) as events:
            await cluster.bind(target_of(waiting, "n1", new="3"))
            await cluster.patch(PODS, "waiting", MergePatch({"metadata": {"labels": {"end": "1"}}}), namespace)
            seen = []
            async with asyncio.timeout(90):
                async for event in events:
                    if event.item is not None:
                        item = event.item
                        annotation = item.metadata.annotations.get("new", "")
                        seen.append((event.change.value, item.spec.node_name, annotation, dict(item.metadata.labels)))
                        if item.metadata.labels:
                            break
        assert seen == [("MODIFIED", "n1", "3", {}), ("MODIFIED", "n1", "3", {"end": "1"})]

    async def test_happens_once(self, cluster: Client, namespace: str, waiting: Json) -> None:
        await cluster.bind(target_of(waiting, "n1", by="first"))
        with pytest.raises(Conflict):
            await cluster.bind(target_of(waiting, "n2", by="second"))
        with pytest.raises(Conflict):
            await cluster.bind(target_of(waiting, "n1", by="second"))
        bound = await cluster.get(PODS, "waiting", namespace)
        assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]["by"]) == ("n1", "first")

    async def test_of_many_at_once_one_wins(self, cluster: Client, namespace: str, waiting: Json) -> None:
        targets = [target_of(waiting, f"n{index}", by=str(index)) for index in range(16)]
        outcomes = await asyncio.gather(*map(cluster.bind, targets), return_exceptions=True)
        winners = [index for index, outcome in enumerate(outcomes) if outcome is None]
        assert len(winners) == 1
        assert all(isinstance(outcome, Conflict) for outcome in outcomes if outcome is not None)
        bound = await cluster.get(PODS, "waiting", namespace)
        assert bound["spec"]["nodeName"] == f"n{winners[0]}"
        assert bound["metadata"]["annotations"]["by"] == str(winners[0])

    async def test_is_for_the_pod_that_was_meant(self, cluster: Client, namespace: str, waiting: Json) -> None:
        stranger = BindTarget(namespace, "waiting", OTHER_UID, "n1", {"new": "3"})
        with pytest.raises(Conflict):
            await cluster.bind(stranger)
        assert await cluster.get(PODS, "waiting", namespace) == waiting

    async def test_of_a_pod_that_does_not_exist_is_not_found(self, cluster: Client, namespace: str) -> None:
        with pytest.raises(NotFound):
            await cluster.bind(BindTarget(namespace, "nobody", OTHER_UID, "n1"))

    async def test_of_a_pod_that_is_going_is_a_conflict(self, cluster: Client, namespace: str) -> None:
        made = await cluster.create(PODS, pod("going", finalizers=["carrel.dev/hand-over"]), namespace)
        await cluster.delete(PODS, "going", namespace)
        with pytest.raises(Conflict):
            await cluster.bind(target_of(made))
        await cluster.patch(PODS, "going", MergePatch({"metadata": {"finalizers": None}}), namespace)


class TestEviction:
    async def test_deletes_the_pod(self, cluster: Client, namespace: str, waiting: Json) -> None:
        await cluster.evict(namespace, "waiting")
        with pytest.raises(NotFound):
            await cluster.get(PODS, "waiting", namespace)

    async def test_gives_a_pod_on_a_node_its_grace(self, cluster: Client, namespace: str, waiting: Json) -> None:
        await cluster.bind(target_of(waiting))
        await cluster.evict(namespace, "waiting", how=DeleteOptions(grace_seconds=9))
        going = await cluster.get(PODS, "waiting", namespace)
        assert going["metadata"]["deletionGracePeriodSeconds"] == 9

    async def test_is_for_the_pod_that_was_meant(self, cluster: Client, namespace: str, waiting: Json) -> None:
        with pytest.raises(Conflict):
            await cluster.evict(namespace, "waiting", how=DeleteOptions(uid=OTHER_UID))
        assert await cluster.get(PODS, "waiting", namespace) == waiting
        await cluster.evict(namespace, "waiting", how=DeleteOptions(uid=waiting["metadata"]["uid"]))

    async def test_of_a_pod_that_does_not_exist_is_not_found(self, cluster: Client, namespace: str) -> None:
        with pytest.raises(NotFound):
            await cluster.evict(namespace, "nobody")

    async def test_a_dry_run_deletes_nothing(self, cluster: Client, namespace: str, waiting: Json) -> None:
        await cluster.evict(namespace, "waiting", how=DeleteOptions(dry_run=True))
        assert await cluster.get(PODS, "waiting", namespace) == waiting


class TestStatus:
    async def test_is_not_changed_by_an_update_of_the_pod(self, cluster: Client, namespace: str, waiting: Json) -> None:
        waiting["status"] = {"phase": "Failed"}
        waiting["metadata"]["labels"] = {"a": "b"}
        updated = await cluster.update(PODS, waiting)
        assert (updated["status"]["phase"], updated["metadata"]["labels"]) == ("Pending", {"a": "b"})

    async def test_is_all_that_its_own_update_changes(self, cluster: Client, namespace: str, waiting: Json) -> None:
        waiting["status"] = {"phase": "Running"}
        waiting["spec"]["activeDeadlineSeconds"] = 60
        updated = await cluster.update(PODS, waiting, subresource="status")
        assert updated["status"]["phase"] == "Running"
        assert "activeDeadlineSeconds" not in updated["spec"]

    async def test_an_update_of_an_old_version_is_a_conflict(
        self, cluster: Client, namespace: str, waiting: Json
    ) -> None:
        await cluster.patch(
            PODS, "waiting", MergePatch({"status": {"phase": "Running"}}), namespace, subresource="status"
        )
        with pytest.raises(Conflict):
            await cluster.update(PODS, {**waiting, "status": {"phase": "Failed"}}, subresource="status")


async def test_a_node_advertises_cards_through_its_status(cluster: Client) -> None:
    name = unique("node")
    await cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:
        capacity = {"aliyun.com/gpu-mem": "32552", "cpu": "8", "memory": "64Gi", "pods": "110"}
        patch = {"status": {"capacity": capacity, "allocatable": capacity}}
        await cluster.patch(NODES, name, MergePatch(patch), subresource="status")
        more = [{"op": "add", "path": "/status/capacity/aliyun.com~1gpu-count", "value": "4"}]
        await cluster.patch(NODES, name, JsonPatch(more), subresource="status")
        await cluster.patch(NODES, name, MergePatch({"spec": {"unschedulable": True}}))
        [seen] = (await cluster.list(NODES, Selection(fields=f"metadata.name={name}"))).items
        assert dict(seen.status.capacity) == capacity | {"aliyun.com/gpu-count": "4"}
        assert dict(seen.status.allocatable) == capacity
        assert seen.spec.unschedulable
    finally:
        await cluster.delete(NODES, name)
