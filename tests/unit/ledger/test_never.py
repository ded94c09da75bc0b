"""Why a pod can never start: the request is compared with the cluster as if nobody held a GPU."""

from dataclasses import replace
from fractions import Fraction

import pytest

from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gangs import GangMembers
from carrel.ledger.gpus import UNKNOWN_MEMORY, Node
from carrel.ledger.never import Impossibility
from carrel.ledger.requests import Gang, GpuSelector, Portion, Request, Topology, TopologyMode
from tests.kit.gpus import A100, A6000, a_ledger, a_node, held, holder, memory, whole

DGX = a_node("dgx-1", 8, 81920, model=A100, islands="aaaabbbb", bandwidth_gbps=600)
SMALL = a_node("small", 2, 16276)
LABELLED = replace(a_node("zone-a", 1), labels={"zone": "a"})
IN_ONE_ISLAND = Topology(TopologyMode.REQUIRED)
FAST = Topology(TopologyMode.REQUIRED, min_bandwidth_gbps=900)
SPLIT = " This pod will never start here: "
BY_SELECTOR = "that this pod's node selector or affinity allows"


def said(request: Request, *nodes: Node, allowed: tuple[NodeName, ...] | None = None) -> str:
    names = tuple(node.name for node in nodes)
    never = Impossibility(a_ledger(*nodes)).why(request, names if allowed is None else allowed, names)
    return never.reason if never is not None else ""


@pytest.mark.parametrize(
    ("request_", "fact", "advice"),
    [
        pytest.param(
            whole(16),
            "No node has 16 GPUs; the largest, dgx-1, has 8.",
            "ask for 8 or fewer, or use a gang.",
            id="more GPUs than a node has",
        ),
        pytest.param(
            whole(4, model=A6000),
            "No node has 4 NVIDIA-RTX-A6000; the largest, small, has 2.",
            "ask for 2 or fewer, or use a gang.",
            id="more GPUs of a model than a node has",
        ),
        pytest.param(
            Request(9, Portion(Fraction(1, 2))),
            "No node has 9 GPUs; the largest, dgx-1, has 8.",
            "ask for 8 or fewer, or use a gang.",
            id="parts of more GPUs than a node has",
        ),
        pytest.param(
            memory(40000, 9),
            "No node has 9 GPUs with 40,000 MiB each; the largest, dgx-1, has 8.",
            "ask for 8 or fewer, or use a gang.",
            id="memory of more GPUs than a node has",
        ),
        pytest.param(
            whole(16, gang=Gang("lab/train", 2)),
            "No node has 16 GPUs; the largest, dgx-1, has 8.",
            "ask for 8 or fewer in each pod of the gang.",
            id="a gang whose pods are too large",
        ),
        pytest.param(
            memory(200_000),
            "No GPU has 200,000 MiB; the largest, of dgx-1, has 81,920 MiB.",
            "ask for 81,920 MiB or less.",
            id="more memory than a GPU has",
        ),
        pytest.param(
            memory(40_000, model=A6000),
            "No NVIDIA-RTX-A6000 has 40,000 MiB; the largest, of small, has 16,276 MiB.",
            "ask for 16,276 MiB or less.",
            id="more memory than a GPU of the model has",
        ),
        pytest.param(
            whole(model="NVIDIA-H100"),
            "This cluster has no NVIDIA-H100. It has: 8 NVIDIA-A100-SXM4-80GB, 3 NVIDIA-RTX-A6000.",
            "ask for another model.",
            id="a model that is not there",
        ),
        pytest.param(
            whole(selector=GpuSelector(models=("H100",))),
            "This cluster has no GPU of a model like H100. It has: 8 NVIDIA-A100-SXM4-80GB, 3 NVIDIA-RTX-A6000.",
            "ask for another model.",
            id="a part of the name of a model that is not there",
        ),
        pytest.param(
            whole(selector=GpuSelector(uuids=frozenset({GpuUuid("GPU-gone")}))),
            "No node has a GPU out of GPU-gone.",
            "correct the UUIDs.",
            id="a UUID that is not there",
        ),
        pytest.param(
            whole(8, topology=IN_ONE_ISLAND),
            "No node has 8 GPUs in one NVLink island; the largest island, of dgx-1, has 4.",
            "ask for 4 or fewer, or do not require one island.",
            id="more GPUs than an island has",
        ),
        pytest.param(
            whole(topology=FAST),
            "No GPU has links of 900 GB/s; the fastest, of dgx-1, has 600 GB/s.",
            "ask for slower links.",
            id="faster links than there are",
        ),
        pytest.param(
            whole(2, node_labels=frozenset({("zone", "a")})),
            "No node labelled zone=a has 2 GPUs; the largest, zone-a, has 1.",
            "ask for 1 or fewer, or use a gang, or allow other nodes.",
            id="more GPUs than a node with the labels has",
        ),
        pytest.param(
            whole(node_labels=frozenset({("zone", "b")})),
            "No node labelled zone=b has a GPU.",
            "correct the labels in the claim, or allow other nodes.",
            id="labels that no node has",
        ),
    ],
)
def test_one_sentence_says_what_there_is_at_most_and_what_helps(request_: Request, fact: str, advice: str) -> None:
    assert said(request_, LABELLED, SMALL, DGX) == f"{fact}{SPLIT}{advice}"


