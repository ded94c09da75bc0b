"""The worked examples of the gpushare design document, with its figures."""

from carrel.ids import NodeName
from carrel.ledger.placement import Placement, candidates, place
from carrel.ledger.refusals import Refusal
from tests.kit.gpus import a_ledger, a_node, memory


def test_three_nodes_and_gpu_mem_8138_only_n3_has_it_on_one_gpu() -> None:
    ledger = a_ledger(
        a_node("N1"),
        a_node("N2"),
        a_node("N3"),
        held_memory={"N1": [16276, 12207], "N2": [12207, 12207], "N3": [8138, 16276]},
    )

    answer = candidates(ledger, memory(8138), [NodeName("N1"), NodeName("N2"), NodeName("N3")])

    assert answer.fitting == ["N3"]
    assert answer.refused == ["N1", "N2"]


def test_free_memory_split_over_two_gpus_is_not_room_and_the_reason_says_so() -> None:
    ledger = a_ledger(a_node("N2"), held_memory={"N2": [12207, 12207]})

    answer = place(ledger, memory(8138), NodeName("N2"))

    assert isinstance(answer, Refusal)
    assert answer.reason == "N2 has no room for 8,138 MiB on one GPU: none of its 2 GPUs would do"
    assert answer.details == (
        "GPU 0 of N2 has 4,069 MiB free, 8,138 MiB asked; held by lab/tenant-N2-0",
        "GPU 1 of N2 has 4,069 MiB free, 8,138 MiB asked; held by lab/tenant-N2-1",
    )


def test_of_four_gpus_with_12207_8138_4069_16276_free_the_least_that_fits_is_chosen() -> None:
    ledger = a_ledger(a_node("N1", gpus=4), held_memory={"N1": [4069, 8138, 12207, 0]})
    assert [entry.free for entry in ledger.entries(NodeName("N1"))] == [12207, 8138, 4069, 16276]

    answer = place(ledger, memory(8138), NodeName("N1"))

    assert isinstance(answer, Placement)
    assert [gpu.index for gpu in answer.gpus] == [1]
