"""Carrel's own words: requests, devices, the Lease of a GPU; and which keys are nobody else's to write."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from carrel.dialects import carrel, gpu_lease, protected_keys, visible_devices
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.interface import Reading
from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.ledger.gpus import MiB
from carrel.ledger.requests import WHOLE, Memory, Request
from carrel.ledger.shares import Holder, HolderKind, Share, ShareState
from carrel.parsing import Malformed
from tests.kit.objects import lease, pod

NOW = datetime(2025, 6, 1, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("annotations", "request_"),
    [
        pytest.param({"carrel.dev/gpu-count": "2"}, Request(2, WHOLE), id="two whole GPUs"),
        pytest.param({"carrel.dev/gpu-memory-mib": "8138"}, Request(1, Memory(MiB(8138))), id="8138 MiB of one"),
        pytest.param(
            {"carrel.dev/gpu-count": "2", "carrel.dev/gpu-memory-mib": "8138"},
            Request(2, Memory(MiB(8138))),
            id="2 GPUs, 8138 MiB on each",
        ),
        pytest.param({"carrel.dev/gpu-model": "T4"}, None, id="a model alone asks for nothing"),
        pytest.param({}, None, id="nothing"),
    ],
)
def test_a_vector_request_is_read(annotations: dict[str, str], request_: Request | None) -> None:
    assert carrel.request_of(pod(annotations), Reading()) == request_


@pytest.mark.parametrize("key", ["carrel.dev/gpu-count", "carrel.dev/gpu-memory-mib"])
@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "two", "1e3", "99999999999999999999"])
def test_a_malformed_request_is_named(key: str, text: str) -> None:
    with pytest.raises(Malformed, match=key):
        carrel.request_of(pod({key: text}), Reading())


def test_devices_are_written_per_pod_and_per_container() -> None:
    notes = {"carrel.dev/devices": "GPU-a,GPU-b", "devices.carrel.dev/train": "GPU-b"}
    assert notes == {"carrel.dev/devices": "GPU-a,GPU-b", "devices.carrel.dev/train": "GPU-b"}
    assert visible_devices.read_devices(pod(notes)) == ("GPU-a", "GPU-b")
    assert visible_devices.read_devices(pod(notes), "train") == ("GPU-b",)
    assert visible_devices.read_devices(pod(notes), "other") == ()


@pytest.mark.parametrize("text", [",", "GPU-a,", ",GPU-a", "GPU-a,,GPU-b"])
def test_malformed_devices_are_named(text: str) -> None:
    with pytest.raises(Malformed, match=r"carrel\.dev/devices"):
        visible_devices.read_devices(pod({"carrel.dev/devices": text}))


# --- the Lease of a GPU ---------------------------------------------------------------------------------------------


def test_a_shared_gpu_is_recorded_on_its_lease() -> None:
    record = LeaseRecord(
        NodeName("node-a"),
        0,
        GpuUuid("GPU-a"),
        (
            Share(Holder(PodUid("uid-1"), "lab", "train"), GpuUuid("GPU-a"), MiB(8138), ShareState.ASSIGNED),
            Share(Holder(PodUid("uid-2"), "lab", "serve"), GpuUuid("GPU-a"), MiB(4069)),
        ),
        kept_for=Holder(PodUid("uid-3"), "lab", "urgent"),
        kept_from=(Holder(PodUid("uid-2"), "lab", "serve"),),
    )
    written = gpu_lease.write_lease(record, "carrel-system", NOW)
    assert written == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "gpu-node-a-0",
            "namespace": "carrel-system",
            "labels": {"gpu.scheduling/managed": "true"},
            "annotations": {
                "carrel.dev/gpu": "GPU-a",
                "carrel.dev/shares": '{"uid-1":{"pod":"lab/train","state":"assigned","mib":8138},'
                '"uid-2":{"pod":"lab/serve","state":"assumed","mib":4069}}',
                "carrel.dev/kept-for": '{"uid":"uid-3","pod":"lab/urgent","from":{"uid-2":"lab/serve"}}',
            },
        },
        "spec": {"renewTime": "2025-06-01T08:00:00.000000Z"},
    }
    assert gpu_lease.read_lease(lease(written)) == record


@pytest.mark.parametrize("memory", [pytest.param(MiB(4069), id="a part"), pytest.param(None, id="the whole GPU")])
def test_a_claim_is_recorded_as_the_holder_under_its_own_word(memory: MiB | None) -> None:
    claim = Holder(PodUid("uid-4"), "lab", "train-gpu-x7", HolderKind.CLAIM)
    record = LeaseRecord(NodeName("node-a"), 0, GpuUuid("GPU-a"), (Share(claim, GpuUuid("GPU-a"), memory),))
    written = gpu_lease.write_lease(record, "carrel-system", NOW)
    entry = json.loads(written["metadata"]["annotations"]["carrel.dev/shares"])["uid-4"]
    assert entry == {"claim": "lab/train-gpu-x7", "state": "assumed", **({"mib": 4069} if memory else {})}
    assert gpu_lease.read_lease(lease(written)) == record
    assert str(claim) == "ResourceClaim lab/train-gpu-x7"


def test_victims_are_cleared_together_with_kept_for() -> None:
    booked, victim = Holder(PodUid("uid-3"), "lab", "urgent"), Holder(PodUid("uid-2"), "lab", "serve")
    kept = LeaseRecord(NodeName("node-a"), 0, GpuUuid("GPU-a"), (Share(victim, GpuUuid("GPU-a"), None),)).keeping(
        booked, [victim]
    )

    assert kept.without(PodUid("uid-2")) == LeaseRecord(NodeName("node-a"), 0, GpuUuid("GPU-a"), kept_for=booked)
    assert kept.without(PodUid("uid-3")).kept_from == ()
    assert kept.kept_for_nobody() == LeaseRecord(
        NodeName("node-a"), 0, GpuUuid("GPU-a"), (Share(victim, GpuUuid("GPU-a"), None),)
    )
    mine = Share(booked, GpuUuid("GPU-a"), MiB(1))
    assert kept.taking(mine, "mark").given_back(PodUid("uid-3"), "mark") == kept, (
        "a bind that failed changes nothing of it"
    )


def test_a_whole_gpu_has_a_holder_as_the_peers_write_it() -> None:
    record = LeaseRecord(
        NodeName("node-a"),
        1,
        GpuUuid("GPU-b"),
        (Share(Holder(PodUid("uid-1"), "lab", "train"), GpuUuid("GPU-b"), None),),
    )
    written = gpu_lease.write_lease(record, "carrel-system", NOW)
    assert written["spec"]["holderIdentity"] == "uid-1"
    assert written["metadata"]["labels"] == {"gpu.scheduling/managed": "true", "gpu.scheduling/pod": "train"}
    assert gpu_lease.read_lease(lease(written)) == record


def test_a_lease_of_the_peers_holds_the_whole_gpu() -> None:
    theirs = {"metadata": {"name": "gpu-node-a-0"}, "spec": {"holderIdentity": "uid-1"}}
    record = gpu_lease.read_lease(lease(theirs))
    assert record == LeaseRecord(
        NodeName("node-a"), 0, GpuUuid(""), (Share(Holder(PodUid("uid-1")), GpuUuid(""), None),)
    )


def test_an_annotation_never_lowers_what_the_holder_has() -> None:
    forged = {
        "metadata": {
            "name": "gpu-node-a-0",
            "annotations": {"carrel.dev/shares": '{"uid-1":{"pod":"lab/train","state":"assigned","mib":1}}'},
        },
        "spec": {"holderIdentity": "uid-1"},
    }
    record = gpu_lease.read_lease(lease(forged))
    assert record is not None
    assert record.shares == (Share(Holder(PodUid("uid-1"), "lab", "train"), GpuUuid(""), None, ShareState.ASSIGNED),)


def test_other_leases_are_not_read() -> None:
    assert gpu_lease.read_lease(lease({"metadata": {"name": "carrel-controller"}})) is None


def test_a_share_that_is_gone_is_never_recorded() -> None:
    gone = Share(Holder(PodUid("uid-1")), GpuUuid("GPU-a"), None, ShareState.GONE)
    with pytest.raises(ValueError, match="gone"):
        gpu_lease.write_lease(LeaseRecord(NodeName("node-a"), 0, GpuUuid("GPU-a"), (gone,)), "carrel-system", NOW)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("carrel.dev/shares", "not JSON", id="not JSON"),
        pytest.param("carrel.dev/shares", '{"uid": {"x": ' + "[" * 100_000, id="lists without end"),
        pytest.param("carrel.dev/shares", [], id="a list"),
        pytest.param("carrel.dev/shares", {"uid": 1}, id="a share that is a number"),
        pytest.param("carrel.dev/shares", {"uid": {"state": "gone"}}, id="a share that is gone"),
        pytest.param("carrel.dev/shares", {"uid": {"state": "assumed\n"}}, id="a state with a line break"),
        pytest.param("carrel.dev/shares", {"uid": {"mib": 1}}, id="no state"),
        pytest.param(
            "carrel.dev/shares", {"uid": {"pod": "a/b", "claim": "a/b", "state": "assumed"}}, id="a pod and a claim"
        ),
        pytest.param("carrel.dev/shares", {"uid": {"state": "assumed", "mib": -1}}, id="less than nothing"),
        pytest.param("carrel.dev/shares", {"uid": {"state": "assumed", "mib": 0}}, id="nothing"),
        pytest.param("carrel.dev/shares", {"uid": {"state": "assumed", "mib": "8"}}, id="memory as text"),
        pytest.param("carrel.dev/shares", {"": {"state": "assumed"}}, id="a pod without a uid"),
        pytest.param("carrel.dev/kept-for", {"pod": "lab/urgent"}, id="kept for nobody"),
        pytest.param("carrel.dev/kept-for", "uid", id="kept for a word"),
    ],
)
def test_a_malformed_record_is_named(key: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    broken = {"metadata": {"name": "gpu-node-a-0", "namespace": "carrel-system", "annotations": {key: text}}}
    with pytest.raises(Malformed, match=f"Lease carrel-system/gpu-node-a-0: metadata.annotations..{key}"):
        gpu_lease.read_lease(lease(broken))


# --- protected keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "gpu.scheduling/allocated",
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_DEV",
        "ALIYUN_COM_GPU_MEM_POD",
        "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        "ALIYUN_COM_GPU_MEM_ASSIGN_TIME",
        "ALIYUN_GPU_ID",
        "scheduler.framework.gpushare.allocation",
        "received-resource-type",
        "runai/shared-gpu-configmap",
        "run.ai/reserve_for_gpu_index",
        "terminate-at",
        "carrel.dev/tier",
        "carrel.dev/devices",
        "devices.carrel.dev/train",
        "carrel.dev/a-word-of-tomorrow",
    ],
)
def test_what_a_scheduler_writes_nobody_else_may(key: str) -> None:
    assert protected_keys.is_protected_annotation(key)


@pytest.mark.parametrize(
    "key",
    [
        "carrel.dev/gpu-count",
        "carrel.dev/gpu-memory-mib",
        "carrel.dev/gpu-model",
        "carrel.dev/gang-size",
        "gpu.scheduling/claim",
        "gpu-fraction",
        "gpu-memory",
        "pod-group-name",
        "hub.jupyter.org/username",
        "notcarrel.dev/tier",
    ],
)
def test_what_a_user_asks_a_user_may_write(key: str) -> None:
    assert not protected_keys.is_protected_annotation(key)
    assert not protected_keys.is_protected_label(key)


@pytest.mark.parametrize("key", ["runai-gpu-group", "runai-gpu-group/g1", "gpu.scheduling/pod", "carrel.dev/tier"])
def test_labels_that_join_a_pod_to_a_gpu_are_protected(key: str) -> None:
    assert protected_keys.is_protected_label(key)
