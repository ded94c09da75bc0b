"""The calls of kube-scheduler to an extender."""

from typing import Any

import pytest

from carrel.parsing import Malformed
from carrel.scheduling.extender_calls import (
    BindArgs,
    bind_result,
    filter_failed,
    filter_result,
    host_priorities,
    read_bind_args,
    read_extender_args,
    scores,
)

POD = {"metadata": {"name": "train", "namespace": "lab"}}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}, id="as kube-scheduler writes it"),
        pytest.param({"pod": POD, "nodenames": ["n1", "n2"]}, id="as older versions wrote it"),
        pytest.param({"POD": POD, "nodeNames": ["n1", "n2"]}, id="in any letter case"),
    ],
)
def test_extender_args_with_names_are_read_in_any_letter_case(body: dict[str, Any]) -> None:
    question = read_extender_args(body)
    assert (question.pod, question.nodes, question.objects) == (POD, ("n1", "n2"), None)


@pytest.mark.parametrize("items", ["items", "Items"])
def test_extender_args_with_node_objects_are_answered_with_node_objects(items: str) -> None:
    n1, n2 = ({"metadata": {"name": name, "labels": {"a": "b"}}} for name in ("n1", "n2"))
    question = read_extender_args({"Pod": POD, "Nodes": {items: [n1, n2]}, "NodeNames": None})
    assert question.nodes == ("n1", "n2")
    assert filter_result(question.objects, ["n2"], {"n1": "Insufficient GPU Memory in one device"}) == {
        "Nodes": {"items": [n2]},
        "NodeNames": ["n2"],
        "FailedNodes": {"n1": "Insufficient GPU Memory in one device"},
        "Error": "",
    }


def test_extender_args_with_names_are_answered_with_names() -> None:
    question = read_extender_args({"Pod": POD, "NodeNames": ["n1"]})
    assert filter_result(question.objects, ["n1"], {}) == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "Error": "",
    }


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        pytest.param({"Pod": POD, "Nodes": {"items": []}, "NodeNames": []}, "not both", id="both lists"),
        pytest.param({"Pod": POD}, "not neither", id="no list"),
        pytest.param({"NodeNames": ["n1"]}, "Pod is None; expected the pod to schedule", id="no pod"),
        pytest.param({"Pod": POD, "pod": POD, "NodeNames": []}, "Pod once, not as Pod and pod", id="two pods"),
        pytest.param({"Pod": [], "NodeNames": []}, "Pod is .*an object", id="a pod that is a list"),
        pytest.param({"Pod": POD, "NodeNames": ["n1", 2]}, r"NodeNames\[1\] is 2", id="a name that is a number"),
        pytest.param({"Pod": POD, "NodeNames": "n1"}, "NodeNames is 'n1'; expected a list", id="names that are text"),
        pytest.param({"Pod": POD, "Nodes": {"items": [{}]}}, r"metadata.name is None", id="a node without a name"),
        pytest.param([1], "the document is", id="a list"),
        pytest.param(None, "Pod is None", id="nothing"),
    ],
)
def test_the_error_about_malformed_extender_args_says_what_is_wrong(body: Any, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        read_extender_args(body)


def test_an_empty_list_of_names_is_a_list() -> None:
    assert read_extender_args({"Pod": POD, "NodeNames": []}).nodes == ()


def test_a_failed_filter_has_only_an_error() -> None:
    assert filter_failed("the ledger is not ready") == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": None,
        "Error": "the ledger is not ready",
    }


@pytest.mark.parametrize("spell", [str, str.lower, str.upper])
def test_bind_args_are_read_in_any_letter_case(spell: Any) -> None:
    words = {"PodName": "train", "PodNamespace": "lab", "PodUID": "uid-1", "Node": "n1"}
    assert read_bind_args({spell(key): value for key, value in words.items()}) == BindArgs(
        "lab", "train", "uid-1", "n1"
    )


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
def test_bind_args_need_all_fields(missing: str) -> None:
    words = {"PodName": "train", "PodNamespace": "lab", "PodUID": "uid-1", "Node": "n1"}
    with pytest.raises(Malformed, match=missing):
        read_bind_args({**words, missing: ""})


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
