"""Whatever is sent as a review is read whole, or refused with the field that is wrong."""

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.admission.review import NotAReview, read_review
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
def test_a_review_is_read_whole_or_refused_with_the_field(changed: list[tuple[tuple[str, ...], Any]]) -> None:
    document = _with(changed)
    body = json.dumps(document).encode()
    try:
        found = read_review(body)
    except NotAReview as refused:
        assert str(refused).startswith("AdmissionReview: ") and "; expected " in str(refused)
    else:
        asked = document["request"]
        assert (found.uid, found.kind, found.operation) == (asked["uid"], asked["kind"]["kind"], asked["operation"])
        assert (found.object, found.old_object) == (asked.get("object"), asked.get("oldObject"))
        assert (found.namespace, found.name) == (asked.get("namespace") or "", asked.get("name") or "")
        assert found.user.name == ((asked.get("userInfo") or {}).get("username") or "")
        assert found.dry_run is bool(asked.get("dryRun"))


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
