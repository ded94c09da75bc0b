"""What if idle GPUs came back: when pods are idle, who gives back, to whom, and what that changes."""

import math
from dataclasses import replace

import pytest

from carrel.configuration.schema import BookingRules
from carrel.ids import GpuUuid, PersonId, PodUid
from carrel.ledger.gpus import MiB
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, Memory, Request
from carrel.simulation import results
from carrel.simulation.idle_pods import Span, idle_spans
from carrel.simulation.over_time import TimedResult, run_over_time
from carrel.simulation.workload import HOUR_S, BookingWish, PastUse, SimulatedCluster, SimulatedPod, Trace
from tests.kit.gpus import A6000, N1, a_node

END_H = 8 * 7 * 24
ONE = Request(1, WHOLE)


def a_cluster(gpus: int = 2, cores: int = 64) -> SimulatedCluster:
    return SimulatedCluster((a_node("n1", gpus=gpus),), {N1: MachineRoom(cores * 1000, 1000)})


def held(name: str, gpu: int, idle_h: float | None, owner: str = "bob", gpus: int = 1) -> SimulatedPod:
    """A pod that has GPUs when the run begins."""
    uuids = tuple(GpuUuid(f"GPU-n1-{index}") for index in range(gpu, gpu + gpus))
    idle_s = None if idle_h is None else idle_h * HOUR_S
    room = MachineRoom(1000, 0)
    return SimulatedPod(
        PodUid(name), Request(gpus, WHOLE), room, PersonId(owner), -1, node=N1, held=uuids, idle_s=idle_s
    )


def waiting(
    name: str, at_h: float = 0.0, gpus: int = 1, owner: str = "eve", lasts_h: float | None = None
) -> SimulatedPod:
    lasts = None if lasts_h is None else lasts_h * HOUR_S
    return SimulatedPod(PodUid(name), Request(gpus, WHOLE), MachineRoom(1000, 0), PersonId(owner), at_h * HOUR_S, lasts)


def past(active: dict[int, float], known: float = 1.0, person: str = "bob", hours: int = 672) -> PastUse:
    """`active`: hour of the four weeks → which part was active; in the others none was."""
    parts = tuple(active.get(hour, 0.0) * known for hour in range(hours))
    return PastUse(PersonId(person), A6000, -672, (1.0,) * hours, parts, tuple(known - each for each in parts))


def a_trace(*pods: SimulatedPod, use: tuple[PastUse, ...] = (), wishes: tuple[BookingWish, ...] = ()) -> Trace:
    return Trace(pods, wishes, use, begins_s=0.0, books_again_until_s=END_H * HOUR_S)


def simulated(trace: Trace, after_h: float = math.inf, cluster: SimulatedCluster | None = None) -> TimedResult:
    return run_over_time(cluster or a_cluster(), trace, "carrel", 42, BookingRules(), after_h * HOUR_S)


# --- when pods are idle ----------------------------------------------------------------------------------------------


def spans(*pods: SimulatedPod, use: tuple[PastUse, ...] = (), gpus: int = 2) -> dict[str, list[Span]]:
    """In hours."""
    found = idle_spans(a_cluster(gpus), a_trace(*pods, use=use))
    return {name: [(start / HOUR_S, end / HOUR_S) for start, end in each] for name, each in found.items()}


def test_without_past_use_a_pod_that_is_idle_stays_so_and_one_that_is_active_never_is() -> None:
    found = spans(held("idle", 0, 5), held("busy", 1, 0), gpus=3)

    assert found == {"idle": [(-5, math.inf)], "busy": []}


def test_a_pod_of_which_nothing_is_known_is_never_idle() -> None:
    assert spans(held("unknown", 0, None), use=(past({}),)) == {}


def test_after_the_first_hour_a_pod_does_what_its_person_did_four_weeks_before() -> None:
    found = spans(held("pod", 0, 5), use=(past({3: 1.0, 4: 1.0}),))

    assert found["pod"][:3] == [(-5, 3), (5, 675), (677, math.inf)]


def test_the_first_hour_is_as_the_pod_is_now_whatever_was_before() -> None:
    assert spans(held("pod", 0, 0), use=(past({0: 1.0}),))["pod"] == [(1, 672), (673, math.inf)]


def test_in_hours_of_which_nothing_is_known_a_pod_goes_on_with_what_it_did() -> None:
    unknown = past({}, known=0.0)

    assert spans(held("idle", 0, 5), use=(unknown,))["idle"] == [(-5, math.inf)]
    assert spans(held("busy", 0, 0), use=(unknown,))["busy"] == []
    assert spans(held("busy", 0, 0), use=(past({}, hours=10),))["busy"] == [(1, math.inf)], "the rest is not there"


def test_as_large_a_part_is_active_as_then_rounded_up_and_those_first_that_were_active_last() -> None:
    pods = (held("longest", 0, 50), held("active", 1, 0), held("since-lately", 2, 1))

    third = spans(*pods, use=(past(dict.fromkeys(range(672), 0.3)),), gpus=3)
    half = spans(*pods, use=(past(dict.fromkeys(range(672), 0.5)),), gpus=3)

    assert third == {"longest": [(-50, math.inf)], "active": [], "since-lately": [(-1, math.inf)]}
    assert half == {"longest": [(-50, math.inf)], "active": [], "since-lately": [(-1, 1)]}


def test_what_others_did_and_with_other_models_says_nothing() -> None:
    others = (past({}, person="eve"), replace(past({}), model="Tesla-T4"))

    assert spans(held("pod", 0, 0), use=others) == {"pod": []}


# --- what comes back -------------------------------------------------------------------------------------------------


