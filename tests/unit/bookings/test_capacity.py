"""What can be booked, and which model a name means."""

import pytest

from carrel.bookings.capacity import ModelCapacity, capacity_of, model_named
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.refusals import Refusal
from tests.kit.gpus import N1, N2

MODELS = ["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA-RTX-A6000", "Tesla-T4", "Tesla-T40"]


def a_gpu(index: int, model: str = "A6000", memory: int = 49140, unusable: str = "") -> Gpu:
    return Gpu(GpuUuid(f"GPU-{index}"), N1, index, model, MiB(memory), unusable=unusable)


def test_healthy_gpus_are_counted_by_model() -> None:
    nodes = [
        Node(N1, (a_gpu(0), a_gpu(1, memory=40000), a_gpu(2, unusable="XID 79"), a_gpu(3, "T4", 15360))),
        Node(N2, (a_gpu(4), a_gpu(5, "H100", 81920)), unusable="the agent is silent"),
    ]

    silent = "n2: the agent is silent"
    assert capacity_of(nodes) == {
        "A6000": ModelCapacity("A6000", 2, MiB(40000), out_of_use=("GPU 2 of n1: XID 79", silent)),
        "H100": ModelCapacity("H100", 0, MiB(81920), out_of_use=(silent,)),
        "T4": ModelCapacity("T4", 1, MiB(15360)),
    }


def test_gpus_of_a_closed_node_are_out_of_use_and_a_few_reasons_are_named() -> None:
    nodes = [
        Node(NodeName("dgx-1"), (a_gpu(0), a_gpu(1)), closed="cordoned (kubectl uncordon dgx-1)"),
        Node(N2, (a_gpu(2),)),
    ]
    found = capacity_of(nodes)["A6000"]
    assert (found.gpus, found.why_set_aside) == (
        1,
        "2 of 3 are out of use: dgx-1 is cordoned (kubectl uncordon dgx-1)",
    )

    many = capacity_of(Node(NodeName(f"n{i}"), (a_gpu(i),), closed="not ready") for i in range(5))["A6000"]
    assert many.why_set_aside == "5 of 5 are out of use: n0 is not ready, n1 is not ready, n2 is not ready and 2 more"


def test_gpus_of_pods_that_no_booking_can_displace_are_set_aside() -> None:
    nodes = [Node(N1, (*map(a_gpu, range(4)), a_gpu(4, unusable="XID 79")))]

    found = capacity_of(nodes, {"GPU-1", "GPU-2", "GPU-4", "GPU-of-another-node"})["A6000"]

    assert (found.gpus, found.set_aside) == (2, 2), "one that is broken is not counted twice"
    assert found.total == 5, "past use was of all of them"
    assert found.why_set_aside == (
        "2 of 5 are used by pods that no booking can displace; 1 of 5 is out of use: GPU 4 of n1: XID 79"
    )
    assert capacity_of([Node(N1, (a_gpu(0),))])["A6000"].why_set_aside == ""


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        pytest.param("NVIDIA-RTX-A6000", "NVIDIA-RTX-A6000", id="its name"),
        pytest.param("a6000", "NVIDIA-RTX-A6000", id="a part of its name"),
        pytest.param("rtx a6000", "NVIDIA-RTX-A6000", id="with a space"),
        pytest.param("tesla_t4", "Tesla-T4", id="the whole name, although another begins with it"),
        pytest.param("a100", None, id="two models"),
        pytest.param("h100", None, id="no model"),
        pytest.param("-", None, id="nothing"),
    ],
)
def test_a_part_of_a_name_is_enough_if_it_means_one_model(word: str, meant: str | None) -> None:
    found = model_named(word, MODELS)

    assert found == meant if meant else isinstance(found, Refusal)


def test_the_models_that_could_be_meant_are_listed() -> None:
    assert str(model_named("a100", MODELS)) == (
        "“a100” may be NVIDIA-A100-PCIE-40GB or NVIDIA-A100-SXM4-80GB; give the full name."
    )
    assert str(model_named("h100", [])) == "There is no model “h100”. There are: none."


@pytest.mark.parametrize(
    ("word", "model"),
    [
        pytest.param("a100", "NVIDIA-A100-SXM4-80GB", id="a GPU, not its slices"),
        pytest.param("mig-1g.10gb", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", id="a slice"),
        pytest.param("h100", "NVIDIA-H100-MIG-1g.12gb", id="slices, where all are divided"),
    ],
)
def test_who_does_not_say_mig_means_a_gpu_that_is_not_divided(word: str, model: str) -> None:
    slices = ["NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "NVIDIA-A100-SXM4-80GB-MIG-2g.20gb", "NVIDIA-H100-MIG-1g.12gb"]
    assert model_named(word, ["NVIDIA-A100-SXM4-80GB", *slices]) == model
