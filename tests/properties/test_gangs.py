"""A plan of a gang fits as a whole, however early the search ends; and none is missed on small clusters."""

from itertools import product

from hypothesis import event, given, settings
from hypothesis import strategies as st

from carrel.ids import NodeName
from carrel.ledger.gangs import MOST_STEPS, GangPlan, plan_gang
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod, place
from carrel.ledger.requests import Gang, Request, Topology, TopologyMode
from tests.kit.gpus import a_gpu, a_ledger, held, holder, memory, whole

NODES = ("n1", "n2", "n3")
REQUESTS = (
    whole(),
    whole(2),
    whole(2, topology=Topology(TopologyMode.REQUIRED)),
    memory(300),
    memory(500),
    memory(600, gpus=2),
)
islands = st.lists(st.sampled_from(["", "x"]), min_size=1, max_size=3)
members = st.lists(
    st.tuples(st.sampled_from(REQUESTS), st.lists(st.sampled_from(NODES), min_size=1, unique=True)),
    min_size=1,
    max_size=4,
)


def _cluster(drawn: tuple[list[str], ...], busy: list[tuple[int, int]]) -> Ledger:
    nodes = [
        Node(NodeName(name), tuple(a_gpu(name, index, 1000, island=island) for index, island in enumerate(there)))
        for name, there in zip(NODES, drawn, strict=True)
    ]
    ledger = a_ledger(*nodes)
    for node, mib in busy:
        ledger.hold(held(f"busy-{node}", NODES[node], 0, mib))
    return ledger


def _pods(drawn: list[tuple[Request, list[NodeName]]]) -> list[WaitingPod]:
    """In the order in which they are placed: who has the fewest nodes first, then the largest."""
    pods = [WaitingPod(holder(f"m{number}"), asked, tuple(nodes)) for number, (asked, nodes) in enumerate(drawn)]
    return sorted(pods, key=lambda pod: (len(pod.nodes), -pod.request.gpus, -pod.request.amount.on(1 << 20)))  # type: ignore[arg-type] # MiB


def _is_possible(ledger: Ledger, pods: list[WaitingPod]) -> bool:
    """Whether some choice of nodes has room for all."""
    for nodes in product(*(pod.nodes for pod in pods)):
        with ledger.what_if():
            for pod, node in zip(pods, nodes, strict=True):
                answer = place(ledger, pod.request, node)
                if not isinstance(answer, Placement):
                    break
                ledger.hold(*answer.shares(pod.holder))
            else:
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(
    st.tuples(islands, islands, islands),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([300, 700])), max_size=3, unique_by=lambda each: each[0]),
    members,
    st.sampled_from([0, 50, MOST_STEPS]),
)
def test_a_plan_fits_as_a_whole_and_none_is_missed(
    drawn: tuple[list[str], ...],
    busy: list[tuple[int, int]],
    wanted: list[tuple[Request, list[NodeName]]],
    steps: int,
) -> None:
    ledger, pods = _cluster(drawn, busy), _pods(wanted)

    answer = plan_gang(ledger, Gang("lab/job", len(pods)), pods, steps)

    event(f"{type(answer).__name__} after {steps} steps")
    if isinstance(answer, GangPlan):
        for pod in pods:
            assert answer.placements[pod.holder.uid].node in pod.nodes
            ledger.hold(*answer.placements[pod.holder.uid].shares(pod.holder))  # raises if there is no room
        ledger.audit()
    elif steps == MOST_STEPS:
        assert not _is_possible(ledger, pods)
