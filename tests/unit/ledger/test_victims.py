"""Which pods lose their GPU to a booked pod: of people above the equal share, the fewest, the least work.

`tests/properties/test_victims.py` compares the choice with all others.
"""

from dataclasses import replace
from random import Random

import pytest

from carrel.ids import BookingId, GpuUuid, NodeName, PodUid
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import GpuSelector, Request, Topology, TopologyMode
from carrel.ledger.shares import Holder, Share
from carrel.ledger.victims import NEVER, OpportunisticPod, Revocation
from tests.kit.gpus import A100, N1, N2, a_gpu, a_ledger, a_node, held, holder, memory, whole
from tests.kit.victims import an_opportunist, revoke

BOOKED = holder("booked")


def opportunists(**hours: float) -> list[OpportunisticPod]:
    """Of as many people."""
    return [an_opportunist(name, name, lost) for name, lost in hours.items()]


def waiting(request: Request, *nodes: NodeName) -> WaitingPod:
    return WaitingPod(BOOKED, request, nodes or (N1,))


def victims(answer: Placement | Revocation | Refusal) -> list[str]:
    assert isinstance(answer, Revocation), answer
    return [victim.name for victim in answer.victims]


def busy(*shares: Share, nodes: int = 1, gpus: int = 2) -> Ledger:
    ledger = a_ledger(*(a_node(f"n{number}", gpus=gpus, memory=1000) for number in range(1, nodes + 1)))
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
    assert answer == Refusal("no room for 2 whole GPUs on 1 node, even if every pod without a booking ended")


def test_gpus_of_ending_pods_are_used_before_victims_are_chosen() -> None:
    ledger = busy(held("going", "n1", 0, None), held("low", "n1", 1, None))
    ledger.release(PodUid("uid-going"))

    answer = revoke(ledger, waiting(whole()), opportunists(going=0, low=0))

    assert victims(answer) == []
    assert isinstance(answer, Revocation)
    assert [gpu.index for gpu in answer.gpus] == [0]


def test_no_victim_is_superfluous_when_one_pod_holds_both_gpus() -> None:
    ledger = busy(held("wide", "n1", 0, 600), held("wide", "n1", 1, 600), held("narrow", "n1", 0, 400))

    assert victims(revoke(ledger, waiting(memory(600, gpus=2)), opportunists(wide=50, narrow=1))) == ["wide"]


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
    ledger = busy(held("x", "n2", 0, None), held("y", "n1", 0, None), nodes=2, gpus=1)

    assert victims(revoke(ledger, waiting(whole(), N2, N1), opportunists(x=1, y=1))) == ["y"]


def test_random_victims_are_any_of_the_fewest_and_the_same_for_the_same_seed() -> None:
    ledger = busy(held("old", "n1", 0, None), held("young", "n1", 1, None))
    pods = opportunists(old=9, young=1)

    drawn = [victims(revoke(ledger, waiting(whole()), pods, Random(seed))) for seed in range(30)]

    assert drawn == [victims(revoke(ledger, waiting(whole()), pods, Random(seed))) for seed in range(30)]
    assert {tuple(each) for each in drawn} == {("old",), ("young",)}


@pytest.mark.parametrize("nodes", [pytest.param(("n9",), id="unknown node"), pytest.param((), id="no node")])
def test_no_eligible_node_is_a_refusal(nodes: tuple[NodeName, ...]) -> None:
    assert isinstance(revoke(busy(), WaitingPod(BOOKED, whole(), nodes), []), Refusal)


# --- fairness --------------------------------------------------------------------------------------------------------


def a_lab_with_a_newcomer() -> tuple[Ledger, list[OpportunisticPod]]:
    """Ada has held eight GPUs for a week; Bob has got his only one an hour ago."""
    ledger = busy(*(held(f"ada-{number}", "n1", number, None) for number in range(8)), gpus=9)
    ledger.hold(held("bob", "n1", 8, None))
    return ledger, [
        *(an_opportunist(f"ada-{number}", "ada", hours=168) for number in range(8)),
        an_opportunist("bob", "bob", hours=1),
    ]


def test_one_of_many_gpus_is_taken_before_a_newcomers_only_one() -> None:
    ledger, pods = a_lab_with_a_newcomer()

    assert victims(revoke(ledger, waiting(whole()), pods)) == ["ada-0"]


