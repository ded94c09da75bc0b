"""Which node should take a pod: where the least is made unusable for what is asked lately."""

import gc

import pytest

from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.ledger.demand import TYPICAL, Demand, Mix, Typical, contention
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import MachineRoom, Machines
from carrel.ledger.node_room import alike
from carrel.ledger.requests import Gang, GpuPolicy, GpuSelector, Request, Topology, TopologyMode
from carrel.ledger.scoring import Cost, Fragmentation, FreePieces, Ranking
from tests.kit.gpus import A100, A6000, N1, N2, N3, N8, a_ledger, a_node, held, holder, memory, whole


def ranked(ledger: Ledger, request: Request, *seen: Request, nodes: tuple[NodeName, ...] = (N1, N2)) -> list[str]:
    ranking = Ranking(ledger)
    for each in seen or (request,):
        ranking.demand.saw(each)
    return [cost.node for cost in sorted(ranking.costs(request, nodes))]


def test_a_small_pod_goes_where_a_gpu_is_partly_used() -> None:
    ledger = a_ledger(a_node("n1", gpus=1), a_node("n2", gpus=1))
    ledger.hold(held("a", "n2", 0, 4069))

    assert ranked(ledger, memory(4069), whole()) == ["n2", "n1"]


def test_a_pod_that_would_leave_a_useless_rest_goes_elsewhere() -> None:
    # On n1 it would leave 4,138 MiB, which nobody asks for; on n2 it fills the GPU.
    ledger = a_ledger(a_node("n1", gpus=1, memory=12276), a_node("n2", gpus=1, memory=16276))
    ledger.hold(held("a", "n2", 0, 8138))

    assert ranked(ledger, memory(8138), memory(8138)) == ["n2", "n1"]


def test_of_equal_nodes_the_one_with_the_least_left_over_is_first_then_the_name() -> None:
    ledger = a_ledger(a_node("n2", gpus=4), a_node("n1", gpus=4), a_node("n3", gpus=1))

    assert ranked(ledger, whole(), nodes=(N2, N1, N3)) == ["n3", "n1", "n2"]


def test_a_node_where_the_gpus_are_in_one_island_comes_first() -> None:
    ledger = a_ledger(a_node("n1", islands="ab"), a_node("n2", islands="aabb"))

    assert ranked(ledger, whole(2)) == ["n2", "n1"]
    ignores = whole(2, topology=Topology(TopologyMode.IGNORE))
    assert ranked(ledger, ignores) == ["n1", "n2"], "who ignores islands goes where the least is left over"


def test_a_node_where_the_gpus_are_neighbours_comes_first_for_who_wants_that() -> None:
    ledger = a_ledger(a_node("n1", gpus=3), a_node("n2", gpus=4))
    ledger.hold(held("a", "n1", 1, None))  # GPUs 0 and 2 are left

    assert ranked(ledger, whole(2, policy=GpuPolicy.CONTIGUOUS)) == ["n2", "n1"]
    assert ranked(ledger, whole(2)) == ["n1", "n2"]


def test_a_node_with_the_bandwidth_that_is_asked_comes_first() -> None:
    ledger = a_ledger(a_node("n1", islands="aa", bandwidth_gbps=64), a_node("n2", islands="aaaa", bandwidth_gbps=600))

    assert ranked(ledger, whole(2, topology=Topology(min_bandwidth_gbps=100))) == ["n2", "n1"]


def test_one_island_comes_before_neighbours_as_on_one_node() -> None:
    # On n1 the two GPUs of island a are four places apart; on n2 two neighbours have no link.
    ledger = a_ledger(a_node("n1", islands="abcda"), a_node("n2", islands="ab"))

    assert ranked(ledger, whole(2, policy=GpuPolicy.CONTIGUOUS)) == ["n1", "n2"]


def test_bandwidth_comes_before_islands_as_on_one_node() -> None:
    ledger = a_ledger(a_node("n1", islands="aa", bandwidth_gbps=64), a_node("n2", islands="ab", bandwidth_gbps=600))

    assert ranked(ledger, whole(2, topology=Topology(min_bandwidth_gbps=100))) == ["n2", "n1"]


@pytest.mark.parametrize("policy", [GpuPolicy.PACK, GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS])
def test_one_gpu_goes_where_it_has_the_bandwidth_that_is_asked(policy: GpuPolicy) -> None:
    ledger = a_ledger(a_node("n1", gpus=1, bandwidth_gbps=64), a_node("n2", gpus=4, bandwidth_gbps=600))

    assert ranked(ledger, whole(policy=policy, topology=Topology(min_bandwidth_gbps=100))) == ["n2", "n1"]
    assert ranked(ledger, whole(policy=policy)) == ["n1", "n2"]


