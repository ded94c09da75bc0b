"""Why a pod waits, in one sentence about the cluster."""

from carrel.ledger.explanation import why_waiting
from carrel.ledger.refusals import Refusal
from tests.kit.gpus import a_ledger, a_node, held, memory, whole


def test_the_closest_node_is_named_with_what_it_lacks() -> None:
    ledger = a_ledger(a_node("full", cards=2), a_node("nearly", cards=2), a_node("small", cards=1))
    for node, index in (("full", 0), ("full", 1), ("nearly", 0), ("small", 0)):
        ledger.hold(held(f"{node}-{index}", node, index, None))

    answer = why_waiting(ledger, whole(2), ["full", "nearly", "small"])

    assert answer == Refusal(
        "none of 3 nodes has 2 whole GPUs; closest: nearly has no room for 2 whole GPUs: only 1 of its 2 GPUs would do",
        (
            "nearly has no room for 2 whole GPUs: only 1 of its 2 GPUs would do",
            "full has no room for 2 whole GPUs: none of its 2 GPUs would do",
            "small has 1 GPU in all; 2 whole GPUs asked",
        ),
    )


def test_on_one_node_its_own_reason_is_enough() -> None:
    ledger = a_ledger(a_node("n1", cards=1))
    ledger.hold(held("a", "n1", 0, 16000))

    answer = why_waiting(ledger, memory(8138), ["n1"])

    assert answer is not None
    assert answer.reason == "GPU 0 of n1 has 276 MiB free, 8,138 MiB asked; held by lab/a"


def test_who_need_not_wait_gets_no_reason() -> None:
    assert why_waiting(a_ledger(a_node("n1")), whole(), ["nowhere", "n1"]) is None


def test_without_any_node_it_says_so() -> None:
    assert why_waiting(a_ledger(), whole(), []) == Refusal("there is no node for 1 whole GPU")
