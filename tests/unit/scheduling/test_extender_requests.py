"""What kube-scheduler sends, and what is read of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.ids import PodUid
from carrel.parsing import Malformed
from carrel.scheduling.extender_calls import BindArgs, NotJson, read_bind_args, read_pod_and_nodes
from tests.kit.gpus import N1, N2

POD = '{"metadata": {"name": "train", "namespace": "lab"}}'


def question(names: str) -> bytes:
    return f'{{"Pod": {POD}, "Nodes": null, "NodeNames": {names}}}'.encode()


@given(st.lists(st.text('abn1-.,"\\ é[]', max_size=4), max_size=6), st.booleans(), st.booleans())
def test_names_are_those_that_were_sent(names: list[str], with_spaces: bool, escaped: bool) -> None:
    text = json.dumps(names, separators=(", " if with_spaces else ",", ":"), ensure_ascii=escaped)
    nodes = read_pod_and_nodes(question(text)).nodes
    assert list(nodes) == names
    assert len(nodes) == len(names)
    assert all(name in nodes for name in names)
    assert "elsewhere" not in nodes


@pytest.mark.parametrize(
    "names",
    [
        pytest.param('["n1",7,"n2"]', id="a number among names"),
        pytest.param('[",",7,"n1"]', id="a number among names, and a comma that is one"),
        pytest.param('["n1",["n2","n3"]]', id="a list among names"),
        pytest.param('["n1",["n2"],"n3"]', id="a list between names"),
        pytest.param('["n1",{"n2":"n3"},"n4"]', id="an object among names"),
        pytest.param('[["n1","n2"]]', id="a list of lists"),
        pytest.param('{"n1":"n2"}', id="an object"),
        pytest.param('"n1"', id="one name"),
    ],
)
def test_something_else_than_names_is_refused(names: str) -> None:
    with pytest.raises(Malformed):
        read_pod_and_nodes(question(names))


TRAIN = json.loads(POD)


def sent(body: Any) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"Pod": TRAIN, "Nodes": None, "NodeNames": ["n1", "n2"]}, id="as kube-scheduler writes it"),
        pytest.param({"pod": TRAIN, "nodenames": ["n1", "n2"]}, id="as older versions wrote it"),
        pytest.param({"POD": TRAIN, "nodeNames": ["n1", "n2"]}, id="in any letter case"),
        pytest.param(
            {"Pod": TRAIN, "NodeNames": ["n1", "n2"], "More": {}}, id="with a field that Carrel does not know"
        ),
    ],
)
def test_a_question_with_names_is_read_in_any_letter_case(body: dict[str, Any]) -> None:
    question = read_pod_and_nodes(sent(body))
    assert (question.pod.metadata.name, tuple(question.nodes), question.objects) == ("train", ("n1", "n2"), None)


@pytest.mark.parametrize("items", ["items", "Items"])
def test_a_question_with_node_objects_keeps_them(items: str) -> None:
    n1, n2 = ({"metadata": {"name": name, "labels": {"a": "b"}}} for name in ("n1", "n2"))
    question = read_pod_and_nodes(sent({"Pod": TRAIN, "Nodes": {items: [n1, n2]}, "NodeNames": None}))
    assert (*question.nodes,) == ("n1", "n2") and question.objects is not None
    assert json.loads(bytes(question.objects[N2])) == n2  # type: ignore[call-overload] # as it was sent


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        pytest.param({"Pod": TRAIN, "Nodes": {"items": []}, "NodeNames": []}, "not both", id="both lists"),
        pytest.param({"Pod": TRAIN}, "not neither", id="no list"),
        pytest.param({"NodeNames": ["n1"]}, "Pod is None; expected the pod to schedule", id="no pod"),
        pytest.param({"Pod": TRAIN, "pod": TRAIN, "NodeNames": []}, "'Pod and pod'; expected Pod once", id="two pods"),
        pytest.param({"Pod": [], "NodeNames": []}, "Pod is a list; expected a mapping", id="a pod that is a list"),
        pytest.param(
            {"Pod": {"spec": {"containers": [{}, {"resources": {"limits": []}}]}}, "NodeNames": []},
            r"Pod\.spec\.containers\[1\]\.resources\.limits is a list; expected a mapping",
            id="limits that are a list",
        ),
        pytest.param(
            {"Pod": TRAIN, "NodeNames": ["n1", 2]}, r"NodeNames\[1\] is a whole", id="a name that is a number"
        ),
        pytest.param({"Pod": TRAIN, "NodeNames": "n1"}, "NodeNames is a text; expected a list", id="names as text"),
        pytest.param(
            {"Pod": TRAIN, "Nodes": {"items": [{}]}}, r"Nodes.items\[0\].metadata is missing", id="no metadata"
        ),
        pytest.param(
            {"Pod": TRAIN, "Nodes": {"items": [{"metadata": {"name": ""}}]}},
            r"Nodes.items\[0\].metadata.name is something else; expected a text of length",
            id="a node without a name",
        ),
        pytest.param([1], "the document is a list; expected a mapping", id="a list"),
        pytest.param(None, "the document is nothing; expected a mapping", id="nothing"),
    ],
)
def test_the_error_about_a_question_says_which_field_is_wrong(body: Any, complaint: str) -> None:
    with pytest.raises(Malformed, match=f"^ExtenderArgs: .*{complaint}"):
        read_pod_and_nodes(sent(body))


def test_a_pod_that_is_larger_than_any_that_is_stored_is_not_read() -> None:
    labels = {"x": "y" * 5 * 1024 * 1024}
    with pytest.raises(NotJson, match=r"the pod has .* bytes"):
        read_pod_and_nodes(sent({"Pod": {"metadata": {"labels": labels}}, "NodeNames": []}))


def test_a_number_without_end_is_no_pod() -> None:
    with pytest.raises(Malformed, match=r"^ExtenderArgs: Pod is "):
        read_pod_and_nodes(b'{"Pod": ' + b"9" * 5000 + b', "NodeNames": []}')


@pytest.mark.parametrize("spell", [str, str.lower, str.upper])
def test_bind_args_are_read_in_any_letter_case(spell: Any) -> None:
    words = {"PodName": "train", "PodNamespace": "lab", "PodUID": "uid-1", "Node": "n1"}
    assert read_bind_args(sent({spell(key): value for key, value in words.items()})) == BindArgs(
        "lab", "train", PodUid("uid-1"), N1
    )


@pytest.mark.parametrize("missing", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", ["", None, 7])
def test_bind_args_need_all_fields(missing: str, value: Any) -> None:
    words = {"PodName": "train", "PodNamespace": "lab", "PodUID": "uid-1", "Node": "n1"}
    with pytest.raises(Malformed, match=f"^ExtenderBindingArgs: {missing} is "):
        read_bind_args(sent({**words, missing: value}))
