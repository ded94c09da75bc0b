"""Who calls, who may, secrets, and the messages that people read."""

import base64

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Conflict, DeleteOptions, Forbidden, Invalid, Json, NotFound, Selection
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import (
    EVENTS,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)
from tests.contracts.backends import Backend, eventually
from tests.contracts.objects import pod


async def test_a_token_that_the_server_does_not_know_is_refused(backend: Backend, namespace: str) -> None:
    with pytest.raises(Forbidden) as refused:
        await backend.stranger.list(PODS, Selection(namespace))
    assert (refused.value.status, refused.value.reason) == (401, "Unauthorized")
    with pytest.raises(Forbidden):
        await backend.stranger.create(PODS, pod("one"), namespace)


async def test_a_token_review_refuses_an_unknown_token(cluster: Client) -> None:
    review: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "made-up"}}
    answer = await cluster.create(TOKEN_REVIEWS, review)
    assert not answer["status"].get("authenticated", False)


async def test_a_token_is_valid_as_long_as_its_pod_exists(cluster: Client, namespace: str) -> None:
    made = await cluster.create(PODS, pod("bound", spec={"serviceAccountName": "default"}), namespace)
    tokens = Resource(Object, "", "v1", "serviceaccounts/default/token", "TokenRequest")
    bound: Json = {"apiVersion": "v1", "kind": "Pod", "name": "bound", "uid": made["metadata"]["uid"]}
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    request["spec"] = {"audiences": [], "expirationSeconds": 600, "boundObjectRef": bound}
    token = (await cluster.create(tokens, request, namespace))["status"]["token"]
    review: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}

    async def seen() -> Json:
        status: Json = (await cluster.create(TOKEN_REVIEWS, review))["status"]
        return status

    user = (await seen())["user"]
    assert user["username"] == f"system:serviceaccount:{namespace}:default"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["bound"]
    assert user["extra"]["authentication.kubernetes.io/pod-uid"] == [made["metadata"]["uid"]]

    await cluster.delete(PODS, "bound", namespace, how=DeleteOptions(grace_seconds=0))

    async def is_refused() -> bool:
        return not (await seen()).get("authenticated")

    # A server may remember for some seconds what it found out about a token.
    assert await eventually(is_refused)
    with pytest.raises(NotFound):
        await cluster.create(tokens, request, namespace)


async def test_a_token_is_not_bound_to_a_pod_of_another_account_or_another_uid(cluster: Client, namespace: str) -> None:
    await cluster.create(PODS, pod("other", spec={"serviceAccountName": "default"}), namespace)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "else"}}
    await cluster.create(SERVICE_ACCOUNTS, account, namespace)
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    for who, uid, error in (("else", {}, Invalid), ("default", {"uid": "another"}, Conflict)):
        bound: Json = {"apiVersion": "v1", "kind": "Pod", "name": "other", **uid}
        request["spec"] = {"audiences": [], "expirationSeconds": 600, "boundObjectRef": bound}
        with pytest.raises(error):
            tokens = Resource(Object, "", "v1", f"serviceaccounts/{who}/token", "TokenRequest")
            await cluster.create(tokens, request, namespace)


async def test_an_access_review_lets_an_administrator_do_anything(cluster: Client, namespace: str) -> None:
    review: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": "somebody",
            "groups": ["system:masters"],
            "resourceAttributes": {"namespace": namespace, "verb": "delete", "resource": "pods"},
        },
    }
    assert (await cluster.create(SUBJECT_ACCESS_REVIEWS, review))["status"]["allowed"] is True


async def test_an_empty_access_review_is_refused(cluster: Client) -> None:
    review: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": "somebody"},
    }
    with pytest.raises(Invalid):
        await cluster.create(SUBJECT_ACCESS_REVIEWS, review)


async def test_a_secrets_text_is_kept_as_data(cluster: Client, namespace: str) -> None:
    body: Json = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "one"},
        "data": {"kept": base64.b64encode(b"1").decode(), "replaced": base64.b64encode(b"old").decode()},
        "stringData": {"replaced": "new"},
    }
    made = await cluster.create(SECRETS, body, namespace)
    assert made["type"] == "Opaque"
    assert "stringData" not in made
    assert {key: base64.b64decode(value) for key, value in made["data"].items()} == {"kept": b"1", "replaced": b"new"}
    assert await cluster.get(SECRETS, "one", namespace) == made


async def test_a_secrets_data_is_base64(cluster: Client, namespace: str) -> None:
    body: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}, "data": {"a": "not base64!"}}
    with pytest.raises(Invalid):
        await cluster.create(SECRETS, body, namespace)


class TestEvents:
    async def test_are_about_an_object_and_found_by_it(self, cluster: Client, namespace: str) -> None:
        made = await cluster.create(PODS, pod("one"), namespace)
        uid = made["metadata"]["uid"]
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "one.1"},
            "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "one", "uid": uid},
            "type": "Warning",
            "reason": "NoGpu",
            "message": "GPU 0 of n1 has 4069 MiB free, 8138 MiB asked",
            "count": 3,
            "lastTimestamp": "2026-01-02T03:04:05Z",
        }
        await cluster.create(EVENTS, event, namespace)
        [seen] = (await cluster.list(EVENTS, Selection(namespace, fields="involvedObject.name=one"))).items
        assert (seen.reason, seen.type, seen.count) == ("NoGpu", "Warning", 3)
        assert seen.last_timestamp == "2026-01-02T03:04:05Z"
        assert (seen.involved_object.kind, seen.involved_object.uid) == ("Pod", uid)
        others = await cluster.list(EVENTS, Selection(namespace, fields="involvedObject.name=other"))
        assert list(others.items) == []

    async def test_belong_to_the_namespace_of_their_object(self, cluster: Client, namespace: str) -> None:
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "one.1"},
            "involvedObject": {"kind": "Pod", "namespace": "elsewhere", "name": "one"},
        }
        with pytest.raises(Invalid) as refused:
            await cluster.create(EVENTS, event, namespace)
        assert refused.value.status == 422