def test_nodes_that_will_not_do_are_left_out() -> None:
    assert ranked(a_ledger(a_node("n1", gpus=1)), whole(2), nodes=(N1, NodeName("nowhere"))) == []


def test_what_is_remembered_is_forgotten_when_the_room_changes() -> None:
    ledger = a_ledger(a_node("n1", gpus=1), a_node("n2", gpus=2))
    ranking = Ranking(ledger)
    ranking.demand.saw(whole())
    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2]))] == ["n1", "n2"]

    ledger.hold(held("a", "n1", 0, 5))

    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2]))] == ["n2"]


def test_a_gpu_that_is_kept_counts_for_its_pod_alone() -> None:
    ledger = a_ledger(a_node("n1", gpus=1))
    ledger.keep(GpuUuid("GPU-n1-0"), holder("booked"))
    ranking = Ranking(ledger)

    assert ranking.costs(whole(), [N1]) == []
    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1], PodUid("uid-booked")))] == ["n1"]


def test_a_pod_goes_where_gpus_are_kept_for_it() -> None:
    # By everything else n1 is better: its two GPUs are linked, and less is left over.
    ledger = a_ledger(a_node("n1", islands="aa"), a_node("n2", gpus=4), a_node("n3", gpus=2))
    ledger.keep(GpuUuid("GPU-n2-1"), holder("booked"))
    ledger.keep(GpuUuid("GPU-n2-3"), holder("booked"))
    ledger.keep(GpuUuid("GPU-n3-0"), holder("booked"))
    ranking, names = Ranking(ledger), [N1, N2, N3]

    assert [(cost.node, cost.not_kept) for cost in sorted(ranking.costs(whole(2), names, PodUid("uid-booked")))] == [
        ("n2", 0),
        ("n3", 1),
        ("n1", 2),
    ]
    for spreads in (False, True):
        asked = (names, frozenset(names), [N1, N3], [N1])
        found = [ranking.best(whole(2), nodes, PodUid("uid-booked"), spreads=spreads) for nodes in asked]
        assert [best and best.node for best in found] == ["n2", "n2", "n3", "n1"]
    assert [cost.node for cost in sorted(ranking.costs(whole(2), names))] == ["n1", "n2"], "to others it is not told"


def test_fragments_are_counted_in_gpus() -> None:
    gpus = [(A6000, MiB(1000), 500), (A6000, MiB(1000), 1000), (A100, MiB(1000), 250)]

    def fragments(*mix: tuple[Request, float]) -> float:
        counts = Fragmentation(Mix(tuple(Typical(request, 0, weight) for request, weight in mix)))
        return counts.fragments(counts.free(alike(gpus)), 0)

    assert fragments((whole(), 1.0)) == 0.75
    assert fragments((memory(400, model=A6000), 1.0)) == 0.25
    assert fragments((whole(2), 1.0)) == 1.75, "a node with too few such GPUs cannot help at all"
    assert fragments((whole(), 0.5), (memory(100), 0.5)) == 0.375


# --- GPUs that others need more --------------------------------------------------------------------------------------


def test_a_pod_that_would_run_anywhere_leaves_alone_what_others_can_use_only() -> None:
    # By fragmentation alone, n1 would be better: there the least is left over.
    ledger = a_ledger(a_node("n1", gpus=1, model=A100), a_node("n2", gpus=8, model=A6000))
    named = [whole(model=A100), whole(model=A6000), whole()]

    assert ranked(ledger, whole()) == ["n1", "n2"]
    assert ranked(ledger, whole(), *named) == ["n2", "n1"]
    assert ranked(ledger, whole(model=A100), *named) == ["n1"], "and who names it gets it"


def test_a_small_share_leaves_alone_the_gpus_with_the_memory_that_large_ones_need() -> None:
    ledger = a_ledger(a_node("n1", gpus=1, memory=81920), a_node("n2", gpus=1, memory=16276))
    ledger.hold(held("a", "n1", 0, 20000), held("b", "n2", 0, 4069))

    assert ranked(ledger, memory(8138), memory(8138), memory(40000)) == ["n2", "n1"]


def test_gpus_are_wanted_alike_if_every_request_allows_every_one() -> None:
    there = {(A100, MiB(81920)): 3, (A6000, MiB(49140)): 100}
    mix = [Typical(whole(), 0, 0.3), Typical(memory(8138), 0, 0.7)]

    assert contention(mix, there) == {}
    assert contention([], there) == {}
    assert contention(mix, {}) == {}


