"""What clients ask before they ask for objects."""

from typing import Any

import kubernetes.client as official
import msgspec
import pytest

from kubernetes_in_memory import fields
from kubernetes_in_memory.kinds import BUILT_IN
from kubernetes_in_memory.messages import HttpRequest
from packages.kubernetes_in_memory.tests.integration.caller import Caller, Json

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(*versions: str) -> Json:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "description": "What is wanted."}}}
    return {
        "metadata": {"name": "desks.library.example"},
        "spec": {
            "group": "library.example",
            "scope": "Namespaced",
            "names": {"plural": "desks", "kind": "Desk", "shortNames": ["dk"], "categories": ["all"]},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[0],
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
                for version in versions
            ],
        },
    }


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        pytest.param("POST", "/apis/apps/v1/namespaces/lab/banana", "apps/v1 has no 'banana' here, only ", id="a kind"),
        pytest.param("GET", "/apis/a.example/v1/desks", "'a.example/v1' is not served, only ", id="a group"),
        pytest.param("GET", "/api/v1/pods/train", "pods are in namespaces, and the path names none", id="no namespace"),
        pytest.param("GET", "/api/v1/namespaces/lab/nodes", "nodes are not in namespaces", id="a namespace too much"),
        pytest.param("GET", "/api/v1/namespaces/lab/pods/a/soul", "pods have no 'soul'", id="a part of an object"),
    ],
)
async def test_who_asks_for_what_is_not_served_is_told_what_is(
    call: Caller, method: str, path: str, words: str
) -> None:
    answer = await call(method, path, {})

    assert (answer.status, answer.body["reason"]) == (404, "NotFound")
    assert answer.message.startswith(f"the server could not find the requested resource: {words}")


async def test_a_definition_is_served_as_soon_as_it_exists(call: Caller) -> None:
    assert (await call("GET", "/apis/library.example/v1")).status == 404
    await call.made(CRDS, definition("v1"))
    resources = (await call("GET", "/apis/library.example/v1")).body["resources"]
    assert [resource["name"] for resource in resources] == ["desks", "desks/status"]
    assert resources[0]["shortNames"] == ["dk"]
    conditions = (await call("GET", f"{CRDS}/desks.library.example")).body["status"]["conditions"]
    assert {one["type"]: one["status"] for one in conditions} == {"NamesAccepted": "True", "Established": "True"}


async def test_all_versions_serve_the_same_objects_and_the_most_stable_is_preferred(call: Caller) -> None:
    await call.made(CRDS, definition("v1alpha1", "v1", "v2beta1"))
    group = (await call("GET", "/apis/library.example")).body
    assert [version["version"] for version in group["versions"]] == ["v1", "v2beta1", "v1alpha1"]
    assert group["preferredVersion"]["version"] == "v1"
    await call.made("/apis/library.example/v1/namespaces/default/desks", {"metadata": {"name": "d"}})
    read = (await call("GET", "/apis/library.example/v2beta1/namespaces/default/desks/d")).body
    assert read["apiVersion"] == "library.example/v2beta1"
    listed = (await call("GET", "/apis/library.example/v1alpha1/desks")).body
    assert listed["items"][0]["apiVersion"] == "library.example/v1alpha1"


async def test_every_served_kind_is_listed_once(call: Caller) -> None:
    listed = set()
    for group in (await call("GET", "/apis")).body["groups"]:
        for version in group["versions"]:
            for resource in (await call("GET", f"/apis/{version['groupVersion']}")).body["resources"]:
                listed.add((group["name"], resource["name"]))
    core = (await call("GET", "/api/v1")).body["resources"]
    listed |= {("", resource["name"]) for resource in core}
    assert {kind.storage for kind in BUILT_IN} <= listed


async def test_open_api_says_that_strict_validation_is_understood(call: Caller) -> None:
    await call.made(CRDS, definition("v1"))
    places = (await call("GET", "/openapi/v3")).body["paths"]
    assert {"api/v1", "apis/library.example/v1"} <= places.keys()
    document = (await call("GET", places["apis/library.example/v1"]["serverRelativeURL"])).body
    operation = document["paths"]["/apis/library.example/v1/namespaces/{namespace}/desks/{name}"]["patch"]
    assert "fieldValidation" in [parameter["name"] for parameter in operation["parameters"]]
    schema = document["components"]["schemas"]["example.library.v1.Desk"]
    assert schema["properties"]["spec"]["description"] == "What is wanted."


async def test_old_clients_get_an_empty_open_api_in_protobuf(call: Caller) -> None:
    request = HttpRequest(
        "GET", "/openapi/v2", headers={"accept": "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"}
    )
    answer = await call.transport.send(request)
    assert (answer.status, answer.body[:5]) == (200, b"\x0a\x032.0")


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_the_health_checks_succeed(call: Caller, path: str) -> None:
    answer = await call.transport.send(HttpRequest("GET", path))
    assert (answer.status, answer.body) == (200, b"ok")


def official_type(name: str) -> Any:
    return next(
        (getattr(official, prefix + name) for prefix in ("V1", "CoreV1", "") if hasattr(official, prefix + name)), None
    )


