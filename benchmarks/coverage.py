"""Bookings beside no bookings, on 5,000 nodes × 8 GPUs with 10,000 bound pods: what coverage adds to each verb.

Every person has one pod, and a booking of one GPU that covers it. Compared in turns, in one process: the same cluster
with the bookings and without. Before each question one more pod gets a GPU, as happens while pods are being bound.

How it grows with the booked pods that wait: all ask alike, or for parts of a GPU, or each for another amount. In the
last case the search for what they take ends after a number of steps (`ledger/precedence.py`).
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from benchmarks.core import GPUS, NODES, cluster
from benchmarks.measuring import Figure, cpu_seconds
from carrel.cluster.options import ClusterOptions
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import BookingObject
from carrel.ids import GpuUuid, PersonId, PodUid
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.ledger.gpus import MiB
from carrel.ledger.placement import Placement
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.shares import Holder, Share
from carrel.parsing.time import seconds
from carrel.scheduling.assembly import scheduler_on
from carrel.scheduling.scheduler import Scheduler
from kubernetes_in_memory import EmbeddedApi

PEOPLE, WAITING = 10_000, 200
GROWTH = (100, 300, 1_000)
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HALF = {"aliyun.com/gpu-mem": "40960"}
ONE = {"nvidia.com/gpu": "1"}


class BusyCluster:
    """Filled by hand, as its informers would."""

    def __init__(self, *, bookings: int, waiting: int = 0, part: bool = False, mixed: bool = False) -> None:
        """`mixed`: each pod that waits asks for another amount."""
        self.state = ClusterState(Client(EmbeddedApi()), ClusterOptions(now=lambda: NOON))
        self.part = part
        self.turn = 0
        ledger = self.state.ledger
        nodes = cluster()
        self.names = tuple(node.name for node in nodes)
        for node in nodes:
            ledger.set_node(node)
            body = msgspec.convert({"metadata": {"name": node.name}}, NodeObject)
            self.state.nodes.store.put(body)
        for number in range(bookings):
            self.state.covered_pods.on_booking(None, booking(f"person-{number}"))
        for number in range(PEOPLE):
            self.add(pod(f"bound-{number}", f"person-{number}", HALF if part else ONE, node=self.names[number % NODES]))
            ledger.restore([self.share(f"bound-{number}", number)])
            self.state.covered_pods.on_shares([PodUid(f"bound-{number}")])
        for number in range(waiting):
            person = f"waiting-{number}"
            if bookings:
                self.state.covered_pods.on_booking(None, booking(person))
            limits = {"aliyun.com/gpu-mem": str(40_000 - number)} if mixed else HALF if part else ONE
            self.add(pod(person, person, limits))
        self.scheduler: Scheduler = scheduler_on(self.state)
        self.newcomer = pod("newcomer", "person-1", ONE)
        self.stranger = pod("stranger", "nobody-knows", ONE)
        self.add(self.newcomer)
        self.add(self.stranger)

    def share(self, uid: str, number: int) -> Share:
        gpu = f"GPU-{number % NODES:04}-{number // NODES}"
        return Share(Holder(PodUid(uid), "lab", uid), GpuUuid(gpu), MiB(40_960) if self.part else None)

    def add(self, body: Pod) -> None:
        self.state.pods.store.put(body)
        self.state.cluster_ledger.on_pod(None, body)
        self.state.covered_pods.on_pod(None, body)

    def after_a_bind(self) -> "BusyCluster":
        """As if another replica had bound a pod, or a pod had gone."""
        self.turn += 1
        number = self.turn % 1_000
        gpu = f"GPU-{number:04}-{GPUS - 1}"
        uid = f"bound-{number}"
        before = self.state.ledger.shares_of(PodUid(uid))
        if gpu in before:
            self.state.ledger.set_entry(GpuUuid(gpu), [])
        else:
            self.state.ledger.restore([Share(Holder(PodUid(uid), "lab", uid), GpuUuid(gpu), None)])
        self.state.covered_pods.on_shares([PodUid(uid)])
        return self


def booking(person: str) -> BookingObject:
    times = {"start": seconds(NOON - DAY), "end": seconds(NOON + DAY)}
    spec = {"user": person, "gpus": 1, **times}
    return msgspec.convert({"metadata": {"name": f"booking-{person}"}, "spec": spec}, BookingObject)


def pod(name: str, person: str, limits: dict[str, str], node: str = "") -> Pod:
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": seconds(NOON - DAY)}
    notes = {"carrel.dev/user": person, "carrel.dev/tier": "opportunistic"}
    body: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "lab",
            "uid": name,
            "annotations": notes,
            "creationTimestamp": seconds(NOON - DAY),
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Running", "conditions": [condition]} if node else {},
    }
    return msgspec.convert(body, Pod)


def measure() -> Iterator[Figure]:
    plain = BusyCluster(bookings=0)
    booked = BusyCluster(bookings=PEOPLE)
    first = cpu_seconds(lambda: booked.state.covered_pods.of(PodUid("newcomer")), runs=1)
    yield Figure("work out 10,000 bookings for the first time", first, "s", 3.0)
    yield from _compared("10,000 running bookings", booked, plain)
    bind = cpu_seconds(lambda: booked.after_a_bind().state.covered_pods.of(PodUid("newcomer")), runs=200)
    yield Figure("who is covered, after one bind", bind * 1e6, "µs", 200.0)
    request = Request(1, WHOLE)
    asked = cpu_seconds(
        lambda: booked.state.covered_pods.of_newcomer(booked.newcomer, PersonId("person-1"), request), runs=200
    )
    yield Figure("by what a newcomer would be covered", asked * 1e6, "µs", 200.0)
    for name, part in (("200 covered pods waiting", False), ("200 covered parts of a GPU waiting", True)):
        waiting = BusyCluster(bookings=PEOPLE, waiting=WAITING, part=part)
        beside = BusyCluster(bookings=0, waiting=WAITING, part=part)
        assert len(waiting.state.covered_pods.covered_waiting()) == WAITING
        again = cpu_seconds(lambda here=waiting: here.after_a_bind().state.booked_waiting(), runs=20)  # type: ignore[misc] # bound now
        yield Figure(f"{name}: who of them is covered, after one bind", again * 1e3, "ms", 5.0)
        yield from _compared(name, waiting, beside)
    yield from _growth()


def _growth() -> Iterator[Figure]:
    for kind, how in (("GPUs", {}), ("halves of GPUs", {"part": True}), ("different parts", {"mixed": True})):
        for number in GROWTH:
            here = BusyCluster(bookings=PEOPLE, waiting=number, **how)
            assert len(here.state.covered_pods.covered_waiting()) == number
            body = here.state.pods.store.by_uid("stranger")
            assert body is not None
            again = lambda here=here, body=body: here.scheduler.filter(body, here.names)  # noqa: E731 # bound now
            bound = lambda here=here, again=again: (here.after_a_bind(), again())  # noqa: E731 # bound now
            name = f"filter, {number:,} booked pods wait for {kind}"
            yield Figure(f"{name}: after one bind", cpu_seconds(bound, runs=7) * 1e3, "ms", 100.0)
            yield Figure("  nothing has changed", cpu_seconds(again, runs=20) * 1e3, "ms", 5.0)


def _compared(name: str, ours: BusyCluster, theirs: BusyCluster) -> Iterator[Figure]:
    for kind, asks in (("a person with a booking", "newcomer"), ("a person without", "stranger")):

        def ask(here: BusyCluster, asks: str = asks) -> Callable[[], object]:
            body = here.state.pods.store.by_uid(asks)
            assert body is not None
            return lambda: here.after_a_bind().scheduler.filter(body, here.names)

        with_them, without = ask(ours), ask(theirs)
        turns = [(cpu_seconds(with_them, runs=5), cpu_seconds(without, runs=5)) for _ in range(10)]
        least = [min(turn[side] for turn in turns) for side in (0, 1)]
        yield Figure(f"filter, {name}: {kind}", least[0] * 1e3, "ms", 6.0)
        yield Figure("  without bookings", least[1] * 1e3, "ms")
        yield Figure("  ratio", least[0] / least[1], "×")
    node = ours.state.ledger.node(ours.names[-1])
    assert node is not None
    turns = [tuple(cpu_seconds(lambda here=here: _promise(here), runs=20) for here in (ours, theirs)) for _ in range(5)]  # type: ignore[misc] # bound now
    least = [min(turn[side] for turn in turns) for side in (0, 1)]
    yield Figure(f"bind, {name}: what it costs in memory", least[0] * 1e6, "µs", 1_000.0)
    yield Figure("  ratio", least[0] / least[1], "×")


def _promise(here: BusyCluster) -> None:
    """What a bind does before and after it writes: whose GPU it is, its promise, and that it is kept."""
    body = here.newcomer
    covered = here.state.covered_pods.of(body.metadata.uid)
    here.state.pod_facts.asked(body)
    here.state.covered_pods.tier(body)
    node = here.state.ledger.node(here.names[-1])
    assert node is not None
    request = Request(1, WHOLE)
    placement = Placement(node.name, node.gpus[-1:], covered.narrowed(request) if covered else request)
    here.state.cluster_ledger.promise(placement, Holder(PodUid("newcomer"), "lab", "newcomer"), "me")
    here.state.covered_pods.tier(body)
    here.state.cluster_ledger.withdraw(PodUid("newcomer"), "me")


if __name__ == "__main__":
    for figure in measure():
        print(figure)
