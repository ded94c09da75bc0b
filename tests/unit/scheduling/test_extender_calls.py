"""The answers to kube-scheduler's calls."""

from collections.abc import Mapping

from carrel.ids import NodeName
from carrel.scheduling.extender_calls import (
    BOUND,
    bind_failed,
    filter_failed,
    filter_result,
    host_priorities,
)
from tests.kit.gpus import N1, N2, N3, N4


def test_nodes_that_came_as_objects_are_answered_as_objects() -> None:
    n1, n2 = ({"metadata": {"name": name, "labels": {"a": "b"}}} for name in ("n1", "n2"))
    assert filter_result({N1: n1, N2: n2}, [N2], {N1: "Insufficient GPU Memory in one device"}) == {
        "Nodes": {"items": [n2]},
        "NodeNames": ["n2"],
        "FailedNodes": {"n1": "Insufficient GPU Memory in one device"},
        "Error": "",
    }


def test_names_are_answered_with_names() -> None:
    assert filter_result(None, [N1], {}) == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "Error": "",
    }


def test_a_failed_filter_has_only_an_error() -> None:
    assert filter_failed("the ledger is not ready") == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": None,
        "Error": "the ledger is not ready",
    }


def test_answers_have_the_keys_of_the_go_types() -> None:
    assert BOUND == {"Error": ""}
    assert bind_failed("no such pod") == {"Error": "no such pod"}
    assert host_priorities({N1: True, N2: False}) == [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 0}]


def scores(best_first: Mapping[NodeName, bool]) -> list[int]:
    return [each["Score"] for each in host_priorities(best_first)]


def test_scores_fall_by_one_from_the_best_node_and_are_zero_where_the_pod_would_not_like_to_be() -> None:
    nodes = [NodeName(f"n{number}") for number in range(12)]

    assert scores(dict.fromkeys(nodes, True)) == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
    assert scores({N1: True, N2: True, N3: False, N4: True}) == [10, 9, 0, 7]