@pytest.mark.parametrize(
    ("request_", "nodes"),
    [
        pytest.param(whole(8), [DGX], id="all GPUs of the largest node"),
        pytest.param(memory(81920), [DGX], id="all memory of the largest GPU"),
        pytest.param(whole(4, topology=IN_ONE_ISLAND), [DGX], id="all GPUs of an island"),
        pytest.param(whole(8), [a_node("n1", 8, unusable="unhealthy: XID 79")], id="GPUs that are not healthy now"),
        pytest.param(whole(8), [replace(a_node("n1", 8), unusable="silent")], id="a node that is not in use now"),
        pytest.param(whole(), [], id="no node is known yet"),
        pytest.param(whole(), [a_node("n1", 0)], id="no node with GPUs: that is another sentence"),
        pytest.param(
            whole(8), [SMALL, Node(NodeName("odd"), (), unusable="cannot be read")], id="a report that cannot be read"
        ),
        pytest.param(memory(9000), [a_node("n1", memory=UNKNOWN_MEMORY)], id="GPUs whose memory nobody reports"),
        pytest.param(whole(model=A100), [a_node("n1", model="")], id="GPUs whose model nobody reports"),
        pytest.param(
            whole(selector=GpuSelector(only=frozenset({GpuUuid("GPU-other")}))),
            [SMALL],
            id="GPUs that its booking covers now",
        ),
    ],
)
def test_nothing_is_called_impossible_that_may_be_possible(request_: Request, nodes: list[Node]) -> None:
    assert said(request_, *nodes) == ""


def test_who_holds_what_changes_nothing() -> None:
    ledger, names = a_ledger(SMALL, DGX), (SMALL.name, DGX.name)
    empty = Impossibility(ledger).why(whole(16), names, names)
    for index in range(8):
        ledger.hold(held(f"tenant-{index}", "dgx-1", index, None))
        assert Impossibility(ledger).why(whole(16), names, names) == empty
    assert Impossibility(ledger).why(whole(8), names, names) is None


