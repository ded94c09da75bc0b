"""All members of a gang get their GPUs, or none does."""

from typing import Any

import pytest

from carrel.ids import NodeName
from carrel.ledger import gangs
from carrel.ledger.gangs import GangMembers, GangPlan, GangPlanner, plan_gang
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request, Topology, TopologyMode
from tests.kit.gpus import N1, N2, N3, N4, a_ledger, a_node, held, holder, memory, whole

NODES = (N1, N2, N3, N4)


def members(*requests: Request, nodes: tuple[NodeName, ...] = NODES) -> list[WaitingPod]:
    return [WaitingPod(holder(f"m{number}"), request, nodes) for number, request in enumerate(requests)]


def plan(ledger: Ledger, *requests: Request, **more: int) -> GangPlan | Refusal:
    before = dict(ledger.rooms)
    answer = plan_gang(ledger, Gang("lab/job", len(requests)), members(*requests), **more)
    assert dict(ledger.rooms) == before, "a plan leaves the ledger as it was"
    ledger.audit()
    return answer


def test_a_gang_of_eight_over_four_nodes_fills_them() -> None:
    ledger = a_ledger(*(a_node(name, gpus=4) for name in NODES))

    answer = plan(ledger, *[whole(2)] * 8)

    assert isinstance(answer, GangPlan)
    gpus = [gpu.uuid for placement in answer.placements.values() for gpu in placement.gpus]
    assert len(set(gpus)) == 16


def test_a_gang_with_one_gpu_too_few_gets_none_and_says_how_far_it_came() -> None:
    ledger = a_ledger(*(a_node(name, gpus=4) for name in NODES))
    ledger.hold(held("tenant", "n3", 1, None))

    answer = plan(ledger, *[whole(2)] * 8)

    assert isinstance(answer, Refusal)
    assert answer.reason == "gang lab/job has room for 7 of its 8 members; all or none are placed"
    assert answer.details[0] == "lab/m7 needs 2 whole GPUs"
    assert "no room for 2 whole GPUs" in answer.details[1]


@pytest.mark.parametrize(
    ("here", "words"),
    [
        pytest.param(3, "gang lab/job waits for 1 more member: 3 of 4 are here", id="one missing"),
        pytest.param(1, "gang lab/job waits for 3 more members: 1 of 4 are here", id="three missing"),
        pytest.param(0, "gang lab/job waits for 4 more members: 0 of 4 are here", id="nobody yet"),
    ],
)
def test_a_gang_waits_until_its_members_exist(here: int, words: str) -> None:
    ledger = a_ledger(a_node("n1", gpus=4))

    assert plan_gang(ledger, Gang("lab/job", 4), members(*[whole()] * here)) == Refusal(words)


def test_a_gang_of_unequal_members_is_tried_in_more_than_one_way() -> None:
    # First fit would put the member that may go anywhere onto n1, where alone the picky one can go.
    ledger = a_ledger(a_node("n1", gpus=2), a_node("n2", gpus=2))
    picky = WaitingPod(holder("picky"), whole(2), (N1,))
    easy = WaitingPod(holder("easy"), whole(2), (N1, N2))

    answer = plan_gang(ledger, Gang("lab/job", 2), [easy, picky])

    assert isinstance(answer, GangPlan)
    assert {uid: placement.node for uid, placement in answer.placements.items()} == {
        "uid-picky": "n1",
        "uid-easy": "n2",
    }


def test_large_members_are_placed_before_small_ones_take_their_room() -> None:
    ledger = a_ledger(a_node("n1", gpus=2, memory=1000))

    answer = plan(ledger, memory(600), memory(400), memory(1000))

    assert isinstance(answer, GangPlan)


def test_every_member_keeps_its_own_topology() -> None:
    ledger = a_ledger(a_node("n1", islands="aabb"), a_node("n2", islands="aabb"))
    pair = whole(2, topology=Topology(TopologyMode.REQUIRED))

    answer = plan(ledger, *[pair] * 4)

    assert isinstance(answer, GangPlan)
    for placement in answer.placements.values():
        assert isinstance(placement, Placement)
        assert len({gpu.island for gpu in placement.gpus}) == 1


def test_a_hopeless_search_ends() -> None:
    ledger = a_ledger(*(a_node(name, gpus=8, memory=1000) for name in NODES))
    sizes = [memory(340 + number) for number in range(80)]

    answer = plan(ledger, *sizes, steps=500)

    assert isinstance(answer, Refusal)