def test_how_much_a_gpu_is_wanted_is_counted_by_the_gpus_that_there_are() -> None:
    there = {(A100, MiB(1000)): 1, (A6000, MiB(1000)): 3}
    mix = [Typical(whole(model=A100), 0, 0.5), Typical(whole(), 0, 0.5)]

    # Half of the mix for one GPU, and the other half for four: 5/8 of a GPU against 1/8; the mean is 1/4.
    assert contention(mix, there) == {(A100, MiB(1000)): 1.5, (A6000, MiB(1000)): -0.5}


def test_a_request_that_no_gpu_allows_changes_nothing() -> None:
    there = {(A100, MiB(1000)): 1, (A6000, MiB(1000)): 3}

    assert contention([Typical(whole(model="H100"), 0, 0.9), Typical(whole(), 0, 0.1)], there) == {}


def test_which_gpus_there_are_is_counted_anew_when_nodes_come() -> None:
    ledger = a_ledger(a_node("n1", gpus=1, model=A100))
    ranking = Ranking(ledger)
    for request in (whole(model=A100), whole(model=A6000), whole()):
        ranking.demand.saw(request)
    assert ranking.best(whole(), [N1])

    ledger.set_node(a_node("n2", gpus=8, model=A6000))

    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2]))] == ["n2", "n1"]


def test_which_gpus_there_are_is_counted_anew_when_they_are_replaced() -> None:
    ledger = a_ledger(*(a_node(f"n{number}", gpus=1, model=A100) for number in range(9)), a_node("old", model=A6000))
    ranking = Ranking(ledger)
    for request in (whole(model=A100), whole(model=A6000), whole()):
        ranking.demand.saw(request)
    names = [NodeName("n0"), NodeName(N8)]
    assert [cost.node for cost in sorted(ranking.costs(whole(), names))] == names

    for number in range(8):  # A100s are rare now
        ledger.set_node(a_node(f"n{number}", gpus=1, model=A6000))

    assert [cost.node for cost in sorted(ranking.costs(whole(), names))] == names
    assert [cost.node for cost in sorted(ranking.costs(whole(), [N8, NodeName("n0")]))] == names
    by_node = {cost.node: cost.cost.wasted for cost in ranking.costs(whole(), names)}
    assert by_node[NodeName("n0")] < by_node[N8], "which others need more"


# --- CPU and memory --------------------------------------------------------------------------------------------------


def machines(**cpu_cores: int) -> Machines:
    """Each with its CPU, and memory enough."""
    found = Machines()
    for node, cores in cpu_cores.items():
        found.set_node(NodeName(node), MachineRoom(cores * 1000, 1 << 30))
    return found


def on_cpu(cores: int) -> MachineRoom:
    return MachineRoom(cores * 1000, 0)


def test_a_pod_with_much_cpu_goes_where_it_leaves_cpu_for_the_other_gpus() -> None:
    ledger = a_ledger(a_node("n1", gpus=4), a_node("n2", gpus=4))
    ranking = Ranking(ledger, machines(n1=32, n2=64))
    ranking.demand.saw(whole(), on_cpu(8))

    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2], machine=on_cpu(24)))] == ["n2", "n1"]
    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2], machine=on_cpu(8)))] == ["n1", "n2"]


def test_memory_is_looked_at_as_cpu_is() -> None:
    ranking = Ranking(a_ledger(a_node("n1", gpus=4), a_node("n2", gpus=4)))
    ranking.machines.set_node(N1, MachineRoom(100_000, 40_000))
    ranking.machines.set_node(N2, MachineRoom(100_000, 80_000))
    ranking.demand.saw(whole(), MachineRoom(1000, 10_000))

    best = ranking.best(whole(), [N1, N2], machine=MachineRoom(1000, 30_000))

    assert best is not None
    assert best.node == "n2"


def test_a_pod_without_a_gpu_goes_to_a_machine_without_gpus_then_where_no_gpu_loses_its_cpu() -> None:
    ledger = a_ledger(a_node("n1", gpus=4), a_node("n2", gpus=4))
    ranking = Ranking(ledger, machines(n1=32, n2=64, n3=8))
    ranking.demand.saw(whole(), on_cpu(8))

    ranked = sorted(ranking.costs(None, [N1, N2, N3], machine=on_cpu(8)))

    assert [cost.node for cost in ranked] == ["n3", "n2", "n1"]


