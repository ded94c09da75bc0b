"""What `kubectl get` shows: the usual columns, also in a watch, and those that a CRD declares."""

from datetime import timedelta
from typing import Any

import pytest

from kubernetes_in_memory.json_path import JsonPath
from kubernetes_in_memory.times import short_duration
from packages.kubernetes_in_memory.tests.integration.caller import (
    MERGE,
    NOON,
    PODS,
    TABLE,
    Answer,
    Caller,
    Json,
    embedded,
    pod,
)

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def shown(answer: Answer | Json, wide: bool = False) -> list[dict[str, Any]]:
    table = answer.body if isinstance(answer, Answer) else answer
    assert table["kind"] == "Table"
    columns = table["columnDefinitions"]
    return [
        {
            column["name"]: cell
            for column, cell in zip(columns, row["cells"], strict=True)
            if wide or not column["priority"]
        }
        for row in table["rows"]
    ]


async def test_pods_are_shown_as_kubectl_shows_them(call: Caller) -> None:
    await call.made(PODS, pod())
    assert shown(await call("GET", PODS, accept=TABLE)) == [
        {"Name": "train", "Ready": "0/1", "Status": "Pending", "Restarts": "0", "Age": "0s"}
    ]
    await call("POST", f"{PODS}/train/binding", {"metadata": {"name": "train"}, "target": {"name": "n1"}})
    (row,) = shown(await call("GET", PODS, accept=TABLE), wide=True)
    assert row["Node"] == "n1"


@pytest.mark.parametrize(
    ("status", "word"),
    [
        pytest.param({"phase": "Running"}, "Running", id="running"),
        pytest.param({"phase": "Failed", "reason": "Evicted"}, "Evicted", id="the pod's own reason"),
        pytest.param(
            {
                "phase": "Pending",
                "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}}],
            },
            "ErrImagePull",
            id="why a container waits",
        ),
        pytest.param(
            {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 3}}}]},
            "ExitCode:3",
            id="how a container ended",
        ),
        pytest.param(
            {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]},
            "Init:0/1",
            id="init containers first",
        ),
    ],
)
async def test_a_pods_state_is_one_word(call: Caller, status: Json, word: str) -> None:
    await call.made(PODS, pod(initContainers=[{"name": "i", "image": "x"}]))
    await call("PATCH", f"{PODS}/train/status", {"status": status}, MERGE)
    assert shown(await call("GET", PODS, accept=TABLE))[0]["Status"] == word


async def test_a_pod_that_is_being_deleted_is_terminating(call: Caller) -> None:
    await call.made(PODS, pod())
    await call("POST", f"{PODS}/train/binding", {"metadata": {"name": "train"}, "target": {"name": "n1"}})
    await call("DELETE", f"{PODS}/train")
    assert shown(await call("GET", f"{PODS}/train", accept=TABLE))[0]["Status"] == "Terminating"


async def test_nodes_show_whether_they_are_ready(call: Caller) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.35.0"}}
    role = {"node-role.kubernetes.io/gpu": ""}
    await call.made("/api/v1/nodes", {"metadata": {"name": "n1", "labels": role}, "status": ready})
    assert shown(await call("GET", "/api/v1/nodes", accept=TABLE)) == [
        {"Name": "n1", "Status": "Ready", "Roles": "gpu", "Age": "0s", "Version": "v1.35.0"}
    ]


async def test_a_watch_shows_rows_too(call: Caller) -> None:
    async with call.watching(PODS, accept=TABLE) as events:
        await call.made(PODS, pod())
        event = await events.next()
    assert event["type"] == "ADDED"
    assert shown(event["object"])[0]["Name"] == "train"


async def test_a_definition_has_its_own_columns() -> None:
    now = NOON
    call = embedded(clock=lambda: now)
    columns = [
        {"name": "LeaseWriter", "type": "integer", "jsonPath": ".spec.count"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Since", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": columns,
    }
    names = {"plural": "desks", "kind": "Desk"}
    spec = {"group": "library.example", "scope": "Cluster", "names": names, "versions": [version]}
    await call.made(CRDS, {"metadata": {"name": "desks.library.example"}, "spec": spec})
    status = {"conditions": [{"type": "Other", "status": "True"}, {"type": "Ready", "status": "False"}]}
    await call.made(
        "/apis/library.example/v1/desks", {"metadata": {"name": "d"}, "spec": {"count": 2}, "status": status}
    )
    await call.made("/apis/library.example/v1/desks", {"metadata": {"name": "e"}})
    now += timedelta(hours=5)
    assert shown(await call("GET", "/apis/library.example/v1/desks", accept=TABLE)) == [
        {"Name": "d", "LeaseWriter": 2, "Ready": "False", "Since": "5h"},
        {"Name": "e", "LeaseWriter": None, "Ready": None, "Since": "5h"},
    ]


async def test_a_client_that_knows_no_tables_gets_objects(call: Caller) -> None:
    await call.made(PODS, pod())
    assert (await call("GET", PODS, accept=f"application/json, {TABLE}")).body["kind"] == "PodList"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]),
        ("{.a.b}", [1]),
        (".list[0].x", ["p"]),
        (".list[*].x", ["p", "q"]),
        (".list[-1].x", ["q"]),
        ('.list[?(@.x=="q")].y', [True]),
        (r".dotted\.name", [5]),
        ("['dotted.name']", [5]),
        (".missing.b", []),
        (".a..b", []),
    ],
)
def test_json_paths(path: str, found: list[Any]) -> None:
    tree = {"a": {"b": 1}, "list": [{"x": "p"}, {"x": "q", "y": True}], "dotted.name": 5}
    assert JsonPath.parse(path).find(tree) == found


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (600, "10m"), (10_799, "179m"), (10_800, "3h"),
        (12_000, "3h20m"), (86_400, "24h"), (172_800, "2d"), (180_000, "2d2h"), (700_000, "8d"),
        (86_400 * 800, "2y70d"),
    ],
)  # fmt: skip
def test_ages_are_short(seconds: int, text: str) -> None:
    assert short_duration(seconds) == text
