"""Which GPUs a request gets, and the words when it gets none."""

from dataclasses import replace
from fractions import Fraction

import pytest

from carrel.ids import GpuUuid, PodUid
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, candidates, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import (
    WHOLE,
    ContainerNeed,
    GpuPolicy,
    Memory,
    Portion,
    Request,
    Topology,
    TopologyMode,
)
from tests.kit.gpus import A100, A6000, N1, N2, a_gpu, a_ledger, a_node, held, holder, memory, whole

REQUIRED = Topology(TopologyMode.REQUIRED)
IGNORE = Topology(TopologyMode.IGNORE)


def indices(answer: Placement | Refusal) -> list[int]:
    assert isinstance(answer, Placement), answer
    return [gpu.index for gpu in answer.gpus]


def reason(answer: Placement | Refusal) -> str:
    assert isinstance(answer, Refusal), answer
    return str(answer)


@pytest.mark.parametrize(
    ("islands", "busy", "request_", "expected"),
    [
        pytest.param("....", [], whole(), [0], id="ties go to the lowest index"),
        pytest.param("....", [0], whole(2), [1, 2], id="several whole GPUs of a node without links"),
        pytest.param("aabb", [0], whole(2), [2, 3], id="two GPUs prefer one island"),
        pytest.param("aaaabb", [], whole(2), [4, 5], id="a small island is used up before a large one is broken"),
        pytest.param("aabb", [0, 2], whole(2), [1, 3], id="a preferred island gives way when none has room"),
        pytest.param("aaabb", [4], whole(4), [0, 1, 2, 3], id="over as few islands as possible"),
        pytest.param("aabb", [0], whole(2, topology=IGNORE), [1, 2], id="topology ignored: lowest indices"),
        pytest.param("aabb", [1], whole(2, topology=REQUIRED), [2, 3], id="a required island is one island"),
        pytest.param(
            "aaaa",
            [1],
            whole(2, policy=GpuPolicy.CONTIGUOUS),
            [2, 3],
            id="contiguous takes neighbours, 2,3 before 0,2",
        ),
        pytest.param(
            "......",
            [2],
            whole(2, policy=GpuPolicy.CONTIGUOUS),
            [0, 1],
            id="contiguous fills the short gap first",
        ),
        pytest.param(
            "....",
            [1, 2],
            whole(2, policy=GpuPolicy.CONTIGUOUS),
            [0, 3],
            id="contiguous is a preference: any two will do",
        ),
        pytest.param(
            "aaaaaa", [1], whole(3, policy=GpuPolicy.CONTIGUOUS), [2, 3, 4], id="contiguous of three beside a gap"
        ),
        pytest.param(
            "aabb", [], whole(2, policy=GpuPolicy.SPREAD), [0, 2], id="spread takes GPUs of different islands"
        ),
        pytest.param(
            "....",
            [],
            whole(2, policy=GpuPolicy.PREFER_IDS, prefer_ids=(3, 1)),
            [1, 3],
            id="preferred ids are taken",
        ),
        pytest.param(
            "....",
            [3],
            whole(2, policy=GpuPolicy.PREFER_IDS, prefer_ids=(3, 1)),
            [0, 1],
            id="a preferred id that is busy is replaced",
        ),
        pytest.param(
            "aabb",
            [],
            whole(2, policy=GpuPolicy.PREFER_IDS, prefer_ids=(0, 2)),
            [0, 2],
            id="named ids are stronger than a preferred island",
        ),
        pytest.param(
            "aabb",
            [],
            whole(2, policy=GpuPolicy.PREFER_IDS, prefer_ids=(3,), topology=REQUIRED),
            [2, 3],
            id="in a required island with a preferred id",
        ),
    ],
)
def test_whole_gpus_are_chosen_by_policy_and_topology(
    islands: str, busy: list[int], request_: Request, expected: list[int]
) -> None:
    ledger = a_ledger(a_node("n1", islands=islands))
    for index in busy:
        ledger.hold(held(f"tenant-{index}", "n1", index, None))

    assert indices(place(ledger, request_, N1)) == expected


