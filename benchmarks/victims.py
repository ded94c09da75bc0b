"""Who gives a GPU back on a large cluster: 5,000 nodes × 8 GPUs, all of them held by pods without a booking.

The controller asks this for every booked pod that kube-scheduler could not place, and answers nobody else meanwhile;
its Lease is renewed by another thread. What each pod costs is worked out once, about 2 µs for each, shown by how it
grows; of nodes whose GPUs are all held whole the ledger remembers by whom, and only a node that may be the best is
looked into. Where pods share GPUs, each GPU is looked at. How many pods share one hardly matters: the search ends
after so many looks (`STEPS`), and pods that are alike are tried once.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from random import Random

from benchmarks.core import CARDS, NODES, cluster
from benchmarks.measuring import Figure, cpu_seconds
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import WaitingPod
from carrel.ledger.requests import WHOLE, Memory, Request, Topology, TopologyMode
from carrel.ledger.shares import Holder, Share
from carrel.lifecycle.victim_prices import OpportunisticPod
from carrel.lifecycle.victims import Revocation, revoke

PEOPLE = 300
REQUESTS = {
    "1 whole GPU": Request(1, WHOLE),
    "4 whole GPUs": Request(4, WHOLE),
    "2 whole GPUs in one island": Request(2, WHOLE, topology=Topology(TopologyMode.REQUIRED)),
    "30,000 MiB on one GPU": Request(1, Memory(MiB(30_000))),
    "30,000 MiB on each of 4 GPUs": Request(4, Memory(MiB(30_000))),
}


def whole_gpus(rng: Random) -> Iterator[Share]:
    """40,000 pods with a GPU each, and 1,000 nodes where one pod has two."""
    for node in range(NODES):
        for card in range(CARDS):
            pod = f"{node}-{0 if node % 5 == 0 and card == 1 else card}"
            yield Share(Holder(f"uid-{pod}", "lab", pod), f"GPU-{node:04}-{card}", None)


def parts(rng: Random) -> Iterator[Share]:
    """Up to eight pods of different sizes on each GPU of 200 nodes; one pod on the others."""
    for node in range(NODES):
        for card in range(CARDS):
            left = 81_920
            for number in range(8 if node % 25 == 0 else 1):
                mib = min(left, rng.randrange(5_000, 20_000) if node % 25 == 0 else 81_000)
                left -= mib
                if mib:
                    pod = f"{node}-{card}-{number}"
                    yield Share(Holder(f"uid-{pod}", "lab", pod), f"GPU-{node:04}-{card}", MiB(mib))


GROWTH = (625, 1_250, 2_500, 5_000)
"""Nodes with 8 GPUs each."""
EQUAL = (8, 16, 32, 64)


def measure() -> Iterator[Figure]:
    yield from _growth()
    yield from _equal_shares()
    names = tuple(node.name for node in cluster())
    layouts: dict[str, Callable[[Random], Iterator[Share]]] = {"whole": whole_gpus, "shared": parts}
    for layout, shares in layouts.items():
        yield from _measure(layout, shares, names)


def _measure(layout: str, shares: Callable[[Random], Iterator[Share]], names: tuple[str, ...]) -> Iterator[Figure]:
    rng = Random(14)
    held = list(shares(rng))
    ledger = Ledger(cluster(), held)
    pods = [
        OpportunisticPod(
            holder,
            timedelta(minutes=rng.randrange(10_000)),
            f"person-{min(rng.randrange(PEOPLE), rng.randrange(PEOPLE))}",  # some hold much more than others
            is_young=rng.random() < 0.1,
        )
        for holder in dict.fromkeys(share.holder for share in held)
    ]
    for name, request in REQUESTS.items():
        booked = WaitingPod(Holder("uid-booked", "lab", "booked"), request, names)
        assert isinstance(revoke(ledger, booked, pods), Revocation)
        seconds = cpu_seconds(lambda booked=booked: revoke(ledger, booked, pods), runs=2)  # type: ignore[misc] # bound now
        yield Figure(f"choose victims, {layout} GPUs: {name}", seconds * 1e3, "ms", 1_000.0)


def _growth() -> Iterator[Figure]:
    """Of the cluster."""
    for number in GROWTH:
        nodes = cluster()[:number]
        gpus = [gpu.uuid for node in nodes for gpu in node.gpus]
        held = [Share(Holder(f"uid-{gpu}", "lab", gpu), gpu, None) for gpu in gpus]
        pods = [
            OpportunisticPod(share.holder, timedelta(minutes=5), f"person-{each % 99}")
            for each, share in enumerate(held)
        ]
        names = tuple(node.name for node in nodes)
        booked = WaitingPod(Holder("uid-booked", "lab", "booked"), Request(1, WHOLE), names)
        ledger = Ledger(nodes, held)
        seconds = cpu_seconds(lambda here=ledger, who=booked, pods=pods: revoke(here, who, pods), runs=3)  # type: ignore[misc] # bound now
        yield Figure(f"choose one of {len(held):,} pods with a GPU each", seconds * 1e3, "ms", 100.0)
        yield Figure("  for each GPU", seconds / len(held) * 1e6, "µs", 2.5)


def _equal_shares() -> Iterator[Figure]:
    """On each GPU of one node; a half of them has to go, of one GPU or of four."""
    node = cluster()[0]
    for number in EQUAL:
        part = MiB(81_920 // number)
        held = [
            Share(Holder(f"uid-{gpu.index}-{each}", "lab", f"{gpu.index}-{each}"), gpu.uuid, part)
            for gpu in node.gpus
            for each in range(number)
        ]
        ledger = Ledger([node], held)
        pods = [
            OpportunisticPod(share.holder, timedelta(minutes=each % 7), f"person-{each % 13}")
            for each, share in enumerate(held)
        ]
        for cards in (1, 4):
            request = Request(cards, Memory(MiB(part * number // 2)))
            booked = WaitingPod(Holder("uid-booked", "lab", "booked"), request, (node.name,))
            seconds = cpu_seconds(lambda here=ledger, who=booked, pods=pods: revoke(here, who, pods), runs=3)  # type: ignore[misc] # bound now
            name = f"choose a half of {number} equal shares on {cards} GPU{'s' * (cards > 1)}"
            yield Figure(name, seconds * 1e3, "ms", 100.0)
