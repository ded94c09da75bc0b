"""gpushare's words, spelled as its programs spell them."""

import pytest

from carrel.dialects import gpushare
from carrel.dialects.gpushare import Assumption, InspectedGpu, InspectedNode, InspectedPod
from carrel.dialects.interface import Reading
from carrel.dialects.options import DialectOptions, Unit
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ContainerNeed, Memory, Request
from carrel.parsing import Malformed
from tests.kit.gpus import N1
from tests.kit.objects import config_map, init_container, pod

PLACED = {
    "ALIYUN_COM_GPU_MEM_IDX": "1",
    "ALIYUN_GPU_ID": "1",
    "ALIYUN_COM_GPU_MEM_DEV": "16276",
    "ALIYUN_COM_GPU_MEM_POD": "8138",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1717228800000000001",
}


def in_units(unit: Unit) -> Reading:
    return Reading(DialectOptions(memory_unit=unit))


def test_the_containers_of_a_pod_share_one_gpu() -> None:
    request = gpushare.request_of(
        pod(limits=[{"aliyun.com/gpu-mem": "2000"}, {}, {"aliyun.com/gpu-mem": "3000"}]), in_units(Unit.MIB)
    )
    assert request == Request(1, Memory(MiB(5000)))
    assert request.containers == (
        ContainerNeed("c0", 1, Memory(MiB(2000))),
        ContainerNeed("c2", 1, Memory(MiB(3000))),
    )


def test_the_unit_is_the_clusters() -> None:
    assert gpushare.request_of(pod(limits=[{"aliyun.com/gpu-mem": "8"}]), in_units(Unit.GIB)) == Request(
        1, Memory(MiB(8192))
    )


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        pytest.param([init_container("i", {"aliyun.com/gpu-mem": "900"})], 1000, id="a modest init container is free"),
        pytest.param([init_container("i", {"aliyun.com/gpu-mem": "4000"})], 4000, id="a greedy one sets the amount"),
        pytest.param(
            [init_container("i", {"aliyun.com/gpu-mem": "4000"}, "Always")], 5000, id="a sidecar runs beside the others"
        ),
        pytest.param(
            [
                init_container("s", {"aliyun.com/gpu-mem": "2000"}, "Always"),
                init_container("i", {"aliyun.com/gpu-mem": "3000"}),
            ],
            5000,
            id="an init container runs beside earlier sidecars",
        ),
    ],
)
def test_init_containers_count_by_when_they_run(init: list[dict[str, object]], expected: int) -> None:
    request = gpushare.request_of(pod(limits=[{"aliyun.com/gpu-mem": "1000"}], init=init), in_units(Unit.MIB))
    assert request == Request(1, Memory(MiB(expected)))


def test_a_count_of_one_beside_the_memory_repeats_it() -> None:
    limits = {"aliyun.com/gpu-mem": "1000", "aliyun.com/gpu-count": "1"}
    assert gpushare.request_of(pod(limits=[limits]), in_units(Unit.MIB)) == Request(1, Memory(MiB(1000)))


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"aliyun.com/gpu-count": "1"}, id="alone"),
        pytest.param({"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "1000"}, id="two"),
    ],
)
def test_a_count_that_gives_no_gpu_is_refused(limits: dict[str, str]) -> None:
    refusal = gpushare.request_of(pod(limits=[limits]), in_units(Unit.MIB))
    assert isinstance(refusal, Refusal)
    assert f"asks for {limits['aliyun.com/gpu-count']} aliyun.com/gpu-count, which gives no GPU" in refusal.reason


@pytest.mark.parametrize("limits", [{}, {"aliyun.com/gpu-mem": "0"}, {"cpu": "1"}])
def test_a_pod_that_asks_for_no_memory_asks_for_nothing(limits: dict[str, str]) -> None:
    assert gpushare.request_of(pod(limits=[limits]), in_units(Unit.MIB)) is None


@pytest.mark.parametrize("amount", ["-1", "0.5", "2^63", "9223372036854775808", "lots", " 1"])
def test_a_malformed_amount_names_pod_field_and_value(amount: str) -> None:
    field = r"pod lab/train: spec\.containers\[0\]\.resources\.limits\['aliyun\.com/gpu-mem'\] is"
    with pytest.raises(Malformed, match=field):
        gpushare.request_of(pod(limits=[{"aliyun.com/gpu-mem": amount}]), in_units(Unit.MIB))


def test_a_placed_pod_is_read_and_written_word_for_word() -> None:
    assumption = Assumption(1, 16276, 8138, assigned=False, assumed_at_ns=1717228800000000001)
    assert gpushare.read_assumption(pod(PLACED)) == assumption
    assert gpushare.write_assumption(assumption) == PLACED


def test_a_pod_that_was_not_placed_has_no_assumption() -> None:
    assert gpushare.read_assumption(pod()) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ALIYUN_COM_GPU_MEM_IDX", "-1"),
        ("ALIYUN_COM_GPU_MEM_DEV", "many"),
        ("ALIYUN_COM_GPU_MEM_POD", "-8138"),
        ("ALIYUN_COM_GPU_MEM_POD", "18446744073709551615"),
        ("ALIYUN_COM_GPU_MEM_ASSIGNED", "yes"),
        ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", ""),
    ],
)
def test_a_forged_annotation_is_malformed(key: str, value: str) -> None:
    with pytest.raises(Malformed, match=key):
        gpushare.read_assumption(pod({**PLACED, key: value}))


@pytest.mark.parametrize(("text", "gpus"), [("0,2", {0, 2}), ("1", {1}), ("", set()), (" ", set()), ("0, 2", {0, 2})])
def test_the_gpus_an_admin_has_set_aside_are_read(text: str, gpus: set[int]) -> None:
    assert gpushare.read_unhealthy(config_map("unhealthy-gpu-n1", {"gpus": text})) == gpus


@pytest.mark.parametrize("text", ["0,,2", "all", "-1"])
def test_a_malformed_list_of_gpus_is_named(text: str) -> None:
    with pytest.raises(Malformed, match=r"ConfigMap kube-system/unhealthy-gpu-n1: data\.gpus"):
        gpushare.read_unhealthy(config_map("unhealthy-gpu-n1", {"gpus": text}))


def test_the_inspection_is_what_the_kubectl_plugin_reads() -> None:
    gpus = [InspectedGpu(0, 16276, [InspectedPod("train", "lab", 8138)]), InspectedGpu(1, 16276)]
    assert gpushare.inspection([InspectedNode(N1, gpus)]) == {
        "nodes": [
            {
                "name": "n1",
                "totalGPU": 32552,
                "usedGPU": 8138,
                "devs": [
                    {
                        "id": 0,
                        "totalGPU": 16276,
                        "usedGPU": 8138,
                        "pods": [{"name": "train", "namespace": "lab", "usedGPU": 8138}],
                    },
                    {"id": 1, "totalGPU": 16276, "usedGPU": 0, "pods": []},
                ],
            }
        ]
    }
    assert gpushare.inspection([], "no such node: n9") == {"nodes": [], "error": "no such node: n9"}