def test_of_equal_nodes_the_first_by_name_is_named_in_whatever_order_they_come() -> None:
    nodes = [a_node(name, 2) for name in ("c", "a", "b")]
    assert "the largest, a, has 2" in said(whole(4), *nodes)
    assert said(whole(4), *nodes) == said(whole(4), *reversed(nodes))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (whole(8), f"No node {BY_SELECTOR} has 8 GPUs; the largest, small, has 2."),
        (whole(model=A100), f"The nodes {BY_SELECTOR} have no {A100}. They have: 2 {A6000}."),
        (memory(40000), f"No GPU of the nodes {BY_SELECTOR} has 40,000 MiB; the largest, of small, has 16,276 MiB."),
    ],
)
def test_a_pod_that_excludes_the_nodes_that_would_do_is_told_so(request_: Request, words: str) -> None:
    answer = said(request_, SMALL, DGX, allowed=(SMALL.name,))
    assert answer.startswith(f"{words}{SPLIT}") and answer.endswith("or allow other nodes.")


def test_what_no_node_has_is_said_of_the_cluster_though_the_pod_allows_few_nodes() -> None:
    assert said(whole(16), SMALL, DGX, allowed=(SMALL.name,)).startswith(
        "No node has 16 GPUs; the largest, dgx-1, has 8."
    )


def test_it_is_no_longer_said_when_a_node_joins_that_could_serve_the_pod() -> None:
    ledger, names = a_ledger(SMALL), (SMALL.name, DGX.name)
    impossible = Impossibility(ledger)
    assert impossible.why(whole(8), names, names) is not None
    ledger.set_node(DGX)
    assert impossible.why(whole(8), names, names) is None
    ledger.remove_node(DGX.name)
    assert impossible.why(whole(8), names, names) is not None


def test_many_models_are_not_all_listed() -> None:
    nodes = [a_node(f"n{number}", 1, model=f"NVIDIA-{number}") for number in range(9)]
    answer = said(whole(model="NVIDIA-H100"), *nodes)
    assert "1 NVIDIA-3 and 5 other models." in answer
    assert len(answer) <= 256, "kubectl shows no more of a warning"


# --- gangs -----------------------------------------------------------------------------------------------------------


def gang_said(*nodes: Node, size: int, requests: list[Request], bound: int = 0) -> str:
    members = [(holder(f"m{number}"), request) for number, request in enumerate(requests)]
    never = Impossibility(a_ledger(*nodes)).why_gang(Gang("lab/g", size), GangMembers(members, bound))
    return never.reason if never is not None else ""


def test_a_gang_that_never_fits_as_a_whole_is_told_how_much_of_it_would() -> None:
    assert gang_said(DGX, a_node("n1", 4), size=2, requests=[whole(8)] * 2) == (
        "Gang lab/g needs 2 pods with 8 whole GPUs each; if all GPUs were free, 1 would fit."
        " This pod will never start here: ask for less in each pod, or for fewer pods."
    )


@pytest.mark.parametrize(
    ("size", "requests", "fits"),
    [
        pytest.param(4, [whole(2)] * 4, True, id="they fit exactly"),
        pytest.param(5, [whole(2)] * 5, False, id="one too many"),
        pytest.param(3, [whole(3)] * 3, False, id="a pod's GPUs are on one node"),
        pytest.param(3, [whole(2, topology=IN_ONE_ISLAND)] * 3, False, id="a pod's GPUs are in one island"),
        pytest.param(16, [memory(8000)] * 16, True, id="two on each GPU"),
        pytest.param(17, [memory(8000)] * 17, False, id="two on each GPU, and one too many"),
        pytest.param(4, [whole(2)] * 5, True, id="more pods than the gang needs"),
        pytest.param(5, [whole(2)] * 4, True, id="not all are here: nobody knows what the last one asks for"),
        pytest.param(3, [whole(4), whole(4), whole(1)], True, id="they are not alike"),
    ],
)
def test_a_gang_is_called_impossible_only_if_that_is_certain(size: int, requests: list[Request], fits: bool) -> None:
    nodes = [a_node("n1", 4, islands="aab."), a_node("n2", 4, islands="aab.")]
    assert (gang_said(*nodes, size=size, requests=requests) == "") is fits


def test_a_gang_of_which_a_member_runs_is_not_called_impossible() -> None:
    assert gang_said(SMALL, size=3, requests=[whole()] * 3, bound=1) == ""