def test_the_fields_of_built_in_kinds_are_those_of_the_official_client() -> None:
    """The table was made from the official client's models; a field that is added there shows here."""
    missing = [
        f"{name}.{field}"
        for name, known in fields.types().items()
        if (model := official_type(name)) is not None
        for field in model.attribute_map.values()
        if field not in known
    ]
    assert missing == []
    assert sum(official_type(name) is not None for name in fields.types()) > 200


def part(number: int, content: bytes) -> bytes:
    """One field in protobuf: tag, length, content."""
    return bytes([number << 3 | 2, len(content)]) + content


def in_protobuf(kind: bytes, *parts: bytes, version: bytes = b"v1") -> bytes:
    return b"k8s\x00" + part(1, part(1, version) + part(2, kind)) + part(2, b"".join(parts))


def moment(seconds: bytes, nanoseconds: bytes = b"") -> bytes:
    """A time: two numbers, as varints."""
    return bytes([1 << 3]) + seconds + (bytes([2 << 3]) + nanoseconds if nanoseconds else b"")


LABELLED = part(1, b"lab") + part(2, b"") + bytes([7 << 3, 0]) + part(11, part(1, b"a") + part(2, b"b"))
NAMESPACE = in_protobuf(b"Namespace", part(1, LABELLED), part(2, b""), part(3, b""))


class TestProtobuf:
    """kubectl's typed commands send nothing else. Which kinds they send, the conformance tests see."""

    async def test_a_namespace(self, call: Caller) -> None:
        answer = await self.send(call, "/api/v1/namespaces", NAMESPACE)
        assert answer["metadata"]["name"] == "lab"
        assert answer["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "lab"}

    async def test_bytes_numbers_and_zeros(self, call: Caller) -> None:
        meta = part(1, part(1, b"s"))
        secret = in_protobuf(b"Secret", meta, part(2, part(1, b"k") + part(2, b"\x00\xff")), bytes([5 << 3, 0]))
        made = await self.send(call, "/api/v1/namespaces/default/secrets", secret)
        assert made["data"] == {"k": "AP8="}
        assert made["immutable"] is False, "a zero that was given is a value"

    async def test_an_event_as_kube_scheduler_writes_it(self, call: Caller) -> None:
        """The same kind has other numbers in another group; a time of zero is no time."""
        parts = [part(1, part(1, b"told") + part(3, b"default")), part(2, moment(b"\xa4\xa8\xeb\xd7\x06", b"\xe8\x07"))]
        parts += [part(4, b"gpu-scheduler"), part(5, b"one"), part(6, b"Scheduling"), part(7, b"Waits")]
        parts += [part(8, part(2, b"default") + part(3, b"train")), part(10, b"no room"), part(11, b"Warning")]
        parts += [part(12, b""), part(13, b""), part(14, b""), bytes([15 << 3, 0])]
        event = in_protobuf(b"Event", *parts, version=b"events.k8s.io/v1")
        made = await self.send(call, "/apis/events.k8s.io/v1/namespaces/default/events", event)
        assert (made["eventTime"], made["note"]) == ("2026-11-16T10:00:04.000001Z", "no room"), made
        assert not made.keys() & {"deprecatedFirstTimestamp", "deprecatedSource", "deprecatedCount"}

    async def test_a_lease_as_a_leader_writes_it(self, call: Caller) -> None:
        spec = part(1, b"me") + bytes([2 << 3, 15]) + part(3, moment(b"\xa4\xa8\xeb\xd7\x06")) + bytes([5 << 3, 0])
        lease = in_protobuf(b"Lease", part(1, part(1, b"leader")), part(2, spec), version=b"coordination.k8s.io/v1")
        made = await self.send(call, "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease)
        times = {"acquireTime": "2026-11-16T10:00:04.000000Z", "leaseTransitions": 0}
        assert made["spec"] == {"holderIdentity": "me", "leaseDurationSeconds": 15, **times}

    async def test_an_impossible_time_is_a_bad_request(self, call: Caller) -> None:
        spec = part(3, moment(b"\xff" * 8 + b"\x7f"))
        lease = in_protobuf(b"Lease", part(1, part(1, b"leader")), part(2, spec), version=b"coordination.k8s.io/v1")
        made = await self.send(call, "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease)
        assert made["code"] == 400

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(in_protobuf(b"Namespace", part(9, b"?")), id="a field"),
            pytest.param(in_protobuf(b"Desk", part(1, b"")), id="a kind"),
        ],
    )
    async def test_what_is_not_in_the_table_is_refused_and_not_dropped(self, call: Caller, body: bytes) -> None:
        answer = await self.send(call, "/api/v1/namespaces", body)
        assert answer["reason"] == "UnsupportedMediaType"
        assert "application/json" in answer["message"]

    @pytest.mark.parametrize("body", [b"", b"k8s", b"k8s\x00", b"k8s\x00\xff\xff\xff", NAMESPACE[:20], NAMESPACE[:30]])
    async def test_broken_bytes_are_a_bad_request(self, call: Caller, body: bytes) -> None:
        assert (await self.send(call, "/api/v1/namespaces", body))["code"] == 400

    @staticmethod
    async def send(call: Caller, path: str, body: bytes) -> Json:
        headers = {"content-type": "application/vnd.kubernetes.protobuf"}
        answer = await call.transport.send(HttpRequest("POST", path, {}, headers, body))
        tree: Json = msgspec.json.decode(answer.body)
        return tree
