"""What the client sends, and how it reads the answers."""

import json
from typing import Any

import pytest
from _pytest.logging import LogCaptureFixture
from hypothesis import given
from hypothesis import strategies as st

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import (
    AlreadyExists,
    Apply,
    BindTarget,
    Busy,
    ChangeType,
    ClusterError,
    Conflict,
    DeleteOptions,
    Expired,
    FieldValidation,
    Forbidden,
    Invalid,
    JsonPatch,
    MergePatch,
    NotFound,
    OutcomeUnknown,
    Patch,
    Selection,
    StrategicPatch,
    Unavailable,
    WatchEvent,
)
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS
from carrel.kubernetes.timing import Timing
from carrel.kubernetes.transport import ApiRequest, ApiResponse
from tests.unit.kubernetes.scripted_transport import (
    FunctionTransport,
    ScriptedTransport,
    error_response,
    json_response,
    stream_response,
)

TARGET = BindTarget("lab", "train", "u1", "n1", {"carrel.dev/devices": "GPU-1"})

BINDING = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {"name": "train", "namespace": "lab", "uid": "u1", "annotations": {"carrel.dev/devices": "GPU-1"}},
    "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
}


def body_of(request: ApiRequest) -> Any:
    return json.loads(request.body)


class TestWhatIsSent:
    async def test_get(self) -> None:
        transport = ScriptedTransport(json_response({}))
        await Client(transport).get(LEASES, "gpu-n1-0", "carrel")
        [asked] = transport.asked
        assert (asked.method, asked.path) == ("GET", "/apis/coordination.k8s.io/v1/namespaces/carrel/leases/gpu-n1-0")
        assert (dict(asked.query), asked.body) == ({}, b"")

    async def test_list_with_everything(self) -> None:
        transport = ScriptedTransport(json_response({"metadata": {}, "items": None}))
        selection = Selection("lab", labels="a=b", fields="spec.nodeName=n1")
        await Client(transport).list(PODS, selection, limit=500, continue_token="abc", resource_version="7")
        [asked] = transport.asked
        assert asked.path == "/api/v1/namespaces/lab/pods"
        assert asked.query == {
            "labelSelector": "a=b",
            "fieldSelector": "spec.nodeName=n1",
            "limit": "500",
            "continue": "abc",
            "resourceVersion": "7",
        }

    async def test_watch(self) -> None:
        transport = ScriptedTransport(stream_response([]))
        async with Client(transport).watch(NODES, resource_version="7") as events:
            assert [event async for event in events] == []
        [asked] = transport.asked
        assert asked.path == "/api/v1/nodes"
        assert asked.query == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7"}

    @pytest.mark.parametrize(
        ("patch", "content_type", "body", "query"),
        [
            (
                JsonPatch([{"op": "remove", "path": "/a"}]),
                "application/json-patch+json",
                [{"op": "remove", "path": "/a"}],
                {},
            ),
            (MergePatch({"a": None}), "application/merge-patch+json", {"a": None}, {}),
            (StrategicPatch({"a": 1}), "application/strategic-merge-patch+json", {"a": 1}, {}),
            (Apply({"a": 1}, "carrel"), "application/apply-patch+yaml", {"a": 1}, {"fieldManager": "carrel"}),
            (
                Apply({"a": 1}, "carrel", force=True),
                "application/apply-patch+yaml",
                {"a": 1},
                {"fieldManager": "carrel", "force": "true"},
            ),
        ],
        ids=["json", "merge", "strategic", "apply", "apply by force"],
    )
    async def test_patch(self, patch: Patch, content_type: str, body: Any, query: dict[str, str]) -> None:
        transport = ScriptedTransport(json_response({}))
        await Client(transport).patch(PODS, "train", patch, "lab", subresource="status", dry_run=True)
        [asked] = transport.asked
        assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/lab/pods/train/status")
        assert asked.headers["content-type"] == content_type
        assert body_of(asked) == body
        assert asked.query == {"fieldValidation": "Strict", "dryRun": "All"} | query

    async def test_delete_with_everything(self) -> None:
        transport = ScriptedTransport(json_response({}))
        how = DeleteOptions("u1", "7", grace_seconds=0, propagation="Foreground", dry_run=True)
        await Client(transport).delete(PODS, "train", "lab", how=how)
        [asked] = transport.asked
        assert (asked.method, asked.path) == ("DELETE", "/api/v1/namespaces/lab/pods/train")
        assert body_of(asked) == {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": "u1", "resourceVersion": "7"},
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Foreground",
            "dryRun": ["All"],
        }

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a/../b", "%2e%2e"])
    async def test_a_name_that_would_make_another_path_is_never_sent(self, name: str) -> None:
        transport = ScriptedTransport(json_response({}))
        client = Client(transport)
        with pytest.raises(Invalid):
            await client.delete(PODS, name, "lab")
        with pytest.raises(Invalid):
            await client.get(PODS, name, "lab")
        with pytest.raises(Invalid):
            await client.evict("lab", name)
        assert transport.asked == []

    async def test_a_namespace_that_would_make_another_path_is_never_sent(self) -> None:
        transport = ScriptedTransport(json_response({}))
        with pytest.raises(Invalid):
            await Client(transport).create(PODS, {}, "lab/pods/x")
        assert transport.asked == []


