"""Merge patches and strategic merge patches give what a real API server gives."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.merge_patch import merge_keys_for, merge_patch, strategic_merge

Json = dict[str, Any]
POD = merge_keys_for("Pod")


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="a value is replaced"),
        pytest.param({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}, id="a value is added"),
        pytest.param({"a": "b"}, {"a": None}, {}, id="null removes"),
        pytest.param({"a": "b"}, {"c": None}, {"a": "b"}, id="null on a missing field does nothing"),
        pytest.param({"a": ["b"]}, {"a": ["c"]}, {"a": ["c"]}, id="a list is replaced"),
        pytest.param({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}, id="a scalar becomes a list"),
        pytest.param({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}, id="maps are merged"),
        pytest.param({"a": [1, 2]}, {"a": {"a": {"bb": None}}}, {"a": {"a": {}}}, id="nulls in a new map are dropped"),
        pytest.param({"a": "b"}, {"a": {"b": 1}}, {"a": {"b": 1}}, id="a scalar becomes a map"),
        pytest.param({"a": "b"}, {"a": [None]}, {"a": [None]}, id="nulls in a list stay"),
    ],
)
def test_a_merge_patch_is_merged(target: Json, patch: Json, expected: Json) -> None:
    assert merge_patch(target, patch) == expected


def pod(**spec: Any) -> Json:
    return {"metadata": {"name": "p"}, "spec": spec}


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        pytest.param(
            {"containers": [{"name": "a", "image": "x", "env": [{"name": "A", "value": "1"}]}, {"name": "b"}]},
            {"containers": [{"name": "a", "env": [{"name": "B", "value": "2"}]}]},
            {
                "containers": [
                    {"name": "a", "image": "x", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]},
                    {"name": "b"},
                ]
            },
            id="containers and their env are merged by name, a new element comes first",
        ),
        pytest.param(
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"name": "a", "$patch": "delete"}]},
            {"containers": [{"name": "b"}]},
            id="an element is deleted by name",
        ),
        pytest.param(
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"$patch": "replace"}, {"name": "c"}]},
            {"containers": [{"name": "c"}]},
            id="a list is replaced on demand",
        ),
        pytest.param(
            {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
            {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]},
            {"containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}]},
            id="a list is put in order without a change, the others keep their place",
        ),
        pytest.param(
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {
                "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
                "containers": [{"name": "c", "image": "x"}],
            },
            {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c", "image": "x"}]},
            id="a new element takes the place that the order gives it",
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}, {"key": "b"}]},
            {"tolerations": [{"key": "c"}]},
            {"tolerations": [{"key": "c"}]},
            id="tolerations have no merge key and are replaced",
        ),
        pytest.param(
            {"containers": [{"name": "a", "ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}]}]},
            {"containers": [{"name": "a", "ports": [{"containerPort": 53, "name": "dns"}]}]},
            {
                "containers": [
                    {
                        "name": "a",
                        "ports": [{"containerPort": 53, "name": "dns"}, {"containerPort": 53, "protocol": "UDP"}],
                    }
                ]
            },
            id="of two ports with one number the first is merged and the second stays",
        ),
        pytest.param(
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]},
            {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]},
            id="retainKeys removes the fields of a union that are not kept",
        ),
        pytest.param(
            {"securityContext": {"runAsUser": 1, "fsGroup": 2}},
            {"securityContext": {"$patch": "replace", "runAsUser": 3}},
            {"securityContext": {"runAsUser": 3}},
            id="a map is replaced on demand",
        ),
        pytest.param(
            {"securityContext": {"runAsUser": 1}},
            {"securityContext": {"$patch": "delete"}},
            {"securityContext": {}},
            id="a map is emptied on demand",
        ),
        pytest.param(
            {},
            {"containers": [{"name": "a", "image": None}, {"name": "b", "$patch": "delete"}]},
            {"containers": [{"name": "a"}]},
            id="directives and nulls of a new list are not stored",
        ),
        pytest.param(
            {"nodeSelector": {"a": "1"}},
            {"nodeSelector": {"b": "2", "a": None}},
            {"nodeSelector": {"b": "2"}},
            id="maps are merged like in a merge patch",
        ),
    ],
)
def test_a_pod_spec_is_merged_strategically(target: Json, patch: Json, expected: Json) -> None:
    assert strategic_merge(pod(**target), {"spec": patch}, POD) == pod(**expected)


def test_finalizers_are_merged_as_a_set_and_removed_by_name() -> None:
    target = {"metadata": {"finalizers": ["a", "b"]}}
    added = strategic_merge(target, {"metadata": {"finalizers": ["c", "b"]}}, POD)
    assert sorted(added["metadata"]["finalizers"]) == ["a", "b", "c"]
    removed = strategic_merge(added, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b", "missing"]}}, POD)
    assert sorted(removed["metadata"]["finalizers"]) == ["a", "c"]


@pytest.mark.parametrize(
    ("kind", "target", "patch", "expected"),
    [
        pytest.param(
            "Pod",
            {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Initialized"}]}},
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized"}]}},
            id="pod conditions by type",
        ),
        pytest.param(
            "Pod",
            {"metadata": {"ownerReferences": [{"uid": "1"}, {"uid": "2"}]}},
            {"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}},
            {"metadata": {"ownerReferences": [{"uid": "2"}]}},
            id="owners by uid",
        ),
        pytest.param(
            "Node",
            {"spec": {"taints": [{"key": "a"}]}},
            {"spec": {"taints": [{"key": "b"}]}},
            {"spec": {"taints": [{"key": "b"}]}},
            id="taints are replaced",
        ),
        pytest.param(
            "Node",
            {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname"}]}},
            {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}},
            {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}, {"type": "Hostname"}]}},
            id="addresses by type",
        ),
        pytest.param(
            "Service",
            {"spec": {"ports": [{"port": 80, "name": "web"}]}},
            {"spec": {"ports": [{"port": 80, "targetPort": 8080}]}},
            {"spec": {"ports": [{"port": 80, "name": "web", "targetPort": 8080}]}},
            id="service ports by port",
        ),
        pytest.param(
            "Deployment.apps",
            {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "1"}]}}}},
            {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "2"}]}}}},
            {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "2"}]}}}},
            id="containers in a template by name",
        ),
    ],
)
def test_each_kind_has_its_merge_keys(kind: str, target: Json, patch: Json, expected: Json) -> None:
    assert strategic_merge(target, patch, merge_keys_for(kind)) == expected


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({"$patch": "merge"}, id="an unknown directive of a map"),
        pytest.param({"$frobnicate": []}, id="an unknown directive"),
        pytest.param({"containers": [{"name": "a", "$patch": "merge"}]}, id="an unknown directive of an element"),
        pytest.param({"containers": [{"$patch": "delete"}]}, id="a deletion without the merge key"),
        pytest.param({"containers": [{"image": "x"}]}, id="an element without the merge key"),
        pytest.param({"containers": ["a"]}, id="a scalar in a list of objects"),
        pytest.param({"containers": [{"name": {"x": 1}}]}, id="a merge key that is no scalar"),
        pytest.param({"$retainKeys": "volumes"}, id="retainKeys that is no list"),
        pytest.param({"$retainKeys": ["volumes"], "containers": []}, id="retainKeys that leaves out a given field"),
        pytest.param(
            {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]},
            id="an order that leaves out a given element",
        ),
        pytest.param({"$setElementOrder/containers": "a"}, id="an order that is no list"),
        pytest.param(
            {"$setElementOrder/tolerations": [{"key": "a"}], "tolerations": [{"key": "a"}]},
            id="an order of a list without merge key",
        ),
    ],
)
def test_a_bad_directive_is_malformed(patch: Json) -> None:
    with pytest.raises(MalformedInput, match="strategic merge patch"):
        strategic_merge(pod(containers=[{"name": "a"}]), {"spec": patch}, POD)


SCALARS = st.one_of(st.integers(-3, 3), st.text("xyz", max_size=2), st.booleans())
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)
NULLABLE = st.recursive(
    SCALARS | st.none(), lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3), max_leaves=8
)
PATCHES = st.dictionaries(st.sampled_from("abcd"), NULLABLE, max_size=4)


def difference(before: Json, after: Json) -> Json:
    """The merge patch from one document to another, written independently of the code under test."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if below := difference(old, value):
                patch[name] = below
        elif name not in before or (type(old), old) != (type(value), value):
            patch[name] = value
    return patch