def test_costs_follow_what_becomes_free_on_a_machine() -> None:
    found = machines(n1=32, n2=32)
    ranking = Ranking(a_ledger(a_node("n1", gpus=4), a_node("n2", gpus=4)), found)
    ranking.demand.saw(whole(), on_cpu(8))
    assert best_of(ranking) == "n1"

    found.occupy(PodUid("uid-a"), N1, on_cpu(30))
    assert best_of(ranking, cores=2) == "n1", "its GPUs are of no use already: taking one wastes nothing"

    found.vacate(PodUid("uid-a"))
    found.occupy(PodUid("uid-b"), N2, on_cpu(8))
    assert best_of(ranking, cores=1) == "n2", "a pod that needs little CPU takes a GPU for which there is little"


def best_of(ranking: Ranking, cores: int = 8) -> str:
    best = ranking.best(whole(), [N1, N2], machine=on_cpu(cores))
    assert best is not None
    return best.node


@pytest.mark.parametrize("needed", [on_cpu(4), MachineRoom(0, 2000)], ids=["CPU", "memory"])
def test_a_machine_with_too_little_for_the_pod_comes_after_all_others(needed: MachineRoom) -> None:
    # The GPU of n1 is of no use already, so to take it would waste nothing.
    ranking = Ranking(a_ledger(a_node("n1", gpus=1), a_node("n2", gpus=4)))
    ranking.machines.set_node(N1, MachineRoom(1000, 1000))
    ranking.machines.set_node(N2, MachineRoom(64_000, 64_000))
    ranking.demand.saw(whole(), MachineRoom(8000, 8000))

    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2], machine=needed))] == ["n2", "n1"]
    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2]))] == ["n1", "n2"]


def test_a_node_whose_machine_is_not_known_has_enough() -> None:
    ranking = Ranking(a_ledger(a_node("n1", gpus=1), a_node("n2", gpus=2)))
    ranking.demand.saw(whole(), on_cpu(8))

    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2], machine=on_cpu(64)))] == ["n1", "n2"]


# --- what is usual ---------------------------------------------------------------------------------------------------


def test_a_pod_that_is_tried_again_counts_once() -> None:
    demand = Demand()
    for _ in range(100):
        demand.saw(whole(), uid=PodUid("uid-a"))
    demand.saw(memory(100), uid=PodUid("uid-b"))

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
        demand.saw(memory(size), uid=PodUid(f"uid-{size}"))

    assert len(demand.mix.typical) <= 128
    assert len(demand._weights) <= 4 * 128 + 64


def test_cpu_per_gpu_counts_mib_as_the_part_of_a_gpu_that_they_are() -> None:
    ranking = Ranking(a_ledger(a_node("n1", memory=16000)))
    ranking.demand.saw(memory(4000), on_cpu(2))

    assert ranking.demand.mix.cpu_milli_per_gpu == 8000


def test_who_floods_the_cluster_with_odd_pods_is_forgotten_again_and_costs_little() -> None:
    ranking = Ranking(a_ledger(a_node("n1", gpus=4), a_node("n2", gpus=4)), machines(n1=32, n2=64))
    demand, mixes = ranking.demand, set[int]()
    for number in range(5000):
        demand.saw(
            memory(1 + number % 16000, gpus=1 + number % 4), MachineRoom(1000 + number, 1), PodUid(f"odd-{number}")
        )
        mixes.add(id(demand.mix))
        assert number % 500 or ranking.best(whole(), [N1, N2], machine=on_cpu(8)), "all the time pods are placed"
    assert len(demand.mix.typical) <= 128
    assert len(demand._weights) <= 4 * 128 + 64
    assert len(demand._counted) <= 4000
    assert len(mixes) <= 5000 / 64 + 10

    for number in range(5000):
        demand.saw(whole(), on_cpu(8), PodUid(f"usual-{number}"))

    assert demand.mix.typical[0].request == whole()
    assert demand.mix.typical[0].weight > 0.9
    assert [cost.node for cost in sorted(ranking.costs(whole(), [N1, N2], machine=on_cpu(24)))] == ["n2", "n1"]


