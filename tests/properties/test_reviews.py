"""A review that is read the fast way says the same as one that is read field by field, and no other is read."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.admission import review
from carrel.admission.review_decoding import NotAReview, read_review
from carrel.parsing import Malformed
from tests.kit.arbitrary_json import documents

USUAL: dict[str, Any] = {
    "kind": "AdmissionReview",
    "apiVersion": "admission.k8s.io/v1",
    "request": {
        "uid": "u1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "lab",
        "name": "train",
        "operation": "CREATE",
        "subResource": "",
        "userInfo": {"username": "ada@lab.example", "groups": ["system:authenticated"]},
        "object": {"metadata": {"name": "train", "labels": None}, "spec": {"containers": []}},
        "oldObject": None,
        "dryRun": False,
    },
}
PLACES = [
    *((key,) for key in USUAL),
    *(("request", key) for key in USUAL["request"]),
    ("request", "kind", "kind"),
    ("request", "userInfo", "username"),
]
NOTHING = object()
changes = st.lists(
    st.tuples(
        st.sampled_from(PLACES),
        st.just(NOTHING) | st.sampled_from(["", "v1", "UPDATE", "admission.k8s.io/v1beta1"]) | documents(),
    ),
    max_size=2,
)


@settings(max_examples=200)
@given(changes)
def test_a_review_says_the_same_however_it_is_read(changed: list[tuple[tuple[str, ...], Any]]) -> None:
    body = json.dumps(_with(changed)).encode()
    try:
        expected = review.read(json.loads(body))._replace(size=len(body))
    except Malformed as malformed:
        with pytest.raises(NotAReview) as refused:
            read_review(body)
        assert str(refused.value) == str(malformed)
    else:
        assert read_review(body) == expected


def _with(changed: list[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    whole = copy.deepcopy(USUAL)
    for (*around, key), value in changed:
        there: Any = whole
        for each in around:
            there = there.get(each) if isinstance(there, dict) else None
        if isinstance(there, dict):
            there.pop(key, None)
            if value is not NOTHING:
                there[key] = value
    return whole
