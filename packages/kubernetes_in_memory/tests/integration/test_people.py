"""Who calls and what they may do, from the tables that the embedder passes in."""

import pytest

from kubernetes_in_memory.auth import ADMIN, AccessRequest, UserInfo
from packages.kubernetes_in_memory.tests.integration.caller import PODS, Caller, Json, embedded, pod

ADA = UserInfo("ada", "uid-1", ("readers",))
SAR = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def only_reading(ask: AccessRequest) -> bool:
    return ask.verb in ("get", "list", "watch", "create") if ask.resource == "tokenreviews" else ask.verb == "list"


@pytest.fixture
def admin() -> Caller:
    return Caller(embedded(tokens={"root": ADMIN, "t": ADA}, may=only_reading).transport, "root")


async def test_a_known_token_gets_what_its_user_may_do(admin: Caller) -> None:
    ada = Caller(admin.transport, "t")
    assert (await ada("GET", PODS)).status == 200
    refused = await ada("POST", PODS, pod())
    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")
    assert refused.message == (
        'pods is forbidden: User "ada" cannot create resource "pods" in API group "" in the namespace "default"'
    )


async def test_an_unknown_token_is_refused(admin: Caller) -> None:
    assert (await Caller(admin.transport, "x")("GET", PODS)).status == 401


async def test_a_call_without_a_token_is_anonymous(admin: Caller) -> None:
    refused = await Caller(admin.transport)("POST", PODS, pod())
    assert (refused.status, "system:anonymous" in refused.message) == (403, True)


@pytest.mark.parametrize(
    ("token", "status"),
    [
        pytest.param(
            "t",
            {
                "authenticated": True,
                "audiences": [],
                "user": {"username": "ada", "groups": ["readers"], "uid": "uid-1"},
            },
            id="known",
        ),
        pytest.param("x", {"authenticated": False, "user": {}, "error": "invalid bearer token"}, id="unknown"),
    ],
)
async def test_a_token_review_says_who_it_is(admin: Caller, token: str, status: Json) -> None:
    made = await admin.made("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})
    assert made["status"] == status


@pytest.mark.parametrize(("verb", "allowed"), [("list", True), ("delete", False)])
async def test_an_access_review_says_what_they_may_do(admin: Caller, verb: str, allowed: bool) -> None:
    spec = {"user": "ada", "groups": ["readers"], "resourceAttributes": {"verb": verb, "resource": "pods"}}
    assert (await admin.made(SAR, {"spec": spec}))["status"] == {"allowed": allowed}


async def test_an_access_review_without_a_user_is_refused(admin: Caller) -> None:
    answer = await admin("POST", SAR, {"spec": {"resourceAttributes": {"verb": "list"}}})
    assert (answer.status, answer.fields) == (422, ["spec.user"])


async def test_who_am_i(admin: Caller) -> None:
    made = await admin.made("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert made["status"]["userInfo"]["username"] == "kubernetes-admin"


async def test_a_service_account_gets_a_token_that_names_it(admin: Caller) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    account = await admin.made(accounts, {"metadata": {"name": "spawner"}})
    issued = await admin.made(f"{accounts}/spawner/token", {"spec": {"expirationSeconds": 600}})
    assert issued["status"]["expirationTimestamp"] == "2026-03-01T12:10:00Z"
    question = {"spec": {"token": issued["status"]["token"]}}
    review = await admin.made("/apis/authentication.k8s.io/v1/tokenreviews", question)
    assert review["status"]["user"]["username"] == "system:serviceaccount:default:spawner"
    assert review["status"]["user"]["uid"] == account["metadata"]["uid"]


async def test_without_tokens_everybody_is_the_administrator() -> None:
    call = embedded()
    made = await call.made("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert made["status"]["userInfo"]["groups"] == ["system:masters", "system:authenticated"]