class TestBind:
    async def test_is_one_call_that_names_the_uid(self) -> None:
        transport = ScriptedTransport(json_response({"kind": "Status"}, 201))
        await Client(transport).bind(TARGET)
        assert [(asked.method, asked.path) for asked in transport.asked] == [
            ("POST", "/api/v1/namespaces/lab/pods/train/binding")
        ]
        assert body_of(transport.asked[0]) == BINDING


async def test_an_eviction_is_one_call_with_its_preconditions() -> None:
    transport = ScriptedTransport(json_response({"kind": "Status"}, 201))
    await Client(transport).evict("lab", "train", how=DeleteOptions(uid="u1"))
    (asked,) = transport.asked
    eviction = body_of(asked)
    assert asked.path == "/api/v1/namespaces/lab/pods/train/eviction"
    assert (eviction["apiVersion"], eviction["kind"]) == ("policy/v1", "Eviction")
    assert eviction["deleteOptions"]["preconditions"] == {"uid": "u1"}


class TestAServerThatAsksToRetryLater:
    """As right after a custom resource was defined: 429, `storage is (re)initializing`, Retry-After: 1."""

    LATER = error_response(429, "TooManyRequests", retry_after="1")

    def client(self, *answers: ApiResponse) -> tuple[Client, ScriptedTransport, list[float]]:
        transport, slept = ScriptedTransport(*answers), list[float]()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        return Client(transport, timing=Timing(sleep=sleep)), transport, slept

    @pytest.mark.parametrize("verb", ["get", "create", "delete"])
    async def test_is_called_again_after_that_time(self, verb: str) -> None:
        client, transport, slept = self.client(self.LATER, self.LATER, json_response({"kind": "Pod"}))
        calls = {
            "get": lambda: client.get(PODS, "train", "lab"),
            "create": lambda: client.create(PODS, {"metadata": {"name": "train"}}, "lab"),
            "delete": lambda: client.delete(PODS, "train", "lab"),
        }
        assert await calls[verb]() == {"kind": "Pod"}
        assert slept == [1, 1]
        assert transport.asked == [transport.asked[0]] * 3

    async def test_is_not_called_for_ever(self) -> None:
        client, transport, slept = self.client(error_response(429, "TooManyRequests", retry_after="4"))
        with pytest.raises(Busy):
            await client.get(PODS, "train", "lab")
        assert (len(transport.asked), slept) == (4, [4, 4, 4])

    @pytest.mark.parametrize("asked_for", ["", "3600", "tomorrow", "-1"])
    async def test_is_not_called_again_if_it_gives_no_time_or_a_long_one(self, asked_for: str) -> None:
        client, transport, slept = self.client(error_response(429, "TooManyRequests", retry_after=asked_for))
        with pytest.raises(Busy):
            await client.get(PODS, "train", "lab")
        assert (len(transport.asked), slept) == (1, [])

    async def test_an_eviction_is_not_repeated(self) -> None:
        client, transport, slept = self.client(error_response(429, "TooManyRequests", retry_after="10"))
        with pytest.raises(Busy):
            await client.evict("lab", "train")
        assert (len(transport.asked), slept) == (1, [])

    async def test_is_not_called_again_by_a_process_that_may_no_longer_write(self) -> None:
        client, transport, _ = self.client(self.LATER)
        may_write = [True, False]

        def require() -> None:
            if not may_write.pop(0):
                raise PermissionError("another leads")

        with pytest.raises(PermissionError):
            await client.guarded(require).create(PODS, {"metadata": {"name": "train"}}, "lab")
        assert len(transport.asked) == 1


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", Invalid),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Expired),
        (410, "Gone", Expired),
        (415, "UnsupportedMediaType", Invalid),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Busy),
        (503, "ServiceUnavailable", Unavailable),
        (500, "InternalError", OutcomeUnknown),
        (502, "", OutcomeUnknown),
        (504, "Timeout", OutcomeUnknown),
    ],
)
async def test_a_refused_write_is_an_error_of_its_own_kind(code: int, reason: str, error: type[ClusterError]) -> None:
    with pytest.raises(error) as caught:
        await Client(ScriptedTransport(error_response(code, reason, {"name": "train"}))).create(PODS, {}, "lab")
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.reason) == (code, reason)
    assert caught.value.details["name"] == "train"
    assert "POST /api/v1/namespaces/lab/pods: no" in str(caught.value)


