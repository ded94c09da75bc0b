"""The kinds that kube-scheduler follows beside pods and nodes, and the Events that it writes.

Each is made in the smallest form that a server takes, gets the defaults on which kube-scheduler relies, and is found.
"""

from contextlib import suppress
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, Invalid, Json, MergePatch, NotFound, Selection, StrategicPatch
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.release import OLDEST, Release
from carrel.kubernetes.objects.resources import EVENTS, Resource
from tests.contracts.backends import unique

CLAIMS: Resource[Any] = Resource(Object, "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NEW_EVENTS: Resource[Any] = Resource(Object, "events.k8s.io", "v1", "events", "Event")
NEW: dict[str, Release] = {"DeviceTaintRule": (1, 37)}
"""Kinds that older servers do not have in this version, and since when it is there."""
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}


def of_cluster(group: str, plural: str, kind: str) -> Resource[Any]:
    return Resource(Object, group, "v1", plural, kind, namespaced=False)


@pytest.mark.parametrize(
    ("kind", "body", "defaults"),
    [
        pytest.param(
            CLAIMS,
            {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
            {"spec": {"volumeMode": "Filesystem"}, "status": {"phase": "Pending"}},
            id="PersistentVolumeClaim",
        ),
        pytest.param(
            of_cluster("", "persistentvolumes", "PersistentVolume"),
            {
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": "/nowhere"},
                }
            },
            {"spec": {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"}},
            id="PersistentVolume",
        ),
        pytest.param(
            Resource(Object, "", "v1", "replicationcontrollers", "ReplicationController"),
            {"spec": {"template": TEMPLATE}},
            {"metadata": {"labels": {"app": "web"}}, "spec": {"replicas": 1, "selector": {"app": "web"}}},
            id="ReplicationController",
        ),
        pytest.param(
            of_cluster("storage.k8s.io", "storageclasses", "StorageClass"),
            {"provisioner": "library.example/shelf"},
            {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
            id="StorageClass",
        ),
        pytest.param(
            of_cluster("storage.k8s.io", "volumeattachments", "VolumeAttachment"),
            {"spec": {"attacher": "shelf.example", "nodeName": "n1", "source": {"persistentVolumeName": "v1"}}},
            {"status": {"attached": False}},
            id="VolumeAttachment",
        ),
        pytest.param(
            of_cluster("storage.k8s.io", "csidrivers", "CSIDriver"),
            {"spec": {}},
            {"spec": {"attachRequired": True, "storageCapacity": False, "volumeLifecycleModes": ["Persistent"]}},
            id="CSIDriver",
        ),
        pytest.param(
            of_cluster("storage.k8s.io", "csinodes", "CSINode"),
            {"spec": {"drivers": [{"name": "shelf.example", "nodeID": "1"}]}},
            {},
            id="CSINode",
        ),
        pytest.param(
            Resource(Object, "storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"),
            {"storageClassName": "shelf", "capacity": "10Gi"},
            {},
            id="CSIStorageCapacity",
        ),
        pytest.param(
            Resource(Object, "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim"),
            {"spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu.example"}}]}}},
            {
                "spec": {
                    "devices": {
                        "requests": [
                            {
                                "name": "one",
                                "exactly": {
                                    "deviceClassName": "gpu.example",
                                    "allocationMode": "ExactCount",
                                    "count": 1,
                                },
                            }
                        ]
                    }
                }
            },
            id="ResourceClaim",
        ),
        pytest.param(
            of_cluster("resource.k8s.io", "resourceslices", "ResourceSlice"),
            {
                "spec": {
                    "driver": "gpu.example",
                    "nodeName": "n1",
                    "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "A6000"}}}],
                }
            },
            {"metadata": {"generation": 1}},
            id="ResourceSlice",
        ),
        pytest.param(
            of_cluster("resource.k8s.io", "deviceclasses", "DeviceClass"),
            {"spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example"'}}]}},
            {"metadata": {"generation": 1}},
            id="DeviceClass",
        ),
        pytest.param(
            of_cluster("resource.k8s.io", "devicetaintrules", "DeviceTaintRule"),
            {
                "spec": {
                    "deviceSelector": {"driver": "gpu.example"},
                    "taint": {"key": "library.example/ill", "effect": "NoSchedule"},
                }
            },
            {"metadata": {"generation": 1}},
            id="DeviceTaintRule",
        ),
    ],
)
async def test_it_is_made_with_defaults_and_found(
    cluster: Client, namespace: str, kind: Resource[Any], body: Json, defaults: Json
) -> None:
    name = f"{unique('contract')}.example"
    where = namespace if kind.namespaced else ""
    full = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, **body}
    if await cluster.release() < NEW.get(kind.kind, OLDEST):
        with pytest.raises(NotFound):
            await cluster.create(kind, full, where)
        return
    try:
        made = await cluster.create(kind, full, where)
        _has(made, body)
        _has(made, defaults)
        page = await cluster.list(kind, Selection(where, fields=f"metadata.name={name}"))
        assert [item.metadata.name for item in page.items] == [name]
        labelled = await cluster.patch(kind, name, MergePatch({"metadata": {"labels": {"a": "b"}}}), where)
        assert labelled["metadata"]["labels"]["a"] == "b"
    finally:
        with suppress(ClusterError):
            await cluster.delete(kind, name, where)


