"""Admission webhooks: asked over HTTPS about the writes they chose, and what their answers do."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubernetes_in_memory.auth import UserInfo
from packages.kubernetes_in_memory.tests.integration.caller import MERGE, PODS, Caller, Json, api_of, embedded, pod
from packages.kubernetes_in_memory.tests.integration.webhook_server import Webhook, patch, webhook_server

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
LABEL = {"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    async with webhook_server() as server:
        yield server


@pytest.fixture
async def call() -> AsyncIterator[Caller]:
    caller = embedded()
    yield caller
    await caller.transport.aclose()


async def test_a_mutating_webhook_changes_the_object_that_is_stored(call: Caller, webhook: Webhook) -> None:
    webhook.decide = patch(LABEL, {"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "x"}})
    await call.made(MUTATING, webhook.configuration())
    made = await call.made(PODS, pod())
    assert made["metadata"]["labels"] == {"seen": "yes"}
    assert made["spec"]["containers"][1]["terminationMessagePolicy"] == "File", "what it added gets defaults too"


async def test_the_review_contains_everything_about_the_write() -> None:
    call = embedded(tokens={"t": UserInfo("ada", groups=("readers",))}, may=lambda ask: True)
    alice = Caller(call.transport, "t")
    async with webhook_server() as webhook:
        await alice.made(MUTATING, webhook.configuration())
        answer = await alice("POST", PODS, {"metadata": {"generateName": "a-"}, "spec": pod()["spec"]}, dryRun="All")
        assert answer.status == 201
        (asked,) = webhook.asked
        assert asked["operation"] == "CREATE"
        assert asked["resource"] == {"group": "", "version": "v1", "resource": "pods"}
        assert asked["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
        assert (asked["namespace"], asked["name"]) == ("default", "")
        assert asked["userInfo"] == {"username": "ada", "groups": ["readers"]}
        assert asked["dryRun"] is True
        assert asked["object"]["metadata"]["generateName"] == "a-"
        assert asked["oldObject"] is None
        await call.transport.aclose()
    assert (await alice("GET", PODS)).body["items"] == []


async def test_a_refusal_stores_nothing_and_names_the_webhook(call: Caller, webhook: Webhook) -> None:
    webhook.decide = lambda request: {"allowed": False, "status": {"code": 403, "message": "no GPUs today"}}
    await call.made(VALIDATING, webhook.configuration("Validating"))
    answer = await call("POST", PODS, pod())
    assert answer.status == 403
    assert answer.message == 'admission webhook "desk.library.example" denied the request: no GPUs today'
    assert (await call("GET", PODS)).body["items"] == []


async def test_a_refusal_without_a_message_says_so(call: Caller, webhook: Webhook) -> None:
    webhook.decide = lambda request: {"allowed": False}
    await call.made(VALIDATING, webhook.configuration("Validating"))
    answer = await call("POST", PODS, pod())
    assert answer.status == 400
    assert answer.message == 'admission webhook "desk.library.example" denied the request without explanation'


async def test_validating_webhooks_see_the_mutated_object(call: Caller, webhook: Webhook) -> None:
    async with webhook_server() as judge:
        webhook.decide = patch(LABEL)
        await call.made(MUTATING, webhook.configuration())
        await call.made(VALIDATING, judge.configuration("Validating"))
        await call.made(PODS, pod())
        assert judge.asked[0]["object"]["metadata"]["labels"] == {"seen": "yes"}


async def test_a_webhook_is_called_again_if_another_changed_the_object_after_it(call: Caller, webhook: Webhook) -> None:
    async with webhook_server() as later:
        later.decide = patch(LABEL)
        await call.made(MUTATING, webhook.configuration(name="a", reinvocationPolicy="IfNeeded"))
        await call.made(MUTATING, later.configuration(name="b"))
        await call.made(PODS, pod())
    first, again = (asked["object"]["metadata"].get("labels") for asked in webhook.asked)
    assert (first, again) == (None, {"seen": "yes"})
    assert len(later.asked) == 1


async def test_a_webhook_is_not_called_again_if_no_other_changed_the_object_after_it(
    call: Caller, webhook: Webhook
) -> None:
    async with webhook_server() as later:
        webhook.decide = patch(LABEL)
        await call.made(MUTATING, webhook.configuration(name="a", reinvocationPolicy="IfNeeded"))
        await call.made(MUTATING, later.configuration(name="b"))
        await call.made(PODS, pod())
    assert len(webhook.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"broken": "nonsense"}, id="no JSON"),
        pytest.param({"uid": "another", "allowed": True}, id="an answer to another question"),
    ],
)
@pytest.mark.parametrize(("policy", "status"), [("Ignore", 201), ("Fail", 500)])
async def test_a_broken_webhook_is_ignored_or_fails_the_write(
    call: Caller, webhook: Webhook, policy: str, status: int, answer: Json
) -> None:
    webhook.decide = lambda request: answer
    await call.made(MUTATING, webhook.configuration(failurePolicy=policy))
    told = await call("POST", PODS, pod())
    assert told.status == status
    if status == 500:
        assert 'failed calling webhook "desk.library.example"' in told.message


@pytest.mark.parametrize(("policy", "status"), [("Ignore", 201), ("Fail", 500)])
async def test_an_unreachable_webhook_is_ignored_or_fails_the_write(call: Caller, policy: str, status: int) -> None:
    async with webhook_server() as webhook:
        configuration = webhook.configuration(failurePolicy=policy)
    await call.made(MUTATING, configuration)
    assert (await call("POST", PODS, pod())).status == status


async def test_a_certificate_that_the_bundle_does_not_cover_is_not_trusted(call: Caller, webhook: Webhook) -> None:
    async with webhook_server() as other:
        config = webhook.configuration(
            clientConfig={**other.configuration()["webhooks"][0]["clientConfig"], "url": webhook.url}
        )
        await call.made(MUTATING, config)
        answer = await call("POST", PODS, pod())
    assert answer.status == 500
    assert "certificate" in answer.message


async def test_a_patch_that_cannot_be_applied_fails_the_write(call: Caller, webhook: Webhook) -> None:
    webhook.decide = patch({"op": "remove", "path": "/spec/nowhere"})
    await call.made(MUTATING, webhook.configuration())
    answer = await call("POST", PODS, pod())
    assert answer.status == 500
    assert "patch that cannot be applied" in answer.message


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        pytest.param({}, True, id="a rule that fits"),
        pytest.param({"operations": ["UPDATE"]}, False, id="another operation"),
        pytest.param({"apiGroups": ["apps"]}, False, id="another group"),
        pytest.param({"resources": ["pods/status"]}, False, id="a subresource only"),
        pytest.param({"resources": ["*"]}, True, id="all resources"),
        pytest.param({"resources": ["*/*"]}, True, id="all resources and subresources"),
        pytest.param({"scope": "Cluster"}, False, id="cluster-wide objects only"),
        pytest.param({"scope": "Namespaced"}, True, id="objects in namespaces"),
    ],
)
async def test_rules_choose_the_writes(call: Caller, webhook: Webhook, changes: Json, asked: bool) -> None:
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], **changes}
    await call.made(MUTATING, webhook.configuration(rules=[rule]))
    await call.made(PODS, pod())
    assert bool(webhook.asked) is asked


@pytest.mark.parametrize(
    ("selector", "asked"),
    [
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}},
            True,
            id="this namespace",
        ),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "lab"}}}, False, id="another one"
        ),
        pytest.param(
            {"objectSelector": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}}, True, id="its label"
        ),
        pytest.param({"objectSelector": {"matchLabels": {"gpu": "no"}}}, False, id="another label"),
    ],
)
async def test_selectors_choose_the_objects(call: Caller, webhook: Webhook, selector: Json, asked: bool) -> None:
    await call.made(MUTATING, webhook.configuration(**selector))
    await call.made(PODS, pod(labels={"gpu": "yes"}))
    assert bool(webhook.asked) is asked


async def test_updates_deletions_bindings_and_status_are_reviewed_too(call: Caller, webhook: Webhook) -> None:
    rule = {"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "pods/*"]}
    await call.made(PODS, pod())
    await call.made(VALIDATING, webhook.configuration("Validating", rules=[rule]))
    await call("PATCH", f"{PODS}/train", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    await call("PATCH", f"{PODS}/train/status", {"status": {"phase": "Running"}}, MERGE)
    await call("POST", f"{PODS}/train/binding", {"metadata": {"name": "train"}, "target": {"name": "n1"}})
    await call("DELETE", f"{PODS}/train")
    told = [(one["operation"], one.get("subResource", ""), one["kind"]["kind"]) for one in webhook.asked]
    assert told == [
        ("UPDATE", "", "Pod"),
        ("UPDATE", "status", "Pod"),
        ("CREATE", "binding", "Binding"),
        ("DELETE", "", "Pod"),
    ]
    assert webhook.asked[0]["oldObject"]["metadata"].get("labels") is None
    assert webhook.asked[3]["object"] is None


async def test_a_dry_run_of_a_deletion_is_marked_as_one(call: Caller, webhook: Webhook) -> None:
    await call.made(PODS, pod())
    await call.made(VALIDATING, webhook.configuration("Validating"))
    await call("DELETE", f"{PODS}/train", {"dryRun": ["All"]})
    assert webhook.asked[0]["dryRun"] is True
    assert (await call("GET", f"{PODS}/train")).status == 200


async def test_a_webhook_cannot_prevent_its_own_removal(call: Caller, webhook: Webhook) -> None:
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}
    webhook.decide = lambda request: {"allowed": False}
    await call.made(VALIDATING, webhook.configuration("Validating", rules=[rule]))
    assert (await call("DELETE", f"{VALIDATING}/desk")).status == 200


async def test_a_patch_starts_again_if_the_object_changes_during_a_webhook_call(webhook: Webhook) -> None:
    call = embedded()
    await call.made(PODS, pod())
    await call.made(VALIDATING, webhook.configuration("Validating"))

    def meddle(request: Json) -> Json:
        if len(webhook.asked) == 1:
            store = api_of(call).store
            live = store.collection(("", "pods")).get("default", "train")
            assert live is not None
            metadata = {**live.tree["metadata"], "annotations": {"meddled": "yes"}}
            store.write(("", "pods"), live, {**live.tree, "metadata": metadata})
        return {"allowed": True}

    webhook.decide = meddle
    answer = await call("PATCH", f"{PODS}/train", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    assert answer.status == 200
    assert answer.body["metadata"]["annotations"] == {"meddled": "yes"}
    assert answer.body["metadata"]["labels"] == {"a": "b"}
    assert len(webhook.asked) == 2
    await call.transport.aclose()


async def test_warnings_of_webhooks_reach_the_client(call: Caller, webhook: Webhook) -> None:
    webhook.decide = lambda request: {"allowed": True, "warnings": ["mind the gap"]}
    await call.made(MUTATING, webhook.configuration())
    assert (await call("POST", PODS, pod())).headers["warning"] == '299 - "mind the gap"'


async def test_a_webhook_behind_a_service_is_called_at_the_configured_address() -> None:
    async with webhook_server("hook.lab.svc") as webhook:
        asked: list[Any] = []

        def address(namespace: str, name: str, port: int) -> str:
            asked.append((namespace, name, port))
            return webhook.url.removesuffix("/mutate")

        call = embedded(service_address=address)
        bundle = webhook.configuration()["webhooks"][0]["clientConfig"]["caBundle"]
        service = {"namespace": "lab", "name": "hook", "path": "/mutate"}
        await call.made(MUTATING, webhook.configuration(clientConfig={"service": service, "caBundle": bundle}))
        await call.made(PODS, pod())
        assert asked == [("lab", "hook", 443)]
        assert len(webhook.asked) == 1
        await call.transport.aclose()