@given(DOCUMENTS, DOCUMENTS)
def test_merging_the_difference_restores(before: Json, after: Json) -> None:
    assert merge_patch(before, difference(before, after)) == after


@given(DOCUMENTS, PATCHES)
def test_a_merge_patch_twice_is_a_merge_patch_once(target: Json, patch: Json) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(DOCUMENTS, PATCHES)
def test_without_merge_keys_a_strategic_merge_is_a_merge_patch(target: Json, patch: Json) -> None:
    assert strategic_merge(target, patch, merge_keys_for("ConfigMap")) == merge_patch(target, patch)


def elements(*extra: Any) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {"name": st.sampled_from("abcde")},
        optional={"image": st.sampled_from(["x", "y", *extra]), "args": st.lists(st.sampled_from("pq"), max_size=2)},
    )


def specs(*extra: Any) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {},
        optional={
            "containers": st.lists(elements(*extra), max_size=4, unique_by=lambda element: element["name"]),
            "tolerations": st.lists(st.just({"key": "k"}), max_size=2),
        },
    )


@given(specs(), specs(None))
def test_a_strategic_merge_twice_is_a_strategic_merge_once(target: Json, patch: Json) -> None:
    once = strategic_merge({"spec": target}, {"spec": patch}, POD)
    assert strategic_merge(once, {"spec": patch}, POD) == once


@given(specs(), specs(None), st.permutations("abcde"))
def test_elements_stand_in_the_order_that_is_set(target: Json, patch: Json, order: list[str]) -> None:
    named = sorted(patch.get("containers", []), key=lambda element: order.index(element["name"]))
    directed = {**patch, "containers": named, "$setElementOrder/containers": [{"name": name} for name in order]}
    merged = strategic_merge({"spec": target}, {"spec": directed}, POD)["spec"]["containers"]
    names = [element["name"] for element in merged]
    assert names == [name for name in order if name in names]
    assert set(names) == {element["name"] for element in [*target.get("containers", []), *named]}


@given(specs(), specs(None))
def test_patches_never_change_their_inputs(target: Json, patch: Json) -> None:
    before = copy.deepcopy((target, patch))
    strategic_merge({"spec": target}, {"spec": patch}, POD)
    merge_patch({"spec": target}, {"spec": patch})
    assert (target, patch) == before
