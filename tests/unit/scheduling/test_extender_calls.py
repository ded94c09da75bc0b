"""The answers to kube-scheduler's calls."""

import pytest

from carrel.scheduling.extender_calls import (
    bind_result,
    filter_failed,
    filter_result,
    host_priorities,
    scores,
)


def test_nodes_that_came_as_objects_are_answered_as_objects() -> None:
    n1, n2 = ({"metadata": {"name": name, "labels": {"a": "b"}}} for name in ("n1", "n2"))
    assert filter_result({"n1": n1, "n2": n2}, ["n2"], {"n1": "Insufficient GPU Memory in one device"}) == {
        "Nodes": {"items": [n2]},
        "NodeNames": ["n2"],
        "FailedNodes": {"n1": "Insufficient GPU Memory in one device"},
        "Error": "",
    }


def test_names_are_answered_with_names() -> None:
    assert filter_result(None, ["n1"], {}) == {
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
    assert bind_result() == {"Error": ""}
    assert bind_result("no such pod") == {"Error": "no such pod"}
    assert host_priorities({"n1": 10, "n2": 0}) == [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 0}]


def test_scores_fall_by_one_from_the_best_node_and_are_zero_where_the_pod_would_not_like_to_be() -> None:
    nodes = [f"n{number}" for number in range(12)]

    assert list(scores(dict.fromkeys(nodes, True)).values()) == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
    assert scores({"n1": True, "n2": True, "n3": False, "n4": True}) == {"n1": 10, "n2": 9, "n3": 0, "n4": 7}


@pytest.mark.parametrize("score", [-1, 11])
def test_a_score_that_the_scheduler_would_refuse_is_a_defect(score: int) -> None:
    with pytest.raises(ValueError, match="0 to 10"):
        host_priorities({"n1": score})
