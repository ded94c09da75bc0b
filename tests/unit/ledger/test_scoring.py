"""Which node should take a pod: where the least is made unusable for what is asked lately."""

import pytest

from carrel.ledger.contention import contention
from carrel.ledger.demand import Demand, Mix, Typical
from carrel.ledger.fragmentation import Fragmentation, pieces_on
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import MachineRoom, Machines
from carrel.ledger.requests import Gang, GpuPolicy, GpuSelector, Request, Topology, TopologyMode
from carrel.ledger.scoring import COUNTED_BESIDES, LOOKED_UP, Ranking
from tests.kit.gpus import A100, A6000, a_ledger, a_node, held, holder, memory, whole


def ranked(ledger: Ledger, request: Request, *seen: Request, nodes: tuple[str, ...] = ("n1", "n2")) -> list[str]:
    ranking = Ranking(ledger)
    for each in seen or (request,):
        ranking.demand.saw(each)
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


def test_fragments_are_counted_in_gpus() -> None:
    gpus = [(A6000, MiB(1000), 500), (A6000, MiB(1000), 1000), (A100, MiB(1000), 250)]

    def fragments(*mix: tuple[Request, float]) -> float:
        counts = Fragmentation(Mix(tuple(Typical(request, 0, weight) for request, weight in mix)))
        return counts.fragments(counts.free(pieces_on(gpus)), 0)

    assert fragments((whole(), 1.0)) == 0.75
    assert fragments((memory(400, model=A6000), 1.0)) == 0.25
    assert fragments((whole(2), 1.0)) == 1.75, "a node with too few such GPUs cannot help at all"
    assert fragments((whole(), 0.5), (memory(100), 0.5)) == 0.375


# --- GPUs that others need more --------------------------------------------------------------------------------------


def test_a_pod_that_would_run_anywhere_leaves_alone_what_others_can_use_only() -> None:
    # By fragmentation alone, n1 would be better: there the least is left over.
    ledger = a_ledger(a_node("n1", cards=1, model=A100), a_node("n2", cards=8, model=A6000))
    named = [whole(model=A100), whole(model=A6000), whole()]

    assert ranked(ledger, whole()) == ["n1", "n2"]
    assert ranked(ledger, whole(), *named) == ["n2", "n1"]
    assert ranked(ledger, whole(model=A100), *named) == ["n1"], "and who names it gets it"


def test_a_small_share_leaves_alone_the_gpus_with_the_memory_that_large_ones_need() -> None:
    ledger = a_ledger(a_node("n1", cards=1, memory=81920), a_node("n2", cards=1, memory=16276))
    ledger.hold(held("a", "n1", 0, 20000), held("b", "n2", 0, 4069))

    assert ranked(ledger, memory(8138), memory(8138), memory(40000)) == ["n2", "n1"]


def test_gpus_are_wanted_alike_if_every_request_allows_every_one() -> None:
    there = {(A100, MiB(81920)): 3, (A6000, MiB(49140)): 100}
    mix = Mix((Typical(whole(), 0, 0.3), Typical(memory(8138), 0, 0.7)))

    assert contention(mix, there) == {}
    assert contention(Mix(), there) == {}
    assert contention(mix, {}) == {}


def test_how_much_a_gpu_is_wanted_is_counted_by_the_gpus_that_there_are() -> None:
    there = {(A100, MiB(1000)): 1, (A6000, MiB(1000)): 3}
    mix = Mix((Typical(whole(model=A100), 0, 0.5), Typical(whole(), 0, 0.5)))

    # Half of the mix for one GPU, and the other half for four: 5/8 of a GPU against 1/8; the mean is 1/4.
    assert contention(mix, there) == {(A100, MiB(1000)): 1.5, (A6000, MiB(1000)): -0.5}


def test_a_request_that_no_gpu_allows_changes_nothing() -> None:
    there = {(A100, MiB(1000)): 1, (A6000, MiB(1000)): 3}

    assert contention(Mix((Typical(whole(model="H100"), 0, 0.9), Typical(whole(), 0, 0.1))), there) == {}


def test_which_gpus_there_are_is_counted_anew_when_nodes_come() -> None:
    ledger = a_ledger(a_node("n1", cards=1, model=A100))
    ranking = Ranking(ledger)
    for request in (whole(model=A100), whole(model=A6000), whole()):
        ranking.demand.saw(request)
    assert ranking.best(whole(), ["n1"])

    ledger.set_node(a_node("n2", cards=8, model=A6000))

    assert [cost.node for cost in ranking.costs(whole(), ["n1", "n2"])] == ["n2", "n1"]


