"""KAI's words: fractions, what a pod is told, reservation pods."""

from fractions import Fraction
from typing import Any

import pytest

from carrel.dialects import kai, kai_reservation
from carrel.dialects.interface import Reading
from carrel.dialects.kai import SharedGpu
from carrel.dialects.kai_reservation import BEFORE_KAI_0_17, KAI_0_17, ReservationRequest
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Amount, ContainerNeed, Memory, Portion, Request
from carrel.parsing import Malformed
from tests.kit.objects import init_container, pod, pod_from


@pytest.mark.parametrize(
    ("annotations", "gpus", "amount"),
    [
        pytest.param({"gpu-fraction": "0.5"}, 1, Portion(Fraction(1, 2)), id="half a GPU"),
        pytest.param({"gpu-fraction": ".25"}, 1, Portion(Fraction(1, 4)), id="without the zero"),
        pytest.param({"gpu-fraction": "5e-1"}, 1, Portion(Fraction(1, 2)), id="with an exponent"),
        pytest.param({"gpu-fraction": "0.1"}, 1, Portion(Fraction(1, 10)), id="a tenth, exactly"),
        pytest.param({"gpu-memory": "4096"}, 1, Memory(MiB(4096)), id="MiB"),
        pytest.param(
            {"gpu-memory": "8138", "gpu-fraction-num-devices": "2"},
            2,
            Memory(MiB(8138)),
            id="2 GPUs, 8138 MiB on each",
        ),
        pytest.param(
            {"gpu-fraction": "0.5", "mps": "true"}, 1, Portion(Fraction(1, 2)), id="mps says nothing of how much"
        ),
    ],
)
def test_a_fraction_is_a_request(annotations: dict[str, str], gpus: int, amount: Amount) -> None:
    request = kai.request_of(pod(annotations), Reading())
    assert request == Request(gpus, amount)
    assert isinstance(request, Request)
    assert request.containers == (ContainerNeed("c0", gpus, amount),)


@pytest.mark.parametrize(
    ("name", "init"),
    [pytest.param("c1", False, id="a container"), pytest.param("prepare", True, id="an init container")],
)
def test_the_named_container_uses_the_fraction(name: str, init: bool) -> None:
    notes = {"gpu-fraction": "0.5", "gpu-fraction-container-name": name}
    request = kai.request_of(pod(notes, limits=[{}, {}], init=[init_container("prepare", {})]), Reading())
    assert isinstance(request, Request)
    assert request.containers == (ContainerNeed(name, 1, Portion(Fraction(1, 2)), init=init),)


@pytest.mark.parametrize(
    "text", ["", "0", "1", "1.0", "-0.5", "1.5", "500m", "0,5", "half", "0x1p-1", "NaN", "inf", " 0.5"]
)
def test_a_fraction_lies_between_0_and_1(text: str) -> None:
    with pytest.raises(Malformed, match=r"pod lab/train: metadata\.annotations\['gpu-fraction'\] is"):
        kai.request_of(pod({"gpu-fraction": text}), Reading())


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("gpu-memory", "0"),
        ("gpu-memory", "-1"),
        ("gpu-memory", "4Gi"),
        ("gpu-memory", "0.5"),
        ("gpu-memory", "9223372036854775808"),
        ("gpu-fraction-num-devices", "0"),
        ("gpu-fraction-num-devices", "two"),
        ("gpu-fraction-container-name", "nobody"),
    ],
)
def test_other_malformed_words_are_named(key: str, text: str) -> None:
    with pytest.raises(Malformed, match=key):
        kai.request_of(pod({"gpu-memory": "1", key: text}), Reading())


def test_a_pod_without_containers_is_malformed() -> None:
    with pytest.raises(Malformed, match="the pod has none"):
        kai.request_of(pod({"gpu-fraction": "0.5"}, limits=[]), Reading())


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({"gpu-fraction": "0.5", "gpu-memory": "1"}, "both gpu-fraction and gpu-memory"),
        ({"gpu-fraction-num-devices": "2"}, "neither gpu-fraction nor gpu-memory"),
    ],
)
def test_words_that_contradict_each_other_are_refused(annotations: dict[str, str], reason: str) -> None:
    refusal = kai.request_of(pod(annotations), Reading())
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_a_pod_without_these_words_asks_for_no_fraction() -> None:
    assert kai.request_of(pod(), Reading()) is None


def test_the_groups_of_a_pod_are_read_and_written() -> None:
    assert kai.group_labels(["g1"]) == {"runai-gpu-group": "g1"}
    assert kai.group_labels(["g1", "g2"]) == {"runai-gpu-group/g1": "g1", "runai-gpu-group/g2": "g2"}
    assert kai.read_groups({"runai-gpu-group/g1": "g1", "app": "x", "runai-gpu-group/g2": "g2"}) == ("g1", "g2")


