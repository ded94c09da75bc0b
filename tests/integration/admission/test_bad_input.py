"""Whatever is sent to the webhook gets a clear answer, and never a 5xx."""

import json
from typing import Any

import pytest

from tests.kit.reviews import GPU, ReviewedCluster, a_pod, full, review


def pod(**changes: Any) -> Any:
    return {**a_pod(GPU), **changes}


def spec(**changes: Any) -> Any:
    return {**a_pod(GPU), "spec": {**a_pod(GPU)["spec"], **changes}}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half of something"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(json.dumps(review(a_pod(GPU))).encode().replace(b"train", b"tr\xff"), id="a name that is no text"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="an empty object"),
        pytest.param(json.dumps(review(a_pod(GPU), version="v2")).encode(), id="an unknown version"),
        pytest.param(json.dumps({**review(a_pod(GPU)), "kind": "Pod"}).encode(), id="another kind"),
        pytest.param(json.dumps({**review(a_pod(GPU)), "request": None}).encode(), id="no request"),
        pytest.param(json.dumps({**review(a_pod(GPU)), "request": {"uid": 7}}).encode(), id="a number for a uid"),
        pytest.param(json.dumps(review(a_pod(GPU), operation="EAT")).encode(), id="an unknown operation"),
        pytest.param(json.dumps(review([])).encode(), id="a list for a pod"),  # type: ignore[arg-type] # on purpose
    ],
)
async def test_a_body_that_is_no_review_is_answered_with_400_and_the_reason(body: bytes) -> None:
    status, said = await (await ReviewedCluster().handler()).mutate(body)

    assert status == 400
    assert json.loads(said)["message"]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(pod(metadata=None), id="no metadata"),
        pytest.param(pod(metadata=[]), id="metadata of another shape"),
        pytest.param(pod(metadata={"annotations": {"gpu-fraction": 5}}), id="a number for an annotation"),
        pytest.param(pod(metadata={"annotations": []}), id="a list of annotations"),
        pytest.param(pod(spec="x"), id="text for a spec"),
        pytest.param(spec(containers="x"), id="text for containers"),
        pytest.param(spec(containers=[None]), id="a null for a container"),
        pytest.param(spec(containers=[{"name": 5}]), id="a number for a name"),
        pytest.param(spec(containers=[{"name": "a", "env": ["x"], "resources": {"limits": GPU}}]), id="text for env"),
        pytest.param(spec(containers=[{"name": "a", "env": [{}], "resources": {"limits": GPU}}]), id="no name in env"),
        pytest.param(spec(containers=[{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]), id="a number"),
        pytest.param(spec(containers=[{"name": str(i)} for i in range(1_001)]), id="1,001 containers"),
        pytest.param(
            pod(metadata={"annotations": {"gpu-fraction": "0.5"}}, spec={"containers": []}),
            id="a fraction without a container",
        ),
    ],
)
async def test_a_pod_that_breaks_the_schema_is_refused_with_the_field(broken: Any) -> None:
    status, said = await (await ReviewedCluster().handler()).mutate(json.dumps(review(broken)).encode())

    response = json.loads(said)["response"]
    assert status == 200 and not response["allowed"]
    assert response["status"]["code"] == 422 and response["status"]["message"]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(pod(metadata={"annotations": None, "labels": None, "ownerReferences": None}), id="null maps"),
        pytest.param(spec(containers=[], initContainers=None), id="no containers"),
        pytest.param(spec(containers=None), id="null containers"),
        pytest.param(
            spec(containers=[{"name": "a", "env": None, "resources": {"limits": GPU, "requests": None}}]), id="nulls"
        ),
        pytest.param(
            spec(containers=[{"name": str(i), "resources": {"limits": GPU}} for i in range(1_000)]), id="1,000"
        ),
        pytest.param(spec(unknown={"field": [1, None, {}]}), id="unknown fields"),
        pytest.param(pod(spec=None), id="no spec"),
    ],
)
@pytest.mark.parametrize("cluster", [full(), ReviewedCluster()], ids=["no GPU is free", "a GPU is free"])
async def test_an_odd_pod_is_admitted(odd: Any, cluster: ReviewedCluster) -> None:
    reviewed = await cluster.create(odd)

    assert reviewed.allowed, reviewed.message
    assert (await cluster.create(reviewed.object)).patch == []


@pytest.mark.parametrize("spec", ["x", {"ephemeralContainers": "x"}, {"ephemeralContainers": [None, "y"]}])
async def test_a_new_ephemeral_container_is_refused_on_a_pod_that_breaks_the_schema(spec: Any) -> None:
    new = {**a_pod(GPU), "spec": {**a_pod(GPU)["spec"], "ephemeralContainers": [{"name": "debug"}]}}
    request_body = review(new, old={"spec": spec}, operation="UPDATE", subresource="ephemeralcontainers")
    status, said = await (await ReviewedCluster().handler()).mutate(json.dumps(request_body).encode())

    response = json.loads(said)["response"]
    assert status == 200 and not response["allowed"] and response["status"]["message"]
