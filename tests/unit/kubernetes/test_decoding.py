"""What is kept of an object, and that no object can make a list fail."""

import json
import logging
from typing import Any

import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.kubernetes.decoding import read_list, reader_of
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import EVENTS, LEASES, PODS, Resource


def read(resource: Resource[Any], document: Any) -> Any:
    return reader_of(resource)(json.dumps(document).encode())


def test_absent_parts_are_empty() -> None:
    pod = read(PODS, {"metadata": {"name": "train"}})
    assert (pod.metadata.name, pod.metadata.labels, pod.metadata.owner_references) == ("train", {}, ())
    assert (pod.spec.node_name, pod.spec.containers, pod.status.phase) == ("", (), "")


def test_fields_of_new_kubernetes_releases_are_read_as_far_as_needed() -> None:
    spec = {
        "schedulingGates": [{"name": "a.example/one"}, {"name": "b.example/two"}],
        "initContainers": [{"name": "viewer", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}],
        "resources": {"limits": {"cpu": "1"}},
        "ephemeralContainers": [{"name": "debug"}],
        "volumes": [{"name": "model", "image": {"reference": "registry.example/model:1"}}],
    }
    status = {
        "nominatedNodeName": "n2",
        "resize": "Deferred",
        "containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "1"}}],
    }
    pod = read(PODS, {"spec": spec, "status": status})
    assert [gate.name for gate in pod.spec.scheduling_gates] == ["a.example/one", "b.example/two"]
    assert [each.restart_policy for each in pod.spec.init_containers] == ["Always"]
    assert pod.spec.node_name == "", "a nomination is none"


def test_two_objects_share_no_map() -> None:
    first, second = read(PODS, {}), read(PODS, {})
    assert first.metadata.labels is not second.metadata.labels


def test_foreign_spellings_are_read() -> None:
    claim = read(
        GPU_CLAIMS,
        {"spec": {"devices": {"count": 2, "memoryMiB": 8138}, "topology": {"minBandwidthGBps": 300}, "gangRef": "g"}},
    )
    assert (claim.spec.devices.count, claim.spec.devices.memory_mib) == (2, 8138)
    assert (claim.spec.topology.min_bandwidth_gbps, claim.spec.gang_ref) == (300, "g")
    node = read(
        GPU_NODE_STATUSES, {"status": {"total": 1, "devices": [{"id": 0, "bandwidthGBps": 600, "inUseBy": ["u"]}]}}
    )
    assert (node.status.devices[0].bandwidth_gbps, node.status.devices[0].in_use_by) == (600, ("u",))
    lease = read(LEASES, {"spec": {"holderIdentity": "u1", "leaseTransitions": 3}})
    assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("u1", 3)


def test_nulls_are_read_as_absent_and_nothing_else_is_lost() -> None:
    event = read(EVENTS, {"metadata": {"name": "e"}, "reason": "NoGpu", "lastTimestamp": None, "involvedObject": None})
    assert (event.metadata.name, event.reason, event.last_timestamp) == ("e", "NoGpu", "")
    pod = read(PODS, {"spec": {"nodeName": "n1", "containers": [None, {"name": "main", "resources": None}]}})
    assert (pod.spec.node_name, [container.name for container in pod.spec.containers]) == ("n1", ["main"])


def test_an_unreadable_object_keeps_its_metadata_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    document = {"metadata": {"name": "c1", "namespace": "lab"}, "spec": {"devices": {"count": "two"}}}
    with caplog.at_level(logging.WARNING):
        claim = read(GPU_CLAIMS, document)
    assert (claim.metadata.name, claim.spec.devices.count) == ("c1", 0)
    assert "lab/c1" in caplog.text
    assert "$.spec.devices.count" in caplog.text


def test_one_unreadable_object_does_not_make_the_list_fail() -> None:
    items = [{"metadata": {"name": "bad"}, "spec": 7}, {"metadata": {"name": "good"}, "spec": {"gangRef": "g"}}]
    body = json.dumps({"metadata": {"resourceVersion": "9", "continue": "abc"}, "items": items}).encode()
    metadata, read_items = read_list(GPU_CLAIMS, body)
    assert (metadata.resource_version, metadata.continue_token) == ("9", "abc")
    assert [(item.metadata.name, item.spec.gang_ref) for item in read_items] == [("bad", ""), ("good", "g")]


def test_an_object_of_a_kind_without_a_class_keeps_its_metadata() -> None:
    unknown: Resource[Any] = Resource(Object, "library.example", "v1", "desks", "Desk")
    desk = read(unknown, {"metadata": {"name": "d1", "uid": "u1"}, "spec": {"seats": 1}})
    assert (desk.metadata.name, desk.metadata.uid) == ("d1", "u1")