@pytest.mark.parametrize(
    ("used", "request_", "expected"),
    [
        pytest.param([0, 100, 200], memory(500), [2], id="the fullest GPU that fits"),
        pytest.param([0, 100, 600], memory(500), [1], id="the fullest GPU is passed over if it is too full"),
        pytest.param([100, 0, 200], memory(500, policy=GpuPolicy.SPREAD), [1], id="spread takes the emptiest"),
        pytest.param([0, 100, 200], memory(500, gpus=2), [1, 2], id="a vector request takes the two fullest"),
        pytest.param([0, 0, 1], Request(2, Portion(Fraction(1, 2))), [0, 2], id="halves of two GPUs, packed"),
        pytest.param([999, 1, 0], whole(), [2], id="a whole GPU is one that nobody holds a part of"),
    ],
)
def test_memory_is_taken_from_the_right_gpus(used: list[int], request_: Request, expected: list[int]) -> None:
    ledger = a_ledger(a_node("n1", gpus=3, memory=1000), held_memory={"n1": used})

    assert indices(place(ledger, request_, N1)) == expected


def test_a_fraction_means_more_memory_on_a_larger_gpu() -> None:
    node = Node(N1, (a_gpu("n1", 0, 16276), a_gpu("n1", 1, 81920)))
    ledger = Ledger([node], [held("a", "n1", 0, 8139)])

    answer = place(ledger, Request(1, Portion(Fraction(1, 2))), N1)

    assert indices(answer) == [1]
    assert isinstance(answer, Placement)
    assert [share.memory for share in answer.shares(holder("b"))] == [40960]


def test_two_halves_of_a_gpu_with_an_odd_number_of_mib_fit_on_it() -> None:
    ledger = a_ledger(a_node("n1", gpus=1, memory=16277))
    half = Request(1, Portion(Fraction(1, 2)))
    for name in ("a", "b"):
        answer = place(ledger, half, N1)
        assert isinstance(answer, Placement)
        for share in answer.shares(holder(name)):
            ledger.hold(share)

    assert [entry.free for entry in ledger.entries(N1)] == [1]


def test_a_part_that_comes_to_nothing_cannot_be_had() -> None:
    ledger = a_ledger(a_node("n1", gpus=1, memory=2))
    quarter = Request(1, Portion(Fraction(1, 4)))

    assert candidates(ledger, quarter, [N1]).fitting == []
    assert reason(place(ledger, quarter, N1)).startswith("GPU 0 of n1 has 2 MiB in all, 3 MiB asked")


def test_a_gpu_whose_memory_nobody_reports_can_be_had_whole_and_its_refusal_says_what_is_missing() -> None:
    """It counts as 1 MiB."""
    ledger = a_ledger(a_node("n1", gpus=1, memory=1))

    assert candidates(ledger, whole(), [N1]).fitting == ["n1"]
    words = "GPU 0 of n1 has an unknown amount of memory, 2,048 MiB asked: its node does not report it"
    assert reason(place(ledger, memory(2048), N1)).startswith(words)
    assert indices(place(ledger, whole(), N1)) == [0]


@pytest.mark.parametrize(
    ("change", "request_", "words"),
    [
        pytest.param({"unusable": "unhealthy: XID 79"}, whole(), "is not in use: unhealthy: XID 79", id="unhealthy"),
        pytest.param({"model": A100}, whole(model=A6000), f"is a {A100}, {A6000} asked", id="wrong model"),
        pytest.param({"model": ""}, whole(model=A6000), f"is a GPU of unknown model, {A6000} asked", id="no model"),
        pytest.param(
            {"bandwidth_gbps": 64},
            whole(topology=Topology(TopologyMode.REQUIRED, 300)),
            "has links of 64 GB/s, 300 GB/s asked",
            id="slow links",
        ),
        pytest.param({}, memory(16277), "has 16,276 MiB in all, 16,277 MiB asked", id="larger than the GPU"),
    ],
)
def test_a_gpu_that_does_not_suit_is_refused_with_its_reason(
    change: dict[str, object], request_: Request, words: str
) -> None:
    gpu = replace(a_gpu("n1", 0), **change)  # type: ignore[arg-type] # the table names fields of a GPU
    ledger = Ledger([Node(N1, (gpu,))])

    assert candidates(ledger, request_, [N1]).refused == ["n1"]
    assert reason(place(ledger, request_, N1)).startswith(f"GPU 0 of n1 {words}")