@pytest.mark.parametrize(
    ("request_", "machine"),
    [
        pytest.param(whole(1_000_000, model=A100), on_cpu(8), id="more GPUs than a node has"),
        pytest.param(whole(3, topology=Topology(TopologyMode.REQUIRED)), on_cpu(8), id="more than an island has"),
        pytest.param(memory(1_000_000), on_cpu(8), id="more memory than a GPU has"),
        pytest.param(whole(model="H100"), on_cpu(8), id="a model that is not there"),
        pytest.param(whole(), on_cpu(1_000_000), id="more CPU than a machine has"),
        pytest.param(whole(), MachineRoom(1, 1 << 40), id="more memory than a machine has"),
    ],
)
def test_a_pod_that_no_node_could_serve_were_it_empty_does_not_count(request_: Request, machine: MachineRoom) -> None:
    ledger = a_ledger(a_node("n1", islands="aabb", model=A100), a_node("n2", gpus=4))
    ledger.hold(held("a", "n1", 0, None), held("b", "n1", 1, None), held("c", "n1", 2, None))
    ranking = Ranking(ledger, machines(n1=32, n2=64))
    ranking.demand.saw(whole(2, model=A100, topology=Topology(TopologyMode.REQUIRED)), on_cpu(64))  # if n1 were empty

    for number in range(3):
        ranking.demand.saw(request_, machine, PodUid(f"uid-{number}"))

    assert [typical.request.gpus for typical in ranking.demand.mix.typical] == [2]


def test_a_pod_counts_as_soon_as_a_node_comes_that_could_serve_it() -> None:
    ledger = a_ledger(*(a_node(f"n{number}", gpus=1) for number in range(100)))
    ranking = Ranking(ledger)
    for each in (whole(), whole(8)):
        ranking.demand.saw(each, uid=PodUid(f"uid-{each}"))
        assert ranking.best(whole(), [N1])
    assert [typical.request for typical in ranking.demand.mix.typical] == [whole()]

    ledger.set_node(a_node("large", gpus=8))
    for number in range(2):  # looked at again as soon as there are twice as many pods
        ranking.demand.saw(whole(8), uid=PodUid(f"uid-more-{number}"))

    assert {typical.request for typical in ranking.demand.mix.typical} == {whole(), whole(8)}


def test_what_was_counted_before_any_node_was_known_is_looked_at_again() -> None:
    ledger = a_ledger()
    ranking = Ranking(ledger)
    ranking.demand.saw(whole(model=A100))
    ranking.demand.saw(whole(1_000_000, model=A6000))
    assert len(ranking.demand.mix.typical) == 2

    ledger.set_node(a_node("n1", model=A100))
    ledger.set_node(a_node("n2", model=A6000))

    assert ranking.best(whole(model=A100), [N1, N2])
    assert [(typical.request, typical.weight) for typical in ranking.demand.mix.typical] == [(whole(model=A100), 1.0)]


def test_gpus_by_name_and_gangs_do_not_make_a_request_another_one() -> None:
    demand = Demand()
    demand.saw(whole(gang=Gang("lab/train", 2)))
    demand.saw(whole(selector=GpuSelector(uuids=frozenset({GpuUuid("GPU-n1-0")}))))
    demand.saw(whole())
    demand.saw(whole())

    assert [typical.request for typical in demand.mix.typical] == [whole()]


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_as_many_kinds_of_pods_as_the_mix_holds_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranking = Ranking(a_ledger(a_node("n1"), a_node("n2")), machines(n1=100, n2=100))
    kinds = [MachineRoom(100 * number, 1000) for number in range(TYPICAL)]
    first = [ranking.best(whole(), [N1, N2], machine=kind) for kind in kinds]
    monkeypatch.setattr(ranking, "_count", lambda *asked: pytest.fail(f"{asked} is counted again"))

    assert [ranking.best(whole(), [N1, N2], machine=kind) for kind in kinds] == first


def test_what_is_remembered_of_odd_amounts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.ledger.scoring.REMEMBERED_STATES", 50)
    ranking = Ranking(a_ledger(*(a_node(f"n{number}", gpus=1 + number) for number in range(10))), remembered=20)
    names = frozenset(NodeName(f"n{number}") for number in range(10))
    gc.freeze()  # what other tests have left does not count
    for mib in range(1, 120):
        assert ranking.best(memory(mib), names)
    gc.collect()
    kept = gc.get_objects()

    assert 0 < sum(isinstance(each, FreePieces) for each in kept) <= 50 + len(names)
    assert 0 < sum(isinstance(each, Cost) for each in kept) <= 20 * len(names) + 10
    assert len(ranking._kinds) == 20


def test_nodes_that_are_gone_or_have_no_gpu_are_not_remembered() -> None:
    ledger = a_ledger(a_node("n1"))
    ranking = Ranking(ledger)
    for number in range(50):
        ledger.set_node(a_node(f"g{number}"))
        for request in (whole(), None):
            assert ranking.costs(request, [N1, NodeName(f"g{number}"), NodeName(f"without-gpus-{number}")])
        ledger.remove_node(NodeName(f"g{number}"))
        assert ranking.costs(whole(), [N1])

    assert len(ranking._states) <= 3
    assert max(len(kind.costs) for kind in ranking._kinds.values()) <= 3
