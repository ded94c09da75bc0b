"""AdmissionReviews as kube-apiserver sends them, and the answers it reads."""

import base64
import json
from typing import Any

import pytest

from carrel.admission.review import AdmissionRequest, NotAReview, RequestUser, allowed, denied, patch, read_review
from kubernetes_in_memory.json_patch import apply


def review(version: str = "v1", **request: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "lab",
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:hub:hub", "groups": ["system:authenticated"]},
            "object": {"metadata": {"generateName": "jupyter-"}, "spec": {"containers": None}},
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions"},
            **request,
        },
    }


def read(body: Any) -> AdmissionRequest:
    return read_review(json.dumps(body).encode())._replace(size=0)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_both_versions_are_read_and_answered_in_the_same_version(version: str) -> None:
    request = read(review(version))
    assert request == AdmissionRequest(
        api_version=f"admission.k8s.io/{version}",
        uid="705ab4f5-6393-11e8-b7cc-42010a800002",
        kind="Pod",
        operation="CREATE",
        namespace="lab",
        name="",
        user=RequestUser("system:serviceaccount:hub:hub"),
        object={"metadata": {"generateName": "jupyter-"}, "spec": {"containers": None}},
    )
    assert allowed(request) == {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
    }


def test_what_is_missing_or_null_is_empty() -> None:
    request = read(review(userInfo=None, dryRun=None, namespace=None, object=None, name=None))
    assert (request.user, request.dry_run, request.namespace, request.object) == (RequestUser(""), False, "", None)


def test_a_dry_run_an_update_and_a_subresource_are_read() -> None:
    request = read(review(dryRun=True, operation="UPDATE", subResource="status", oldObject={"a": 1}, name="train"))
    assert (request.dry_run, request.operation, request.subresource) == (True, "UPDATE", "status")
    assert (request.old_object, request.name) == ({"a": 1}, "train")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        pytest.param(None, "the document is nothing; expected a mapping", id="nothing"),
        pytest.param([], "the document is a list; expected a mapping", id="a list"),
        pytest.param("{}", "the document is a text; expected a mapping", id="text"),
        pytest.param(
            {"apiVersion": "v1", "kind": "AdmissionReview", "request": {}},
            "apiVersion is something else; expected one of admission.k8s.io/v1, admission.k8s.io/v1beta1",
            id="another version",
        ),
        pytest.param({**review(), "kind": "Pod"}, "kind is something else", id="another kind"),
        pytest.param({**review(), "request": None}, "request is nothing; expected a mapping", id="no request"),
        pytest.param({**review(), "request": 1}, "request is a whole number; expected a mapping", id="a number"),
        pytest.param(review(uid=""), "request.uid is something else; expected a text of length", id="no uid"),
        pytest.param(review(uid=7), "request.uid is a whole number; expected a text", id="a uid that is a number"),
        pytest.param(
            review(operation="PATCH"),
            "request.operation is something else; expected one of CREATE, UPDATE, DELETE, CONNECT",
            id="an unknown operation",
        ),
        pytest.param(review(kind=None), "request.kind is nothing; expected a mapping", id="no kind"),
        pytest.param(review(kind={}), "request.kind.kind is missing; expected a value", id="a kind without a name"),
        pytest.param(review(object=[]), "request.object is a list; expected a mapping", id="an object that is a list"),
        pytest.param(review(dryRun="yes"), "request.dryRun is a text; expected true or false", id="dryRun as text"),
    ],
)
def test_the_error_about_a_malformed_review_names_the_field(body: Any, complaint: str) -> None:
    with pytest.raises(NotAReview, match=f"^AdmissionReview: {complaint}"):
        read(body)


def test_a_patch_is_sent_as_base64_together_with_warnings() -> None:
    request = read(review())._replace(object={"metadata": {"name": "train"}})
    wanted = {"metadata": {"name": "train", "annotations": {"terminate-at": "ö"}}}
    response = allowed(request, wanted, warnings=["your booking ends tomorrow"])["response"]
    operations = [{"op": "add", "path": "/metadata/annotations", "value": {"terminate-at": "ö"}}]
    assert json.loads(base64.b64decode(response["patch"])) == operations
    assert (response["patchType"], response["warnings"]) == ("JSONPatch", ["your booking ends tomorrow"])


def test_a_denial_has_a_message_and_a_code() -> None:
    assert denied(read(review()), "two dialects on one pod")["response"] == {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "allowed": False,
        "status": {"code": 403, "message": "two dialects on one pod"},
    }


def test_a_patch_changes_only_what_changed_and_replaces_a_list_as_a_whole() -> None:
    same, changed = [{"name": "a"}], [{"name": "b", "env": [{"name": "X"}]}]
    before = {"spec": {"volumes": same, "containers": [{"name": "b"}], "gone": 1}, "a/b~c": "old"}
    after = {"spec": {"volumes": [{"name": "a"}], "containers": changed}, "a/b~c": "new"}

    operations = patch(before, after)

    assert operations == [
        {"op": "remove", "path": "/spec/gone"},
        {"op": "add", "path": "/spec/containers", "value": changed},
        {"op": "add", "path": "/a~1b~0c", "value": "new"},
    ]
    assert apply(before, operations) == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(1, True, id="true is not one"),
        pytest.param([0], [False], id="nor in a list"),
        pytest.param([1], {}, id="a list became an object"),
    ],
)
def test_a_patch_sees_differences_that_python_does_not_see(old: Any, new: Any) -> None:
    assert patch({"a": old}, {"a": new}) == [{"op": "add", "path": "/a", "value": new}]