@pytest.mark.parametrize("code", [500, 502, 503, 504])
async def test_a_read_that_fails_has_written_nothing(code: int) -> None:
    with pytest.raises(Unavailable):
        await Client(ScriptedTransport(error_response(code))).get(PODS, "train", "lab")


async def test_a_lost_answer_is_unknown_for_a_write_and_unavailable_for_a_read() -> None:
    client = Client(ScriptedTransport(OutcomeUnknown(0, "AnswerLost", "gone")))
    with pytest.raises(OutcomeUnknown):
        await client.delete(PODS, "train", "lab")
    with pytest.raises(Unavailable):
        await client.list(PODS)


async def test_another_uid_in_a_patch_is_a_conflict_although_servers_call_it_immutable() -> None:
    causes = {"causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid", "message": "field is immutable"}]}
    client = Client(ScriptedTransport(error_response(422, "Invalid", causes)))
    with pytest.raises(Conflict):
        await client.patch(PODS, "train", MergePatch({"metadata": {"uid": "u2"}}), "lab")
    with pytest.raises(Invalid):
        await client.create(PODS, {}, "lab")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(error_response(429, "TooManyRequests", retry_after="3"), id="in the header"),
        pytest.param(error_response(429, "", {"retryAfterSeconds": 3}), id="in the body"),
    ],
)
async def test_how_long_to_wait_is_read_from_the_header_and_from_the_body(answer: ApiResponse) -> None:
    async def sleep(_: float) -> None: ...

    with pytest.raises(Busy) as busy:
        await Client(ScriptedTransport(answer), timing=Timing(sleep=sleep)).list(PODS)
    assert busy.value.retry_after_s == 3.0


@pytest.mark.parametrize(
    "body", [b"<html>bad gateway</html>", b"", b"[]", b'"text"', b'{"kind":"Pod"}', b"\xff\xfe", b'{"message": 7}']
)
async def test_an_answer_of_a_proxy_is_shown_as_it_is(body: bytes) -> None:
    answer = ApiResponse(403, body, {"content-type": "text/html"})
    with pytest.raises(Forbidden) as refusal:
        await Client(ScriptedTransport(answer)).get(PODS, "train", "lab")
    assert refusal.value.reason == "text/html"


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"", b"[]", b'{"items": 7}'])
async def test_a_success_that_is_not_kubernetes_json_is_an_error(body: bytes) -> None:
    client = Client(ScriptedTransport(ApiResponse(200, body)))
    with pytest.raises(Unavailable, match="not Kubernetes JSON"):
        await client.list(PODS)
    if body[:1] != b"{":
        with pytest.raises(OutcomeUnknown, match="not Kubernetes JSON"):
            await client.create(PODS, {}, "lab")


def watch_line(change: str, name: str, number: int) -> bytes:
    document = {"type": change, "object": {"kind": "Pod", "metadata": {"name": name, "resourceVersion": str(number)}}}
    return json.dumps(document).encode() + b"\n"


async def watched(chunks: list[bytes]) -> list[WatchEvent[Any]]:
    async with Client(ScriptedTransport(stream_response(chunks))).watch(PODS, resource_version="1") as events:
        return [event async for event in events]


@given(st.data())
async def test_a_watch_is_read_however_its_bytes_are_cut(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text(min_size=1, max_size=8), max_size=6))
    whole = b"".join(watch_line("ADDED", name, number) for number, name in enumerate(names))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    chunks = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    events = await watched(chunks)
    assert [(event.item.metadata.name, event.resource_version) for event in events if event.item] == [
        (name, str(number)) for number, name in enumerate(names)
    ]


async def test_a_line_that_was_cut_off_is_no_event() -> None:
    whole = watch_line("ADDED", "a", 2) + watch_line("ADDED", "b", 3)
    events = await watched([whole[:-10]])
    assert [event.item.metadata.name for event in events if event.item] == ["a"]


async def test_a_bookmark_has_a_version_and_no_object() -> None:
    line = {
        "type": "BOOKMARK",
        "object": {"metadata": {"resourceVersion": "9", "creationTimestamp": None}, "spec": None},
    }
    assert await watched([json.dumps(line).encode() + b"\n"]) == [WatchEvent(ChangeType.BOOKMARK, None, "9")]