def _has(made: Any, expected: Any) -> None:
    """All that is expected is there; a server may add more."""
    if isinstance(expected, dict):
        for field, value in expected.items():
            assert field in made, (field, made)
            _has(made[field], value)
    elif isinstance(expected, list):
        assert len(made) == len(expected)
        for one, other in zip(made, expected, strict=True):
            _has(one, other)
    else:
        assert made == expected


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        pytest.param(CLAIMS, {"spec": {"accessModes": ["ReadWriteOnce"]}}, "spec.resources", id="a claim of no size"),
        pytest.param(
            of_cluster("storage.k8s.io", "storageclasses", "StorageClass"), {}, "provisioner", id="no provisioner"
        ),
        pytest.param(
            Resource(Object, "", "v1", "replicationcontrollers", "ReplicationController"),
            {"spec": {"selector": {"app": "web"}}},
            "spec.template",
            id="no template",
        ),
    ],
)
async def test_what_lacks_its_main_part_is_refused(
    cluster: Client, namespace: str, kind: Resource[Any], body: Json, field: str
) -> None:
    full = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": unique("contract")}, **body}
    with pytest.raises(Invalid) as refused:
        await cluster.create(kind, full, namespace if kind.namespaced else "")
    assert refused.value.status == 422
    assert any(cause["field"].startswith(field) for cause in refused.value.details["causes"])


def an_event(namespace: str, **fields: Any) -> Json:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "told"},
        "eventTime": "2026-11-16T10:00:00.000000Z",
        "reportingController": "gpu-scheduler",
        "reportingInstance": "gpu-scheduler-1",
        "action": "Scheduler",
        "reason": "FailedScheduling",
        "regarding": {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": "train"},
        "note": "0/1 nodes are available",
        "type": "Warning",
        **fields,
    }


async def test_an_event_of_the_new_group_is_an_event_of_the_core_group(cluster: Client, namespace: str) -> None:
    await cluster.create(NEW_EVENTS, an_event(namespace), namespace)
    old = await cluster.get(EVENTS, "told", namespace)
    assert (old["apiVersion"], old["message"], old["reason"]) == ("v1", "0/1 nodes are available", "FailedScheduling")
    assert (old["involvedObject"]["name"], old["reportingComponent"]) == ("train", "gpu-scheduler")
    assert "note" not in old


async def test_an_event_of_the_core_group_is_an_event_of_the_new_group(cluster: Client, namespace: str) -> None:
    about = {"kind": "Pod", "namespace": namespace, "name": "train"}
    body = {"metadata": {"name": "told"}, "involvedObject": about, "reason": "Waits", "message": "no room", "count": 2}
    await cluster.create(EVENTS, {"apiVersion": "v1", "kind": "Event", **body}, namespace)
    new = await cluster.get(NEW_EVENTS, "told", namespace)
    assert (new["apiVersion"], new["note"], new["regarding"]["name"]) == ("events.k8s.io/v1", "no room", "train")
    assert (new["deprecatedCount"], "message" in new) == (2, False)


async def test_an_event_of_the_new_group_is_repeated_by_a_patch_of_its_series(cluster: Client, namespace: str) -> None:
    await cluster.create(NEW_EVENTS, an_event(namespace), namespace)
    series = {"count": 3, "lastObservedTime": "2026-11-16T10:05:00.000000Z"}
    await cluster.patch(NEW_EVENTS, "told", StrategicPatch({"series": series}), namespace)
    assert (await cluster.get(EVENTS, "told", namespace))["series"]["count"] == 3


async def test_nothing_else_of_it_changes(cluster: Client, namespace: str) -> None:
    await cluster.create(NEW_EVENTS, an_event(namespace), namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.patch(NEW_EVENTS, "told", MergePatch({"note": "something else"}), namespace)
    assert [cause["field"] for cause in refused.value.details["causes"]] == ["message"]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        pytest.param({"eventTime": None}, "eventTime", id="no time"),
        pytest.param({"action": ""}, "action", id="nothing was done"),
        pytest.param({"reportingInstance": ""}, "reportingInstance", id="nobody says it"),
        pytest.param({"type": "Rumour"}, "type", id="neither normal nor a warning"),
        pytest.param({"note": "x" * 1025}, "message", id="too long"),
        pytest.param({"deprecatedCount": 2}, "count", id="an old word"),
        pytest.param({"series": {"count": 1, "lastObservedTime": None}}, "series.count", id="a series of one"),
    ],
)
async def test_an_event_of_the_new_group_owes_more(cluster: Client, namespace: str, fields: Json, wrong: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(NEW_EVENTS, an_event(namespace, **fields), namespace)
    assert wrong in [cause["field"] for cause in refused.value.details["causes"]]


async def test_events_are_selected_by_what_they_are_about(cluster: Client, namespace: str) -> None:
    await cluster.create(NEW_EVENTS, an_event(namespace), namespace)
    for kind, field in ((NEW_EVENTS, "regarding.name"), (EVENTS, "involvedObject.name")):
        page = await cluster.list(kind, Selection(namespace, fields=f"{field}=train"))
        assert [item.metadata.name for item in page.items] == ["told"]
        page = await cluster.list(kind, Selection(namespace, fields=f"{field}=other"))
        assert list(page.items) == []