def test_a_pod_that_waits_gets_the_gpu_of_one_that_is_idle_for_so_long() -> None:
    trace = a_trace(held("idle", 0, 1), held("busy", 1, 0), waiting("newcomer"))

    before, after = simulated(trace), simulated(trace, after_h=4)

    assert (before.given_back, before.waiting, before.waits_hours) == (0, 1, (END_H,))
    assert (after.given_back, after.waiting, after.waits_hours) == (1, 0, (3.0,)), "an hour of the four had passed"
    assert (after.idle_gpu_hours, after.active_gpu_hours) == (END_H - 3, 0)
    assert (after.revoked, after.placed) == (0, 3)


def test_gpus_come_back_at_once_if_a_pod_has_been_idle_for_longer() -> None:
    assert simulated(a_trace(held("idle", 0, 50, gpus=2), waiting("newcomer", at_h=7)), after_h=4).waits_hours == (0,)


def test_while_nobody_waits_nobody_loses_an_idle_gpu() -> None:
    trace = a_trace(held("idle", 0, 50), waiting("fits"))

    assert simulated(trace, after_h=1) == simulated(trace)


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param((held("busy", 0, 0, gpus=2),), id="those that have them are active"),
        pytest.param((held("unknown", 0, None, gpus=2),), id="nobody knows what they do"),
        pytest.param((held("idle", 0, 50), held("busy", 1, 0)), id="one of the two is not enough"),
    ],
)
def test_a_pod_waits_on_if_too_little_is_idle_and_nothing_else_is_different(pods: tuple[SimulatedPod, ...]) -> None:
    trace = a_trace(*pods, waiting("newcomer", gpus=2))

    assert simulated(trace, after_h=1) == simulated(trace)


def test_a_pod_that_became_active_in_time_keeps_its_gpu() -> None:
    use = (past({3: 1.0} | dict.fromkeys(range(5, 672), 1.0)),)
    trace = a_trace(held("pod", 0, 2, gpus=2), waiting("newcomer"), use=use)

    assert simulated(trace, after_h=6).given_back == 0, "after three hours it is active, then idle for one"
    assert simulated(trace, after_h=4).waits_hours == (2.0,)


def test_what_came_back_is_told_apart_by_whether_it_would_have_been_used() -> None:
    use = (past({hour: 1.0 for hour in range(672) if hour % 2}),)
    trace = a_trace(held("pod", 0, 3, gpus=2), waiting("newcomer", gpus=2), use=use)

    found = simulated(trace, after_h=3)

    assert found.waits_hours == (0.0,)
    assert (found.idle_gpu_hours, found.active_gpu_hours) == (END_H, END_H)


def test_what_a_large_pod_gives_back_serves_all_who_have_room_then() -> None:
    pods = (waiting("one"), waiting("two", gpus=2), waiting("three"))
    found = simulated(a_trace(held("idle", 0, 50, gpus=4), *pods), after_h=1, cluster=a_cluster(4))

    assert (found.given_back, found.waits_hours) == (1, (0, 0, 0))


def test_a_part_of_a_gpu_counts_as_that() -> None:
    memory = a_node("n1").gpus[0].memory
    part = replace(held("idle", 0, 50), request=Request(1, Memory(MiB(memory // 4))))
    found = simulated(a_trace(part, waiting("newcomer")), after_h=1, cluster=a_cluster(1))

    assert found.idle_gpu_hours == pytest.approx(END_H / 4)


def test_a_covered_pod_keeps_its_idle_gpu() -> None:
    booking = BookingWish(PersonId("bob"), A6000, 1, 0, 0, 24 * HOUR_S, is_made=True)
    pods = (held("booked", 0, 50), waiting("newcomer"))

    found = simulated(a_trace(*pods, wishes=(booking,)), after_h=1, cluster=a_cluster(1))

    assert found.given_back == 0
    assert (found.ended, found.waits_hours) == (1, (24.0,)), "until the booking ends, and the pod with it"


def test_a_booked_pod_that_waits_takes_a_gpu_as_ever() -> None:
    booking = BookingWish(PersonId("eve"), A6000, 1, 0, 0, 24 * HOUR_S, is_made=True)
    trace = a_trace(held("idle", 0, 50), waiting("booked", owner="eve"), wishes=(booking,))

    found = simulated(trace, after_h=1, cluster=a_cluster(1))

    assert (found.revoked, found.given_back) == (1, 0)
    assert found == simulated(trace, cluster=a_cluster(1))


def test_the_cpu_of_the_pods_that_give_back_counts_but_none_gives_back_for_cpu_alone() -> None:
    idle, newcomer = held("idle", 0, 50), waiting("newcomer")

    assert simulated(a_trace(idle, newcomer), after_h=1, cluster=a_cluster(1, cores=1)).given_back == 1
    assert simulated(a_trace(idle, newcomer), after_h=1, cluster=a_cluster(2, cores=1)).given_back == 0


def test_a_pod_that_arrives_after_the_end_has_not_waited() -> None:
    assert simulated(a_trace(waiting("late", at_h=END_H + 1)), after_h=1).waits_hours == ()


def test_the_waiting_times_of_half_and_nine_tenths_of_the_pods_are_listed() -> None:
    run = replace(simulated(a_trace()), waits_hours=tuple(map(float, range(10, 0, -1))), given_back=3)

    head, row = results.timed_rows([("as it is", [run])], with_idle=True)
    cells = dict(zip(head, row, strict=True))

    assert (cells["GAVE BACK"], cells["WAIT p50 (h)"], cells["WAIT p90 (h)"]) == ("3", "5.00", "9.00")
    (_, none) = results.timed_rows([("as it is", [replace(run, waits_hours=())])], with_idle=True)
    assert none[-2:] == ["–", "–"]
