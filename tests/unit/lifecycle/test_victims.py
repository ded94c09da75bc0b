"""Which pods lose their GPU to a booked pod: the fewest, the least work, no superfluous one, never a booked one."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, Waiting, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request, Topology, TopologyMode
from carrel.ledger.shares import Share
from carrel.lifecycle.victims import OpportunisticPod, Revocation, revoke
from tests.kit.gpus import a_ledger, a_node, held, holder, memory, whole

BOOKED = holder("booked")


def opportunists(**hours: float) -> list[OpportunisticPod]:
    return [OpportunisticPod(holder(name), timedelta(hours=lost)) for name, lost in hours.items()]


def waiting(request: Request, *nodes: str) -> Waiting:
    return Waiting(BOOKED, request, nodes or ("n1",))


def victims(answer: Placement | Revocation | Refusal) -> list[str]:
    assert isinstance(answer, Revocation), answer
    return [victim.name for victim in answer.victims]


def busy(*shares: Share, nodes: int = 1, cards: int = 2) -> Ledger:
    ledger = a_ledger(*(a_node(f"n{number}", cards=cards, memory=1000) for number in range(1, nodes + 1)))
    for share in shares:
        ledger.hold(share)
    return ledger


def test_an_opportunistic_pod_keeps_its_gpu_while_another_gpu_is_free() -> None:
    ledger = busy(held("low", "n1", 0, None))

    answer = revoke(ledger, waiting(whole()), opportunists(low=1))

    assert isinstance(answer, Placement)
    assert [gpu.index for gpu in answer.gpus] == [1]


def test_when_no_gpu_is_free_the_victim_is_the_pod_that_loses_least_work() -> None:
    ledger = busy(held("old", "n1", 0, None), held("young", "n1", 1, None))

    answer = revoke(ledger, waiting(whole()), opportunists(old=9, young=1))

    assert victims(answer) == ["young"]
    assert isinstance(answer, Revocation)
    assert [gpu.index for gpu in answer.gpus] == [1]


def test_one_victim_that_loses_much_is_better_than_two_that_lose_little() -> None:
    ledger = busy(held("one", "n1", 0, None), held("two", "n1", 1, 500), held("three", "n1", 1, 500))

    assert victims(revoke(ledger, waiting(whole()), opportunists(one=99, two=1, three=1))) == ["one"]


def test_a_booked_pod_is_never_a_victim() -> None:
    ledger = busy(held("other-booked", "n1", 0, None), held("low", "n1", 1, None))

    assert victims(revoke(ledger, waiting(whole()), opportunists(low=99))) == ["low"]
    answer = revoke(ledger, waiting(whole(2)), opportunists(low=99))
    assert answer == Refusal("no room for 2 whole cards on 1 node, even if every pod without a booking ended")


def test_gpus_of_ending_pods_are_used_before_victims_are_chosen() -> None:
    ledger = busy(held("going", "n1", 0, None), held("low", "n1", 1, None))
    ledger.release("uid-going")

    answer = revoke(ledger, waiting(whole()), opportunists(going=0, low=0))

    assert victims(answer) == []
    assert isinstance(answer, Revocation)
    assert [gpu.index for gpu in answer.gpus] == [0]


def test_no_victim_is_superfluous_when_one_pod_holds_both_gpus() -> None:
    ledger = busy(held("wide", "n1", 0, 600), held("wide", "n1", 1, 600), held("narrow", "n1", 0, 400))

    assert victims(revoke(ledger, waiting(memory(600, cards=2)), opportunists(wide=50, narrow=1))) == ["wide"]


def test_a_required_island_is_freed_where_that_costs_least() -> None:
    ledger = a_ledger(a_node("n1", islands="aabb"))
    for index, name in enumerate(("a0", "a1", "b0", "b1")):
        ledger.hold(held(name, "n1", index, None))
    request = whole(2, topology=Topology(TopologyMode.REQUIRED))

    assert victims(revoke(ledger, waiting(request), opportunists(a0=1, a1=9, b0=2, b1=3))) == ["b0", "b1"]


def test_a_preferred_island_is_not_worth_a_victim() -> None:
    ledger = a_ledger(a_node("n1", islands="aabb"))
    for index, name in ((1, "a1"), (2, "b0"), (3, "b1")):
        ledger.hold(held(name, "n1", index, None))

    assert len(victims(revoke(ledger, waiting(whole(2)), opportunists(a1=9, b0=1, b1=1)))) == 1


def test_of_equal_nodes_the_first_by_name_is_taken() -> None:
    ledger = busy(held("x", "n2", 0, None), held("y", "n1", 0, None), nodes=2, cards=1)

    assert victims(revoke(ledger, waiting(whole(), "n2", "n1"), opportunists(x=1, y=1))) == ["y"]


def test_random_victims_are_any_of_the_fewest_and_the_same_for_the_same_seed() -> None:
    ledger = busy(held("old", "n1", 0, None), held("young", "n1", 1, None))
    pods = opportunists(old=9, young=1)

    drawn = [victims(revoke(ledger, waiting(whole()), pods, Random(seed))) for seed in range(30)]

    assert drawn == [victims(revoke(ledger, waiting(whole()), pods, Random(seed))) for seed in range(30)]
    assert {tuple(each) for each in drawn} == {("old",), ("young",)}


@pytest.mark.parametrize("nodes", [pytest.param(("n9",), id="unknown node"), pytest.param((), id="no node")])
def test_no_eligible_node_is_a_refusal(nodes: tuple[str, ...]) -> None:
    assert isinstance(revoke(busy(), Waiting(BOOKED, whole(), nodes), []), Refusal)


shares = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(1, 10)), max_size=9, unique_by=lambda drawn: drawn[:2]
)


@given(
    shares,
    st.sampled_from([whole(), whole(2), memory(500), memory(700, cards=2), memory(300, cards=3)]),
    st.sets(st.integers(0, 5)),
    st.dictionaries(st.integers(0, 5), st.integers(0, 3), min_size=6, max_size=6),
)
def test_the_choice_is_the_best_of_all_sets_of_victims(
    drawn: Sequence[tuple[int, int, int]], request: Request, booked: set[int], hours: Mapping[int, int]
) -> None:
    ledger = a_ledger(a_node("n1", cards=3, memory=1000))
    for pod, index, tenth in drawn:
        card = ledger.cards("n1")[index]
        if card.free:
            ledger.hold(Share(holder(f"p{pod}"), card.gpu.uuid, MiB(min(card.free, tenth * 100))))
    low = {
        f"uid-p{pod}": OpportunisticPod(holder(f"p{pod}"), timedelta(hours=hours[pod]))
        for pod in set(range(6)) - booked
    }
    present = [each for uid, each in low.items() if ledger.shares_of(uid)]

    answer = revoke(ledger, waiting(request), low.values())

    fitting = [chosen for chosen in _subsets(present) if _fits_without(ledger, request, chosen)]
    if not fitting:
        assert isinstance(answer, Refusal)
    elif isinstance(answer, Placement):
        assert fitting[0] == ()
    else:
        assert isinstance(answer, Revocation)
        best = min((len(chosen), sum((each.work for each in chosen), timedelta(0))) for chosen in fitting)
        assert (len(answer.victims), sum((low[victim.uid].work for victim in answer.victims), timedelta(0))) == best
        assert _fits_without(ledger, request, [low[victim.uid] for victim in answer.victims])


def _subsets(pods: Sequence[OpportunisticPod]) -> list[tuple[OpportunisticPod, ...]]:
    return [chosen for size in range(len(pods) + 1) for chosen in combinations(pods, size)]


def _fits_without(ledger: Ledger, request: Request, gone: Sequence[OpportunisticPod]) -> bool:
    with ledger.what_if():
        for each in gone:
            ledger.forget(each.holder.uid)
        return isinstance(place(ledger, request, "n1", BOOKED.uid), Placement)
