"""GPUs of pods with init containers and sidecars: what is booked, what containers see, and what the kubelet does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.dialects import nvidia
from carrel.dialects.interface import Reading
from carrel.ledger.placement import Placement, place
from tests.kit.gpus import N1, a_ledger, a_node
from tests.kit.objects import init_container, pod

MOST = 3

inits = st.lists(st.tuples(st.integers(0, MOST), st.booleans()), max_size=4)
"""How many GPUs, and whether it is a sidecar."""
mains = st.lists(st.integers(0, MOST), min_size=1, max_size=3)


def handed_over(asked: list[tuple[int, bool]], beside: list[int]) -> int:
    """How many devices the kubelet's device manager takes: what an init container had is used again by whoever comes
    after it, and what a sidecar or a container has is its own."""
    taken = again = 0
    for amount, is_init in [*((amount, not is_sidecar) for amount, is_sidecar in asked), *((n, False) for n in beside)]:
        new = max(0, amount - again)
        taken += new
        again = again + new if is_init else again - min(again, amount)
    return taken


@pytest.mark.parametrize(
    ("asked", "beside", "expected"),
    [([(2, False)], [1], 2), ([(1, True)], [1], 2), ([(2, False), (1, True), (2, False)], [1], 3)],
    ids=["an init container", "a sidecar", "both"],
)
def test_the_model_of_the_kubelet(asked: list[tuple[int, bool]], beside: list[int], expected: int) -> None:
    assert handed_over(asked, beside) == expected


@given(inits, mains)
def test_the_ledger_holds_what_the_kubelet_hands_over_and_no_two_at_once_see_the_same_gpu(
    asked: list[tuple[int, bool]], beside: list[int]
) -> None:
    request = nvidia.request_of(
        pod(
            limits=[{nvidia.GPU: str(amount)} for amount in beside],
            init=[
                init_container(f"i{at}", {nvidia.GPU: str(amount)}, "Always" if is_sidecar else "")
                for at, (amount, is_sidecar) in enumerate(asked)
            ],
        ),
        Reading(),
    )
    if request is None:
        assert handed_over(asked, beside) == 0
        return
    assert request.gpus == handed_over(asked, beside)

    placement = place(a_ledger(a_node("n1", gpus=request.gpus)), request, N1)
    assert isinstance(placement, Placement)
    indices = {name: {gpu.index for gpu in gpus} for name, gpus in placement.by_container().items()}
    assert {need.container: need.gpus for need in request.containers} == {
        name: len(own) for name, own in indices.items()
    }
    running: set[int] = set()
    for need in request.containers:
        assert not running & indices[need.container], "it is another's, who runs"
        if not need.init:
            running |= indices[need.container]