def test_which_gpus_there_are_is_counted_anew_when_they_are_replaced() -> None:
    ledger = a_ledger(*(a_node(f"n{number}", cards=1, model=A100) for number in range(9)), a_node("old", model=A6000))
    ranking = Ranking(ledger)
    for request in (whole(model=A100), whole(model=A6000), whole()):
        ranking.demand.saw(request)
    names = ["n0", "n8"]
    assert [cost.node for cost in ranking.costs(whole(), names)] == names

    for number in range(8):  # A100s are rare now
        ledger.set_node(a_node(f"n{number}", cards=1, model=A6000))

    assert [cost.node for cost in ranking.costs(whole(), names)] == names
    assert [cost.node for cost in ranking.costs(whole(), ["n8", "n0"])] == names
    by_node = {cost.node: cost.wasted for cost in ranking.costs(whole(), names)}
    assert by_node["n0"] < by_node["n8"], "which others need more"


# --- CPU and memory --------------------------------------------------------------------------------------------------


def machines(**cpu_cores: int) -> Machines:
    """Each with its CPU, and memory enough."""
    found = Machines()
    for node, cores in cpu_cores.items():
        found.set_node(node, MachineRoom(cores * 1000, 1 << 30))
    return found


def on_cpu(cores: int) -> MachineRoom:
    return MachineRoom(cores * 1000, 0)


def test_a_pod_with_much_cpu_goes_where_it_leaves_cpu_for_the_other_gpus() -> None:
    ledger = a_ledger(a_node("n1", cards=4), a_node("n2", cards=4))
    ranking = Ranking(ledger, machines(n1=32, n2=64))
    ranking.demand.saw(whole(), on_cpu(8))

    assert [cost.node for cost in ranking.costs(whole(), ["n1", "n2"], machine=on_cpu(24))] == ["n2", "n1"]
    assert [cost.node for cost in ranking.costs(whole(), ["n1", "n2"], machine=on_cpu(8))] == ["n1", "n2"]


def test_memory_is_looked_at_as_cpu_is() -> None:
    ranking = Ranking(a_ledger(a_node("n1", cards=4), a_node("n2", cards=4)))
    ranking.machines.set_node("n1", MachineRoom(100_000, 40_000))
    ranking.machines.set_node("n2", MachineRoom(100_000, 80_000))
    ranking.demand.saw(whole(), MachineRoom(1000, 10_000))

    best = ranking.best(whole(), ["n1", "n2"], machine=MachineRoom(1000, 30_000))

    assert best is not None
    assert best.node == "n2"


def test_a_pod_without_a_gpu_goes_to_a_machine_without_gpus_then_where_no_gpu_loses_its_cpu() -> None:
    ledger = a_ledger(a_node("n1", cards=4), a_node("n2", cards=4))
    ranking = Ranking(ledger, machines(n1=32, n2=64, n3=8))
    ranking.demand.saw(whole(), on_cpu(8))

    ranked = ranking.costs(None, ["n1", "n2", "n3"], machine=on_cpu(8))

    assert [cost.node for cost in ranked] == ["n3", "n2", "n1"]


def test_costs_follow_what_becomes_free_on_a_machine() -> None:
    found = machines(n1=32, n2=32)
    ranking = Ranking(a_ledger(a_node("n1", cards=4), a_node("n2", cards=4)), found)
    ranking.demand.saw(whole(), on_cpu(8))
    assert best_of(ranking) == "n1"

    found.occupy("uid-a", "n1", on_cpu(30))
    assert best_of(ranking) == "n1", "its GPUs are of no use already: taking one wastes nothing"

    found.vacate("uid-a")
    found.occupy("uid-b", "n2", on_cpu(8))
    assert best_of(ranking, cores=1) == "n2", "a pod that needs little CPU takes a GPU for which there is little"


def best_of(ranking: Ranking, cores: int = 8) -> str:
    best = ranking.best(whole(), ["n1", "n2"], machine=on_cpu(cores))
    assert best is not None
    return best.node


def test_a_node_whose_machine_is_not_known_has_enough() -> None:
    ranking = Ranking(a_ledger(a_node("n1", cards=1), a_node("n2", cards=2)))
    ranking.demand.saw(whole(), on_cpu(8))

    assert [cost.node for cost in ranking.costs(whole(), ["n1", "n2"], machine=on_cpu(64))] == ["n1", "n2"]


# --- what is usual ---------------------------------------------------------------------------------------------------


