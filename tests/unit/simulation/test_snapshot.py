"""A snapshot in a file: what is written is read again, and every mistake is named with its place."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from carrel.cli.simulation_comparison import added_gpus, with_more
from carrel.cli.simulation_files import read_snapshot
from carrel.configuration.schema import BookingRules
from carrel.ids import GpuUuid, NodeName, PersonId, PodUid
from carrel.ledger.gpus import Gpu, MiB, MigSlice, Node, place_name
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import (
    WHOLE,
    Gang,
    GpuPolicy,
    GpuSelector,
    Memory,
    Portion,
    Request,
    Topology,
    TopologyMode,
)
from carrel.parsing import Malformed
from carrel.simulation import snapshot
from carrel.simulation.over_time import run_over_time
from carrel.simulation.workload import HOUR_S, BookingWish, PastUse, SimulatedCluster, SimulatedPod, Trace

A100, T4 = "NVIDIA-A100-SXM4-80GB", "Tesla-T4"
TAKEN = "2026-11-17T04:00:00Z"
SET = frozenset({("set-1", "")})


def gpus(node: str, model: str, memory: int, count: int = 2) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(GpuUuid(f"{node}/{index}"), NodeName(node), index, model, MiB(memory), "0", 600) for index in range(count)
    )


CLUSTER = SimulatedCluster(
    (
        Node(NodeName("node-1"), gpus("node-1", A100, 81920), {"set-1": ""}),
        Node(NodeName("node-2"), gpus("node-2", T4, 15360)),
    ),
    {NodeName("node-1"): MachineRoom(64_000, 524_288)},
    {"set-1": ""},
)
ANY_OF = GpuSelector(("A100", "H100"), ("T4",))
PODS = (
    SimulatedPod(
        PodUid("pod-1"),
        Request(2, WHOLE, A100),
        MachineRoom(4000, 1024),
        PersonId("user-1"),
        -HOUR_S,
        node=NodeName("node-1"),
        held=(GpuUuid("node-1/0"), GpuUuid("node-1/1")),
        idle_s=30 * HOUR_S,
    ),
    SimulatedPod(PodUid("pod-2"), None, MachineRoom(500, 0), PersonId("user-1"), -2 * HOUR_S, None, NodeName("node-2")),
    SimulatedPod(
        PodUid("pod-3"),
        Request(1, Memory(MiB(8000))),
        owner=PersonId("user-2"),
        node=NodeName("node-2"),
        held=(GpuUuid("node-2/1"),),
        idle_s=0.0,
    ),
    SimulatedPod(
        PodUid("pod-4"),
        Request(1, Portion(Fraction(1, 3))),
        owner=PersonId("user-2"),
        node=NodeName("node-2"),
        held=(GpuUuid("node-2/1"),),
    ),
    SimulatedPod(
        PodUid("pod-5"),
        Request(
            4,
            Portion(Fraction(1, 2)),
            "",
            ANY_OF,
            GpuPolicy.PREFER_IDS,
            (1, 0),
            Topology(TopologyMode.REQUIRED, 300),
            SET,
        ),
        arrives_s=-3 * HOUR_S,
    ),
)
USED = PastUse(PersonId("user-1"), A100, -3, (2.0, 0.0, 2.0), (0.5, 0.0, 2.0), (1.5, 0.0, 0.0))
BOOKED = BookingWish(PersonId("user-1"), A100, 2, -5 * HOUR_S, -HOUR_S, 48 * HOUR_S, is_made=True)


def a_document() -> Any:
    """As a program reads it."""
    return json.loads(json.dumps(snapshot.written(CLUSTER, Trace(PODS, (BOOKED,), (USED,)), TAKEN)))


def test_a_snapshot_is_read_as_it_was_written() -> None:
    cluster, workload = snapshot.read(a_document(), "lab.json")

    assert cluster == CLUSTER
    assert (workload.pods, workload.wishes, workload.past_use) == (PODS, (BOOKED,), (USED,))


def test_mig_slices_and_who_asks_for_them_are_read_as_they_were_written() -> None:
    gpus = (slice_of("any", 1000), slice_of("1g.10gb", 1010, is_gpu=True))
    cluster = SimulatedCluster((Node(NodeName("node-1"), gpus),))
    pods = (SimulatedPod(PodUid("pod-1"), Request(1, WHOLE, slices="1g.10gb")),)
    document = json.loads(json.dumps(snapshot.written(cluster, Trace(pods), TAKEN)))

    found, workload = snapshot.read(document, "lab.json")
    assert (found.nodes, workload.pods) == (cluster.nodes, pods)


def slice_of(profile: str, index: int, *, is_gpu: bool = False) -> Gpu:
    node, parent = NodeName("node-1"), (index - 1000) // 10
    part = MigSlice(profile, place_name(node, parent), parent, MiB(0), is_gpu)
    return Gpu(place_name(node, index), node, index, A100, MiB(9728), slice=part)


def test_the_run_begins_when_the_snapshot_was_taken_and_people_go_on_booking() -> None:
    _, workload = snapshot.read(a_document(), "lab.json")

    assert workload.begins_s == 0.0
    assert workload.books_again_until_s == 8 * 7 * 24 * HOUR_S
    assert all(wish.is_made for wish in workload.wishes)


def test_a_gpu_that_was_not_in_use_is_not_given_to_anybody() -> None:
    document = a_document()
    document["nodes"][0]["gpus"][0]["usable"] = False

    cluster, _ = snapshot.read(document, "lab.json")

    assert [bool(gpu.unusable) for gpu in cluster.nodes[0].gpus] == [True, False]


def test_what_is_usual_is_not_written() -> None:
    waiting = SimulatedPod(PodUid("pod-1"), Request(1, WHOLE))

    (pod,) = snapshot.written(CLUSTER, Trace((waiting,)), TAKEN)["pods"]

    assert pod == {"name": "pod-1", "arrivesHours": 0.0, "request": {"gpus": 1, "part": "1"}}


def test_uuids_and_gangs_are_not_written() -> None:
    selector = GpuSelector(("A100",), (), frozenset({GpuUuid("GPU-secret")}), frozenset({GpuUuid("GPU-other")}))
    pod = SimulatedPod(PodUid("pod-1"), Request(1, WHOLE, selector=selector, gang=Gang("lab/secret", 2)))

    text = json.dumps(snapshot.written(CLUSTER, Trace((pod,)), TAKEN))

    assert "A100" in text
    assert "secret" not in text
    assert "GPU-" not in text


def test_amounts_beyond_all_bounds_are_written_so_that_they_can_be_read() -> None:
    asked = Request(2**63, Memory(MiB(2**70)), prefer_ids=(2**70,), topology=Topology(min_bandwidth_gbps=2**70))
    node = Node(NodeName("node-1"), (Gpu(GpuUuid("node-1/0"), NodeName("node-1"), 0, "", MiB(2**70), "", 2**70),))
    cluster = SimulatedCluster((node,), {NodeName("node-1"): MachineRoom(2**73, 2**73)})
    pod = SimulatedPod(PodUid("pod-1"), asked, MachineRoom(2**73, 2**73))

    snapshot.read(snapshot.written(cluster, Trace((pod,)), TAKEN), "lab.json")


# --- where a pod may run ---------------------------------------------------------------------------------------------


def waits(cluster: SimulatedCluster, request: Request) -> bool:
    trace = Trace((SimulatedPod(PodUid("pod-1"), request),))
    cluster, trace = snapshot.read(snapshot.written(cluster, trace, TAKEN), "lab.json")
    return bool(run_over_time(cluster, trace, "carrel", 42, BookingRules()).waiting)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(Request(1, WHOLE, T4), False, id="a pod that may run on every node gets a GPU of the other node"),
        pytest.param(Request(1, WHOLE, T4, node_labels=SET), True, id="a pod that may run on one node waits for it"),
        pytest.param(Request(1, WHOLE, node_labels=SET), False, id="a pod that may run on one node gets a GPU there"),
        pytest.param(Request(1, WHOLE, selector=GpuSelector(("H100",))), True, id="a model that nobody has"),
        pytest.param(Request(1, WHOLE, selector=GpuSelector((), ("A100", "T4"))), True, id="all models are refused"),
    ],
)
def test_which_gpus_a_pod_may_have_is_kept(request_: Request, expected: bool) -> None:
    assert waits(CLUSTER, request_) is expected


def test_a_pod_that_may_run_on_some_nodes_only_may_run_on_added_ones() -> None:
    assert not waits(with_more(CLUSTER, added_gpus(f"1x{T4}:15360")), Request(1, WHOLE, T4, node_labels=SET))


# --- mistakes --------------------------------------------------------------------------------------------------------

Change = Callable[[Any], Any]


def put(value: object, *path: str | int) -> Change:
    def change(document: Any) -> Any:
        part = document
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value
        return document

    return change


def without(*path: str | int) -> Change:
    def change(document: Any) -> Any:
        part = document
        for step in path[:-1]:
            part = part[step]
        del part[path[-1]]
        return document

    return change


def twice(document: Any, what: str) -> Any:
    document[what] *= 2
    return document


def whole_of(held: list[int], node: str = "node-2") -> Change:
    def change(document: Any) -> Any:
        request = {"gpus": len(held), "part": "1"}
        document["pods"].append({"name": "more", "arrivesHours": 0, "node": node, "held": held, "request": request})
        return document

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda document: 5, "form is 5; expected carrel-snapshot/3", id="a number"),
        pytest.param(lambda document: [], "form is []; expected carrel-snapshot/3", id="a list"),
        pytest.param(without("form"), "form is None; expected carrel-snapshot/3", id="no form"),
        pytest.param(
            put("carrel-snapshot/2", "form"), "take a new snapshot with `carrel snapshot`", id="an old snapshot"
        ),
        pytest.param(put("x", "taken"), "taken is 'x'; expected an instant", id="taken at no time"),
        pytest.param(without("nodes"), "expected the field `nodes`", id="no nodes"),
        pytest.param(put(None, "pods"), "pods is None; expected a list", id="pods are nothing"),
        pytest.param(put(["n"], "nodes"), "nodes[0] is 'n'; expected a mapping", id="a node is a text"),
        pytest.param(put(7, "nodes", 0, "name"), "nodes[0].name is 7; expected a text", id="a node without a name"),
        pytest.param(
            put("node-1", "nodes", 1, "name"),
            "nodes[1].name is 'node-1'; expected one that",
            id="two nodes of one name",
        ),
        pytest.param(put([], "nodes", 0, "gpus"), "nodes[0].gpus is []", id="a node without GPUs"),
        pytest.param(
            put(0, "nodes", 0, "gpus", 1, "index"), "nodes[0].gpus[1].index is 0; expected one", id="one index twice"
        ),
        pytest.param(
            put(0, "nodes", 0, "gpus", 0, "memoryMiB"),
            "memoryMiB is 0; expected a whole number, 1 or more",
            id="no memory",
        ),
        pytest.param(
            put(85899345920, "nodes", 0, "gpus", 0, "memoryMiB"),
            "expected a whole number, 16777216 at most",
            id="bytes",
        ),
        pytest.param(
            put(None, "nodes", 0, "gpus", 0, "model"), "nodes[0].gpus[0].model is None; expected a text", id="no model"
        ),
        pytest.param(without("nodes", 0, "memoryMiB"), "nodes[0].memoryMiB is None", id="CPU without memory"),
        pytest.param(put("x", "nodeSets", 0, "nodes", 0), "nodeSets[0].nodes[0] is 'x'", id="an unknown node in a set"),
        pytest.param(put(7, "pods", 0, "name"), "pods[0].name is 7; expected a text", id="a pod without a name"),
        pytest.param(
            put("pod-1", "pods", 3, "name"), "pods[3].name is 'pod-1'; expected one that", id="two pods of one name"
        ),
        pytest.param(put(None, "pods", 0, "owner"), "pods[0].owner is None; expected a text", id="an owner of nothing"),
        pytest.param(put(-1, "pods", 0, "cpuMilli"), "pods[0].cpuMilli is -1; expected a whole", id="less CPU than 0"),
        pytest.param(put("4", "pods", 0, "cpuMilli"), "pods[0].cpuMilli is '4'; expected a whole", id="CPU as text"),
        pytest.param(put("x", "pods", 0, "arrivesHours"), "arrivesHours is 'x'; expected a number", id="no hour"),
        pytest.param(
            put(1e12, "pods", 0, "arrivesHours"),
            "arrivesHours is 1000000000000.0; expected a number, 876600 at most",
            id="far",
        ),
        pytest.param(put(10**400, "pods", 0, "arrivesHours"), "pods[0].arrivesHours is 1000", id="a huge whole number"),
        pytest.param(put(-1, "pods", 0, "lastsHours"), "pods[0].lastsHours is -1; expected", id="a negative length"),
        pytest.param(put(0, "pods", 0, "request", "gpus"), "request.gpus is 0; expected a whole", id="no GPUs asked"),
        pytest.param(put(1.5, "pods", 0, "request", "gpus"), "request.gpus is 1.5; expected a whole", id="1.5 GPUs"),
        pytest.param(put(True, "pods", 0, "request", "gpus"), "request.gpus is True; expected a whole", id="true GPUs"),
        pytest.param(
            put("0", "pods", 3, "request", "part"), "pods[3].request.part is '0'; expected a part", id="part 0"
        ),
        pytest.param(
            put("2", "pods", 3, "request", "part"), "pods[3].request.part is '2'; expected a part", id="part 2"
        ),
        pytest.param(put("1/0", "pods", 3, "request", "part"), "part is '1/0'; expected a part", id="part 1/0"),
        pytest.param(put("1e-9999999", "pods", 3, "request", "part"), "expected a part", id="a part with an exponent"),
        pytest.param(put("-1/2", "pods", 3, "request", "part"), "expected a part", id="a negative part"),
        pytest.param(put(0.5, "pods", 3, "request", "part"), "part is 0.5; expected a text", id="a part as a number"),
        pytest.param(without("pods", 3, "request", "part"), "part is ''; expected a part", id="neither part nor MiB"),
        pytest.param(put(5, "pods", 3, "request", "memoryMiB"), "expected nothing beside", id="part and MiB"),
        pytest.param(
            put(["T4"], "pods", 0, "request", "model"), "model is ['T4']; expected a text", id="a list of models"
        ),
        pytest.param(
            put("fastest", "pods", 0, "request", "policy"),
            "pods[0].request.policy is 'fastest'; expected one of pack, emptiest, spread, contiguous, preferIds",
            id="no such policy",
        ),
        pytest.param(
            put("x", "pods", 0, "request", "topology"), "one of Required, Preferred, Ignore", id="no such mode"
        ),
        pytest.param(
            put("x", "pods", 0, "request", "nodeSet"), "request.nodeSet is 'x'; expected the", id="no such set"
        ),
        pytest.param(put("x", "pods", 1, "node"), "pods[1].node is 'x'; expected the name", id="no such node"),
        pytest.param(put([0], "pods", 0, "held"), "pods[0].held is [0]; expected 2 indexes", id="too few GPUs held"),
        pytest.param(put([0], "pods", 4, "held"), "pods[4].held is [0]; expected 0 indexes", id="held while waiting"),
        pytest.param(put([0, 9], "pods", 0, "held"), "held[1] is 9; expected the index of a GPU of", id="no such GPU"),
        pytest.param(put([0, 0], "pods", 0, "held"), "held[1] is 0; expected each GPU once", id="one GPU held twice"),
        pytest.param(
            whole_of([1]),
            "pods[5].held[0] is 1; expected a GPU with 15,360 MiB free; GPU 1 of node-2 has 2,240 MiB",
            id="a GPU held more than it has",
        ),
        pytest.param(put(0, "bookings", 0, "gpus"), "bookings[0].gpus is 0; expected a whole", id="nothing booked"),
        pytest.param(put("1", "bookings", 0, "gpus"), "bookings[0].gpus is '1'; expected a whole", id="GPUs as text"),
        pytest.param(
            put(["x"], "bookings", 0, "user"), "bookings[0].user is ['x']; expected a text", id="a list of users"
        ),
        pytest.param(put(1e7, "bookings", 0, "startHours"), "startHours is 10000000.0; expected", id="begins far away"),
        pytest.param(put(-5, "bookings", 0, "lastsHours"), "lastsHours is -5; expected a number", id="ends before"),
        pytest.param(put(-1, "pods", 0, "idleHours"), "pods[0].idleHours is -1; expected a number", id="idle for less"),
        pytest.param(put("x", "pods", 0, "idleHours"), "pods[0].idleHours is 'x'; expected", id="idle for a text"),
        pytest.param(put(1, "pods", 4, "idleHours"), "pods[4].idleHours is 1", id="idle without a GPU"),
        pytest.param(put(-673, "use", 0, "firstHour"), "use[0].firstHour is -673; expected", id="used before that"),
        pytest.param(put(0, "use", 0, "firstHour"), "use[0].firstHour is 0; expected", id="used in the future"),
        pytest.param(put(-2, "use", 0, "firstHour"), "use[0].held is '3 hours'; expected at most 2", id="until later"),
        pytest.param(put([1], "use", 0, "idle"), "use[0].idle is '1 hours'; expected 3", id="idle in fewer hours"),
        pytest.param(put([1] * 4, "use", 0, "active"), "use[0].active is '4 hours'; expected 3", id="active in more"),
        pytest.param(put([], "use", 0, "held"), "use[0].held is []; expected", id="no hour"),
        pytest.param(put(-1, "use", 0, "held", 1), "use[0].held[1] is -1; expected a number", id="less than none held"),
        pytest.param(put("1", "use", 0, "idle", 1), "use[0].idle[1] is '1'; expected a number", id="an hour as text"),
        pytest.param(
            put(1.9, "use", 0, "held", 2), "use[0].held[2] is 1.9; expected at least 2,", id="more used than held"
        ),
        pytest.param(lambda document: twice(document, "use"), "use[1].user is 'user-1, NVIDIA", id="one person twice"),
        pytest.param(without("use", 0, "active"), "use[0] is", id="active is missing"),
        pytest.param(put(1, "bookings", 0, "more"), "expected no unknown field `more`", id="an unknown field"),
    ],
)
def test_a_mistake_is_refused_with_file_place_value_and_what_is_right(change: Change, said: str) -> None:
    with pytest.raises(Malformed) as refused:
        snapshot.read(change(a_document()), "lab.json")

    assert str(refused.value).startswith("lab.json: ")
    assert said in str(refused.value)


def test_a_gpu_that_nobody_holds_may_be_held() -> None:
    _, workload = snapshot.read(whole_of([0])(a_document()), "lab.json")

    assert workload.pods[-1].held == ("node-2/0",)


NAN_IN_LINE_3 = '{\n "form": "carrel-snapshot/3",\n "taken": NaN\n}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "the file is 'empty'", id="empty"),
        pytest.param("{", "line 1 is 'the end of the file'; expected the rest of it", id="one brace"),
        pytest.param('{"form":\n"carrel', "line 2 is 'the end of the file'", id="cut off"),
        pytest.param(NAN_IN_LINE_3, "line 3 is 'NaN'; expected JSON", id="NaN"),
        pytest.param(NAN_IN_LINE_3.replace("NaN", "-Infinity"), "line 3 is", id="minus Infinity"),
        pytest.param(NAN_IN_LINE_3.replace("NaN", "1e999"), "line 3 is '1e999'; expected a smaller", id="1e999"),
        pytest.param(NAN_IN_LINE_3.replace("NaN", "9" * 9999), "line 3 is '9999", id="thousands of digits"),
        pytest.param("[" * 100_000, "nested less deeply", id="nested deeply"),
        pytest.param("{}\nx", "line 2", id="more after the end"),
    ],
)
def test_what_is_no_json_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "lab.json"
    file.write_text(text)

    with pytest.raises(Malformed) as refused:
        read_snapshot(file)

    assert said in str(refused.value)


def test_a_mark_of_byte_order_before_the_file_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "lab.json"
    file.write_text("\ufeff" + json.dumps(a_document()))

    assert read_snapshot(file)[0] == CLUSTER


def test_a_snapshot_that_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    file, text = tmp_path / "lab.json", json.dumps(a_document(), indent=2)

    for end in range(0, len(text) - 1, 37):
        file.write_text(text[:end])
        with pytest.raises(Malformed):
            read_snapshot(file)
