"""What is said about nodes is what would be found by looking again, whatever was asked before."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.dialects.mig import advertised_as_gpus
from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.ledger.filtering import NodeFilter, why_waiting
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, place, why_not
from carrel.ledger.requests import WHOLE, Gang, GpuSelector, Portion, Request, Topology, TopologyMode
from tests.kit.gpus import A100, A6000, a_gpu, a_node, a_slice, held, holder, memory, whole

NODES = ("n1", "n2", "n3", "stranger")
REQUESTS = (
    memory(8138),
    memory(8138, is_limited=True),
    memory(8138, gang=Gang("lab/together", 4)),
    whole(2),
    Request(1, Portion(Fraction(1, 2)), model=A100),
    Request(2, WHOLE, topology=Topology(TopologyMode.REQUIRED, 100)),
    memory(100, node_labels=frozenset({("zone", "lab")})),
    memory(100, selector=GpuSelector(models=("a100",))),
    memory(100, selector=GpuSelector(not_models=("A100",), not_uuids=frozenset({GpuUuid("GPU-n1-0")}))),
    memory(100, selector=GpuSelector(uuids=frozenset({GpuUuid("GPU-n1-1"), GpuUuid("GPU-n2-0")}))),
    memory(100, selector=GpuSelector(only=frozenset({GpuUuid("GPU-n1-1"), GpuUuid("GPU-n2-0")}))),
    memory(100, selector=GpuSelector(models=("a6000",), not_on=frozenset({GpuUuid("GPU-n1-1"), GpuUuid("GPU-n2-0")}))),
    whole(2, selector=GpuSelector(not_on=frozenset({GpuUuid("GPU-n2-1")}))),
    memory(100, gpus=2),
    whole(slices="1g.10gb"),
    whole(2, slices="any"),
    memory(100, slices="any", selector=GpuSelector(uuids=frozenset({GpuUuid("GPU-n1-1"), GpuUuid("GPU-n2-0")}))),
)

gpus = st.tuples(
    st.integers(0, 1),
    st.sampled_from([16276, 40960]),
    st.sampled_from([A6000, A100]),
    st.sampled_from(["", "a"]),
    st.sampled_from(["", "", "1g.10gb", "3g.40gb"]),
)
nodes = st.builds(
    lambda name, drawn, labels, unusable, why_no_limits: Node(
        name,
        advertised_as_gpus(
            [
                a_gpu(name, index, size, model=model, island=island, bandwidth_gbps=300 * index)
                if not profile
                else a_gpu(name, index, size, model=f"{model}-MIG-{profile}", slice=a_slice(profile))
                for index, size, model, island, profile in {gpu[0]: gpu for gpu in drawn}.values()
            ],
            labels,
        ),
        labels,
        unusable=unusable,
        why_no_limits=why_no_limits,
    ),
    st.sampled_from(NODES[:3]),
    st.lists(gpus, max_size=2),
    st.sampled_from([{}, {"zone": "lab"}, {"nvidia.com/mig.strategy": "single"}]),
    st.sampled_from(["", "", "the agent is silent"]),
    st.sampled_from(["", "its driver is old"]),
)
asked_nodes = st.one_of(
    st.permutations(NODES).map(tuple),
    st.sampled_from([NODES, NODES[:1], ()]),
    st.lists(st.sampled_from(NODES), unique=True),
)
steps = st.one_of(
    st.tuples(st.just("node"), nodes),
    st.tuples(st.just("no node"), st.sampled_from(NODES)),
    st.tuples(
        st.just("held"), st.sampled_from("xyz"), st.sampled_from(NODES[:3]), st.integers(0, 1), st.integers(1, 9000)
    ),
    st.tuples(st.just("given back"), st.sampled_from("xyz")),
    st.tuples(st.just("kept"), st.sampled_from("xyz"), st.sampled_from(NODES[:3]), st.integers(0, 1)),
    st.tuples(st.just("asked"), st.sampled_from(REQUESTS), st.sampled_from("xyz"), asked_nodes),
)


def do(ledger: Ledger, step: tuple[object, ...]) -> None:
    match step:
        case "node", Node() as node:
            ledger.set_node(node)
        case "no node", str(name):
            ledger.remove_node(NodeName(name))
        case "held", str(pod), str(name), int(index), int(mib):
            ledger.restore([held(pod, name, index, mib)])
        case "given back", str(pod):
            ledger.give_back(PodUid(f"uid-{pod}"))
        case "kept", str(pod), str(name), int(index):
            ledger.keep_no_more(PodUid(f"uid-{pod}"))
            ledger.set_entry(GpuUuid(f"GPU-{name}-{index}"), [], holder(pod))


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=30))
def test_a_remembered_answer_is_the_answer_of_now(story: list[tuple[object, ...]]) -> None:
    ledger = Ledger([a_node("n1"), a_node("n2", islands="aa", bandwidth_gbps=300)])
    node_filter = NodeFilter(ledger)
    for step in story:
        if step[0] != "asked":
            do(ledger, step)
            continue
        _, request, pod, names = step
        assert isinstance(request, Request) and isinstance(names, list | tuple)
        with ledger.what_if():
            ledger.give_back(PodUid(f"uid-{pod}"))
            found = node_filter.filter(request, names, PodUid(f"uid-{pod}"))
            fitting = [
                name for name in names if isinstance(place(ledger, request, name, PodUid(f"uid-{pod}")), Placement)
            ]
            told = node_filter.why(request, names, PodUid(f"uid-{pod}"))
            plain = why_waiting(ledger, request, names, PodUid(f"uid-{pod}"))
            refused = {
                name: why_not(ledger, request, name, PodUid(f"uid-{pod}")) for name in names if name not in fitting
            }
        assert found.fitting == fitting
        assert found.refused == refused
        assert told == plain
        assert (plain is None) == bool(fitting)
