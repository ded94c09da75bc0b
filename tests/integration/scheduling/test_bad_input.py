"""Whatever is sent to the extender gets an answer with a reason, never a 5xx, and changes nothing."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.cluster.state import ClusterState
from carrel.kubernetes.client import Client
from carrel.scheduling.assembly import LARGEST_QUESTION, handlers_on, scheduler_on
from kubernetes_in_memory import EmbeddedApi
from tests.integration.scheduling.served_extender import a_served_extender
from tests.kit.gpus import a_node


def a_pod(limits: Mapping[str, Any] | None = None, annotations: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": "train", "namespace": "lab", "uid": "u1", "annotations": dict(annotations or {})},
        "spec": {"containers": [{"name": "main", "resources": {"limits": dict(limits or {})}}]},
    }


SHARE = a_pod({"aliyun.com/gpu-mem": "8138"})
DEEP = b'{"Pod":' + b"[" * 5_000 + b"]" * 5_000 + b"}"

IN_ERROR = [
    pytest.param({"NodeNames": ["n1"]}, "the pod to schedule", id="no pod"),
    pytest.param({"Pod": SHARE}, "not neither", id="no node list"),
    pytest.param({"Pod": SHARE, "Nodes": {"items": []}, "NodeNames": ["n1"]}, "not both", id="both node lists"),
    pytest.param(
        {"Pod": SHARE, "NodeNames": ["n1", 7]}, "NodeNames[1] is a whole number", id="a node name that is a number"
    ),
    pytest.param({"Pod": SHARE, "pod": SHARE, "NodeNames": []}, "Pod once", id="two pods"),
    pytest.param({"Pod": [], "NodeNames": ["n1"]}, "Pod is a list; expected a mapping", id="a pod that is a list"),
    pytest.param({"Pod": SHARE, "Nodes": {"items": [{}]}}, "metadata", id="a node without a name"),
    pytest.param(
        {"Pod": a_pod({"aliyun.com/gpu-mem": 8138}), "NodeNames": ["n1"]},
        "Pod.spec.containers[0].resources.limits",
        id="a quantity that is no text",
    ),
    pytest.param({"Pod": a_pod({"aliyun.com/gpu-mem": "-5"}), "NodeNames": ["n1"]}, "-5", id="a negative quantity"),
    pytest.param(
        {"Pod": a_pod({"aliyun.com/gpu-mem": "9" * 400}), "NodeNames": ["n1"]}, "999", id="an absurd quantity"
    ),
    pytest.param(
        {"Pod": a_pod({"aliyun.com/gpu-mem": "1"}, {"gpu-fraction": "0.5"}), "NodeNames": ["n1"]},
        "asks for GPUs in 2 ways",
        id="two dialects",
    ),
    pytest.param(
        {"Pod": a_pod(annotations={"gpu-fraction": "1.5"}), "NodeNames": ["n1"]}, "1.5", id="a fraction above one"
    ),
    pytest.param(
        {"Pod": a_pod(annotations={"gpu.scheduling/claim": "no-such-claim"}), "NodeNames": ["n1"]},
        "does not exist in namespace 'lab'",
        id="a claim that does not exist",
    ),
]


@pytest.mark.parametrize(("body", "complaint"), IN_ERROR)
@pytest.mark.parametrize("prefix", ["carrel", "gpushare-scheduler"])
async def test_errors_in_what_a_scheduler_could_send_are_in_the_error_field(
    prefix: str, body: dict[str, Any], complaint: str
) -> None:
    async with a_served_extender([a_node("n1")]) as extender:
        answer = await extender.caller.post(f"/{prefix}/filter", body)

        assert answer.status == 200
        assert complaint in answer.json["Error"]
        assert not answer.json["NodeNames"]
        assert extender.replica.transport.writes == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"Pod": {"metadata": {"name": "tr', id="truncated"),
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(DEEP, id="nested without end"),
    ],
)
@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
async def test_a_body_that_is_no_json_is_answered_with_400_and_the_reason(verb: str, body: bytes) -> None:
    async with a_served_extender([a_node("n1")]) as extender:
        answer = await extender.caller.post(f"/carrel/{verb}", body)

        assert answer.status == 400
        assert "not JSON" in answer.json["Error"] or "nested too deeply" in answer.json["Error"]
        assert extender.replica.transport.writes == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="nothing"),
        pytest.param(
            {"PodName": "train", "PodNamespace": "lab", "PodUID": "u", "Node": 3}, id="a node that is a number"
        ),
        pytest.param({"PodName": "train", "PodNamespace": "lab", "PodUID": "", "Node": "n1"}, id="no uid"),
        pytest.param([], id="a list"),
    ],
)
async def test_the_error_about_unreadable_bind_args_names_the_field(body: Any) -> None:
    async with a_served_extender([a_node("n1")]) as extender:
        answer = await extender.caller.post("/carrel/bind", body)

        assert answer.status == 200
        assert "expected" in answer.json["Error"]
        assert extender.replica.transport.writes == []


async def test_a_body_that_is_too_large_is_not_read_into_memory() -> None:
    async with a_served_extender([a_node("n1")]) as extender:
        answer = await extender.caller.post("/carrel/filter", b" " * (LARGEST_QUESTION + 1))

        assert answer.status == 413
        assert "larger than" in answer.json["Error"]


@pytest.mark.parametrize("path", ["/carrel/filter", "/carrel/bind", "/gpushare-scheduler/filter"])
async def test_the_verbs_accept_only_post(path: str) -> None:
    async with a_served_extender([a_node("n1")]) as extender:
        assert (await extender.caller.get(path)).status == 405


# --- anything at all -------------------------------------------------------------------------------------------------

WORDS = """
Pod pod Nodes NodeNames nodenames items metadata name namespace uid annotations spec containers resources limits n1
PodName PodNamespace PodUID Node aliyun.com/gpu-mem nvidia.com/gpu gpu-fraction gpu.scheduling/claim pod-group-name
"""
ASKED = """
gpu-fraction gpu-memory gpu-fraction-num-devices gpu.scheduling/claim pod-group-name
carrel.dev/gpu-count carrel.dev/gpu-memory-mib carrel.dev/gang-size
"""
words = st.sampled_from(WORDS.split())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
amounts = st.sampled_from(["1", "0", "-1", "1e9", "0.5", "1.5", "8138", "999999999999999999999", "1Ki", "", "ä", "NaN"])
near_pods = st.builds(
    a_pod,
    st.dictionaries(st.sampled_from(["aliyun.com/gpu-mem", "nvidia.com/gpu"]), amounts, max_size=2),
    st.dictionaries(st.sampled_from(ASKED.split()), amounts, max_size=3),
)
near_questions = st.fixed_dictionaries(
    {"Pod": near_pods | values}, optional={"NodeNames": st.lists(words) | values, "Nodes": values, "odd": values}
)
bodies = st.binary(max_size=40) | (values | near_questions).map(lambda body: json.dumps(body).encode())


class AlwaysSynced:
    is_synced = True
    silences: Mapping[str, float] = {}


@settings(max_examples=400, deadline=None)
@given(bodies)
async def test_every_body_gets_an_answer_with_a_reason(body: bytes) -> None:
    state = ClusterState(Client(EmbeddedApi()))
    ledger = state.ledger
    ledger.set_node(a_node("n1"))
    state.informers = AlwaysSynced()  # type: ignore[assignment]
    handlers = handlers_on(state, scheduler_on(state))
    before = ledger.version

    is_offered = False
    for reply in (
        handlers.filter(body),
        handlers.filter(body, for_gpushare=True),
        handlers.prioritize(body),
        await handlers.bind(body),
    ):
        assert reply.status in (200, 400)
        answer = json.loads(reply.body)
        assert isinstance(answer, list) or "Error" in answer
        is_offered |= isinstance(answer, dict) and bool(answer.get("NodeNames"))
    assert is_offered or ledger.version == before, "what is refused changes nothing"