def test_more_victims_are_taken_if_that_spares_people_below_the_equal_share() -> None:
    ledger = busy(*(held(f"ada-{half}", "n1", 0, 500) for half in range(2)), held("bob", "n1", 1, None), gpus=5)
    for index in range(2, 5):
        ledger.hold(held(f"ada-{index}", "n1", index, None))
    pods = [*(an_opportunist(f"ada-{half}", "ada") for half in range(2)), an_opportunist("bob", "bob")]
    # Ada's other GPUs are covered by a booking: then both have one, and one victim is better than two.
    assert victims(revoke(ledger, waiting(whole()), pods)) == ["bob"]

    pods += [an_opportunist(f"ada-{index}", "ada", hours=99) for index in range(3, 5)]
    only = whole(selector=GpuSelector(only=frozenset({GpuUuid("GPU-n1-0"), GpuUuid("GPU-n1-1")})))
    assert victims(revoke(ledger, waiting(only), pods)) == ["ada-0", "ada-1"]


def test_nobody_is_taken_far_below_the_equal_share_while_others_have_more() -> None:
    ledger = busy(*(held(f"ada-{number}", "n1", number, None) for number in range(3)), gpus=6)
    for number in range(3):
        ledger.hold(held(f"bob-{number}", "n1", 3 + number, None))
    pods = [an_opportunist(f"ada-{number}", "ada", hours=number) for number in range(3)]
    pods += [an_opportunist(f"bob-{number}", "bob", hours=50 + number) for number in range(3)]
    ledger.give_back(PodUid("uid-bob-2"))
    ledger.hold(held("booked-too", "n1", 5, None))

    # Five GPUs, two people: Ada is half a GPU above the share. After one of hers, taking one of Bob's is as good.
    assert victims(revoke(ledger, waiting(whole(2)), pods)) == ["ada-0", "ada-1"]
    assert victims(revoke(ledger, waiting(whole()), pods)) == ["ada-0"]


def test_only_gpus_of_the_models_in_question_count_for_the_equal_share() -> None:
    new = [a_gpu("n1", index, 1000, model=A100) for index in range(4)]
    old = Node(N2, tuple(a_gpu("n2", index, 1000) for index in range(20)))
    ledger = a_ledger(Node(N1, tuple(new)), old)
    for index, name in enumerate(("ada-0", "ada-1", "ada-2", "bob")):
        ledger.hold(held(name, "n1", index, None))
    pods = [
        *(an_opportunist(f"ada-{number}", "ada", hours=168) for number in range(3)),
        an_opportunist("bob", "bob", hours=1),
    ]

    # With the twenty idle old GPUs, the equal share would be twelve, and Ada would not be above it.
    assert victims(revoke(ledger, waiting(whole(model=A100), N1, N2), pods)) == ["ada-0"]


def test_the_part_of_a_gpu_that_booked_pods_leave_counts_for_the_equal_share() -> None:
    ledger = busy(gpus=3)
    for index, name in enumerate(("ada-0", "ada-1", "bob")):
        ledger.hold(held(f"booked-{index}", "n1", index, 500))
        ledger.hold(held(name, "n1", index, 500))
    pods = [
        an_opportunist("ada-0", "ada", hours=9),
        an_opportunist("ada-1", "ada", hours=8),
        an_opportunist("bob", "bob", hours=1),
    ]

    assert victims(revoke(ledger, waiting(memory(500)), pods)) == ["ada-1"]


def test_what_is_ending_already_is_no_longer_held_by_its_person() -> None:
    ledger = busy(
        *(held(f"ada-{number}", "n1", number, None) for number in range(2)), held("bob", "n1", 2, None), gpus=3
    )
    pods = [
        an_opportunist("ada-0", "ada"),
        an_opportunist("ada-1", "ada", hours=9),
        an_opportunist("bob", "bob", hours=1),
    ]
    ledger.release(PodUid("uid-ada-0"))
    ledger.keep(GpuUuid("GPU-n1-0"), holder("an earlier booked pod"))

    assert victims(revoke(ledger, waiting(whole()), pods)) == ["bob"]


def test_a_young_pod_is_a_victim_only_if_nothing_else_will_do() -> None:
    ledger, pods = a_lab_with_a_newcomer()
    young = [replace(each, young_until=NEVER) if each.person == "ada" else each for each in pods]

    assert victims(revoke(ledger, waiting(whole()), young)) == ["bob"]
    assert victims(revoke(ledger, waiting(whole(2)), young)) == ["ada-0", "bob"]


def test_random_victims_may_be_anybodys_but_young_pods_are_spared() -> None:
    ledger, pods = a_lab_with_a_newcomer()
    young = [replace(each, young_until=NEVER) if each.uid == "uid-ada-0" else each for each in pods]

    drawn = {victims(revoke(ledger, waiting(whole()), young, Random(seed)))[0] for seed in range(200)}

    assert drawn == {each.uid.removeprefix("uid-") for each in pods} - {"ada-0"}


