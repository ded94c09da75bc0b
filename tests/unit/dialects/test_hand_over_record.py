"""The record of a hand-over, the mark on a successor, and a pod's manifest without its GPU."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.dialects import hand_over_record
from carrel.dialects.cpu_manifest import on_cpu
from carrel.dialects.hand_over_record import HandedOver, HandOver, HandOverPhase, Why
from carrel.dialects.registry import dialects_of
from carrel.ids import PodUid
from carrel.parsing import Malformed
from tests.kit.objects import config_map, pod, pod_from

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
RECORD = HandOver(
    uid=PodUid("uid-1"),
    pod="lab/train",
    why=Why.REVOKED,
    decided=NOON,
    due=NOON,
    phase=HandOverPhase.ANNOUNCED,
    needed_by="lab/urgent",
    grace_s=30,
    manifest="handover-uid-2-7",
    services={"jupyter-ada": "uid-3"},
    is_withdrawn=True,
)


def test_a_record_is_written_as_the_webhook_and_the_booking_service_read_it() -> None:
    written = hand_over_record.write_record(RECORD, "carrel")

    assert written == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "handover-uid-1", "namespace": "carrel", "labels": {"carrel.dev/handover": "bare"}},
        "data": {
            "pod": "lab/train",
            "why": "revoked",
            "decided": "2026-11-16T12:00:00Z",
            "due": "2026-11-16T12:00:00Z",
            "phase": "announced",
            "for": "lab/urgent",
            "grace": "30",
            "manifest": "handover-uid-2-7",
            "services": '{"jupyter-ada": "uid-3"}',
            "withdrawn": "true",
        },
    }
    assert hand_over_record.read_record(config_map("handover-uid-1", written["data"])) == RECORD


@given(
    st.builds(
        HandOver,
        uid=st.uuids().map(str),
        pod=st.just("lab/train"),
        why=st.sampled_from(Why),
        decided=st.just(NOON),
        due=st.just(NOON),
        phase=st.sampled_from(HandOverPhase),
        needed_by=st.sampled_from(["", "lab/urgent"]),
        owner=st.sampled_from(["", "uid-of-a-job"]),
        grace_s=st.integers(0, 300),
        manifest=st.sampled_from(["", "handover-uid-2-7"]),
        services=st.dictionaries(st.text(), st.text(), max_size=3),
        is_withdrawn=st.booleans(),
        user=st.sampled_from(["", "ada@lab.org"]),
        gone=st.sampled_from([None, NOON]),
    )
)
def test_what_is_written_is_read(record: HandOver) -> None:
    written = hand_over_record.write_record(record, "carrel")

    assert hand_over_record.record_of(written["metadata"]["name"], written["data"]) == record
    assert written["metadata"]["labels"] == {"carrel.dev/handover": "owned" if record.owner else "bare"}


@pytest.mark.parametrize(
    "change",
    [
        {"pod": ""},
        {"why": "tired"},
        {"phase": "later"},
        {"due": "soon"},
        {"decided": ""},
        {"gone": "away"},
    ],
    ids=str,
)
def test_a_record_that_nobody_can_read_is_malformed(change: dict[str, str]) -> None:
    data = {**hand_over_record.write_record(RECORD, "carrel")["data"], **change}

    with pytest.raises(Malformed, match="handover-uid-1"):
        hand_over_record.record_of("handover-uid-1", data)


def test_a_successor_says_whence_it_came() -> None:
    mark = HandedOver(NOON, Why.EXPIRED, "uid-1")
    written = hand_over_record.write_handed_over(mark)

    assert written == {"carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"expired","from":"uid-1"}'}
    assert hand_over_record.read_handed_over(pod(written)) == mark
    assert hand_over_record.read_handed_over(pod()) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"at": "noon", "why": "revoked", "from": "x"}'])
def test_a_mark_that_nobody_can_read_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        hand_over_record.read_handed_over(pod({"carrel.dev/handed-over": text}))


@pytest.mark.parametrize(
    ("owners", "found"),
    [
        ([], ""),
        ([{"uid": "a"}], ""),
        ([{"uid": "a", "controller": False}, {"uid": "b", "controller": True}], "b"),
    ],
    ids=["nobody", "an owner that does not replace it", "a controller"],
)
def test_only_a_controller_replaces_a_pod(owners: list[Mapping[str, Any]], found: str) -> None:
    assert hand_over_record.controller_of({"metadata": {"ownerReferences": owners}}) == found


# --- without its GPU -------------------------------------------------------------------------------------------------

LIMITS = {"cpu": "2", "nvidia.com/gpu": "1", "aliyun.com/gpu-mem": "8138", "aliyun.com/gpu-count": "1"}
ASKS = {
    "gpu.scheduling/claim": "pair",
    "gpu-fraction": "0.5",
    "gpu-memory": "4096",
    "gpu-fraction-num-devices": "2",
    "gpu-fraction-container-name": "main",
    "pod-group-name": "gang",
    "carrel.dev/gpu-count": "2",
    "carrel.dev/gpu-memory-mib": "100",
    "carrel.dev/gpu-model": "NVIDIA-A100",
    "carrel.dev/gang-size": "2",
}
WRITTEN = {
    "carrel.dev/tier": "opportunistic",
    "carrel.dev/devices": "GPU-1",
    "devices.carrel.dev/main": "GPU-1",
    "carrel.dev/admitted": "2026-11-16T12:00:00Z 5f70",
    "carrel.dev/leave-by": "2026-11-16T12:00:00Z",
    "terminate-at": "1900-01-01T08:00:00Z",
    "gpu.scheduling/allocated": "0",
    "ALIYUN_COM_GPU_MEM_IDX": "0",
}


TOLD = [
    {"name": "ALIYUN_COM_GPU_MEM_IDX", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['…']"}}},
    {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "8138"},
    {
        "name": "CGPU_DISABLE",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['carrel.dev/cgpu-disable']"}},
    },
]


def a_full_manifest() -> dict[str, Any]:
    resources = {"limits": LIMITS, "requests": LIMITS}
    container = {"name": "main", "image": "work", "resources": resources, "env": TOLD}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train",
            "generateName": "tr",
            "namespace": "lab",
            "uid": "uid-1",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-16T12:00:00Z",
            "finalizers": ["lab.org/wait"],
            "labels": {"app": "train", "runai-gpu-group": "g"},
            "annotations": {**ASKS, **WRITTEN, "team": "vision"},
            "ownerReferences": [{"uid": "uid-of-the-hub"}],
        },
        "spec": {
            "nodeName": "n1",
            "schedulerName": "gpu-scheduler",
            "priorityClassName": "carrel-gpu",
            "priority": 0,
            "schedulingGates": [{"name": "carrel.dev/booking"}],
            "preemptionPolicy": "Never",
            "runtimeClassName": "nvidia",
            "overhead": {"memory": "64Mi"},
            "nodeSelector": {"nvidia.com/gpu.product": "A6000", "gpushare": "true", "room": "b12"},
            "ephemeralContainers": [{"name": "debug"}],
            "containers": [container],
            "initContainers": [{**container, "name": "fetch"}],
            "volumes": [{"name": "data"}],
        },
        "status": {"phase": "Running"},
    }


def test_everything_about_the_gpu_is_taken_off_and_the_rest_stays() -> None:
    bare = on_cpu(a_full_manifest(), {"carrel.dev/handed-over": "…"})

    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}]
    rest = {"image": "work", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}, "env": env}
    assert bare == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train",
            "namespace": "lab",
            "labels": {"app": "train"},
            "annotations": {"team": "vision", "carrel.dev/handed-over": "…"},
            "ownerReferences": [{"uid": "uid-of-the-hub"}],
        },
        "spec": {
            "nodeSelector": {"room": "b12"},
            "containers": [{"name": "main", **rest}],
            "initContainers": [{"name": "fetch", **rest}],
            "volumes": [{"name": "data"}],
        },
    }


TODAY = {
    "resources": {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "2", "memory": "8Gi"}},
    "volumes": [{"name": "model", "image": {"reference": "registry.example/model:1", "pullPolicy": "IfNotPresent"}}],
    "schedulingGates": [{"name": "example.com/quota"}],
    "resourceClaims": [{"name": "net", "resourceClaimName": "fast-net"}],
    "hostUsers": False,
    "a field of tomorrow": {"of": ["which nobody has heard"]},
}


@pytest.mark.parametrize("field", TODAY)
def test_what_todays_pods_say_stays_as_it_is(field: str) -> None:
    manifest = a_full_manifest()
    manifest["spec"][field] = TODAY[field]

    assert on_cpu(manifest, {})["spec"][field] == TODAY[field]


def test_a_sidecar_loses_its_gpu_and_stays_a_sidecar() -> None:
    probe = {"exec": {"command": ["true"]}}
    sidecar = {
        "name": "viewer",
        "restartPolicy": "Always",
        "startupProbe": probe,
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "resources": {"limits": LIMITS, "claims": [{"name": "net"}]},
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    }
    manifest = a_full_manifest()
    manifest["spec"]["initContainers"] = [sidecar]

    (bare,) = on_cpu(manifest, {})["spec"]["initContainers"]

    assert bare == {
        **sidecar,
        "resources": {"limits": {"cpu": "2"}, "claims": [{"name": "net"}]},
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}],
    }


@pytest.mark.parametrize(
    ("node", "stays"), [("n1", False), ("", True)], ids=["of a node that it has left", "written by its user"]
)
def test_the_zone_of_a_pod(node: str, stays: bool) -> None:
    """Since 1.35 the API server copies it from the node when a pod is bound."""
    manifest = a_full_manifest()
    zone = {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "north"}
    manifest["metadata"]["labels"] = {"app": "train", **zone}
    manifest["spec"]["nodeName"] = node

    assert on_cpu(manifest, {})["metadata"]["labels"] == {"app": "train", **(zone if stays else {})}


def test_the_manifest_that_it_was_made_from_is_not_changed() -> None:
    manifest = a_full_manifest()
    before = json.dumps(manifest)

    on_cpu(manifest, {})

    assert json.dumps(manifest) == before


@given(
    annotations=st.dictionaries(st.sampled_from(sorted({**ASKS, **WRITTEN, "team": ""})), st.text(max_size=5)),
    limits=st.lists(st.dictionaries(st.sampled_from(sorted(LIMITS)), st.just("1")), min_size=1, max_size=3),
    names=st.lists(st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HOME"]), max_size=4),
)
def test_no_pod_asks_for_a_gpu_afterwards_and_twice_is_once(
    annotations: dict[str, str], limits: list[dict[str, str]], names: list[str]
) -> None:
    env = [{"name": name, "value": "all"} for name in names]
    containers = [{"name": f"c{i}", "resources": {"limits": each}, "env": env} for i, each in enumerate(limits)]
    manifest = {
        "metadata": {"name": "p", "namespace": "lab", "uid": "u", "annotations": annotations},
        "spec": {"containers": containers},
    }

    bare = on_cpu(manifest, {})

    assert dialects_of(pod_from(bare)) == ()
    assert on_cpu(bare, {}) == bare
    for container in bare["spec"]["containers"]:
        shown = [each["value"] for each in container["env"] if each["name"] != "HOME"]
        assert set(shown) == {""}
        assert sum(each["name"] == "NVIDIA_VISIBLE_DEVICES" for each in container["env"]) == 1