def test_a_thousand_members_of_41_kinds_are_refused_after_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the search could go back 2,000 times, this took more than ten seconds."""
    nodes = tuple(NodeName(f"n{number:03}") for number in range(30))
    ledger = a_ledger(*(a_node(name, gpus=8, memory=81_920) for name in nodes))
    looks = 0

    def counted(*question: Any) -> Placement | Refusal:
        nonlocal looks
        looks += 1
        return place(*question)

    monkeypatch.setattr(gangs, "place", counted)
    kinds = [memory(20_000 + number % 41 * 1_000, gpus=1 + number % 4) for number in range(1_000)]

    answer = plan_gang(ledger, Gang("lab/job", 1_000), members(*kinds, nodes=nodes))

    assert isinstance(answer, Refusal)
    assert looks < 2_000


def test_a_refusal_is_looked_for_again_only_when_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = a_ledger(*(a_node(name, gpus=1) for name in NODES))
    planner, gang = GangPlanner(ledger), Gang("lab/job", 5)
    waiting = GangMembers([(holder(f"m{number}"), whole()) for number in range(5)], 0)
    plans = 0

    def counted(*question: Any) -> GangPlan | Refusal:
        nonlocal plans
        plans += 1
        return plan_gang(*question)

    monkeypatch.setattr(gangs, "plan_gang", counted)

    assert {planner.plan(gang, waiting, NODES).reason for _ in range(3)} == {  # type: ignore[union-attr] # no plan
        "gang lab/job has room for 4 of its 5 members; all or none are placed"
    }
    assert plans == 1
    ledger.set_node(a_node("n4", gpus=2))
    assert isinstance(planner.plan(gang, waiting, NODES), GangPlan)
    with ledger.what_if():
        ledger.hold(held("tenant", "n4", 1, None))
        assert isinstance(planner.plan(gang, waiting, NODES), Refusal)
    assert isinstance(planner.plan(gang, waiting, NODES), GangPlan), "what was tried is not remembered"


def test_a_gang_larger_than_python_may_recurse_is_planned() -> None:
    ledger = a_ledger(*(a_node(name, gpus=8, memory=100_000) for name in NODES))

    assert isinstance(plan(ledger, *[memory(50)] * 1500), GangPlan)


def test_equal_members_are_not_tried_in_every_order() -> None:
    nodes = tuple(NodeName(f"n{number}") for number in range(16))
    ledger = a_ledger(*(a_node(name, gpus=1) for name in nodes))

    answer = plan_gang(ledger, Gang("lab/job", 17), members(*[whole()] * 17, nodes=nodes), steps=1)

    assert isinstance(answer, Refusal)
    assert answer.reason == "gang lab/job has room for 16 of its 17 members; all or none are placed"


def test_who_may_go_to_few_nodes_is_placed_first() -> None:
    nodes = tuple(NodeName(f"n{number:02}") for number in range(12))
    ledger = a_ledger(*(a_node(name, gpus=1) for name in nodes))
    easy = members(*[whole()] * 11, nodes=nodes)
    picky = WaitingPod(holder("picky"), whole(), (NodeName("n00"),))

    assert isinstance(plan_gang(ledger, Gang("lab/job", 12), [*easy, picky], steps=1), GangPlan)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(whole(2), {"n2"}, id="an island is preferred"),
        pytest.param(whole(2, topology=Topology(TopologyMode.IGNORE)), {"n1"}, id="islands do not matter"),
        pytest.param(whole(2, topology=Topology(min_bandwidth_gbps=100)), {"n3"}, id="with so much bandwidth"),
        pytest.param(whole(1), {"n1"}, id="one GPU each"),
    ],
)
def test_members_go_first_where_their_gpus_are_linked(request_: Request, expected: set[str]) -> None:
    ledger = a_ledger(
        a_node("n1", gpus=4),
        a_node("n2", islands="aabb", bandwidth_gbps=50),
        a_node("n3", islands="aabb", bandwidth_gbps=600),
    )
    waiting = [(holder(f"m{i}"), request_) for i in range(2)]

    answer = GangPlanner(ledger).plan(Gang("lab/job", 2), GangMembers(waiting, 0), [N1, N2, N3])

    assert isinstance(answer, GangPlan)
    assert {placement.node for placement in answer.placements.values()} == expected


def test_members_take_gpus_that_are_not_linked_where_no_others_are_left() -> None:
    ledger = a_ledger(a_node("n1", gpus=4), a_node("n2", islands="aabb"))
    waiting = [(holder(f"m{i}"), whole(2)) for i in range(3)]

    answer = GangPlanner(ledger).plan(Gang("lab/job", 3), GangMembers(waiting, 0), [N1, N2])

    assert isinstance(answer, GangPlan)
    assert sorted(placement.node for placement in answer.placements.values()) == ["n1", "n2", "n2"]
