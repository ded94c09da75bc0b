"""The scenario with the official Python client."""

from __future__ import annotations  # The client imports the classes that are named, which takes half a second.

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

from packages.kubernetes_in_memory.tests.conformance.manifests import HOLD, definition, desk, group_of, pod

LIMIT_S = 300


@pytest.fixture
def api(kubeconfig: Path) -> Iterator[client.ApiClient]:
    with config.new_client_from_config(str(kubeconfig)) as made:
        yield made


@pytest.fixture
def core(api: client.ApiClient, unique: str) -> client.CoreV1Api:
    made = client.CoreV1Api(api)
    made.create_namespace({"metadata": {"name": unique}})
    return made


def test_custom_resources(api: client.ApiClient, core: client.CoreV1Api, unique: str) -> None:
    crds = client.ApiextensionsV1Api(api)
    crds.create_custom_resource_definition(definition(unique))
    ready = watch.Watch()
    for event in ready.stream(crds.list_custom_resource_definition, timeout_seconds=LIMIT_S):
        found = event["object"]
        if found.metadata.name == f"desks.{group_of(unique)}" and any(
            one.type == "Established" and one.status == "True"
            for one in (found.status and found.status.conditions) or []
        ):
            ready.stop()
    desks = client.CustomObjectsApi(api)
    where = (group_of(unique), "v1", unique, "desks")
    made = desks.create_namespaced_custom_object(*where, desk(unique))
    assert made["spec"] == {"seats": 1, "floor": "ground"}
    with pytest.raises(ApiException) as refused:
        desks.create_namespaced_custom_object(*where, desk(unique, "bad", seats="many"))
    assert refused.value.status == 422
    assert "spec.seats" in refused.value.body
    desks.patch_namespaced_custom_object_status(*where, "window", {"status": {"reader": "ada"}})
    found = desks.get_namespaced_custom_object(*where, "window")
    assert (found["status"], found["metadata"]["generation"]) == ({"reader": "ada"}, 1)
    crds.delete_custom_resource_definition(f"desks.{group_of(unique)}")


def test_pods(core: client.CoreV1Api, unique: str) -> None:
    made = core.create_namespaced_pod(unique, pod(unique))
    assert made.status.phase == "Pending"
    core.create_namespaced_pod(unique, pod(unique, "other"))
    found = core.list_namespaced_pod(unique, label_selector="app in (train)", field_selector="spec.nodeName=")
    assert [one.metadata.name for one in found.items] == ["train"]
    page = core.list_namespaced_pod(unique, limit=1)
    rest = core.list_namespaced_pod(unique, limit=1, _continue=page.metadata._continue)
    assert [page.items[0].metadata.name, rest.items[0].metadata.name] == ["other", "train"]
    patched = core.patch_namespaced_pod("train", unique, {"metadata": {"labels": {"tier": "a"}}})
    assert patched.metadata.labels == {"app": "train", "tier": "a"}
    core.patch_namespaced_pod("train", unique, [{"op": "remove", "path": "/metadata/labels/tier"}])
    made.metadata.annotations = {"late": "yes"}
    with pytest.raises(ApiException) as refused:
        core.replace_namespaced_pod("train", unique, made)
    assert refused.value.status == 409


def test_binding_and_a_watch(core: client.CoreV1Api, unique: str) -> None:
    made = core.create_namespaced_pod(unique, pod(unique))
    version = made.metadata.resource_version
    body = client.V1Binding(
        metadata=client.V1ObjectMeta(name="train", annotations={"gpu": "0"}),
        target=client.V1ObjectReference(kind="Node", name="n1"),
    )
    binding = threading.Thread(
        target=lambda: core.create_namespaced_pod_binding("train", unique, body, _preload_content=False)
    )
    binding.start()
    stream = watch.Watch()
    for event in stream.stream(core.list_namespaced_pod, unique, resource_version=version, timeout_seconds=LIMIT_S):
        assert (event["type"], event["object"].spec.node_name) == ("MODIFIED", "n1")
        assert event["object"].metadata.annotations["gpu"] == "0"
        stream.stop()
    binding.join()


def test_a_finalizer_delays_a_deletion(core: client.CoreV1Api, unique: str) -> None:
    core.create_namespaced_pod(unique, pod(unique, finalizers=[HOLD]))
    core.delete_namespaced_pod("train", unique)
    assert core.read_namespaced_pod("train", unique).metadata.deletion_timestamp
    core.patch_namespaced_pod("train", unique, {"metadata": {"finalizers": None}})
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_pod("train", unique)
    assert gone.value.status == 404
