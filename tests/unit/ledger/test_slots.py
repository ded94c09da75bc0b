"""Slots: what is promised where the kubelet chooses, and what is done about each reservation."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from carrel.ids import GpuUuid, PodUid
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.slots import (
    LIFE,
    WANTED,
    Act,
    KubeletCapacity,
    Reservation,
    ReservationEvent,
    ReservationPod,
    ReservationState,
    SlotObservation,
    Step,
    as_slots,
    next_step,
)
from tests.kit.gpus import N1

S = ReservationState
HELD = Reservation(S.HELD, GpuUuid("GPU-a"), PodUid("pod-1"))
LOST = Reservation(S.LOST, GpuUuid("GPU-a"), PodUid("pod-1"))
DOUBLED = Reservation(S.DOUBLED, GpuUuid("GPU-a"), PodUid("pod-1"))
CLOSING = Reservation(S.CLOSING, GpuUuid("GPU-a"), PodUid("pod-1"))


def a_node(*memories: int, broken: str = "", models: str = "VV") -> Node:
    """`broken="b"`: the GPU GPU-b is not in use."""
    gpus = [
        Gpu(
            GpuUuid(f"GPU-{letter}"), N1, index, model, MiB(memory), "island", 600, "XID 79" if letter == broken else ""
        )
        for index, (letter, memory, model) in enumerate(zip("abcd", memories, models * 2, strict=False))
    ]
    return Node(N1, tuple(gpus), kubelet_chooses=True)


# --- the view of a node ----------------------------------------------------------------------------------------------


def test_a_slot_is_as_large_as_the_smallest_gpu_and_has_no_links() -> None:
    node = as_slots(a_node(16276, 8138), {})

    either = frozenset({GpuUuid("GPU-a"), GpuUuid("GPU-b")})
    assert node.gpus == tuple(Gpu(GpuUuid(f"n1/{index}"), N1, index, "V", MiB(8138), may_be=either) for index in (0, 1))


def test_a_slot_may_be_any_gpu_of_the_node_until_its_reservation_pod_says_which() -> None:
    slots = as_slots(a_node(100, 100), {0: HELD, 1: WANTED}).gpus

    assert [sorted(slot.possible_uuids) for slot in slots] == [["GPU-a"], ["GPU-a", "GPU-b"]]


def test_no_model_can_be_requested_on_a_mixed_node() -> None:
    assert {gpu.model for gpu in as_slots(a_node(1, 1, models="VT"), {}).gpus} == {""}


@pytest.mark.parametrize(
    ("in_use", "usable"),
    [
        pytest.param({}, [True, False], id="nothing in use: one GPU, one slot"),
        pytest.param({1: None}, [False, True], id="who has a slot has the GPU that is left"),
        pytest.param({0: HELD}, [True, False], id="the slot of the healthy GPU is known"),
        pytest.param({1: HELD}, [False, True], id="under whatever index"),
        pytest.param({0: replace(HELD, gpu=GpuUuid("GPU-b"))}, [False, True], id="the slot of the broken GPU is known"),
        pytest.param({0: replace(HELD, gpu=GpuUuid("GPU-z"))}, [False, True], id="its GPU is no longer reported"),
    ],
)
def test_there_are_as_many_usable_slots_as_healthy_gpus(
    in_use: dict[int, Reservation | None], usable: list[bool]
) -> None:
    node = as_slots(a_node(100, 100, broken="b"), in_use)

    assert [not gpu.unusable for gpu in node.gpus] == usable


@pytest.mark.parametrize(
    ("kubelet", "in_use", "broken", "usable"),
    [
        pytest.param(KubeletCapacity(2, 2), {}, "", 2, id="the kubelet has both"),
        pytest.param(KubeletCapacity(0, 2), {}, "", 0, id="its plugin is away"),
        pytest.param(KubeletCapacity(1, 2), {}, "", 1, id="its plugin calls one unhealthy"),
        pytest.param(KubeletCapacity(1, 2), {0: HELD}, "", 1, id="and the other one is held: only its slot"),
        pytest.param(
            KubeletCapacity(2, 2, ("lab/x",), 1, frozenset({GpuUuid("GPU-b")})), {}, "", 1, id="another pod has one"
        ),
        pytest.param(KubeletCapacity(2, 2, ("lab/x",), 1, frozenset(), 1), {}, "", 1, id="nobody says which"),
        pytest.param(
            KubeletCapacity(8, 8, ("lab/x",), 1, frozenset({GpuUuid("GPU-b")})),
            {},
            "",
            1,
            id="time-slicing counts more",
        ),
        pytest.param(
            KubeletCapacity(1, 2), {0: HELD}, "a", 1, id="both call the held one unhealthy: the other is free"
        ),
        pytest.param(KubeletCapacity(2, 2), {0: HELD}, "a", 1, id="only Carrel calls the held one unhealthy"),
        pytest.param(KubeletCapacity(), {}, "", 2, id="the Node is not known yet: no limit"),
    ],
)
def test_there_are_never_more_slots_than_the_kubelet_has_gpus_to_give(
    kubelet: KubeletCapacity, in_use: dict[int, Reservation | None], broken: str, usable: int
) -> None:
    node = as_slots(a_node(100, 100, broken=broken), in_use, kubelet)

    assert sum(not gpu.unusable for gpu in node.gpus) == usable


def test_a_refusal_of_the_kubelet_closes_all_free_slots_and_none_that_is_held() -> None:
    refused = WANTED.refused_until("no device", datetime(2026, 11, 16, tzinfo=UTC))
    node = as_slots(a_node(100, 100, 100), {0: HELD, 1: refused})

    assert [gpu.unusable for gpu in node.gpus] == ["", "no device", "no device"]


@pytest.mark.parametrize(
    ("reservation", "is_open", "is_usable"),
    [
        pytest.param(WANTED, True, True, id="wanted"),
        pytest.param(HELD, True, True, id="held"),
        pytest.param(LOST, False, False, id="lost: nobody new comes to the node"),
        pytest.param(DOUBLED, True, False, id="doubled: the slot is set aside"),
        pytest.param(CLOSING, True, False, id="closing: the slot is not free yet"),
    ],
)
def test_a_reservation_in_trouble_keeps_others_away(reservation: Reservation, is_open: bool, is_usable: bool) -> None:
    node = as_slots(a_node(100, 100), {0: reservation})

    assert (not node.unusable, not node.gpus[0].unusable) == (is_open, is_usable)
    assert not node.gpus[1].unusable


# --- what is next ----------------------------------------------------------------------------------------------------

SAYS_A = ReservationPod(PodUid("pod-1"), gpu=GpuUuid("GPU-a"))
SAYS_B = ReservationPod(PodUid("pod-2"), gpu=GpuUuid("GPU-b"))
SILENT = ReservationPod(PodUid("pod-2"))


@pytest.mark.parametrize(
    ("reservation", "pod", "more", "step"),
    [
        pytest.param(WANTED, None, {}, Act.CREATE, id="wanted, and there is none"),
        pytest.param(WANTED, None, {"others_are_lost": True}, Act.WAIT, id="a lost GPU is to be had first"),
        pytest.param(WANTED, SILENT, {}, Act.WAIT, id="it has not said anything yet"),
        pytest.param(WANTED, replace(SILENT, is_stuck=True), {}, Act.DELETE, id="it never will"),
        pytest.param(WANTED, replace(SILENT, is_finished=True), {}, Act.DELETE, id="it failed"),
        pytest.param(WANTED, SAYS_A, {}, HELD, id="it says which GPU"),
        pytest.param(
            WANTED, SAYS_A, {"gpus_of_others": frozenset({"GPU-a"})}, Act.DELETE, id="the GPU is another slot's"
        ),
        pytest.param(
            WANTED,
            ReservationPod(PodUid("p"), gpu=GpuUuid("GPU-z")),
            {},
            Act.WAIT,
            id="a GPU that the node has not reported",
        ),
        pytest.param(
            WANTED,
            ReservationPod(PodUid("p"), gpu=GpuUuid("GPU-z"), is_stuck=True),
            {},
            Act.DELETE,
            id="and never does",
        ),
        pytest.param(WANTED, replace(SAYS_A, is_going=True), {}, Act.WAIT, id="it is going already"),
        pytest.param(HELD, SAYS_A, {}, Act.WAIT, id="all is well"),
        pytest.param(HELD, ReservationPod(PodUid("pod-1")), {}, Act.WAIT, id="somebody took its word off it"),
        pytest.param(HELD, None, {}, LOST, id="it is gone"),
        pytest.param(HELD, replace(SAYS_A, is_going=True), {}, LOST, id="it is going"),
        pytest.param(HELD, replace(SAYS_A, is_finished=True), {}, LOST, id="it was evicted"),
        pytest.param(HELD, SILENT, {}, LOST, id="another pod has its name"),
        pytest.param(
            HELD,
            ReservationPod(PodUid("pod-1"), gpu=GpuUuid("GPU-b")),
            {},
            LOST,
            id="after a restart it has another GPU",
        ),
        pytest.param(LOST, None, {}, Act.CREATE, id="lost: it is made again"),
        pytest.param(LOST, SAYS_B, {}, Act.DELETE, id="with another GPU: the next one may have the right one"),
        pytest.param(LOST, SAYS_B, {"has_other_user": True}, DOUBLED, id="somebody else has the right one"),
        pytest.param(
            LOST, replace(SAYS_A, uid=PodUid("pod-2")), {}, replace(HELD, pod=PodUid("pod-2")), id="with the right GPU"
        ),
        pytest.param(DOUBLED, SAYS_B, {"has_other_user": True}, Act.WAIT, id="as long as both are there"),
        pytest.param(DOUBLED, SAYS_B, {}, LOST, id="the other one has gone"),
        pytest.param(DOUBLED, None, {"has_other_user": True}, Act.CREATE, id="our pod keeps a GPU meanwhile"),
        *(
            pytest.param(
                each, SAYS_A, {"is_needed": False}, replace(each, state=S.CLOSING), id=f"{each.state} unneeded"
            )
            for each in (WANTED, HELD, LOST, DOUBLED)
        ),
        pytest.param(CLOSING, SAYS_A, {"is_needed": False}, Act.DELETE, id="closing: it is told to go"),
        pytest.param(CLOSING, replace(SAYS_A, is_going=True), {}, Act.WAIT, id="closing: it goes"),
        pytest.param(CLOSING, None, {}, Act.DROP, id="closing: it is gone"),
    ],
)
def test_one_step_at_a_time(
    reservation: Reservation, pod: ReservationPod | None, more: dict[str, object], step: Step
) -> None:
    observation = replace(SlotObservation(True, pod, frozenset({"GPU-a", "GPU-b"})), **more)  # type: ignore[arg-type] # named fields

    assert next_step(reservation, observation) == step


def test_from_closing_there_is_no_way_back() -> None:
    """Whoever saw it closing must be able to rely on it: the pod is told to go after that."""
    assert not [event for event in ReservationEvent if (S.CLOSING, event) in LIFE]