def test_required_bandwidth_excludes_slow_islands() -> None:
    fast = [a_gpu("n1", index, island="fast", bandwidth_gbps=600) for index in (2, 3)]
    slow = [a_gpu("n1", index, island="slow", bandwidth_gbps=64) for index in (0, 1)]
    ledger = Ledger([Node(N1, (*slow, *fast))])

    assert indices(place(ledger, whole(2, topology=Topology(TopologyMode.REQUIRED, 300)), N1)) == [2, 3]
    assert indices(place(ledger, whole(2, topology=Topology(TopologyMode.PREFERRED, 300)), N1)) == [2, 3]
    assert indices(place(ledger, whole(2), N1)) == [0, 1]


def test_a_required_island_without_room_says_how_many_gpus_it_lacks() -> None:
    ledger = a_ledger(a_node("n1", islands="aabb"))
    for index in (0, 2):
        ledger.hold(held(f"tenant-{index}", "n1", index, None))

    assert reason(place(ledger, whole(2, topology=REQUIRED), N1)).startswith(
        "n1 has 2 GPUs that would do, but at most 1 of them in one NVLink island; 2 in one island are asked"
    )


def test_gpus_without_links_are_never_one_island() -> None:
    ledger = a_ledger(a_node("n1", gpus=8))

    assert candidates(ledger, whole(2, topology=REQUIRED), [N1]).fitting == []
    assert indices(place(ledger, whole(1, topology=REQUIRED), N1)) == [0]


def test_a_gpu_kept_for_a_booked_pod_is_given_to_it_alone() -> None:
    ledger = a_ledger(a_node("n1", gpus=1), a_node("n2", gpus=2))
    booked = holder("booked")
    ledger.keep(GpuUuid("GPU-n1-0"), booked)

    assert candidates(ledger, whole(), [N1, N2]).fitting == ["n2"]
    assert reason(place(ledger, whole(), N1)).startswith("GPU 0 of n1 is kept for lab/booked")
    assert candidates(ledger, whole(), [N1, N2], booked.uid).fitting == ["n1", "n2"]
    assert indices(place(ledger, whole(), N1, booked.uid)) == [0]


def test_a_booked_pod_takes_the_gpu_that_is_kept_for_it_before_others() -> None:
    ledger = a_ledger(a_node("n1", gpus=3))
    ledger.keep(GpuUuid("GPU-n1-2"), holder("booked"))

    assert indices(place(ledger, whole(), N1, PodUid("uid-booked"))) == [2]


@pytest.mark.parametrize(
    ("node", "request_", "words"),
    [
        pytest.param(None, whole(), "n1 has no GPU that Carrel knows of", id="unknown node"),
        pytest.param(Node(N1, ()), whole(), "n1 has no GPU", id="a node without GPUs"),
        pytest.param(
            replace(a_node("n1"), unusable="the agent's last heartbeat is 95 s old"),
            whole(),
            "n1 takes no new GPU pods: the agent's last heartbeat is 95 s old",
            id="stale node",
        ),
        pytest.param(
            replace(a_node("n1"), labels={"zone": "b"}),
            whole(node_labels=frozenset({("zone", "a")})),
            "n1 does not have the label zone=a",
            id="node not selected",
        ),
        pytest.param(
            a_node("n1", gpus=2),
            whole(3),
            "n1 has 2 GPUs in all; 3 whole GPUs asked",
            id="too few GPUs",
        ),
    ],
)
def test_a_node_that_cannot_serve_says_why(node: Node | None, request_: Request, words: str) -> None:
    ledger = Ledger([node] if node else [])

    assert candidates(ledger, request_, [N1]).fitting == []
    assert reason(place(ledger, request_, N1)).splitlines()[0] == words