def test_a_fraction_pod_is_told_its_gpu_in_config_maps() -> None:
    told = SharedGpu(kai.config_map_prefix("train", "x7f2k9q"), 0, False, ("GPU-a", "GPU-b"), Fraction(1, 2))
    assert told.name == "train-x7f2k9q-shared-gpu-0"
    assert told.env_name == "train-x7f2k9q-shared-gpu-0-evar"
    assert told.data() == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "RUNAI-VISIBLE-DEVICES": "GPU-a,GPU-b",
        "RUNAI_NUM_OF_GPUS": "0.50",
        "GPU_PORTION": "0.50",
    }
    assert SharedGpu("p", 1, True, ("GPU-a",), Fraction(1, 2)).name == "p-i1"


def test_a_small_part_never_reads_as_nothing() -> None:
    assert SharedGpu("p", 0, False, ("GPU-a",), Fraction(1, 1000)).data()["GPU_PORTION"] == "0.01"


def test_what_a_placed_pod_received_is_written_on_it() -> None:
    assert kai.received(fraction=True, prefix="p-shared-gpu") == {
        "received-resource-type": "Fraction",
        "runai/shared-gpu-configmap": "p-shared-gpu",
    }
    assert kai.received(fraction=False) == {"received-resource-type": "Regular"}


# --- reservation pods ------------------------------------------------------------------------------------------------


def test_the_reservation_pod_of_kai_0_17() -> None:
    notes = {"carrel.dev/lease": "gpu-node-1-0"}
    manifest = kai_reservation.reservation_pod(ReservationRequest(NodeName("node-1"), "g1", "carrel:1", notes))
    # The first eight bytes of the SHA-256 of "node-1/g1".
    assert manifest["metadata"] == {
        "name": "gpu-reservation-09e54cf062fba56e",
        "namespace": "kai-resource-reservation",
        "labels": {"app": "kai-resource-reservation", "runai-gpu-group": "g1"},
        "annotations": {"karpenter.sh/do-not-disrupt": "true", "carrel.dev/lease": "gpu-node-1-0"},
    }
    spec = manifest["spec"]
    assert (spec["nodeName"], spec["serviceAccountName"]) == ("node-1", "kai-resource-reservation")
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priorityClassName"] == "system-node-critical"
    assert [container["name"] for container in spec["containers"]] == ["resource-reservation"]
    assert spec["containers"][0]["resources"] == {
        "requests": {"nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize("spelling", [KAI_0_17, BEFORE_KAI_0_17])
def test_a_reservation_made_twice_has_one_name(spelling: kai_reservation.ReservationSpelling) -> None:
    assert spelling.pod_name("n", "g") == spelling.pod_name("n", "g")
    assert len({spelling.pod_name(node, group) for node in "ab" for group in "cd"}) == 4


def test_a_group_is_named_after_its_slots_lease_if_that_can_be_a_label() -> None:
    assert kai_reservation.group_of("gpu-n1-0") == "gpu-n1-0"
    long = kai_reservation.group_of(f"gpu-{'n' * 80}-0")
    assert len(long) == 63
    assert long != kai_reservation.group_of(f"gpu-{'n' * 80}-1")


def test_a_reservation_pod_is_told_by_its_namespace_and_group() -> None:
    mine = kai_reservation.reservation_pod(ReservationRequest(NodeName("node-1"), "g1", "carrel:1"))
    assert kai_reservation.is_reservation(pod_from(mine))
    assert not kai_reservation.is_reservation(pod(labels=mine["metadata"]["labels"]))


@pytest.mark.parametrize(
    ("annotations", "uuid"),
    [({}, ""), ({"run.ai/reserve_for_gpu_index": "GPU-8a56a4bc"}, "GPU-8a56a4bc")],
)
def test_the_reserved_gpu_is_read_by_its_uuid(annotations: dict[str, str], uuid: str) -> None:
    assert kai_reservation.reserved_in(annotations, "pod holds") == uuid
    assert kai_reservation.write_reserved(GpuUuid("GPU-1")) == {"run.ai/reserve_for_gpu_index": "GPU-1"}


@pytest.mark.parametrize("value", ["0", "all", "unknown"])
def test_a_reserved_gpu_that_is_no_uuid_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match=r"run\.ai/reserve_for_gpu_index"):
        kai_reservation.reserved_in({"run.ai/reserve_for_gpu_index": value}, "pod holds")


def test_the_gangs_size_is_read_from_annotation_or_label() -> None:
    note: dict[str, Any] = {"kai.scheduler/batch-min-member": "3"}
    assert (kai.gang_size_of(pod(note)), kai.gang_size_of(pod(labels=note)), kai.gang_size_of(pod())) == (3, 3, None)
