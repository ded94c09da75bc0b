"""A MIG slice is a GPU of the ledger that only those get who ask for one."""

from dataclasses import replace

import pytest

from carrel.ledger.filtering import NodeFilter
from carrel.ledger.gpus import Gpu, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.never import Impossibility
from carrel.ledger.placement import Placement, place
from carrel.ledger.requests import Request
from carrel.ledger.scoring import Ranking
from tests.kit.gpus import A100, N1, N2, N3, a_gpu, divided_gpu, holder, memory, whole

SLICE = f"{A100}-MIG-1g.10gb"


def as_gpus(slices: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    return tuple(replace(gpu, slice=replace(gpu.slice, is_gpu=True)) for gpu in slices if gpu.slice)


MIXED = Node(
    N1,
    why_no_limits="",
    gpus=(a_gpu("n1", 1, 81920, model=A100), *divided_gpu("n1", 0, ("1g.10gb", "1g.10gb", "3g.40gb"))),
)
SINGLE = Node(N2, as_gpus(divided_gpu("n2")), why_no_limits="")


def labels_of(request: Request, node: Node) -> list[str] | None:
    placed = place(Ledger([node]), request, node.name)
    return [gpu.label for gpu in placed.gpus] if isinstance(placed, Placement) else None


@pytest.mark.parametrize(
    ("request_", "on_mixed", "on_single"),
    [
        pytest.param(whole(), ["1"], ["0:0"], id="a GPU: no slice, unless slices are offered as GPUs"),
        pytest.param(whole(2), None, ["0:0", "0:1"], id="two GPUs"),
        pytest.param(whole(slices="1g.10gb"), ["0:0"], None, id="a profile: only where it is offered as such"),
        pytest.param(whole(2, slices="1g.10gb"), ["0:0", "0:1"], None, id="two slices of a profile"),
        pytest.param(whole(3, slices="1g.10gb"), None, None, id="more slices of a profile than there are"),
        pytest.param(whole(slices="3g.40gb"), ["0:2"], None, id="another profile"),
        pytest.param(whole(slices="any", model=SLICE), ["0:0"], ["0:0"], id="a model of slices: wherever it is"),
        pytest.param(memory(5000), ["1"], ["0:0"], id="a part of a GPU"),
        pytest.param(memory(5000, gpus=2), None, None, id="no parts of several slices"),
        pytest.param(memory(5000, slices="any", model=SLICE), ["0:0"], ["0:0"], id="a part of a slice"),
        pytest.param(memory(5000, is_limited=True), ["1"], None, id="a part with a limit of memory: no slice"),
    ],
)
def test_who_gets_a_slice(request_: Request, on_mixed: list[str] | None, on_single: list[str] | None) -> None:
    assert labels_of(request_, MIXED) == on_mixed
    assert labels_of(request_, SINGLE) == on_single
    fitting = NodeFilter(Ledger([MIXED, SINGLE])).filter(request_, (N1, N2)).fitting
    assert list(fitting) == [node.name for node, on in ((MIXED, on_mixed), (SINGLE, on_single)) if on]


def test_slices_are_named_by_their_gpu_and_number() -> None:
    assert [str(gpu) for gpu in divided_gpu("n1", 1)[:2]] == ["MIG slice 1:0 of n1", "MIG slice 1:1 of n1"]
    assert [gpu.index for gpu in divided_gpu("n1", 1)[:2]] == [1010, 1011]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        pytest.param(whole(), "1 whole GPU", id="a GPU"),
        pytest.param(whole(slices="1g.10gb"), "1 MIG slice 1g.10gb", id="a slice"),
        pytest.param(whole(2, slices="1g.10gb"), "2 MIG slices 1g.10gb", id="two slices"),
        pytest.param(whole(slices="any", model=SLICE), f"1 MIG slice of model {SLICE}", id="a slice by its model"),
        pytest.param(memory(5000, slices="any"), "5,000 MiB on one MIG slice", id="a part of a slice"),
    ],
)
def test_a_request_says_what_is_asked(request_: Request, words: str) -> None:
    assert str(request_) == words


@pytest.mark.parametrize(
    ("request_", "node", "why"),
    [
        pytest.param(
            whole(slices="1g.10gb"),
            Node(N1, (a_gpu("n1", 0),)),
            "GPU 0 of n1 is not divided into MIG slices, 1 MIG slice 1g.10gb asked",
            id="a GPU for a slice",
        ),
        pytest.param(
            whole(),
            Node(N1, divided_gpu(profiles=("7g.80gb",))),
            "MIG slice 0:0 of n1 is a MIG slice 7g.80gb, 1 whole GPU asked",
            id="a slice for a GPU",
        ),
        pytest.param(
            whole(slices="1g.10gb"),
            Node(N2, SINGLE.gpus[:1]),
            "MIG slice 0:0 of n2 is a MIG slice 1g.10gb, advertised as a GPU there, 1 MIG slice 1g.10gb asked",
            id="a slice that is offered as a GPU",
        ),
        pytest.param(
            whole(slices="1g.10gb", is_limited=True),
            Node(N1, divided_gpu(profiles=("1g.10gb",)), why_no_limits=""),
            "MIG slice 0:0 of n1 is a MIG slice, in which nothing limits memory, and the pod was admitted with a limit",
            id="a slice for a pod whose claim came after it",
        ),
    ],
)
def test_a_refusal_says_that_it_is_about_slices(request_: Request, node: Node, why: str) -> None:
    assert str(NodeFilter(Ledger([node])).why(request_, (node.name,))) == why


def test_a_pod_that_can_never_start_is_told_what_there_is() -> None:
    ledger = Ledger([Node(N1, divided_gpu())])
    never = Impossibility(ledger)

    assert never.why(whole(slices="1g.10gb"), (N1,), (N1,)) is None
    assert "This cluster has no GPU. It has: 7 NVIDIA-A100-SXM4-80GB-MIG-1g.10gb" in str(
        never.why(whole(), (N1,), (N1,))
    )
    assert "This cluster has no MIG slice 2g.20gb." in str(never.why(whole(slices="2g.20gb"), (N1,), (N1,)))


def test_every_node_with_room_for_a_slice_is_ranked() -> None:
    sliced = Node(N3, divided_gpu("n3"))
    ledger = Ledger([MIXED, SINGLE, sliced])

    costs = Ranking(ledger).costs(whole(slices="1g.10gb"), (N1, N2, N3))
    assert [cost.node for cost in costs] == [N1, N3]


def test_a_slice_is_held_and_given_back_like_a_gpu() -> None:
    ledger = Ledger([Node(N1, divided_gpu())])
    for number in range(7):
        placed = place(ledger, whole(slices="1g.10gb"), N1)
        assert isinstance(placed, Placement)
        ledger.hold(*placed.shares(holder(f"student-{number}")))

    assert "none of its 7 GPUs would do" in str(place(ledger, whole(slices="1g.10gb"), N1))
    ledger.give_back(holder("student-4").uid)
    placed = place(ledger, whole(slices="1g.10gb"), N1)
    assert isinstance(placed, Placement)
    assert [gpu.uuid for gpu in placed.gpus] == ["MIG-n1-0-4"]
