"""Why a pod waits, in one sentence about the cluster."""

from dataclasses import replace

import pytest

from carrel.ids import NodeName
from carrel.ledger.filtering import NodeFilter, why_waiting
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from tests.kit.gpus import A100, A6000, N1, a_ledger, a_node, held, memory, whole


def test_the_closest_node_is_named_with_what_it_lacks() -> None:
    ledger = a_ledger(a_node("full", gpus=2), a_node("nearly", gpus=2), a_node("small", gpus=1))
    for node, index in (("full", 0), ("full", 1), ("nearly", 0), ("small", 0)):
        ledger.hold(held(f"{node}-{index}", node, index, None))

    answer = why_waiting(ledger, whole(2), [NodeName("full"), NodeName("nearly"), NodeName("small")])

    assert answer == Refusal(
        "none of 3 nodes has 2 whole GPUs; closest: nearly has no room for 2 whole GPUs: only 1 of its 2 GPUs would do"
    )


def test_on_one_node_its_own_reason_is_enough() -> None:
    ledger = a_ledger(a_node("n1", gpus=1))
    ledger.hold(held("a", "n1", 0, 16000))

    answer = why_waiting(ledger, memory(8138), [N1])

    assert answer is not None
    assert answer.reason == "GPU 0 of n1 has 276 MiB free, 8,138 MiB asked; held by lab/a"


def test_who_need_not_wait_gets_no_reason() -> None:
    assert why_waiting(a_ledger(a_node("n1")), whole(), [NodeName("nowhere"), N1]) is None


def test_without_any_node_it_says_so() -> None:
    assert why_waiting(a_ledger(), whole(), []) == Refusal("there is no node for 1 whole GPU")


def closest(answer: Refusal | None) -> str:
    """The node that is named as the closest."""
    assert answer is not None
    return answer.reason.partition("closest: ")[2].removeprefix("GPU 0 of ").split()[0]


@pytest.mark.parametrize(
    ("others", "request_"),
    [
        pytest.param([a_node("a", 0)], whole(), id="a node without GPUs"),
        pytest.param([], whole(), id="a node that Carrel does not know"),
        pytest.param([a_node("a", 8, model=A100)], whole(model=A6000), id="a node with free GPUs of another model"),
        pytest.param(
            [replace(a_node("a", 8), unusable="the agent is silent")], whole(), id="a node that is not in use"
        ),
        pytest.param([a_node("a", 8, unusable="unhealthy")], whole(), id="a node whose GPUs are not in use"),
        pytest.param([a_node("a", 1)], whole(2), id="a free node with too few GPUs"),
        pytest.param([a_node("a", 8, memory=8000)], memory(9000), id="a node with GPUs that are too small"),
    ],
)
def test_a_full_node_of_the_right_kind_is_closer_than(others: list[Node], request_: Request) -> None:
    ledger = a_ledger(a_node("z", gpus=2), *others)
    for index in range(2):
        ledger.hold(held(f"z-{index}", "z", index, None))

    answer = why_waiting(ledger, request_, [NodeName("a"), NodeName("z")])

    assert closest(answer) == "z"
    assert NodeFilter(ledger).why(request_, (NodeName("a"), NodeName("z"))) == answer


def test_a_node_without_gpus_comes_last() -> None:
    ledger = a_ledger(a_node("a", 0), a_node("b", 1, model=A100))

    assert closest(why_waiting(ledger, whole(model=A6000), [NodeName("a"), NodeName("b")])) == "b"


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (["cpu-1", "cpu-2"], "none of the 2 nodes where the pod may run has a GPU that Carrel knows of"),
        (["cpu-1"], "the only node for the pod has no GPU that Carrel knows of"),
    ],
    ids=["two nodes", "one node"],
)
def test_nodes_without_gpus_are_not_named_as_the_closest(nodes: list[NodeName], said: str) -> None:
    ledger = a_ledger(a_node("gpu-1"), a_node("cpu-1", 0))

    answer = why_waiting(ledger, whole(), nodes)

    assert answer is not None and answer.reason == f"1 whole GPU asked, but {said}"
    assert NodeFilter(ledger).why(whole(), tuple(nodes)) == answer
