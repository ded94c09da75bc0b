"""Server-side apply: fields have owners, and nobody takes another's by accident."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubernetes_in_memory.apply import ApplyConflict, server_side_apply, track_update
from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.merge_keys import merge_keys_for
from kubernetes_in_memory.ownership import OwnedFields, fields_v1, owned_paths

Json = dict[str, Any]
POD = merge_keys_for("Pod")
T1, T2, T3 = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"


def pod(labels: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": "p", "namespace": "lab"}
    if labels is not None:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata} | ({"spec": spec} if spec else {})


def apply(live: Json | None, applied: Json, manager: str = "carrel", *, force: bool = False, now: str = T1) -> Json:
    return server_side_apply(live, applied, manager=manager, force=force, keys=POD, now=now)


def update(before: Json, after: Json, manager: str = "kubelet", now: str = T2, subresource: str = "") -> Json:
    fields = track_update(before, after, manager=manager, now=now, keys=POD, subresource=subresource)
    return {**after, "metadata": {**after["metadata"], "managedFields": fields}}


def plain(tree: Json) -> Json:
    """Without who owns what."""
    return {**tree, "metadata": {name: value for name, value in tree["metadata"].items() if name != "managedFields"}}


def owned(tree: Json, manager: str) -> Json:
    entries = [entry["fieldsV1"] for entry in tree["metadata"]["managedFields"] if entry["manager"] == manager]
    assert len(entries) <= 1
    return entries[0] if entries else {}


def test_an_apply_onto_nothing_creates_and_owns_what_it_says() -> None:
    applied = pod(
        {"app": "train"}, containers=[{"name": "a", "image": "x", "args": ["1"]}], tolerations=[{"key": "gpu"}]
    )
    created = apply(None, applied)
    assert plain(created) == applied
    assert created["metadata"]["managedFields"] == [
        {
            "manager": "carrel",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": T1,
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {"f:app": {}}},
                "f:spec": {
                    "f:containers": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:image": {}, "f:args": {}}},
                    "f:tolerations": {},
                },
            },
        }
    ]


def test_applying_the_same_again_changes_nothing_not_even_the_time() -> None:
    applied = pod({"app": "train"}, containers=[{"name": "a", "image": "x"}])
    created = apply(None, applied, now=T1)
    assert apply(created, applied, now=T2) == created


def test_a_field_that_is_left_out_is_removed() -> None:
    created = apply(
        None, pod({"a": "1", "b": "2"}, nodeName="n1", containers=[{"name": "a"}, {"name": "b", "image": "x"}])
    )
    applied = pod({"a": "1"}, containers=[{"name": "a"}])
    assert plain(apply(created, applied)) == applied


def test_a_map_that_becomes_empty_is_removed() -> None:
    created = apply(None, pod({"a": "1"}, nodeName="n1"))
    assert plain(apply(created, pod(nodeName="n1"))) == pod(nodeName="n1")


def test_a_field_that_is_left_out_stays_if_another_owns_it_too() -> None:
    created = apply(None, pod({"a": "1", "b": "2"}), "carrel")
    shared = apply(created, pod({"b": "2"}), "helm", now=T2)
    left = apply(shared, pod({"a": "1"}), "carrel", now=T3)
    assert left["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert owned(left, "helm") == {"f:metadata": {"f:labels": {"f:b": {}}}}
    assert owned(left, "carrel") == {"f:metadata": {"f:labels": {"f:a": {}}}}


def test_an_element_stays_with_its_key_while_another_owns_a_field_in_it() -> None:
    created = apply(None, pod(containers=[{"name": "a", "image": "x"}]), "carrel")
    shared = apply(created, pod(containers=[{"name": "a", "workingDir": "/w"}]), "helm")
    left = apply(shared, pod(), "carrel")
    assert left["spec"]["containers"] == [{"name": "a", "workingDir": "/w"}]


def test_an_element_that_an_ordinary_write_added_to_keeps_its_key() -> None:
    created = apply(None, pod(containers=[{"name": "a", "image": "x"}]), "carrel")
    written = update(created, pod(containers=[{"name": "a", "image": "x", "workingDir": "/w"}]))
    left = apply(written, pod(), "carrel")
    assert left["spec"]["containers"] == [{"name": "a", "workingDir": "/w"}]


def test_a_scalar_that_would_become_a_map_is_a_conflict() -> None:
    created = apply(None, pod(free="text"), "helm")
    with pytest.raises(ApplyConflict, match=r"\.spec\.free"):
        apply(created, pod(free={"a": "map"}), "carrel")


def test_anothers_field_is_a_conflict() -> None:
    created = apply(None, pod(containers=[{"name": "a", "image": "x"}]), "helm")
    with pytest.raises(ApplyConflict) as caught:
        apply(created, pod(containers=[{"name": "a", "image": "y"}]), "carrel")
    assert str(caught.value) == 'Apply failed with 1 conflict: conflict with "helm": .spec.containers[name="a"].image'
    assert [(cause.field, cause.reason, cause.message) for cause in caught.value.causes] == [
        ('.spec.containers[name="a"].image', "FieldManagerConflict", 'conflict with "helm"')
    ]


def test_several_conflicts_are_reported_at_once() -> None:
    created = apply(None, pod({"a": "1"}, nodeName="n1", tolerations=[{"key": "k"}]), "helm")
    with pytest.raises(ApplyConflict) as caught:
        apply(created, pod({"a": "2"}, nodeName="n2", tolerations=[]), "carrel")
    assert str(caught.value) == (
        'Apply failed with 3 conflicts: conflicts with "helm":\n'
        "- .metadata.labels.a\n- .spec.nodeName\n- .spec.tolerations"
    )


def test_the_same_value_is_no_conflict_but_shared() -> None:
    created = apply(None, pod({"a": "1"}), "helm")
    shared = apply(created, pod({"a": "1"}), "carrel", now=T2)
    assert owned(shared, "helm") == owned(shared, "carrel") == {"f:metadata": {"f:labels": {"f:a": {}}}}


def test_force_takes_the_field() -> None:
    created = apply(None, pod({"a": "1", "b": "1"}), "helm", now=T1)
    taken = apply(created, pod({"a": "2"}), "carrel", force=True, now=T2)
    assert taken["metadata"]["labels"] == {"a": "2", "b": "1"}
    assert owned(taken, "carrel") == {"f:metadata": {"f:labels": {"f:a": {}}}}
    assert owned(taken, "helm") == {"f:metadata": {"f:labels": {"f:b": {}}}}
    with pytest.raises(ApplyConflict):
        apply(taken, pod({"a": "1", "b": "1"}), "helm")


@pytest.mark.parametrize(
    ("live", "applied", "expected"),
    [
        pytest.param("ab", "c", "abc", id="a new element comes last"),
        pytest.param("abc", "ca", "bca", id="applied elements take the applied order"),
        pytest.param("ab", "cb", "acb", id="a new element stands before its neighbour"),
        pytest.param("", "ba", "ba", id="onto nothing"),
    ],
)
def test_elements_are_put_in_order(live: str, applied: str, expected: str) -> None:
    before = pod(containers=[{"name": name, "image": "x"} for name in live])
    after = apply(before, pod(containers=[{"name": name} for name in applied]))
    assert [container["name"] for container in after["spec"]["containers"]] == list(expected)


def test_ports_are_identified_by_number_and_protocol_and_tcp_is_the_default() -> None:
    created = apply(None, pod(containers=[{"name": "a", "ports": [{"containerPort": 53}]}]))
    both = [{"containerPort": 53, "name": "tcp"}, {"containerPort": 53, "protocol": "UDP"}]
    changed = apply(created, pod(containers=[{"name": "a", "ports": both}]))
    assert changed["spec"]["containers"][0]["ports"] == both


def test_finalizers_are_owned_one_by_one() -> None:
    def finalized(*names: str) -> Json:
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": list(names)}}

    shared = apply(apply(None, finalized("a"), "helm"), finalized("b"), "carrel")
    assert shared["metadata"]["finalizers"] == ["a", "b"]
    assert owned(shared, "carrel") == {"f:metadata": {"f:finalizers": {'v:"b"': {}}}}
    assert apply(shared, pod(), "carrel")["metadata"]["finalizers"] == ["a"]


def test_before_the_first_apply_everything_belongs_to_before_first_apply() -> None:
    live = pod({"a": "1"}, nodeName="n1")
    with pytest.raises(ApplyConflict, match=r'conflict with "before-first-apply" using v1: \.metadata\.labels\.a'):
        apply(live, pod({"a": "2"}))
    added = apply(live, pod({"b": "2"}))
    assert added["metadata"]["labels"] == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    "applied",
    [
        pytest.param(pod(containers=[{"image": "x"}]), id="an element without its key"),
        pytest.param(pod(containers=["x"]), id="an element that is no object"),
        pytest.param(pod(containers=[{"name": "a"}, {"name": "a"}]), id="an element twice"),
        pytest.param(
            {**pod(), "metadata": {"name": "p", "managedFields": [{"manager": "x"}]}}, id="owners in the document"
        ),
    ],
)
def test_a_document_that_cannot_be_applied_is_malformed(applied: Json) -> None:
    with pytest.raises(MalformedInput, match="applied configuration"):
        apply(None, applied)


def test_an_ordinary_write_takes_the_fields_that_it_changes() -> None:
    created = apply(None, pod({"a": "1", "b": "1"}), "carrel", now=T1)
    written = update(created, pod({"a": "2", "c": "3"}), now=T2)
    assert owned(written, "kubelet") == {"f:metadata": {"f:labels": {"f:a": {}, "f:c": {}}}}
    assert owned(written, "carrel") == {}
    with pytest.raises(ApplyConflict, match=r'conflict with "kubelet" using v1: \.metadata\.labels\.a'):
        apply(written, pod({"a": "1"}), "carrel")


def test_a_write_to_a_subresource_is_an_owner_of_its_own() -> None:
    created = apply(None, pod({"a": "1"}))
    written = update(created, {**created, "status": {"phase": "Running"}}, subresource="status")
    entry = written["metadata"]["managedFields"][-1]
    assert (entry["manager"], entry["subresource"], entry["fieldsV1"]) == (
        "kubelet",
        "status",
        {"f:status": {"f:phase": {}}},
    )


def test_a_write_that_changes_nothing_keeps_owners_and_times() -> None:
    written = update(apply(None, pod({"a": "1"})), pod({"a": "2"}), now=T2)
    assert update(written, written, now=T3) == written


def test_an_object_that_was_never_applied_has_no_owners() -> None:
    assert track_update(None, pod({"a": "1"}), manager="kubectl", now=T1, keys=POD) == []
    assert track_update(pod({"a": "1"}), pod({"a": "2"}), manager="kubectl", now=T1, keys=POD) == []


def test_owners_can_be_reset() -> None:
    created = apply(None, pod({"a": "1"}))
    reset = copy.deepcopy(created) | pod({"a": "2"})
    reset["metadata"]["managedFields"] = [{}]
    assert track_update(created, reset, manager="kubectl", now=T2, keys=POD) == []


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]), max_size=3)
CONTAINER_FIELDS: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {},
    optional={"image": st.sampled_from("xy"), "env": st.just([{"name": "E", "value": "1"}]), "resources": st.just({})},
)
CONTAINERS = st.lists(
    st.tuples(st.sampled_from("abcd"), CONTAINER_FIELDS), max_size=4, unique_by=lambda pair: pair[0]
).map(lambda pairs: [{"name": name, **fields} for name, fields in pairs])
PODS = st.builds(lambda labels, containers: pod(labels, containers=containers), LABELS, CONTAINERS)


@given(PODS)
def test_owned_paths_read_back_as_they_are_written(applied: Json) -> None:
    paths = owned_paths(applied, POD)
    holding = OwnedFields(fields_v1(paths), T1)
    assert holding.paths == paths
    assert all(holding.holds(path) for path in paths)


@given(PODS, PODS, PODS)
def test_an_apply_twice_is_an_apply_once(first: Json, second: Json, third: Json) -> None:
    live = apply(apply(None, first, "helm"), second, "carrel", force=True)
    once = apply(live, third, "carrel", force=True, now=T2)
    assert apply(once, third, "carrel", now=T3) == once


@given(PODS, PODS)
def test_after_a_forced_apply_everything_applied_is_there_and_owned(first: Json, second: Json) -> None:
    after = apply(apply(None, first, "helm"), second, "carrel", force=True)
    assert second["metadata"]["labels"].items() <= after["metadata"].get("labels", {}).items()
    known = {container["name"]: container for container in after["spec"]["containers"]}
    for container in second["spec"]["containers"]:
        assert container.items() <= known[container["name"]].items()
    assert owned(after, "carrel") == owned(apply(None, second, "carrel"), "carrel")


@given(PODS, PODS)
def test_a_lone_manager_gets_exactly_what_it_applies(first: Json, second: Json) -> None:
    after = plain(apply(apply(None, first), second))
    assert after["metadata"].get("labels", {}) == second["metadata"]["labels"]
    assert after["spec"].get("containers", []) == second["spec"]["containers"]


@given(PODS, PODS)
def test_an_apply_conflicts_exactly_when_it_would_change_what_another_owns(first: Json, second: Json) -> None:
    live = apply(None, first, "helm")
    forced = apply(live, second, "carrel", force=True)
    taken = owned(forced, "helm") != owned(live, "helm")
    try:
        calm = apply(live, second, "carrel")
    except ApplyConflict:
        assert taken
    else:
        assert calm == forced
        assert not taken


@given(PODS, PODS)
def test_inputs_are_never_changed(first: Json, second: Json) -> None:
    live = apply(None, first, "helm")
    before = copy.deepcopy((live, second))
    apply(live, second, "carrel", force=True)
    track_update(live, second, manager="kubectl", now=T2, keys=POD)
    assert (live, second) == before
