"""What kube-scheduler sends about thousands of nodes is read only as far as it is needed, and never misread."""

import json
from typing import Any

import pytest

from carrel.parsing import Malformed
from carrel.scheduling.extender_requests import SHORT_LIST, read_pod_and_nodes

POD = {"metadata": {"name": "train", "namespace": "lab", "uid": "u1"}, "spec": {"containers": []}}
MANY = [f"node-{number:04}" for number in range(1000)]


def body(names: list[Any], **style: Any) -> bytes:
    return json.dumps({"Pod": POD, "Nodes": None, "NodeNames": names}, **style).encode()


@pytest.mark.parametrize(
    "style", [pytest.param({"separators": (",", ":")}, id="as Go writes it"), pytest.param({}, id="with blanks")]
)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="plain names"),
        pytest.param(['a"b', "c\\d"], id="names with escaped characters"),
        pytest.param([","], id="a name that is a comma"),
        pytest.param([""], id="an empty name"),
    ],
)
def test_all_names_are_found_and_no_others(style: dict[str, Any], more: list[str]) -> None:
    names = [*MANY, *more]
    assert len(body(names)) > SHORT_LIST

    nodes = read_pod_and_nodes(body(names, **style)).nodes

    assert all(name in nodes for name in names)
    assert not any(name in nodes for name in ("node-1", "ode-0001", "node-1000", 'node-0001","node-0002'))
    assert (list(nodes), len(nodes), nodes[0]) == (names, len(names), "node-0000")


@pytest.mark.parametrize("wrong", [7, None, ["node-1"], {"node-1": "node-2"}], ids=repr)
@pytest.mark.parametrize("place", [0, 500, 1000])
def test_what_is_no_name_is_found_in_a_long_list_too(wrong: object, place: int) -> None:
    names: list[Any] = [*MANY]
    names.insert(place, wrong)

    with pytest.raises(Malformed, match="NodeNames"):
        read_pod_and_nodes(body(names, separators=(",", ":")))
