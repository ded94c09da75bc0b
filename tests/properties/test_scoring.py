"""A cost is what really happens, and what is remembered of costs never differs from what would be counted now."""

from hypothesis import given
from hypothesis import strategies as st

from carrel.ids import NodeName, PodUid
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import MachineRoom, Machines
from carrel.ledger.placement import Placement, place
from carrel.ledger.requests import GpuPolicy, Request, Topology, TopologyMode
from carrel.ledger.scoring import GRAIN, Fragmentation, Ranking, by_spreading
from tests.kit.gpus import A100, A6000, N1, N2, N3, a_gpu, a_ledger, a_node, holder, memory, whole

MEMORY = 1000
NODES = (N1, N2, N3)
REQUESTS = st.sampled_from(
    [
        whole(),
        whole(2),
        whole(model=A100),
        memory(300),
        memory(500, policy=GpuPolicy.EMPTIEST),
        memory(700),
        memory(300, gpus=2, policy=GpuPolicy.SPREAD),
        memory(300, gpus=2, policy=GpuPolicy.CONTIGUOUS),
        whole(topology=Topology(TopologyMode.IGNORE, 100)),
    ]
)
STEPS = st.lists(st.tuples(REQUESTS, st.sampled_from(NODES), st.integers(0, 20)), max_size=12)


def a_cluster() -> tuple[Ledger, Machines]:
    mixed = a_node("n3", gpus=1, memory=MEMORY)
    mixed = type(mixed)(N3, (*mixed.gpus, a_gpu("n3", 1, 2 * MEMORY, model=A100)))
    machines = Machines()
    for name in NODES:
        machines.set_node(NodeName(name), MachineRoom(32_000, 1 << 20))
    return a_ledger(
        a_node("n1", islands="aabb", memory=MEMORY), a_node("n2", memory=MEMORY, model=A6000), mixed
    ), machines


def put(ledger: Ledger, machines: Machines, request: Request, node: str, cores: int, name: str) -> bool:
    answer = place(ledger, request, NodeName(node))
    if isinstance(answer, Placement):
        ledger.hold(*answer.shares(holder(name)))
        machines.occupy(PodUid(f"uid-{name}"), NodeName(node), MachineRoom(cores * 1000, 0))
        return True
    return False


@given(STEPS, REQUESTS, st.integers(0, 20))
def test_a_cost_is_what_the_placement_changes(
    steps: list[tuple[Request, str, int]], request: Request, cores: int
) -> None:
    ledger, machines = a_cluster()
    ranking = Ranking(ledger, machines)
    for number, (asked, node, cpu) in enumerate(steps):
        ranking.demand.saw(asked, MachineRoom(cpu * 1000, 0))
        put(ledger, machines, asked, node, cpu, f"p{number}")
    counts = Fragmentation(ranking.demand.mix)

    def loss(node: str) -> float:
        free = machines.free[NodeName(node)]
        return counts.loss(counts.free(ledger.rooms[NodeName(node)].alike), free.cpu_milli, free.memory_mib)

    costs = {cost.node: cost.cost for cost in ranking.costs(request, NODES, machine=MachineRoom(cores * 1000, 0))}
    for node in NODES:
        before = loss(node)
        assert put(ledger, machines, request, node, cores, f"new-{node}") == (node in costs)
        if node in costs:
            assert abs(costs[NodeName(node)].wasted - (loss(node) - before)) <= GRAIN / 2 + 1e-9
            left = sum(entry.free / entry.gpu.memory for entry in ledger.entries(NodeName(node)))
            assert abs(costs[NodeName(node)].left_over - left) < 1e-9


@given(STEPS)
def test_remembered_costs_are_those_that_would_be_counted_now(steps: list[tuple[Request, str, int]]) -> None:
    ledger, machines = a_cluster()
    ranking = Ranking(ledger, machines)
    for number, (asked, node, cpu) in enumerate(steps):
        ranking.demand.saw(asked, MachineRoom(cpu * 1000, 0))
        machine = MachineRoom(cpu * 1000, 0)
        fresh = Ranking(ledger, machines)
        fresh.demand = ranking.demand
        found = sorted(ranking.costs(asked, NODES, machine=machine))
        assert found == sorted(fresh.costs(asked, NODES, machine=machine))
        assert ranking.best(asked, NODES, machine=machine) == (found[0] if found else None)
        for some in (NODES, NODES[::2], NODES[1:], NODES[:1]):
            best_of_some = next((cost for cost in found if cost.node in some), None)
            assert ranking.best(asked, frozenset(some), machine=machine) == best_of_some
            assert ranking.best(asked, list(some), machine=machine) == best_of_some
            of_some = [cost for cost in found if cost.node in some]
            emptiest = min(of_some, key=by_spreading, default=None)
            assert ranking.best(asked, list(some), machine=machine, spreads=True) == emptiest
        put(ledger, machines, asked, node, cpu, f"p{number}")
        if number % 3 == 2:
            ledger.forget(PodUid(f"uid-p{number - 1}"))
            machines.vacate(PodUid(f"uid-p{number - 1}"))
