"""How much of a GPU the driver lets each container of a pod have."""

from fractions import Fraction

import pytest

from carrel.dialects import memory_limits
from carrel.dialects.interface import PodRequest
from carrel.dialects.registry import request_of
from carrel.ledger.gpus import MiB, shareable
from carrel.ledger.requests import WHOLE, Amount, Memory, Portion, Request
from tests.kit.objects import pod_from

T4, A100 = shareable(15_826, 16_276), MiB(81_920)


def limits_of(
    amount: Amount, *memory: MiB, inits: tuple[str, ...] = (), others: tuple[str, ...] = ()
) -> dict[str, str]:
    """What the containers of a pod with this amount are told, which do not ask for anything themselves."""
    spec = {
        "containers": [{"name": name} for name in ("main", *others)],
        "initContainers": [{"name": name} for name in inits],
    }
    pod = pod_from({"metadata": {"name": "a", "namespace": "lab"}, "spec": spec})
    return memory_limits.write_limits(memory_limits.limited(pod, Request(1, amount)), memory or (T4,))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(limits_of(Memory(MiB(8_138))), {"main": "8138"}, id="an amount"),
        pytest.param(limits_of(Portion(Fraction(1, 2))), {"main": "7913"}, id="a part of what pods share"),
        pytest.param(limits_of(Memory(MiB(16_276))), {"main": "15826"}, id="the GPU alone: what it has for pods"),
        pytest.param(limits_of(WHOLE), {"main": "16276"}, id="a whole GPU, if a claim says so later: all of it"),
        pytest.param(limits_of(Memory(MiB(99_999))), {"main": "16276"}, id="never more than the GPU has"),
        pytest.param(
            limits_of(Portion(Fraction(1, 2)), A100, T4), {"main": "7913"}, id="of unequal GPUs, that of the smallest"
        ),
        pytest.param(
            limits_of(Memory(MiB(8_001)), others=("b",)),
            {"main": "4000", "b": "4000"},
            id="two containers share it equally",
        ),
        pytest.param(
            limits_of(Memory(MiB(8_000)), others=("b",), inits=("init",)),
            {"init": "8000", "main": "4000", "b": "4000"},
            id="an init container runs alone",
        ),
        pytest.param(limits_of(Memory(MiB(1)), others=("b",)), {"main": "1", "b": "1"}, id="never nothing"),
        pytest.param(
            limits_of(WHOLE, others=("b",)), {"main": "16276", "b": "16276"}, id="both see all of a whole GPU"
        ),
    ],
)
def test_what_a_container_may_have(limits: dict[str, str], expected: dict[str, str]) -> None:
    assert {key.removeprefix("limits.carrel.dev/"): mib for key, mib in limits.items()} == expected


def asked(annotations: dict[str, str]) -> Request:
    metadata = {"name": "a", "namespace": "lab", "annotations": {"carrel.dev/gpu-memory-mib": "8138", **annotations}}
    pod = pod_from({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})
    found = request_of(pod, lambda namespace, name: None)
    assert isinstance(found, PodRequest)
    return found.request


def test_a_pod_is_limited_if_it_was_admitted_so() -> None:
    assert not asked({}).is_limited
    assert asked({"limits.carrel.dev/main": "1"}).is_limited
    assert asked({}) != asked({"limits.carrel.dev/main": "1"}), "they do not go to the same nodes"
