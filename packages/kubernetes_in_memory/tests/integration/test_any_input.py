"""Whatever is sent, there is an answer: the API never breaks, and what it refuses it does not store."""

import asyncio
from functools import lru_cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubernetes_in_memory import fields
from kubernetes_in_memory.kinds import BUILT_IN, Kind
from kubernetes_in_memory.messages import HttpRequest
from packages.kubernetes_in_memory.tests.integration.caller import Caller, Json, embedded
from tests.kit.arbitrary_json import documents, scalars

STORED = [kind for kind in BUILT_IN if "list" in kind.verbs]
QUESTIONS = [kind for kind in BUILT_IN if "list" not in kind.verbs]
PATCHES = ("application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json")


def collection_of(kind: Kind) -> str:
    base = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    return f"{base}/namespaces/default/{kind.plural}" if kind.namespaced else f"{base}/{kind.plural}"


@lru_cache(maxsize=4096)
def of_type(name: str, depth: int = 4) -> st.SearchStrategy[Any]:
    """Mostly what the type asks for, sometimes anything: so that garbage gets past the first look."""
    if name in ("string", "quantity", "integer or string", "any", "JSONSchemaProps") or depth == 0:
        return st.sampled_from(["a", "A_", "", "1", "-1", "1Gi", "a.b.c/d", "None", "Node"]) | scalars()
    if name == "integer":
        return st.integers(-5, 70_000) | scalars()
    if name in ("boolean", "number"):
        return scalars()
    if name[0] == "[":
        return st.lists(of_type(name[1:-1], depth - 1), max_size=2) | scalars()
    if name[0] == "{":
        return st.dictionaries(st.sampled_from(["a", "cpu", "nvidia.com/gpu"]), of_type(name[1:-1], 0), max_size=2)
    known = fields.types()[name]
    return st.fixed_dictionaries({}, optional={field: of_type(inner, depth - 1) for field, inner in known.items()})


@lru_cache(maxsize=64)
def bodies(kind: Kind) -> st.SearchStrategy[Json]:
    known = {
        field: of_type(inner)
        for field, inner in fields.types()[kind.fields_type].items()
        if field not in ("apiVersion", "kind")
    }
    labelled = {"labels": of_type("{string}"), "finalizers": of_type("[string]")}
    metadata = st.fixed_dictionaries({"name": st.just("x")}, optional=labelled) | known.pop("metadata")
    return st.fixed_dictionaries({"metadata": metadata}, optional=known)


async def survives(call: Caller, path: str, body: bytes) -> None:
    before = (await call("GET", path)).body
    answer = await call.transport.send(HttpRequest("POST", path, {}, {}, body))
    if answer.status >= 400:
        told = msgspec.json.decode(answer.body)
        assert (told["kind"], bool(told["message"])) == ("Status", True)
        assert (await call("GET", path)).body == before, "what is refused changes nothing"


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.plural)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_any_object_is_stored_or_refused(kind: Kind, data: st.DataObject) -> None:
    body = data.draw(bodies(kind) | documents())
    asyncio.run(survives(embedded(), collection_of(kind), msgspec.json.encode(body)))


@pytest.mark.parametrize("kind", QUESTIONS, ids=lambda kind: kind.plural)
@given(body=documents(st.sampled_from(["spec", "token", "user", "groups", "resourceAttributes", "verb"])))
def test_any_request_is_answered(kind: Kind, body: Any) -> None:
    request = HttpRequest("POST", collection_of(kind), {}, {}, msgspec.json.encode(body))
    assert asyncio.run(embedded().transport.send(request)).status in (201, 400, 422)


PATHS = st.sampled_from(
    ["/metadata", "/metadata/labels", "/spec", "/spec/containers/0", "/spec/containers/-", "/status", ""]
)
OPERATIONS = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "test", "move", "copy"]), "path": PATHS},
    optional={"value": documents(), "from": PATHS},
)
POD_PARTS = st.sampled_from(["metadata", "spec", "status", "containers", "labels", "name", "$patch", "annotations"])


@pytest.mark.parametrize("media_type", PATCHES)
@pytest.mark.parametrize("subresource", ["", "/status"], ids=["the pod", "its status"])
@given(patch=st.lists(OPERATIONS, max_size=3) | documents(POD_PARTS))
def test_any_patch_of_a_pod_is_applied_or_refused(media_type: str, subresource: str, patch: Any) -> None:
    async def run() -> None:
        call = embedded()
        pods = "/api/v1/namespaces/default/pods"
        await call.made(pods, {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "b"}]}})
        headers = {"content-type": media_type}
        request = HttpRequest("PATCH", f"{pods}/x{subresource}", {}, headers, msgspec.json.encode(patch))
        assert (await call.transport.send(request)).status in (200, 400, 409, 422)

    asyncio.run(run())


@pytest.mark.parametrize("subresource", ["binding", "eviction"])
@given(body=documents(st.sampled_from(["metadata", "target", "name", "kind", "annotations", "deleteOptions", "uid"])))
def test_any_verb_on_a_pod_is_answered(subresource: str, body: Any) -> None:
    async def run() -> None:
        call = embedded()
        pods = "/api/v1/namespaces/default/pods"
        await call.made(pods, {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "b"}]}})
        request = HttpRequest("POST", f"{pods}/x/{subresource}", {}, {}, msgspec.json.encode(body))
        assert (await call.transport.send(request)).status in (201, 400, 409, 422)

    asyncio.run(run())


@given(body=documents(st.sampled_from(["gracePeriodSeconds", "preconditions", "uid", "propagationPolicy", "dryRun"])))
def test_any_deletion_is_answered(body: Any) -> None:
    async def run() -> None:
        call = embedded()
        maps = "/api/v1/namespaces/default/configmaps"
        await call.made(maps, {"metadata": {"name": "x"}})
        request = HttpRequest("DELETE", f"{maps}/x", {}, {}, msgspec.json.encode(body))
        assert (await call.transport.send(request)).status in (200, 400, 409)

    asyncio.run(run())