def test_a_selected_node_takes_the_pod() -> None:
    ledger = Ledger([replace(a_node("n1"), labels={"zone": "a", "disk": "ssd"}), a_node("n2")])
    request = whole(node_labels=frozenset({("zone", "a")}))

    assert candidates(ledger, request, [N1, N2]).fitting == ["n1"]


def test_many_holders_are_named_up_to_three() -> None:
    ledger = a_ledger(a_node("n1", gpus=1, memory=1000))
    for number in range(5):
        ledger.hold(held(f"p{number}", "n1", 0, 200))

    assert reason(place(ledger, memory(1), N1)).startswith(
        "GPU 0 of n1 has 0 MiB free, 1 MiB asked; held by lab/p0, lab/p1, lab/p2 and 2 more"
    )


def an_init(name: str, gpus: int) -> ContainerNeed:
    return ContainerNeed(name, gpus, WHOLE, init=True)


def a_container(name: str, gpus: int) -> ContainerNeed:
    """Or a sidecar: it runs beside the others, too."""
    return ContainerNeed(name, gpus, WHOLE)


@pytest.mark.parametrize(
    ("gpus", "needs", "expected"),
    [
        pytest.param(
            3,
            [an_init("prepare", 2), a_container("left", 1), a_container("right", 2)],
            {"prepare": [0, 1], "left": [0], "right": [1, 2]},
            id="an init container sees what the others will have",
        ),
        pytest.param(
            2,
            [a_container("sidecar", 1), an_init("prepare", 1), a_container("main", 1)],
            {"sidecar": [0], "prepare": [1], "main": [1]},
            id="an init container does not see the GPU of a sidecar that runs already",
        ),
        pytest.param(
            2,
            [an_init("prepare", 2), a_container("sidecar", 1), a_container("main", 1)],
            {"prepare": [0, 1], "sidecar": [0], "main": [1]},
            id="it sees that of a sidecar which starts later",
        ),
        pytest.param(
            3,
            [an_init("first", 2), a_container("sidecar", 1), an_init("second", 2), a_container("main", 1)],
            {"first": [0, 1], "sidecar": [0], "second": [1, 2], "main": [1]},
            id="an init container is the greediest, beside a sidecar",
        ),
    ],
)
def test_whole_gpus_are_dealt_out_to_the_containers(
    gpus: int, needs: list[ContainerNeed], expected: dict[str, list[int]]
) -> None:
    request = replace(whole(gpus), containers=tuple(needs))
    answer = place(a_ledger(a_node("n1", gpus=gpus)), request, N1)
    assert isinstance(answer, Placement)

    assert {name: [gpu.index for gpu in own] for name, own in answer.by_container().items()} == expected


def test_containers_that_share_a_gpu_see_the_same_one() -> None:
    request = replace(
        memory(8138),
        containers=(
            ContainerNeed("left", 1, Memory(MiB(4069))),
            ContainerNeed("right", 1, Memory(MiB(4069))),
        ),
    )
    answer = place(a_ledger(a_node("n1")), request, N1)
    assert isinstance(answer, Placement)

    assert answer.by_container() == {"left": answer.gpus, "right": answer.gpus}


def test_a_request_for_no_gpu_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one GPU"):
        Request(0, WHOLE)


def test_requests_are_said_in_words() -> None:
    assert str(memory(8138)) == "8,138 MiB on one GPU"
    assert str(memory(8138, gpus=2, model=A6000)) == "8,138 MiB on each of 2 GPUs of model NVIDIA-RTX-A6000"
    assert str(whole()) == "1 whole GPU"
    assert str(whole(2, topology=REQUIRED)) == "2 whole GPUs in one NVLink island"
    assert str(whole(1, topology=REQUIRED)) == "1 whole GPU"
    assert str(Request(1, Portion(Fraction(1, 3)))) == "0.3333 of a GPU on one GPU"
    assert str(Gpu(GpuUuid("u"), N1, 3, "", MiB(1))) == "GPU 3 of n1"
