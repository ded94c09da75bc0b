"""Whatever is sent, a reader reads it or raises `Malformed`: nothing else, and nothing long."""

import json
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carrel.admission.review import NotAReview, read_review
from carrel.dialects import (
    gpu_lease,
    gpuclaim,
    gpushare,
    hami,
    jupyter,
    kai_reservation,
    maia,
    tier,
    visible_devices,
)
from carrel.dialects.interface import PodRequest
from carrel.dialects.registry import request_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.quantity import quantity
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed
from carrel.parsing.time import instant
from carrel.scheduling.extender_calls import NotJson, read_bind_args, read_pod_and_nodes
from tests.kit.arbitrary_json import documents
from tests.kit.objects import claim, config_map, gpu_node_status, init_container, lease, pod


def as_json(read: Callable[[bytes], object]) -> Callable[[object], object]:
    @wraps(read)
    def read_document(document: object) -> object:
        return read(json.dumps(document).encode())

    return read_document


BODIES: dict[Callable[[object], object], list[str]] = {
    as_json(read_review): [
        "apiVersion",
        "kind",
        "request",
        "uid",
        "operation",
        "userInfo",
        "groups",
        "object",
        "dryRun",
    ],
    as_json(read_pod_and_nodes): ["Pod", "pod", "Nodes", "NodeNames", "nodenames", "items", "metadata", "name"],
    as_json(read_bind_args): ["PodName", "PodNamespace", "PodUID", "Node"],
    maia.read_enquiry: ["user_email", "namespace", "token", "booking", "gpu", "starting_time", "ending_time"],
    maia.read_verdict: ["schedulable", "until", "gpu"],
    maia.read_pod_to_end: ["pod_name", "namespace"],
}
TEXTS = (
    st.text(max_size=12)
    | st.from_regex(r"[0-9eE.+-]{1,8}[numkKMGTPEi]{0,2}", fullmatch=True)
    | st.from_regex(r"[0-9:,-]{1,12}", fullmatch=True)
    | documents().map(json.dumps)
    | st.sampled_from(
        ["true", "false", "1", "0", "-1", "0.5", "9" * 5000, "1900-01-01T08:00:00Z", "GPU-a", "{}", "null"]
    )
)
ANNOTATIONS = st.sampled_from(
    [
        "gpu.scheduling/claim",
        "gpu.scheduling/allocated",
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
        "pod-group-name",
        "kai.scheduler/batch-min-member",
        "carrel.dev/gpu-count",
        "carrel.dev/gpu-memory-mib",
        "carrel.dev/gpu-model",
        "carrel.dev/gang-size",
        "carrel.dev/devices",
        "terminate-at",
        "hub.jupyter.org/username",
        "run.ai/reserve_for_gpu_index",
        "scheduler.framework.gpushare.allocation",
        "hami.io/vgpu-devices-allocated",
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_DEV",
        "ALIYUN_COM_GPU_MEM_POD",
        "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    ]
)
NOTES = st.dictionaries(ANNOTATIONS, TEXTS, max_size=6)
LIMITS = st.dictionaries(st.sampled_from(["nvidia.com/gpu", "aliyun.com/gpu-mem", "cpu"]), TEXTS, max_size=2)
POD_READERS: list[Callable[[Pod], object]] = [
    gpushare.read_assumption,
    jupyter.username_of,
    lambda pod: kai_reservation.reserved_in(pod.metadata.annotations, "pod"),
    tier.read_terminate_at,
    visible_devices.read_devices,
    gpushare.told_gpus,
    gpuclaim.told_gpus,
    hami.told_gpus,
]


def read_or_malformed(read: Callable[[], object]) -> object:
    try:
        return read()
    except (Malformed, NotAReview, NotJson) as error:
        assert len(str(error)) < 1000
        return None


@pytest.mark.parametrize("read", BODIES, ids=lambda read: f"{read.__module__.rpartition('.')[2]}.{read.__name__}")
@given(data=st.data())
def test_bodies_of_calls(read: Callable[[object], object], data: st.DataObject) -> None:
    body = data.draw(documents(st.sampled_from(BODIES[read])))
    read_or_malformed(lambda: read(body))


@given(TEXTS)
@example("1" * 10_000)
@example("0." + "0" * 10_000 + "1")
@example("1e1000000000")
def test_quantities_and_instants(text: str) -> None:
    read_or_malformed(lambda: quantity(text, "x", "y"))
    read_or_malformed(lambda: instant(text, "x", "y"))


@given(NOTES, NOTES)
def test_pods_that_were_placed_by_someone(notes: dict[str, str], labels: dict[str, str]) -> None:
    for read in POD_READERS:
        read_or_malformed(partial(read, pod(notes, labels=labels)))


@given(NOTES, st.lists(LIMITS, max_size=3), LIMITS, st.sampled_from(["", "Always"]))
def test_pods_that_ask_for_something(
    notes: dict[str, str], limits: list[dict[str, str]], init: dict[str, str], restart: str
) -> None:
    asking = pod(notes, limits, [init_container("i", init, restart)])
    answer = read_or_malformed(lambda: request_of(asking, lambda namespace, name: None))
    assert answer is None or isinstance(answer, PodRequest | Refusal)
    if isinstance(answer, PodRequest):
        assert 0 < answer.request.gpus < 2**63


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "count": st.integers(),
            "policy": TEXTS | st.just("spread"),
            "preferIds": st.lists(st.integers()),
            "exclusivity": TEXTS | st.just("Shared"),
            "memoryMiB": st.integers(),
        },
    ),
    st.fixed_dictionaries({}, optional={"mode": TEXTS | st.just("Required"), "minBandwidthGBps": st.integers()}),
)
def test_claims(devices: dict[str, Any], topology: dict[str, Any]) -> None:
    read_or_malformed(lambda: gpuclaim.request_of(claim({"devices": devices, "topology": topology}), 4))


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={"id": st.integers(), "health": TEXTS, "memoryMiB": st.integers(), "uuid": TEXTS, "island": TEXTS},
        ),
        max_size=4,
    ),
    TEXTS,
    TEXTS,
)
def test_node_statuses(devices: list[dict[str, Any]], heartbeat: str, memory: str) -> None:
    status = gpu_node_status({"metadata": {"name": "n"}, "status": {"devices": devices, "heartbeat": heartbeat}})
    read_or_malformed(lambda: gpuclaim.node_of(status, {"nvidia.com/gpu.memory": memory}))
    read_or_malformed(lambda: gpuclaim.heartbeat_of(status))


SHARES = documents(st.sampled_from(["uid-1", "pod", "mib", "state", "uid"])).map(json.dumps) | TEXTS


@given(st.sampled_from(["gpu-n-0", "gpu-0", "x"]) | TEXTS, SHARES, SHARES, TEXTS)
@example("gpu-n-0", "[" * 100_000, "null", "")
@example("gpu-n-0", '{"a": NaN}', "null", "")
@example("gpu-n-0", "9" * 5000, "null", "")
def test_leases(name: str, shares: str, kept_for: str, holder: str) -> None:
    notes = {"carrel.dev/shares": shares, "carrel.dev/kept-for": kept_for}
    found = lease({"metadata": {"name": name, "annotations": notes}, "spec": {"holderIdentity": holder}})
    read_or_malformed(lambda: gpu_lease.read_lease(found))


@given(TEXTS)
def test_unhealthy_gpus(text: str) -> None:
    read_or_malformed(lambda: gpushare.read_unhealthy(config_map("unhealthy-gpu-n", {"gpus": text})))
