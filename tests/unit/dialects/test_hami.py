"""HAMi's dialect: what is read, what is recorded, and what is refused because Carrel cannot do it."""

import json
from fractions import Fraction
from typing import Any

import pytest

from carrel.dialects import hami, nvidia
from carrel.dialects.interface import PodRequest
from carrel.dialects.registry import dialects_of, request_of
from carrel.ids import GpuUuid
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Amount, ContainerNeed, GpuPolicy, GpuSelector, Memory, Portion, Request
from carrel.parsing import Malformed
from tests.kit.gpus import N1
from tests.kit.objects import init_container, pod

PART = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}


def no_claim(namespace: str, name: str) -> None:
    return None


def asked(**spelling: Any) -> Request:
    ask = request_of(pod(**spelling), no_claim)
    assert isinstance(ask, PodRequest), ask
    assert ask.dialect is hami.DIALECT
    return ask.request


@pytest.mark.parametrize(
    ("limits", "gpus", "amount"),
    [
        pytest.param(PART, 1, Memory(MiB(3000)), id="memory of one GPU"),
        pytest.param({**PART, "nvidia.com/gpu": "2"}, 2, Memory(MiB(3000)), id="memory of each of two GPUs"),
        pytest.param({"nvidia.com/gpumem": "3000"}, 1, Memory(MiB(3000)), id="no number of GPUs is one"),
        pytest.param(
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, 1, Portion(Fraction(1, 2)), id="a percentage"
        ),
        pytest.param({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"}, 1, WHOLE, id="all of the memory"),
        pytest.param({**PART, "nvidia.com/gpucores": "30"}, 1, Memory(MiB(3000)), id="cores are not counted"),
        pytest.param({"nvidia.com/gpu": "2", "nvidia.com/gpucores": "30"}, 2, WHOLE, id="cores alone are whole GPUs"),
        pytest.param({**PART, "nvidia.com/gpucores": "100"}, 1, WHOLE, id="all cores are a GPU of its own"),
    ],
)
def test_the_resources_are_read(limits: dict[str, str], gpus: int, amount: Amount) -> None:
    assert asked(limits=[limits]) == Request(gpus, amount)


def test_whole_gpus_without_a_word_of_hami_are_nvidias_dialect() -> None:
    assert dialects_of(pod(limits=[{"nvidia.com/gpu": "1"}])) == (nvidia.DIALECT,)
    assert dialects_of(pod({"nvidia.com/use-gputype": "A100"})) == ()


def test_requests_count_where_there_are_no_limits() -> None:
    assert asked(limits=[], init=[{"name": "s", "restartPolicy": "Always", "resources": {"requests": PART}}])


def test_an_annotation_makes_a_whole_gpu_hamis() -> None:
    request = asked(annotations={"nvidia.com/use-gputype": "A100"}, limits=[{"nvidia.com/gpu": "1"}])
    assert request == Request(1, WHOLE, selector=GpuSelector(models=("A100",)))
    assert not request.by_kubelet


# --- which GPUs ------------------------------------------------------------------------------------------------------


def selector(**notes: str) -> GpuSelector:
    annotations = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in notes.items()}
    return asked(annotations=annotations, limits=[PART]).selector


@pytest.mark.parametrize(
    ("notes", "model", "allowed"),
    [
        pytest.param({"use_gputype": "A100,V100"}, "Tesla-V100-SXM2-32GB", True, id="one of two"),
        pytest.param({"use_gputype": "a100"}, "NVIDIA-A100-SXM4-80GB", True, id="upper and lower case are alike"),
        pytest.param({"use_gputype": "Tesla V100"}, "Tesla-V100-SXM2-32GB", True, id="a space for a hyphen"),
        pytest.param({"use_gputype": "NVIDIA-Tesla V100"}, "Tesla-V100-SXM2-32GB", True, id="the maker before it"),
        pytest.param({"use_gputype": "A100"}, "NVIDIA-RTX-A6000", False, id="another model"),
        pytest.param({"use_gputype": "A100"}, "", False, id="an unknown model is not the one"),
        pytest.param({"nouse_gputype": "1080,2080"}, "NVIDIA-A100-SXM4-80GB", True, id="none of the unwanted"),
        pytest.param({"nouse_gputype": "1080,2080"}, "GeForce-RTX-2080-Ti", False, id="an unwanted one"),
        pytest.param({"nouse_gputype": "1080"}, "", False, id="an unknown model may be unwanted"),
        pytest.param({"use_gputype": "A100", "nouse_gputype": "40GB"}, "A100-SXM4-40GB", False, id="both count"),
    ],
)
def test_models_are_chosen_by_a_part_of_their_name(notes: dict[str, str], model: str, allowed: bool) -> None:
    assert selector(**notes).allows_model(model) is allowed


def test_gpus_are_chosen_by_uuid() -> None:
    first, second = (Gpu(GpuUuid(f"GPU-{i}"), N1, i, "T4", MiB(16_000)) for i in range(2))
    slot = Gpu(GpuUuid("n1/0"), N1, 0, "T4", MiB(16_000), may_be=frozenset({GpuUuid("GPU-0"), GpuUuid("GPU-1")}))
    only, but = selector(use_gpuuuid="GPU-0,GPU-9"), selector(nouse_gpuuuid="GPU-0")
    assert [only.allows(each) for each in (first, second, slot)] == [True, False, False]
    assert [but.allows(each) for each in (first, second, slot)] == [False, True, False]
    assert selector(use_gpuuuid="GPU-0,GPU-1").allows(slot), "whichever it turns out to be, it is one of them"


def test_policies_are_honoured() -> None:
    spread = {"hami.io/gpu-scheduler-policy": "spread", "hami.io/node-scheduler-policy": "spread"}
    request = asked(annotations=spread, limits=[PART])
    assert (request.policy, request.spreads_over_nodes) == (GpuPolicy.SPREAD, True)
    plain = asked(limits=[PART])
    assert (plain.policy, plain.spreads_over_nodes) == (GpuPolicy.PACK, None)


# --- several containers ----------------------------------------------------------------------------------------------


def test_containers_share_the_gpus_and_their_parts_are_added_up() -> None:
    request = asked(limits=[PART, {}, PART], init=[init_container("i", {"nvidia.com/gpumem": "7000"})])
    assert request == Request(1, Memory(MiB(7000)))
    assert request.containers == (
        ContainerNeed("i", 1, Memory(MiB(7000)), init=True),
        ContainerNeed("c0", 1, Memory(MiB(3000))),
        ContainerNeed("c2", 1, Memory(MiB(3000))),
    )


def test_percentages_are_added_up() -> None:
    assert asked(limits=[{"nvidia.com/gpumem-percentage": "25"}] * 2) == Request(1, Portion(Fraction(1, 2)))


def test_whole_gpus_are_dealt_out_to_containers() -> None:
    request = asked(annotations={"nvidia.com/use-gputype": "T4"}, limits=[{"nvidia.com/gpu": "1"}] * 2)
    assert (request.gpus, request.amount) == (2, WHOLE)


# --- what cannot be honoured -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "limits", "why"),
    [
        pytest.param({}, [{**PART, "nvidia.com/gpumem-percentage": "50"}], "keep one of them", id="two amounts"),
        pytest.param({}, [{**PART, "nvidia.com/priority": "1"}], "nvidia.com/priority", id="a priority"),
        pytest.param({"nvidia.com/vgpu-mode": "mig"}, [PART], "nvidia.com/vgpu-mode 'mig'", id="MIG"),
        pytest.param({"nvidia.com/vgpu-mode": "mps"}, [PART], "nvidia.com/vgpu-mode 'mps'", id="MPS"),
        pytest.param(
            {"nvidia.com/numa-bind": "true"}, [{**PART, "nvidia.com/gpu": "2"}], "NUMA node", id="one NUMA node"
        ),
        pytest.param({}, [PART, {"nvidia.com/gpu": "1"}], "a whole GPU in one container", id="a whole and a part"),
        pytest.param({}, [PART, {**PART, "nvidia.com/gpu": "2"}], "different numbers of GPUs", id="different numbers"),
        pytest.param({}, [PART, {"nvidia.com/gpumem-percentage": "9"}], "in another; keep one", id="two measures"),
        pytest.param({}, [{"nvidia.com/gpumem-percentage": "60"}] * 2, "120 % of one GPU", id="more than a GPU"),
        pytest.param({}, [{**PART, "nvidia.com/gpu": "0"}], "in no container for a GPU", id="memory of no GPU"),
        pytest.param({"gpu-fraction": "0.5"}, [PART], "asks for GPUs in 2 ways", id="another dialect too"),
        pytest.param({"carrel.dev/hami": "{}"}, [PART], "only Carrel's webhook writes", id="a record of a user"),
        pytest.param({"carrel.dev/hami": "{}"}, [{}], "in no container for a GPU", id="a record of nothing"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    annotations: dict[str, str], limits: list[dict[str, str]], why: str
) -> None:
    refusal = request_of(pod(annotations, limits), no_claim)
    assert isinstance(refusal, Refusal)
    assert why in refusal.reason
    assert "pod lab/train" in refusal.reason


@pytest.mark.parametrize(
    ("annotations", "limits"),
    [
        pytest.param({}, {"nvidia.com/gpumem-percentage": "101"}, id="more than all memory"),
        pytest.param({}, {"nvidia.com/gpucores": "150"}, id="more than all cores"),
        pytest.param({}, {"nvidia.com/gpumem": "-1"}, id="less than nothing"),
        pytest.param({"nvidia.com/use-gputype": "A100,"}, PART, id="an empty model"),
        pytest.param({"nvidia.com/use-gpuuuid": ""}, PART, id="no UUID"),
        pytest.param({"hami.io/gpu-scheduler-policy": "random"}, PART, id="an unknown policy"),
        pytest.param({"nvidia.com/numa-bind": "perhaps"}, {**PART, "nvidia.com/gpu": "2"}, id="neither yes nor no"),
        pytest.param({"carrel.dev/hami": "nonsense"}, {}, id="a record that is no JSON"),
        pytest.param({"carrel.dev/hami": '{"containers":{"c0":{"nvidia.com/gpu":-1}}}'}, {}, id="a record below zero"),
    ],
)
def test_what_cannot_be_understood_is_malformed(annotations: dict[str, str], limits: dict[str, str]) -> None:
    with pytest.raises(Malformed, match="pod lab/train"):
        request_of(pod(annotations, [limits]), no_claim)


# --- the record ------------------------------------------------------------------------------------------------------


def test_the_record_is_read_as_the_pod_was() -> None:
    notes = {"nvidia.com/use-gputype": "A100", "hami.io/node-scheduler-policy": "spread"}
    written = pod(notes, [{**PART, "nvidia.com/gpucores": "30"}, {}], init=[init_container("s", PART, "Always")])
    record = hami.record_of(written)
    recorded = pod({**notes, hami.RECORD: record}, [{}, {}], init=[init_container("s", {}, "Always")])

    before, after = request_of(written, no_claim), request_of(recorded, no_claim)
    assert isinstance(before, PodRequest) and isinstance(after, PodRequest)
    assert before == after
    assert before.request.containers == after.request.containers
    assert before.request.remark == after.request.remark == "30 % of the cores, which is not enforced"
    assert hami.record_of(recorded) == record


def test_what_was_recorded_counts_and_not_what_the_annotations_say_later() -> None:
    record = hami.record_of(pod({"nvidia.com/use-gputype": "T4"}, [PART]))
    later = pod({"carrel.dev/hami": record, "nvidia.com/use-gputype": "A100"}, [{}])
    ask = request_of(later, no_claim)
    assert isinstance(ask, PodRequest)
    assert ask.request.selector.models == ("T4",)


def test_the_record_is_spelled_in_hamis_words() -> None:
    assert json.loads(hami.record_of(pod({"nvidia.com/use-gputype": "T4"}, [PART]))) == {
        "containers": {"c0": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}},
        "annotations": {"nvidia.com/use-gputype": "T4"},
    }


def test_a_container_is_told_its_limits_in_hami_cores_words() -> None:
    asking = pod(limits=[{**PART, "nvidia.com/gpucores": "30"}, {"nvidia.com/gpumem-percentage": "50"}])
    assert hami.variables(asking, {"name": "c0"}) == [
        {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "3000m"},
        {"name": "CUDA_DEVICE_SM_LIMIT", "value": "30"},
    ]
    assert hami.variables(asking, {"name": "c1"}) == []
