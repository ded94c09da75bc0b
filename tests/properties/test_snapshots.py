"""Snapshots of any cluster are read as they were written; whatever else stands in a file is refused in words."""

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from carrel.ids import GpuUuid, NodeName, PersonId, PodUid
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import ANY_GPU, GpuPolicy, GpuSelector, Memory, Portion, Request, Topology, TopologyMode
from carrel.parsing import Malformed
from carrel.simulation import snapshot
from carrel.simulation.workload import SimulatedCluster, SimulatedPod, Trace
from tests.kit.arbitrary_json import documents

TAKEN = "2026-11-17T04:00:00Z"
WORDS = ("A100", "Tesla T4", "ü")

machines = st.builds(MachineRoom, st.integers(0, 10**6), st.integers(0, 10**6))
# No dialect and no trace reads a finer part of a GPU.
portions = st.fractions(Fraction(1, 100), 1, max_denominator=10**9).map(Portion)
memories = st.integers(1, 100_000).map(lambda mib: Memory(MiB(mib)))
models = st.lists(st.sampled_from(WORDS), max_size=2).map(tuple)
selectors = st.builds(GpuSelector, models, models).map(
    lambda found: found if found.models or found.not_models else ANY_GPU
)
requests = st.builds(
    Request,
    st.integers(1, 16),
    portions | memories,
    st.sampled_from(("", *WORDS)),
    selectors,
    st.sampled_from(GpuPolicy),
    st.lists(st.integers(0, 7), max_size=2).map(tuple),
    st.builds(Topology, st.sampled_from(TopologyMode), st.integers(0, 900)),
    st.sampled_from((frozenset(), frozenset({("set-1", "")}))),
)


@st.composite
def clusters(draw: st.DrawFn) -> SimulatedCluster:
    nodes, sizes = [], {}
    for number in range(draw(st.integers(1, 3))):
        name = NodeName(f"node-{number}")
        gpus = tuple(
            Gpu(
                GpuUuid(f"{name}/{index}"),
                name,
                index,
                draw(st.sampled_from(WORDS)),
                MiB(draw(st.integers(1, 99_999))),
            )
            for index in range(draw(st.integers(1, 4)))
        )
        nodes.append(Node(name, gpus, {"set-1": ""} if draw(st.booleans()) else {}))
        if draw(st.booleans()):
            sizes[name] = draw(machines)
    return SimulatedCluster(tuple(nodes), sizes, {"set-1": ""})


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[SimulatedCluster, Trace]:
    cluster = draw(clusters())
    pods = [
        SimulatedPod(PodUid(f"pod-{number}"), request, draw(machines), PersonId(draw(st.sampled_from(("", "user-1")))))
        for number, request in enumerate(draw(st.lists(st.none() | requests, max_size=4)))
    ]
    for node in cluster.nodes:  # one pod has a GPU of each node, or runs there without
        held = (node.gpus[-1].uuid,) if draw(st.booleans()) else ()
        request = Request(1, draw(portions)) if held else None
        if request is None or request.amount.on(node.gpus[-1].memory) <= node.gpus[-1].memory:
            pods.append(SimulatedPod(PodUid(f"on-{node.name}"), request, node=node.name, held=held))
    return cluster, Trace(tuple(pods))


def parts_of(document: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all values in it."""
    steps = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(found for step, value in steps for found in parts_of(value, (*path, step)))]


@given(snapshots())
def test_a_snapshot_is_read_as_it_was_written(saved: tuple[SimulatedCluster, Trace]) -> None:
    cluster, workload = saved

    again, same = snapshot.read(snapshot.written(cluster, workload, TAKEN), "lab.json")

    assert again == cluster
    assert same.pods == workload.pods


@given(snapshots(), documents(), st.data())
def test_a_snapshot_with_any_other_value_in_it_is_read_or_refused(
    saved: tuple[SimulatedCluster, Trace], garbage: Any, data: st.DataObject
) -> None:
    document = snapshot.written(*saved, TAKEN)
    *path, last = data.draw(st.sampled_from(parts_of(document)[1:]))
    part = document
    for step in path:
        part = part[step]
    part[last] = garbage

    try:
        snapshot.read(document, "lab.json")
    except Malformed as malformed:
        assert str(malformed).startswith("lab.json: ")
