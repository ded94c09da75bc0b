"""The difference of two documents as a JSON Patch."""

from typing import Any

import pytest

from carrel.kubernetes.objects.json_patch import diff, escape
from kubernetes_in_memory.json_patch import apply


def test_a_step_of_a_pointer_escapes_what_annotation_keys_contain() -> None:
    assert escape("a/b~c") == "a~1b~0c"


def test_a_difference_changes_only_what_changed() -> None:
    before = {"containers": [{"name": "a"}, {"name": "b", "env": []}, {"name": "c"}], "gone": 1}
    after = {"containers": [{"name": "a"}, {"name": "b", "env": [{"name": "X"}]}, {"name": "c"}]}
    assert diff(before, after) == [
        {"op": "remove", "path": "/gone"},
        {"op": "add", "path": "/containers/1/env/0", "value": {"name": "X"}},
    ]


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        pytest.param([1, 2, 3], [2, 3], [{"op": "remove", "path": "/0"}], id="the first is gone"),
        pytest.param([1, 3], [1, 2, 3], [{"op": "add", "path": "/1", "value": 2}], id="one came in between"),
        pytest.param(
            [1, 2, 3], [1], [{"op": "remove", "path": "/2"}, {"op": "remove", "path": "/1"}], id="two are gone"
        ),
        pytest.param(
            {"a": [1]}, {"a": {}}, [{"op": "replace", "path": "/a", "value": {}}], id="a list became an object"
        ),
    ],
)
def test_a_difference_of_lists_is_short(before: Any, after: Any, operations: list[dict[str, Any]]) -> None:
    assert diff(before, after) == operations
    assert apply(before, operations) == after


def test_a_list_that_is_changed_all_over_is_replaced_in_one_step() -> None:
    before = {"env": [{"name": "ALL" if number % 2 else f"V{number}"} for number in range(20_000)]}
    after = {"env": [each for each in before["env"] if each["name"] != "ALL"]}

    assert diff(before, after) == [{"op": "replace", "path": "/env", "value": after["env"]}]
    assert apply(before, diff(before, after)) == after
