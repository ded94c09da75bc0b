"""GPUs whose drivers keep some of their memory: what pods may share of them, and who gets one alone."""

from dataclasses import replace
from fractions import Fraction

import pytest

from carrel.ids import GpuUuid
from carrel.ledger.gpus import Gpu, MiB, Node, shareable, total_of
from carrel.ledger.ledger import Ledger
from carrel.ledger.never import Impossibility
from carrel.ledger.placement import Placement, candidates, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Amount, Memory, Portion, Request
from tests.kit.gpus import N1, N2, a_gpu, held, holder, memory

T4 = shareable(15_826, 16_276)
"""A T4 whose driver keeps 450 MiB."""


def a_t4(index: int = 0) -> Gpu:
    return a_gpu("n1", index, T4)


def take(ledger: Ledger, pod: str, request: Request) -> Placement | Refusal:
    found = place(ledger, request, N1)
    if isinstance(found, Placement):
        ledger.hold(*found.shares(holder(pod)))
    return found


def test_two_halves_fit_beside_each_other_in_what_the_driver_leaves() -> None:
    ledger, half = Ledger([Node(N1, (a_t4(),))]), Request(1, Portion(Fraction(1, 2)))

    assert isinstance(take(ledger, "a", half), Placement)
    assert isinstance(take(ledger, "b", half), Placement)
    assert [share.memory for share in ledger.entries(N1)[0].shares.values()] == [7_913, 7_913]


@pytest.mark.parametrize("mib", [15_827, 16_000, 16_276])
def test_more_than_pods_may_share_is_the_gpu_alone(mib: int) -> None:
    ledger = Ledger([Node(N1, (a_t4(),))])

    assert isinstance(take(ledger, "a", memory(mib)), Placement)
    assert ledger.entries(N1)[0].free == 0
    assert isinstance(take(ledger, "b", memory(1)), Refusal)


def test_more_than_pods_may_share_needs_a_gpu_that_nobody_holds() -> None:
    ledger = Ledger([Node(N1, (a_t4(0), a_t4(1)))], [held("a", "n1", 0, 1), held("b", "n1", 1, 1)])

    assert isinstance(place(ledger, memory(16_276), N1), Refusal)


@pytest.mark.parametrize(
    ("amount", "never"),
    [
        pytest.param(Memory(T4), False, id="what pods may share"),
        pytest.param(Memory(total_of(T4)), False, id="all of it"),
        pytest.param(Memory(MiB(16_277)), True, id="more than it has"),
    ],
)
def test_only_more_than_the_gpu_has_can_never_be_had(amount: Amount, never: bool) -> None:
    impossibility = Impossibility(Ledger([Node(N1, (a_t4(),))]))

    assert (impossibility.why(Request(1, amount), (N1,), (N1,)) is not None) == never


def test_pods_that_hold_more_since_the_capacity_changed_stay_and_nobody_joins_them() -> None:
    ledger = Ledger([Node(N1, (a_gpu("n1", 0, 16_276),))], [held("a", "n1", 0, 8_138), held("b", "n1", 0, 8_138)])
    ledger.set_node(Node(N1, (a_t4(),)))

    refused = place(ledger, memory(1), N1)
    assert isinstance(refused, Refusal)
    assert "15,826 MiB for pods, and lab/a, lab/b hold 450 MiB more" in refused.reason
    assert set(ledger.holders()) == {holder("a").uid, holder("b").uid}
    ledger.audit()


def test_gpus_that_differ_only_in_what_the_driver_keeps_are_not_alike() -> None:
    one, other = shareable(15_000, 16_000), shareable(15_000, 17_000)

    assert one == 15_000 and one != other and {one: 1}.get(other) is None
    assert total_of(shareable(100, 100)) == 100
    assert Gpu(GpuUuid("g"), N1, 0, "", one) != Gpu(GpuUuid("g"), N1, 0, "", other)


def test_a_limited_part_goes_only_where_memory_can_be_limited() -> None:
    old = Node(N2, (a_gpu("n2", 0),), why_no_limits="its driver 570.86 is older than 615")
    ledger = Ledger([Node(N1, (a_t4(),), why_no_limits=""), old])
    part = memory(100)
    limited = replace(part, is_limited=True)

    assert candidates(ledger, part, (N1, N2)).fitting == [N1, N2]
    assert candidates(ledger, limited, (N1, N2)).fitting == [N1]
    why = "takes no parts of GPUs, because it cannot limit their memory: its driver 570.86 is older than 615"
    assert place(ledger, limited, N2) == Refusal(f"n2 {why}")


def test_a_limited_part_that_no_node_can_limit_never_starts() -> None:
    ledger = Ledger([Node(N1, (a_t4(),), why_no_limits="its driver is old")])
    never = Impossibility(ledger).why(replace(memory(100), is_limited=True), (N1,), (N1,))

    assert never is not None and "No node with GPUs can limit the memory of a part of one" in never.reason
    assert Impossibility(ledger).why(memory(100), (N1,), (N1,)) is None