def test_a_gpu_that_is_kept_for_the_booking_is_for_its_pods_only() -> None:
    ledger = busy(held("low", "n1", 0, None), held("half", "n1", 1, 500))
    ledger.keep(GpuUuid("GPU-n1-1"), Holder(PodUid("booking-ada")))
    booked = WaitingPod(BOOKED, whole(), (N1,), BookingId("booking-ada"))

    assert victims(revoke(ledger, booked, opportunists(low=1, half=2))) == ["half"]
    assert victims(revoke(ledger, waiting(whole()), opportunists(low=1, half=2))) == ["low"]
    assert isinstance(revoke(ledger, waiting(whole()), opportunists(half=2)), Refusal)


def test_many_small_pods_on_one_gpu_do_not_make_the_search_long() -> None:
    """Without bounds there would be more than 10 ** 15 sets to try."""
    ledger = busy(*(held(f"p{number}", "n1", 0, 10 + number % 7) for number in range(60)), gpus=1)
    pods = [an_opportunist(f"p{number}", f"person-{number % 5}", hours=number * 37 % 11) for number in range(60)]

    answer = revoke(ledger, waiting(memory(600)), pods)

    assert isinstance(answer, Revocation)
    gone = sum(10 + int(victim.name[1:]) % 7 for victim in answer.victims)
    assert gone + ledger.entries(N1)[0].free >= 600


def test_of_pods_that_are_alike_those_that_lose_least_work_go() -> None:
    """12 of 24 pods: there are 2,704,156 ways to choose them."""
    ledger = busy(*(held(f"p{number:02}", "n1", 0, 40) for number in range(24)), gpus=1)
    pods = [an_opportunist(f"p{number:02}", f"person-{number % 2}", hours=24 - number) for number in range(24)]

    assert victims(revoke(ledger, waiting(memory(500)), pods)) == [f"p{number}" for number in range(12, 24)]


def test_of_two_pods_on_a_gpu_that_are_enough_the_one_that_loses_least_work_goes() -> None:
    """Ada is far above the equal share, so both cost nothing but their work."""
    shares = (held("large", "n1", 0, 600), held("small", "n1", 0, 400), held("bob", "n1", 3, 900))
    ledger = busy(*shares, *(held(f"ada-{index}", "n1", index, None) for index in (1, 2)), gpus=4)
    others = [*(an_opportunist(f"ada-{index}", "ada", hours=99) for index in (1, 2)), an_opportunist("bob", "bob")]

    for large, small, victim in ((9, 1, "small"), (1, 9, "large")):
        pods = [an_opportunist("large", "ada", hours=large), an_opportunist("small", "ada", hours=small)]
        assert victims(revoke(ledger, waiting(memory(300)), [*pods, *others])) == [victim]


def test_thousands_of_pods_on_one_node_do_not_end_the_search_with_an_error() -> None:
    ledger = busy(
        *(held(f"p{gpu}-{number}", "n1", gpu, 1) for gpu in range(2) for number in range(1000)), nodes=1, gpus=2
    )
    pods = [an_opportunist(f"p{gpu}-{number}", f"person-{number % 5}") for gpu in range(2) for number in range(1000)]

    assert len(victims(revoke(ledger, waiting(memory(900, gpus=2)), pods))) == 1800


def test_only_nodes_that_may_be_the_best_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = busy(*(held(f"p{node}", f"n{node}", 0, None) for node in range(1, 10)), nodes=9, gpus=1)
    pods = [an_opportunist(f"p{node}", f"person-{node}", hours=10 - node) for node in range(1, 10)]
    looked_into: list[str] = []
    give_back = Ledger.give_back

    def note(self: Ledger, uid: str) -> None:
        looked_into.append(uid)
        give_back(self, PodUid(uid))

    monkeypatch.setattr(Ledger, "give_back", note)

    assert victims(revoke(ledger, waiting(whole(), *ledger.nodes), pods)) == ["p9"]
    assert set(looked_into) == {"uid-p9"}


def test_a_booked_pod_that_can_get_no_gpu_costs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = busy(held("other-booked", "n1", 0, None), held("low", "n2", 0, None), nodes=2, gpus=1)
    monkeypatch.delattr(Ledger, "what_if")

    assert isinstance(revoke(ledger, waiting(whole(2), N1, N2), opportunists(low=1)), Refusal)
