"""Which node should take a pod: where the least is made unusable for what is asked lately."""

from carrel.ledger.ledger import Ledger
from carrel.ledger.requests import GpuPolicy, Request, Topology, TopologyMode
from carrel.ledger.scoring import Ranking, stranded
from tests.kit.gpus import A100, A6000, a_card, a_ledger, a_node, held, holder, memory, whole


def ranked(ledger: Ledger, request: Request, *seen: Request, nodes: tuple[str, ...] = ("n1", "n2")) -> list[str]:
    ranking = Ranking(ledger)
    for each in (*seen, request):
        ranking.demand.saw(each)
    ranking.demand.typical = tuple((each, 1 / len(seen)) for each in seen) if seen else ranking.demand.typical
    return [cost.node for cost in ranking.costs(request, nodes)]


def test_a_small_pod_goes_where_a_gpu_is_partly_used() -> None:
    ledger = a_ledger(a_node("n1", cards=1), a_node("n2", cards=1))
    ledger.hold(held("a", "n2", 0, 4069))

    assert ranked(ledger, memory(4069), whole()) == ["n2", "n1"]


def test_a_pod_that_would_leave_a_useless_rest_goes_elsewhere() -> None:
    # On n1 it would leave 4,138 MiB, which nobody asks for; on n2 it fills the GPU.
    ledger = a_ledger(a_node("n1", cards=1, memory=12276), a_node("n2", cards=1, memory=16276))
    ledger.hold(held("a", "n2", 0, 8138))

    assert ranked(ledger, memory(8138), memory(8138)) == ["n2", "n1"]


def test_of_equal_nodes_the_one_with_the_least_left_over_is_first_then_the_name() -> None:
    ledger = a_ledger(a_node("n2", cards=4), a_node("n1", cards=4), a_node("n3", cards=1))

    assert ranked(ledger, whole(), nodes=("n2", "n1", "n3")) == ["n3", "n1", "n2"]


def test_a_node_where_the_gpus_are_in_one_island_comes_first() -> None:
    ledger = a_ledger(a_node("n1", islands="ab"), a_node("n2", islands="aabb"))

    assert ranked(ledger, whole(2)) == ["n2", "n1"]
    ignores = whole(2, topology=Topology(TopologyMode.IGNORE))
    assert ranked(ledger, ignores) == ["n1", "n2"], "who ignores islands goes where the least is left over"


def test_a_node_where_the_gpus_are_neighbours_comes_first_for_who_wants_that() -> None:
    ledger = a_ledger(a_node("n1", cards=3), a_node("n2", cards=4))
    ledger.hold(held("a", "n1", 1, None))  # GPUs 0 and 2 are left

    assert ranked(ledger, whole(2, policy=GpuPolicy.CONTIGUOUS)) == ["n2", "n1"]
    assert ranked(ledger, whole(2)) == ["n1", "n2"]


def test_a_node_with_the_bandwidth_that_is_asked_comes_first() -> None:
    ledger = a_ledger(a_node("n1", islands="aa", bandwidth_gbps=64), a_node("n2", islands="aaaa", bandwidth_gbps=600))

    assert ranked(ledger, whole(2, topology=Topology(min_bandwidth_gbps=100))) == ["n2", "n1"]


def test_nodes_that_will_not_do_are_left_out() -> None:
    assert ranked(a_ledger(a_node("n1", cards=1)), whole(2), nodes=("n1", "nowhere")) == []


def test_what_is_remembered_is_forgotten_when_the_room_changes() -> None:
    ledger = a_ledger(a_node("n1", cards=1), a_node("n2", cards=2))
    ranking = Ranking(ledger)
    ranking.demand.saw(whole())
    assert [cost.node for cost in ranking.costs(whole(), ["n1", "n2"])] == ["n1", "n2"]

    ledger.hold(held("a", "n1", 0, 5))

    assert [cost.node for cost in ranking.costs(whole(), ["n1", "n2"])] == ["n2"]


def test_a_gpu_that_is_kept_counts_for_its_pod_alone() -> None:
    ledger = a_ledger(a_node("n1", cards=1))
    ledger.keep("GPU-n1-0", holder("booked"))
    ranking = Ranking(ledger)

    assert ranking.costs(whole(), ["n1"]) == []
    assert [cost.node for cost in ranking.costs(whole(), ["n1"], "uid-booked")] == ["n1"]


def test_what_is_stranded_is_counted_in_gpus() -> None:
    cards = [(a_card("n1", 0, 1000), 500), (a_card("n1", 1, 1000), 1000), (a_card("n1", 2, 1000, model=A100), 250)]

    assert stranded(cards, [(whole(), 1.0)]) == 0.75
    assert stranded(cards, [(memory(400, model=A6000), 1.0)]) == 0.25
    assert stranded(cards, [(whole(2), 1.0)]) == 1.75, "a node with too few such GPUs cannot help at all"
    assert stranded(cards, [(whole(), 0.5), (memory(100), 0.5)]) == 0.375
