"""Runs with a clock: waiting, bookings and their rules, and what if something were different."""

from dataclasses import replace
from datetime import timedelta

from carrel.configuration.schema import BookingRules
from carrel.ids import PersonId, PodUid
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, Request
from carrel.simulation import charts, results
from carrel.simulation.over_time import TimedResult, run_over_time
from carrel.simulation.waiting_pods import NO_GPU, NO_MACHINE
from carrel.simulation.wishes import granted
from carrel.simulation.workload import HOUR_S, BookingWish, SimulatedCluster, SimulatedPod, Trace
from tests.kit.gpus import A6000, N1, a_node

DAY_S = 24 * HOUR_S


def a_pod(name: str, at: float = 0, hours: float | None = 10, gpus: int = 1, owner: str = "bob") -> SimulatedPod:
    lasts = None if hours is None else hours * HOUR_S
    return SimulatedPod(PodUid(name), Request(gpus, WHOLE), MachineRoom(1000, 0), PersonId(owner), at * HOUR_S, lasts)


def a_wish(user: str, day: float, days: float = 1, gpus: int = 1, asked: float = 0) -> BookingWish:
    return BookingWish(PersonId(user), A6000, gpus, asked * DAY_S, day * DAY_S, days * DAY_S)


def simulated(workload: Trace, gpus: int = 2, cores: int = 64, rules: BookingRules | None = None) -> TimedResult:
    cluster = SimulatedCluster((a_node("n1", gpus=gpus),), {N1: MachineRoom(cores * 1000, 1000)})
    return run_over_time(cluster, workload, "carrel", 42, rules or BookingRules())


def test_a_pod_waits_until_another_ends_and_the_reason_is_counted() -> None:
    found = simulated(Trace((a_pod("a", gpus=2, hours=10), a_pod("b", at=4, gpus=2, hours=10))))

    assert (found.placed, found.waiting) == (2, 0)
    assert found.waited_hours == {NO_GPU: 3.0}, "six hours, over two pods"
    assert found.allocated == 100.0


def test_a_pod_that_waits_for_cpu_says_so() -> None:
    found = simulated(Trace((a_pod("a"), a_pod("b"))), cores=1)

    assert found.waited_hours == {NO_MACHINE: 5.0}


def test_a_booked_pod_takes_the_gpu_of_one_that_is_not() -> None:
    pods = (a_pod("a", hours=None), a_pod("b", hours=None), a_pod("booked", at=30, owner="eve"))

    found = simulated(Trace(pods, (a_wish("eve", day=1),)))

    assert (found.revoked, found.placed) == (1, 3)


def test_without_a_booking_nobody_loses_a_gpu() -> None:
    pods = (a_pod("a", hours=None), a_pod("b", hours=None), a_pod("other", at=30, owner="eve"))

    found = simulated(Trace(pods))

    assert (found.revoked, found.waiting) == (0, 1)


def test_a_shorter_cooldown_lets_a_person_book_earlier() -> None:
    wishes = (a_wish("eve", day=1), a_wish("eve", day=3, asked=2.5))
    cluster = SimulatedCluster((a_node("n1"),))

    usual = granted(cluster, wishes, BookingRules())
    shorter = granted(cluster, wishes, replace(BookingRules(), cooldown=timedelta(days=7)))

    assert [each.start_s for each in usual] == [1 * DAY_S, 16 * DAY_S]
    assert [each.start_s for each in shorter] == [1 * DAY_S, 9 * DAY_S]
    assert usual[1].delays == {"cooldown": 13 * DAY_S}


def test_a_limit_of_gpus_lets_others_book_at_once() -> None:
    wishes = (a_wish("ada", day=1, gpus=2), a_wish("eve", day=1))
    cluster = SimulatedCluster((a_node("n1", gpus=2),))

    usual = granted(cluster, wishes, BookingRules())
    limited = granted(cluster, wishes, replace(BookingRules(), max_gpus=1))

    assert [(each.gpus, each.start_s) for each in usual] == [(2, DAY_S), (1, 2 * DAY_S)]
    assert usual[1].delays == {"capacity": DAY_S}
    assert [(each.gpus, each.start_s) for each in limited] == [(1, DAY_S), (1, DAY_S)]


def test_a_wish_for_more_gpus_than_there_are_is_refused() -> None:
    (outcome,) = granted(SimulatedCluster((a_node("n1", gpus=2),)), (a_wish("ada", day=1, gpus=3),), BookingRules())

    assert outcome.start_s is None


def test_results_are_drawn_and_listed() -> None:
    found = simulated(Trace((a_pod("a", gpus=2), a_pod("b", at=4, gpus=2)), (a_wish("eve", day=1),)))

    head, row = results.timed_rows([("as it is", [found])])
    drawing = charts.document(
        [charts.chart("Allocated", "hours", "%", {"carrel": found.curve}), charts.bars("W", "h", {"c": {"<x>": 1.0}})]
    )

    assert dict(zip(head, row, strict=True)) | {"CASE": ""} == {
        "CASE": "",
        "POLICY": "carrel",
        "USED %": row[2],
        "PLACED": "2",
        "WAITING": "0",
        "REVOKED": "0",
        "ENDED": "0",
        "WAITED: no GPU free (h)": "3.00",
        "BOOKINGS": "1",
        "BOOKED (GPU·d)": "1.0",
        "REFUSED": "0",
    }
    assert drawing.startswith("<svg ")
    assert "<polyline" in drawing
    assert "&lt;x&gt;" in drawing


def test_a_change_without_an_effect_is_said_to_have_none() -> None:
    workload = Trace((a_pod("a"),), (a_wish("eve", day=1, gpus=2),))
    usual, cooldown, limit = (
        [simulated(workload, rules=rules)]
        for rules in (
            BookingRules(),
            replace(BookingRules(), cooldown=timedelta(days=7)),
            replace(BookingRules(), max_gpus=1),
        )
    )

    assert results.makes_no_difference([("as it is", usual), ("cooldown", cooldown)])
    assert not results.makes_no_difference([("as it is", usual), ("limit", limit)])
    assert not results.makes_no_difference([("as it is", usual)]), "nothing was changed"