async def test_an_expired_version_is_recognized_as_status_and_as_event() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (9)"}
    line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
    with pytest.raises(Expired, match="too old"):
        await watched([line])
    with pytest.raises(Expired):
        async with Client(ScriptedTransport(error_response(410, "Expired"))).watch(PODS, resource_version="1"):
            pass


@pytest.mark.parametrize("line", [b"<html>\n", b'{"type":"DANCED","object":{}}\n', b'{"type":"ADDED"}\n', b"[]\n"])
async def test_a_line_that_is_no_event_ends_the_watch(line: bytes) -> None:
    with pytest.raises(Unavailable):
        await watched([line])


async def test_a_stream_is_closed_when_its_reader_stops() -> None:
    response = stream_response([watch_line("ADDED", "a", 2), watch_line("ADDED", "b", 3)])
    async with Client(FunctionTransport(lambda _: response)).watch(PODS, resource_version="1") as events:
        await anext(events)
    assert response.stream is not None
    with pytest.raises(StopAsyncIteration):
        await anext(response.stream)


async def test_a_fenced_client_reads_but_writes_nothing_that_the_fence_refuses() -> None:
    class NotMine(Exception):
        pass

    def require() -> None:
        raise NotMine

    transport = ScriptedTransport(json_response({}))
    fenced = Client(transport).guarded(require)
    await fenced.get(LEASES, "gpu-n1-0", "carrel")
    for write in (
        fenced.create(LEASES, {}, "carrel"),
        fenced.patch(LEASES, "gpu-n1-0", MergePatch({}), "carrel"),
        fenced.delete(LEASES, "gpu-n1-0", "carrel"),
    ):
        with pytest.raises(NotMine):
            await write
    assert [asked.method for asked in transport.asked] == ["GET"]


class TestWarnings:
    UNKNOWN = r'299 - "unknown field \"status.x\"", 299 - "a remark, with \\ and \"quotes\""'
    TEXTS = ('unknown field "status.x"', 'a remark, with \\ and "quotes"')

    async def test_writes_set_field_validation_and_reads_do_not(self) -> None:
        transport = ScriptedTransport(json_response({}))
        client = Client(transport, FieldValidation.WARN)
        for call in (
            client.create(PODS, {}, "lab"),
            client.update(PODS, {"metadata": {"name": "train", "namespace": "lab"}}),
            client.patch(PODS, "train", MergePatch({}), "lab"),
            client.get(PODS, "train", "lab"),
            client.delete(PODS, "train", "lab"),
        ):
            await call
        assert [asked.query for asked in transport.asked] == [*[{"fieldValidation": "Warn"}] * 3, {}, {}]

    async def test_each_text_is_logged_once(self, caplog: LogCaptureFixture) -> None:
        warned = ApiResponse(200, b"{}", {"warning": self.UNKNOWN})
        transport = FunctionTransport(lambda request: warned if b"x" in request.body else ApiResponse(200, b"{}"))
        client = Client(transport, FieldValidation.WARN)
        for name in ("n1", "n2", "n1"):
            await client.patch(NODES, name, MergePatch({"x": 1}), subresource="status")
        await client.guarded(lambda: None).patch(NODES, "n1", MergePatch({"x": 1}), subresource="status")
        await client.get(NODES, "n1")

        assert [record.getMessage() for record in caplog.records] == [
            f"api_server_warns method=PATCH path=/api/v1/nodes/n1/status text={text!r}" for text in self.TEXTS
        ]

    async def test_a_refusal_may_have_warnings_too(self, caplog: LogCaptureFixture) -> None:
        answer = ApiResponse(403, b"{}", {"warning": '299 - "old"'})
        with pytest.raises(Forbidden):
            await Client(ScriptedTransport(answer)).create(PODS, {}, "lab")
        assert "old" in caplog.text

    async def test_no_more_than_a_thousand_are_remembered(self, caplog: LogCaptureFixture) -> None:
        transport = FunctionTransport(lambda request: ApiResponse(200, b"{}", {"warning": f'299 - "{request.path}"'}))
        client = Client(transport)
        for number in (*range(1_001), 0):
            await client.patch(NODES, f"n{number}", MergePatch({}))
        assert len(caplog.records) == 1_002, "the first was forgotten"

    @pytest.mark.parametrize("header", ["", "299", '299 - "', "nonsense", '199 - "miscellaneous"', '"299 - "'])
    async def test_other_warning_headers_are_ignored(self, header: str, caplog: LogCaptureFixture) -> None:
        client = Client(ScriptedTransport(ApiResponse(200, b"{}", {"warning": header})))
        await client.patch(NODES, "n1", MergePatch({}))
        assert caplog.records == []