def test_a_pod_that_is_tried_again_counts_once() -> None:
    demand = Demand()
    for _ in range(100):
        demand.saw(whole(), uid="uid-a")
    demand.saw(memory(100), uid="uid-b")

    assert [typical.weight for typical in demand.mix.typical] == pytest.approx([0.5, 0.5], abs=0.01)


def test_what_was_asked_long_ago_hardly_counts() -> None:
    demand = Demand(half_life=100)
    for _ in range(1000):
        demand.saw(whole())
    for _ in range(1000):
        demand.saw(memory(100))

    heaviest = demand.mix.typical[0]
    assert heaviest.request == memory(100)
    assert heaviest.weight > 0.85


def test_the_mix_stays_the_same_object_as_long_as_the_same_is_asked() -> None:
    demand = Demand()
    for _ in range(500):
        demand.saw(whole())
        demand.saw(memory(100))
    mix = demand.mix
    for _ in range(500):
        demand.saw(whole())
        demand.saw(memory(100))

    assert demand.mix is mix


def test_what_is_remembered_of_requests_is_bounded() -> None:
    demand = Demand()
    for size in range(1, 5000):
        demand.saw(memory(size), uid=f"uid-{size}")

    assert len(demand.mix.typical) <= 128
    assert len(demand._weights) <= 4 * 128 + 64


def test_cpu_per_gpu_counts_mib_as_the_part_of_a_gpu_that_they_are() -> None:
    ranking = Ranking(a_ledger(a_node("n1", memory=16000)))
    ranking.demand.saw(memory(4000), on_cpu(2))

    assert ranking.demand.mix.cpu_milli_per_gpu == 8000


def test_who_floods_the_cluster_with_odd_pods_is_forgotten_again_and_costs_little() -> None:
    ranking = Ranking(a_ledger(a_node("n1", cards=4), a_node("n2", cards=4)), machines(n1=32, n2=64))
    demand, mixes = ranking.demand, set[int]()
    for number in range(5000):
        demand.saw(memory(1 + number % 16000, cards=1 + number % 4), MachineRoom(1000 + number, 1), f"odd-{number}")
        mixes.add(id(demand.mix))
        assert number % 500 or ranking.best(whole(), ["n1", "n2"], machine=on_cpu(8)), "all the time pods are placed"
    assert len(demand.mix.typical) <= 128
    assert len(demand._weights) <= 4 * 128 + 64
    assert len(demand._counted) <= 4000
    assert len(mixes) <= 5000 / 64 + 10

    for number in range(5000):
        demand.saw(whole(), on_cpu(8), f"usual-{number}")

    assert demand.mix.typical[0].request == whole()
    assert demand.mix.typical[0].weight > 0.9
    assert [cost.node for cost in ranking.costs(whole(), ["n1", "n2"], machine=on_cpu(24))] == ["n2", "n1"]


def test_more_gpus_than_a_node_has_count_as_a_node() -> None:
    ranking = Ranking(a_ledger(a_node("n1", cards=4)))
    ranking.demand.saw(whole(), on_cpu(8))
    ranking.demand.saw(whole(1_000_000), on_cpu(8))

    assert ranking.demand.mix.cpu_milli_per_gpu > 3000, "16 cores with five GPUs, not with a million"


def test_gpus_by_name_and_gangs_do_not_make_a_request_another_one() -> None:
    demand = Demand()
    demand.saw(whole(gang=Gang("lab/train", 2)))
    demand.saw(whole(selector=GpuSelector(uuids=frozenset({"GPU-n1-0"}))))
    demand.saw(whole())
    demand.saw(whole())

    assert [typical.request for typical in demand.mix.typical] == [whole()]


def test_the_best_of_some_nodes_is_found_however_many_better_ones_there_are() -> None:
    nodes = [a_node(f"n{number:03}", cards=1 + number) for number in range(2 * COUNTED_BESIDES)]
    ranking = Ranking(a_ledger(*nodes))
    names = [cost.node for cost in ranking.costs(whole(), [node.name for node in nodes])]
    for asked in ({names[0]}, {names[-1]}, set(names[LOOKED_UP:]), set(names[LOOKED_UP + 1 :: 7]), {"elsewhere"}):
        best = ranking.best(whole(), frozenset(asked))
        assert (best and best.node) == next((name for name in names if name in asked), None)


def test_the_costs_of_nodes_that_were_never_asked_about_are_counted_little_by_little() -> None:
    nodes = [a_node(f"n{number:03}") for number in range(3 * COUNTED_BESIDES)]
    ranking = Ranking(a_ledger(*nodes))
    for _ in range(5):
        best = ranking.best(whole(), frozenset({"n007", "n100"}))
        assert best is not None
        assert best.node == "n007"
