"""If idle GPUs come back, hours go from those who do not use them to those who wait, and none is lost or made."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.configuration.schema import BookingRules
from carrel.ids import GpuUuid, NodeName, PersonId, PodUid
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.requests import WHOLE, Portion, Request
from carrel.simulation.over_time import TimedResult, run_over_time
from carrel.simulation.workload import HOUR_S, BookingWish, PastUse, SimulatedCluster, SimulatedPod, Trace

END_H = 100
PEOPLE, MODELS = ("", "ada", "bob", "eve"), ("A100", "T4")
SIZE, HALF = MiB(16384), Portion(Fraction(1, 2))

people = st.sampled_from(PEOPLE).map(PersonId)
afters = st.sampled_from((0.5, 1.0, 4.0, 24.0))
times = st.floats(0, END_H).map(lambda hours: hours * HOUR_S)


@st.composite
def past_uses(draw: st.DrawFn) -> tuple[PastUse, ...]:
    found = []
    for person in PEOPLE:
        for model in MODELS:
            first = draw(st.integers(-672, -672 + END_H))
            parts = draw(st.lists(st.sampled_from((0.0, 0.0, 0.3, 1.0)), max_size=END_H))
            known = draw(st.lists(st.booleans(), min_size=len(parts), max_size=len(parts)))
            active = tuple(part * is_known for part, is_known in zip(parts, known, strict=True))
            idle = tuple((1 - part) * is_known for part, is_known in zip(parts, known, strict=True))
            if parts:
                found.append(PastUse(PersonId(person), model, first, (1.0,) * len(parts), active, idle))
    return tuple(found)


def a_node(number: int, gpus: int, model: str) -> Node:
    name = NodeName(f"n{number}")
    return Node(name, tuple(Gpu(GpuUuid(f"{name}/{i}"), name, i, model, SIZE) for i in range(gpus)))


@st.composite
def labs(draw: st.DrawFn, *, only_single: bool = False) -> tuple[SimulatedCluster, Trace]:
    """`only_single`: each pod has one whole GPU for ever, and nobody books."""
    nodes = tuple(
        a_node(number, draw(st.integers(1, 4)), draw(st.sampled_from(MODELS)))
        for number in range(draw(st.integers(1, 3)))
    )
    pods: list[SimulatedPod] = []
    idle = st.none() | st.floats(0, 50).map(lambda hours: hours * HOUR_S)
    lasts = st.none() if only_single else st.none() | st.floats(1, END_H).map(lambda hours: hours * HOUR_S)
    amounts = st.just(WHOLE) if only_single else st.sampled_from((WHOLE, HALF))
    for node in nodes:
        for gpu in node.gpus:
            if draw(st.booleans()):
                name = PodUid(f"on-{gpu.uuid}")
                held = SimulatedPod(name, Request(1, WHOLE), owner=draw(people), arrives_s=-HOUR_S, lasts_s=draw(lasts))
                pods.append(replace(held, node=node.name, held=(gpu.uuid,), idle_s=draw(idle)))
    for number in range(draw(st.integers(0, 6))):
        request = Request(
            1 if only_single else draw(st.integers(1, 2)), draw(amounts), draw(st.sampled_from(("", *MODELS)))
        )
        pods.append(
            SimulatedPod(PodUid(f"w{number}"), request, owner=draw(people), arrives_s=draw(times), lasts_s=draw(lasts))
        )
    wish = st.builds(
        BookingWish,
        people.filter(bool),
        st.sampled_from(MODELS),
        st.integers(1, 2),
        times,
        times,
        st.floats(24, 72).map(lambda hours: hours * HOUR_S),
        st.just(True),
    )
    wishes = () if only_single else tuple(draw(st.lists(wish, max_size=3)))
    trace = Trace(tuple(pods), wishes, draw(past_uses()), begins_s=0.0, books_again_until_s=END_H * HOUR_S)
    return SimulatedCluster(nodes), trace


def simulated(lab: tuple[SimulatedCluster, Trace], after_h: float = math.inf) -> TimedResult:
    return run_over_time(*lab, "carrel", 42, BookingRules(), after_h * HOUR_S)


@given(labs(), afters)
def test_if_nothing_comes_back_nothing_is_different_to_the_last_bit(
    lab: tuple[SimulatedCluster, Trace], after_h: float
) -> None:
    before, after = simulated(lab), simulated(lab, after_h)

    if not after.given_back:
        assert after == before
    if not any(before.waits_hours):
        assert after == before, "nobody waits"


@given(labs())
def test_after_longer_than_anything_is_idle_is_the_same_as_never_to_the_last_bit(
    lab: tuple[SimulatedCluster, Trace],
) -> None:
    assert simulated(lab, END_H + 51) == simulated(lab)


@given(labs(), afters)
def test_what_each_pod_waited_is_what_all_have_waited_by_reason(
    lab: tuple[SimulatedCluster, Trace], after_h: float
) -> None:
    for found in (simulated(lab), simulated(lab, after_h)):
        by_reason = sum(found.waited_hours.values()) * max(len(lab[1].pods), 1)
        assert sum(found.waits_hours) == pytest.approx(by_reason, abs=1e-6)
        assert len(found.waits_hours) == sum(not pod.node for pod in lab[1].pods)


@given(labs(only_single=True), afters)
def test_each_gpu_hour_that_comes_back_is_an_hour_that_somebody_waits_less(
    lab: tuple[SimulatedCluster, Trace], after_h: float
) -> None:
    before, after = simulated(lab), simulated(lab, after_h)

    came_back = after.idle_gpu_hours + after.active_gpu_hours
    assert sum(before.waits_hours) - sum(after.waits_hours) == pytest.approx(came_back, abs=1e-6)
    assert after.placed - before.placed == after.given_back
    assert after.allocated == pytest.approx(before.allocated), "who gets them holds them from that moment"


@given(labs(), afters)
def test_a_covered_pod_never_gives_back_an_idle_gpu(lab: tuple[SimulatedCluster, Trace], after_h: float) -> None:
    cluster, trace = lab
    ada = PersonId("ada")
    pods = tuple(replace(pod, owner=ada) if pod.node else pod for pod in trace.pods)
    bookings = tuple(BookingWish(ada, model, 12, 0, 0, 2 * END_H * HOUR_S, is_made=True) for model in MODELS)
    booked = cluster, replace(trace, pods=pods, wishes=bookings)

    assert simulated(booked, after_h) == simulated(booked)
