"""Who gives a GPU back on the largest cluster that is promised for it: 1,000 nodes × 8 GPUs, all held by pods without a
booking.

The controller asks this for every booked pod that kube-scheduler could not place, twice, and answers nobody else
meanwhile; its Lease is renewed by another thread. A question counts what people hold, over all GPUs, and looks only
into nodes that may be the best.

A round of the controller is the same with what it reads of the pods: who is booked, exempt, ending, or stuck.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from random import Random

import msgspec

from benchmarks.core import GPUS
from benchmarks.core import cluster as large_cluster
from benchmarks.coverage import NOON, booking, pod
from benchmarks.measuring import Figure, cpu_seconds
from carrel.cluster.options import ClusterOptions
from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.state import ClusterState
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.ids import GpuUuid, NodeName, PersonId, PodUid
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import WaitingPod
from carrel.ledger.requests import WHOLE, Memory, Request, Topology, TopologyMode
from carrel.ledger.shares import Holder, Share
from carrel.ledger.victims import LONG_AGO, NEVER, OpportunisticPod, Opportunists, Revocation, revoke
from carrel.lifecycle.assembly import tier_parts_on
from carrel.lifecycle.tier_options import TierOptions
from carrel.parsing.time import seconds
from kubernetes_in_memory import EmbeddedApi

NODES = 1_000
PEOPLE = 300
GOAL_MS = 100.0
REQUESTS = {
    "1 whole GPU": Request(1, WHOLE),
    "4 whole GPUs": Request(4, WHOLE),
    "2 whole GPUs in one island": Request(2, WHOLE, topology=Topology(TopologyMode.REQUIRED)),
    "30,000 MiB on one GPU": Request(1, Memory(MiB(30_000))),
    "30,000 MiB on each of 4 GPUs": Request(4, Memory(MiB(30_000))),
}


def cluster() -> list[Node]:
    return large_cluster()[:NODES]


def as_found(pods: Iterable[OpportunisticPod]) -> Opportunists:
    return Opportunists({pod.uid: pod for pod in pods})


def _asked(ledger: Ledger, found: Opportunists, booked: WaitingPod) -> float:
    return cpu_seconds(lambda: revoke(ledger, found, booked, NOON), runs=5)


def whole_gpus(rng: Random) -> Iterator[Share]:
    """A pod on each GPU, and 200 nodes where one pod has two."""
    for node in range(NODES):
        for gpu in range(GPUS):
            pod = f"{node}-{0 if node % 5 == 0 and gpu == 1 else gpu}"
            yield Share(Holder(PodUid(f"uid-{pod}"), "lab", pod), GpuUuid(f"GPU-{node:04}-{gpu}"), None)


def parts(rng: Random) -> Iterator[Share]:
    """Up to eight pods of different sizes on each GPU of every fifth node; one pod on the others."""
    for node in range(NODES):
        for gpu in range(GPUS):
            left = 81_920
            for number in range(8 if node % 5 == 0 else 1):
                mib = min(left, rng.randrange(5_000, 20_000) if node % 5 == 0 else 81_000)
                left -= mib
                if mib:
                    pod = f"{node}-{gpu}-{number}"
                    yield Share(Holder(PodUid(f"uid-{pod}"), "lab", pod), GpuUuid(f"GPU-{node:04}-{gpu}"), MiB(mib))


GROWTH = (250, 500, 1_000)
"""Nodes with 8 GPUs each."""
EQUAL = (8, 16, 32, 64)
CHANGED = 100
"""Pods that have got another GPU, or have gone, between two questions."""
BOOKED = Holder(PodUid("uid-booked"), "lab", "booked")
Layout = Callable[[Random], Iterator[Share]]
LAYOUTS: dict[str, Layout] = {"whole": whole_gpus, "shared": parts}


def measure() -> Iterator[Figure]:
    yield from _growth()
    yield from _equal_shares()
    names = tuple(node.name for node in cluster())
    for layout, shares in LAYOUTS.items():
        yield from _measure(layout, shares, names)
        yield from _rounds(layout, shares)


def _measure(layout: str, shares: Layout, names: tuple[NodeName, ...]) -> Iterator[Figure]:
    rng = Random(14)
    held = list(shares(rng))
    ledger = Ledger(cluster(), held)
    pods = [
        OpportunisticPod(
            holder.uid,
            PersonId(f"person-{min(rng.randrange(PEOPLE), rng.randrange(PEOPLE))}"),  # some hold much more than others
            NOON - timedelta(minutes=rng.randrange(10_000)),
            NEVER if rng.random() < 0.1 else LONG_AGO,
        )
        for holder in dict.fromkeys(share.holder for share in held)
    ]
    found = as_found(pods)
    for name, request in REQUESTS.items():
        booked = WaitingPod(BOOKED, request, names)
        assert isinstance(revoke(ledger, found, booked, NOON), Revocation)

        def ask(booked: WaitingPod = booked, rng: Random | None = None) -> None:
            revoke(ledger, found, booked, NOON, rng)

        what = f"choose victims, {layout} GPUs: {name}"
        yield Figure(what, cpu_seconds(ask, runs=5) * 1e3, "ms", GOAL_MS)
    at_random = cpu_seconds(lambda: ask(rng=Random(7)), runs=3)
    yield Figure("  the same at random", at_random * 1e3, "ms")


def _rounds(layout: str, shares: Layout) -> Iterator[Figure]:
    """What the controller does for the first booked pod that waits, without its reads and writes."""
    state = full_cluster(shares, waiting=20)
    revoker = tier_parts_on(state, TierOptions(frozenset({"gpu-scheduler"}))).revoker
    yield Figure(f"a round of the controller, {layout} GPUs, the first", cpu_seconds(revoker.decide, 1) * 1e3, "ms")
    touched, best = list(state.pods.store)[:CHANGED], float("inf")
    for _ in range(5):
        for each in touched:
            state.pods.store.put(msgspec.structs.replace(each))
        best = min(best, cpu_seconds(revoker.decide, runs=1))
    yield Figure(f"  again, after {CHANGED} pods have changed", best * 1e3, "ms", GOAL_MS)


def full_cluster(shares: Layout, waiting: int) -> ClusterState:
    """Filled by hand, as its informers would; and booked pods that wait for a GPU each."""
    state = ClusterState(Client(EmbeddedApi()), ClusterOptions(now=lambda: NOON))
    for node in cluster():
        state.ledger.set_node(node)
        state.nodes.store.put(msgspec.convert({"metadata": {"name": node.name}}, NodeObject))
    rng = Random(14)
    on_gpu: dict[str, list[Share]] = {}
    for share in shares(rng):
        on_gpu.setdefault(share.gpu, []).append(share)
        name = share.holder.name
        if state.pods.store.get(name, "lab") is None:
            started = seconds(NOON - timedelta(minutes=rng.randrange(10_000)))
            person = f"person-{min(rng.randrange(PEOPLE), rng.randrange(PEOPLE))}"
            body = pod(name, person, {"nvidia.com/gpu": "1"}, node="there")
            status = msgspec.structs.replace(body.status, start_time=started)
            metadata = msgspec.structs.replace(body.metadata, uid=share.holder.uid)
            _add(state, msgspec.structs.replace(body, status=status, metadata=metadata))
    for gpu, held in on_gpu.items():
        entry = state.ledger.entry(GpuUuid(gpu))
        assert entry is not None
        record = LeaseRecord(entry.gpu.node, entry.gpu.index, GpuUuid(gpu), tuple(held))
        name = f"gpu-{entry.gpu.node}-{entry.gpu.index}"
        state.cluster_ledger.lease_written(KnownLease(name, "uid", "1", record))
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    for number in range(waiting):
        person = f"waiting-{number}"
        state.covered_pods.on_booking(None, booking(person))
        body = pod(person, person, {"nvidia.com/gpu": "1"})
        spec = msgspec.structs.replace(body.spec, scheduler_name="gpu-scheduler")
        status = msgspec.convert({"conditions": [unschedulable]}, type(body.status))
        _add(state, msgspec.structs.replace(body, spec=spec, status=status))
    assert len(state.booked_waiting()) == waiting
    return state


def _add(state: ClusterState, body: Pod) -> None:
    state.pods.store.put(body)
    state.covered_pods.on_pod(None, body)


def _growth() -> Iterator[Figure]:
    """Of the cluster."""
    for number in GROWTH:
        nodes = cluster()[:number]
        gpus = [gpu.uuid for node in nodes for gpu in node.gpus]
        held = [Share(Holder(PodUid(f"uid-{gpu}"), "lab", gpu), gpu, None) for gpu in gpus]
        pods = [
            OpportunisticPod(share.holder.uid, PersonId(f"person-{each % 99}"), NOON - timedelta(minutes=5))
            for each, share in enumerate(held)
        ]
        names = tuple(node.name for node in nodes)
        booked = WaitingPod(BOOKED, Request(1, WHOLE), names)
        asked = _asked(Ledger(nodes, held), as_found(pods), booked)
        yield Figure(f"choose one of {len(held):,} pods with a GPU each", asked * 1e3, "ms", GOAL_MS)


def _equal_shares() -> Iterator[Figure]:
    """On each GPU of one node; a half of them has to go, of one GPU or of four."""
    node = cluster()[0]
    for number in EQUAL:
        part = MiB(81_920 // number)
        held = [
            Share(Holder(PodUid(f"uid-{gpu.index}-{each}"), "lab", f"{gpu.index}-{each}"), gpu.uuid, part)
            for gpu in node.gpus
            for each in range(number)
        ]
        pods = [
            OpportunisticPod(share.holder.uid, PersonId(f"person-{each % 13}"), NOON - timedelta(minutes=each % 7))
            for each, share in enumerate(held)
        ]
        ledger = Ledger([node], held)
        for gpus in (1, 4):
            request = Request(gpus, Memory(MiB(part * number // 2)))
            booked = WaitingPod(BOOKED, request, (node.name,))
            asked = _asked(ledger, as_found(pods), booked)
            name = f"choose a half of {number} equal shares on {gpus} GPU{'s' * (gpus > 1)}"
            yield Figure(name, asked * 1e3, "ms", GOAL_MS)
