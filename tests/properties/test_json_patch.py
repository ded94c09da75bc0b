"""What holds for every JSON document and every patch."""

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from carrel.admission.review import patch
from kubernetes_in_memory.json_patch import apply
from kubernetes_in_memory.malformed_input import MalformedInput
from tests.kit.arbitrary_json import documents

OPS = st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "other"])
POINTERS = st.lists(st.sampled_from(["a", "b", "0", "1", "-", "~0", "~1", "", "01", "~"]), max_size=4).map(
    lambda steps: "".join(f"/{step}" for step in steps)
)
OPERATIONS = st.fixed_dictionaries({"op": OPS, "path": POINTERS}, optional={"from": POINTERS, "value": documents()})


@given(documents(), documents())
def test_a_difference_leads_from_one_document_to_the_other(before: Any, after: Any) -> None:
    kept = deepcopy((before, after))
    one, other = {"the/spec~": before}, {"the/spec~": after}
    assert apply(one, patch(one, other)) == other
    assert (before, after) == kept


@given(documents())
def test_a_document_does_not_differ_from_itself(document: Any) -> None:
    assert patch({"spec": document}, {"spec": deepcopy(document)}) == []


@given(documents(), st.lists(OPERATIONS | documents(), max_size=4))
def test_any_patch_is_applied_or_malformed_and_mutates_nothing(document: Any, operations: Any) -> None:
    kept = deepcopy((document, operations))
    try:
        apply(document, operations)
    except MalformedInput as error:
        assert len(str(error)) < 1000
    assert (document, operations) == kept
