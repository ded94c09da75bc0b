"""How many GPUs of a model maintenance closes at each instant, and whom it hits."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from carrel.bookings.calendar import Calendar
from carrel.bookings.capacity import ModelCapacity, capacity_of
from carrel.bookings.maintenance import (
    Closing,
    HeldPod,
    Maintenance,
    closings,
    hit_by,
    places_named,
)
from carrel.bookings.rules import Booking
from carrel.ids import BookingId, GpuUuid, NodeName
from carrel.ledger.gpus import Gpu, Node
from tests.kit.booking import DAY, NOW
from tests.kit.gpus import A100, A6000, N1, N2, N3, a_gpu


def day(number: float) -> datetime:
    return NOW + number * DAY


def machine(name: NodeName, *models: str, closed: str = "") -> Node:
    gpus = tuple(a_gpu(name, index, model=model) for index, model in enumerate(models))
    return Node(name, gpus, closed=closed)


NODES = (machine(N1, A6000, A6000, A100), machine(N2, A6000), machine(N3, A6000, A6000, closed="cordoned"))


def stock(model: str = A6000, nodes: tuple[Node, ...] = NODES) -> ModelCapacity:
    return capacity_of(nodes)[model]


def of_nodes(first: float, last: float, *nodes: NodeName) -> Maintenance:
    return Maintenance("", day(first), day(last), nodes=nodes)


def of_gpus(first: float, last: float, *gpus: Gpu) -> Maintenance:
    return Maintenance("", day(first), day(last), single={gpu.uuid: f"{gpu.node}/{gpu.index}" for gpu in gpus})


def of_model(first: float, last: float, gpus: int) -> Maintenance:
    return Maintenance(A6000, day(first), day(last), gpus)


def shown(*windows: Maintenance, model: str = A6000, nodes: tuple[Node, ...] = NODES) -> list[tuple[float, float, int]]:
    found = closings(windows, stock(model, nodes))
    return [((each.start - NOW) / DAY, (each.end - NOW) / DAY, each.gpus) for each in found]


FIRST, SECOND, OTHER_MODEL = NODES[0].gpus


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        pytest.param([of_nodes(1, 2, N1)], [(1, 2, 2)], id="a node: its GPUs of that model only"),
        pytest.param([of_nodes(1, 3, N1), of_nodes(2, 4, N1)], [(1, 2, 2), (2, 3, 2), (3, 4, 2)], id="counted once"),
        pytest.param([of_nodes(1, 3, N1), of_nodes(2, 4, N2)], [(1, 2, 2), (2, 3, 3), (3, 4, 1)], id="two nodes"),
        pytest.param([of_gpus(1, 2, FIRST)], [(1, 2, 1)], id="a single GPU"),
        pytest.param([of_gpus(1, 2, FIRST), of_nodes(1, 2, N1)], [(1, 2, 2)], id="a GPU of a node that is closed too"),
        pytest.param([of_gpus(1, 2, OTHER_MODEL)], [], id="a GPU of another model"),
        pytest.param([of_nodes(1, 2, N3)], [], id="a cordoned node is out of the calendar already"),
        pytest.param([of_nodes(1, 2, NodeName("gone"))], [], id="a node that is gone"),
        pytest.param([of_model(1, 2, 2), of_nodes(1, 2, N2)], [(1, 2, 3)], id="a model beside a node"),
        pytest.param([of_model(1, 2, 3), of_nodes(1, 2, N1)], [(1, 2, 3)], id="never more than there are"),
        pytest.param([of_nodes(1, 2, N1), of_nodes(3, 4, N1)], [(1, 2, 2), (3, 4, 2)], id="a gap between two"),
    ],
)
def test_maintenance_closes_the_gpus_that_it_names_and_that_can_be_booked(
    windows: list[Maintenance], expected: list[tuple[float, float, int]]
) -> None:
    assert shown(*windows) == expected


def test_a_node_with_two_models_closes_gpus_of_both() -> None:
    assert shown(of_nodes(1, 2, N1), model=A100) == [(1, 2, 1)]


def test_a_gpu_stays_closed_when_it_gets_another_number_or_another_machine() -> None:
    moved = Node(N2, (replace(FIRST, node=N2, index=7), *NODES[1].gpus))

    assert shown(of_gpus(1, 2, FIRST), nodes=(moved,)) == [(1, 2, 1)]


def test_where_the_kubelet_chooses_as_many_slots_are_closed_as_gpus_are_named() -> None:
    real = frozenset({GpuUuid("GPU-a"), GpuUuid("GPU-b")})
    slots = tuple(a_gpu(N1, index, model=A6000, may_be=real) for index in range(2))
    window = Maintenance("", day(1), day(2), single={GpuUuid("GPU-b"): "n1/1"})

    assert shown(window, nodes=(Node(N1, slots, kubelet_chooses=True),)) == [(1, 2, 1)]


def test_it_ends_by_itself_in_the_calendar() -> None:
    calendar = Calendar(A6000, 3, (), closings([of_nodes(1, 2, N1)], stock()))

    assert [span.free for span in calendar.spans(day(0), day(3))] == [3, 1, 3]


def booking(id: str, user: str = "ada@lab.org") -> Booking:
    return Booking(BookingId(id), user, A6000, day(0), day(9))


def test_bookings_that_lack_gpus_and_those_whose_pods_are_there_are_hit() -> None:
    lacking, there, elsewhere = booking("b1"), booking("b2", "bob@lab.org"), booking("b3", "cleo@lab.org")
    pods = [HeldPod("lab/train", "bob@lab.org", there.id, there.ends)]

    hit = hit_by(of_nodes(1, 2, N1), {}, [lacking, there, elsewhere], {lacking.id}, pods)

    assert [(each.booking.id, each.pods, each.lacks_gpus) for each in hit.bookings] == [
        ("b1", (), True),
        ("b2", ("lab/train",), False),
    ]
    assert (hit.pods, hit.people) == ((), ["ada@lab.org", "bob@lab.org"])


def test_a_member_whose_pod_a_booking_of_the_group_covers_is_hit_like_who_booked() -> None:
    of_the_group = replace(booking("b1"), group="vision")
    pods = [HeldPod("lab/theirs", "bob@lab.org", of_the_group.id, of_the_group.ends)]

    assert hit_by(of_nodes(1, 2, N1), {}, [of_the_group], set(), pods).people == ["ada@lab.org", "bob@lab.org"]


@pytest.mark.parametrize(
    ("ends", "is_hit"),
    [
        pytest.param(None, True, id="without a booking it may still run"),
        pytest.param(day(0.5), False, id="its booking ends before"),
        pytest.param(day(1.5), True, id="its booking ends during it"),
    ],
)
def test_a_pod_is_hit_that_may_still_run_when_it_begins(ends: datetime | None, is_hit: bool) -> None:
    pod = HeldPod("lab/train", "ada@lab.org", BookingId("b9") if ends else None, ends)

    assert bool(hit_by(of_nodes(1, 2, N1), {}, (), set(), [pod]).pods) is is_hit


def test_nodes_and_gpus_are_named_as_people_write_them() -> None:
    def gpus(node: NodeName) -> tuple[Gpu, ...]:
        return next(each.gpus for each in NODES if each.name == node)

    named = places_named([N2, f"{N1}/1", OTHER_MODEL.uuid, "n7", "n1/9"], [N1, N2, N3], gpus)

    assert named.nodes == (N2,)
    assert named.single == {SECOND.uuid: "n1/1", OTHER_MODEL.uuid: "n1/2"}
    assert [str(why) for why in named.unknown] == [
        "“n1/9” is no node with GPUs, and no GPU such as gpu-1/3. The nodes are: n1, n2, n3.",
        "“n7” is no node with GPUs, and no GPU such as gpu-1/3. The nodes are: n1, n2, n3.",
    ]


def test_a_window_is_on_from_its_start_to_before_its_end() -> None:
    window = of_nodes(1, 2, N1)

    assert [window.is_on(day(at)) for at in (0.9, 1, 1.9, 2)] == [False, True, True, False]
    assert Closing(day(0), day(1), 1).end - day(0) == timedelta(days=1)
