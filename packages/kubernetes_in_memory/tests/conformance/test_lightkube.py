"""The scenario with lightkube."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lightkube import ApiError, Client, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod
from lightkube.types import PatchType

from packages.kubernetes_in_memory.tests.conformance.manifests import HOLD, definition, desk, group_of, pod


@pytest.fixture
def api(kubeconfig: Path, unique: str) -> Iterator[Client]:
    client = Client(config=KubeConfig.from_file(kubeconfig), namespace=unique, field_manager="conformance")
    client.create(Namespace(metadata=ObjectMeta(name=unique)))
    yield client


def test_custom_resources(api: Client, unique: str) -> None:
    api.create(CustomResourceDefinition.from_dict(definition(unique)))
    api.wait(CustomResourceDefinition, f"desks.{group_of(unique)}", for_conditions=["Established"])
    desks = create_namespaced_resource(group_of(unique), "v1", "Desk", "desks")
    made = api.create(desks.from_dict(desk(unique)))
    assert made["spec"] == {"seats": 1, "floor": "ground"}
    with pytest.raises(ApiError) as refused:
        api.create(desks.from_dict(desk(unique, "bad", floor="roof")))
    assert refused.value.status.code == 422
    assert refused.value.status.details.causes[0].field == "spec.floor"
    assert [one.metadata.name for one in api.list(desks)] == ["window"]
    api.delete(CustomResourceDefinition, f"desks.{group_of(unique)}")


def test_all_four_patches(api: Client, unique: str) -> None:
    api.create(Pod.from_dict(pod(unique)))
    api.patch(Pod, "train", {"metadata": {"labels": {"a": "strategic"}}}, patch_type=PatchType.STRATEGIC)
    api.patch(Pod, "train", {"metadata": {"labels": {"b": "merge"}}}, patch_type=PatchType.MERGE)
    operations = [{"op": "add", "path": "/metadata/labels/c", "value": "json"}]
    api.patch(Pod, "train", operations, patch_type=PatchType.JSON)
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "labels": {"d": "apply"}}}
    patched = api.patch(Pod, "train", applied, patch_type=PatchType.APPLY)
    assert patched.metadata.labels == {"app": "train", "a": "strategic", "b": "merge", "c": "json", "d": "apply"}


def test_apply_creates_and_changes(api: Client, unique: str) -> None:
    first = api.apply(ConfigMap(metadata=ObjectMeta(name="one", namespace=unique), data={"colour": "red", "size": "s"}))
    second = api.apply(ConfigMap(metadata=ObjectMeta(name="one", namespace=unique), data={"colour": "blue"}))
    assert (first.data, second.data) == ({"colour": "red", "size": "s"}, {"colour": "blue"})


def test_a_stale_update_is_a_conflict(api: Client, unique: str) -> None:
    lease = api.create(
        Lease.from_dict({"metadata": {"name": "lock", "namespace": unique}, "spec": {"holderIdentity": "ada"}})
    )
    lease.spec.holderIdentity = "bob"
    api.replace(lease)
    lease.spec.holderIdentity = "eve"
    with pytest.raises(ApiError) as refused:
        api.replace(lease)
    assert refused.value.status.reason == "Conflict"


def test_a_watch_sees_a_deletion_with_its_finalizer(api: Client, unique: str) -> None:
    made = api.create(Pod.from_dict(pod(unique, finalizers=[HOLD])))
    assert made.metadata is not None
    api.delete(Pod, "train")
    api.patch(Pod, "train", {"metadata": {"finalizers": None}}, patch_type=PatchType.MERGE)
    seen = []
    for change, found in api.watch(Pod, resource_version=made.metadata.resourceVersion, server_timeout=30):
        seen.append((change, bool(found.metadata.deletionTimestamp)))
        if change == "DELETED":
            break
    assert seen[0] == ("MODIFIED", True)
    assert seen[-1][0] == "DELETED"
