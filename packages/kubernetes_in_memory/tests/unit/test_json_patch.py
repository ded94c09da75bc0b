"""JSON Patch as RFC 6902 says it, with the RFC's own examples (appendix A)."""

from copy import deepcopy
from typing import Any

import pytest

from kubernetes_in_memory.json_patch import apply
from kubernetes_in_memory.malformed_input import MalformedInput


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        pytest.param(
            {"foo": "bar"},
            [{"op": "add", "path": "/baz", "value": "qux"}],
            {"baz": "qux", "foo": "bar"},
            id="A.1 adding an object member",
        ),
        pytest.param(
            {"foo": ["bar", "baz"]},
            [{"op": "add", "path": "/foo/1", "value": "qux"}],
            {"foo": ["bar", "qux", "baz"]},
            id="A.2 adding an array element",
        ),
        pytest.param(
            {"baz": "qux", "foo": "bar"},
            [{"op": "remove", "path": "/baz"}],
            {"foo": "bar"},
            id="A.3 removing an object member",
        ),
        pytest.param(
            {"foo": ["bar", "qux", "baz"]},
            [{"op": "remove", "path": "/foo/1"}],
            {"foo": ["bar", "baz"]},
            id="A.4 removing an array element",
        ),
        pytest.param(
            {"baz": "qux", "foo": "bar"},
            [{"op": "replace", "path": "/baz", "value": "boo"}],
            {"baz": "boo", "foo": "bar"},
            id="A.5 replacing a value",
        ),
        pytest.param(
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
            id="A.6 moving a value",
        ),
        pytest.param(
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
            id="A.7 moving an array element",
        ),
        pytest.param(
            {"baz": "qux", "foo": ["a", 2, "c"]},
            [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
            {"baz": "qux", "foo": ["a", 2, "c"]},
            id="A.8 testing a value: success",
        ),
        pytest.param(
            {"foo": "bar"},
            [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
            {"foo": "bar", "child": {"grandchild": {}}},
            id="A.10 adding a nested member object",
        ),
        pytest.param(
            {"foo": "bar"},
            [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
            {"foo": "bar", "baz": "qux"},
            id="A.11 unknown members of an operation are ignored",
        ),
        pytest.param(
            {"/": 9, "~1": 10},
            [{"op": "test", "path": "/~01", "value": 10}],
            {"/": 9, "~1": 10},
            id="A.14 escapes are undone once, in the right order",
        ),
        pytest.param(
            {"foo": ["bar"]},
            [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
            {"foo": ["bar", ["abc", "def"]]},
            id="A.16 adding an array value at the end",
        ),
        pytest.param(
            {"a": {"b": 1}},
            [{"op": "copy", "from": "/a", "path": "/c"}, {"op": "add", "path": "/c/b", "value": 2}],
            {"a": {"b": 1}, "c": {"b": 2}},
            id="a copy lives its own life",
        ),
        pytest.param({"a": 1}, [{"op": "add", "path": "", "value": [1]}], [1], id="the whole document is replaced"),
        pytest.param({"a": 1}, [{"op": "replace", "path": "", "value": 2}], 2, id="the same by replacing"),
        pytest.param({"": {"": 1}}, [{"op": "remove", "path": "/"}], {}, id="the empty key is a key"),
        pytest.param(
            {"a": [1]}, [{"op": "test", "path": "/a/0", "value": 1.0}], {"a": [1]}, id="numbers are compared by value"
        ),
        pytest.param({"a": None}, [{"op": "replace", "path": "/a", "value": None}], {"a": None}, id="null is a value"),
        pytest.param({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}, id="moving to the same place"),
    ],
)
def test_a_patch_gives_a_new_document_and_leaves_the_old_one(
    document: Any, operations: list[dict[str, Any]], expected: Any
) -> None:
    before = deepcopy((document, operations))
    assert apply(document, operations) == expected
    assert (document, operations) == before


@pytest.mark.parametrize(
    ("document", "operation"),
    [
        pytest.param({"baz": "qux"}, {"op": "test", "path": "/baz", "value": "bar"}, id="A.9 a test that fails"),
        pytest.param({"foo": "bar"}, {"op": "add", "path": "/baz/bat", "value": "qux"}, id="A.12 a missing parent"),
        pytest.param({"/": 9}, {"op": "test", "path": "/~1", "value": "9"}, id="A.15 text is not a number"),
        pytest.param({"a": 1}, {"op": "test", "path": "/a", "value": True}, id="true is not 1"),
        pytest.param({"a": [1]}, {"op": "test", "path": "/a", "value": [True]}, id="nor is it inside a list"),
        pytest.param({"a": {"b": 1}}, {"op": "test", "path": "/a", "value": {"b": True}}, id="nor inside an object"),
        pytest.param({"a": [1]}, {"op": "test", "path": "/a", "value": {}}, id="a list is not an object"),
        pytest.param({"a": 1}, {"op": "remove", "path": "/b"}, id="removing what is not there"),
        pytest.param({"a": 1}, {"op": "remove", "path": ""}, id="removing the document"),
        pytest.param({"a": 1}, {"op": "replace", "path": "/b", "value": 1}, id="replacing what is not there"),
        pytest.param({"a": 1}, {"op": "copy", "from": "/b", "path": "/c"}, id="copying what is not there"),
        pytest.param({"a": {}}, {"op": "move", "from": "/a", "path": "/a/b"}, id="moving into itself"),
        pytest.param([1], {"op": "add", "path": "/2", "value": 1}, id="an index past the end"),
        pytest.param([1], {"op": "add", "path": "/01", "value": 1}, id="a leading zero"),
        pytest.param([1], {"op": "add", "path": "/-1", "value": 1}, id="a negative index"),
        pytest.param([1], {"op": "add", "path": "/٠", "value": 1}, id="a digit of another script"),
        pytest.param([1], {"op": "add", "path": "/" + "9" * 5000, "value": 1}, id="an index that is a long story"),
        pytest.param([1], {"op": "replace", "path": "/-", "value": 1}, id="replacing behind the end"),
        pytest.param([1], {"op": "remove", "path": "/1"}, id="removing behind the end"),
        pytest.param({"a": "text"}, {"op": "add", "path": "/a/0", "value": 1}, id="a place inside text"),
        pytest.param({"a": 1}, {"op": "add", "path": "a", "value": 1}, id="a pointer without its slash"),
        pytest.param({"a": 1}, {"op": "add", "path": "/a~2", "value": 1}, id="an unknown escape"),
        pytest.param({"a": 1}, {"op": "add", "path": "/a"}, id="no value"),
        pytest.param({"a": 1}, {"op": "add", "path": ["a"], "value": 1}, id="a pointer that is a list"),
        pytest.param({"a": 1}, {"op": "spam", "path": "/a", "value": 1}, id="A.13 an unknown operation"),
        pytest.param({"a": 1}, {"path": "/a", "value": 1}, id="no operation"),
        pytest.param({"a": 1}, ["add", "/a", 1], id="an operation that is a list"),
    ],
)
def test_a_patch_that_cannot_be_applied_is_malformed_and_names_the_operation(document: Any, operation: Any) -> None:
    with pytest.raises(MalformedInput, match="operation 1"):
        apply(document, [{"op": "test", "path": "", "value": document}, operation])


def test_a_patch_that_is_no_list_is_malformed() -> None:
    not_a_list: Any = {"op": "remove", "path": "/a"}
    with pytest.raises(MalformedInput, match="a list of operations"):
        apply({"a": 1}, not_a_list)
