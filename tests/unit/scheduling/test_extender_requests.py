"""The names of nodes, which are looked up in the text of a question."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.parsing import Malformed
from carrel.scheduling.extender_requests import NodeNames, read_pod_and_nodes

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


def test_a_name_is_not_found_in_a_longer_one() -> None:
    nodes = read_pod_and_nodes(question('["node-10","a-node-1"]')).nodes
    assert isinstance(nodes, NodeNames), "they need not be read for that"
    assert [name in nodes for name in ("node-1", "node-10", "a-node", "node-10,a-node-1", 10)] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert (nodes[1], nodes[:1]) == ("a-node-1", ("node-10",))


def test_the_same_names_again_are_the_same_object() -> None:
    first, again = (read_pod_and_nodes(question('["n1","n2"]')).nodes for _ in range(2))
    assert first is again
    assert read_pod_and_nodes(question('["n2","n1"]')).nodes is not first


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
