"""The ledger on a large cluster: 5,000 nodes × 8 GPUs, 50,000 shares.

The goals follow from the time in which an extender must answer: kube-scheduler asks about every node for every pod.
"""

from collections.abc import Iterator
from fractions import Fraction

from benchmarks.measuring import Figure, cpu_seconds
from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.ledger.filtering import NodeFilter
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import candidates, place
from carrel.ledger.requests import WHOLE, GpuPolicy, Memory, Portion, Request, Topology, TopologyMode
from carrel.ledger.scoring import Ranking
from carrel.ledger.shares import Holder, Share

NODES, GPUS, SHARES = 5_000, 8, 50_000
MODEL = "NVIDIA-A100-SXM4-80GB"

REQUESTS = {
    "8,138 MiB on one GPU": Request(1, Memory(MiB(8138))),
    "70,000 MiB on one GPU (on half of the nodes)": Request(1, Memory(MiB(70_000))),
    "8,138 MiB on each of 2 GPUs": Request(2, Memory(MiB(8138))),
    "half a GPU of a model": Request(1, Portion(Fraction(1, 2)), model=MODEL),
    "4 whole GPUs (nowhere)": Request(4, WHOLE),
    "2 whole GPUs, one island required, 300 GB/s": Request(2, WHOLE, topology=Topology(TopologyMode.REQUIRED, 300)),
    "2 contiguous GPUs": Request(2, WHOLE, policy=GpuPolicy.CONTIGUOUS),
}


def cluster() -> list[Node]:
    return [
        Node(
            NodeName(f"node-{n:04}"),
            tuple(
                Gpu(
                    GpuUuid(f"GPU-{n:04}-{i}"), NodeName(f"node-{n:04}"), i, MODEL, MiB(81_920), f"island-{i // 4}", 600
                )
                for i in range(GPUS)
            ),
        )
        for n in range(NODES)
    ]


def shares() -> list[Share]:
    """Ten shares a node: on every second node on all GPUs, on the others on six of them."""
    found = []
    for number in range(SHARES):
        node, turn = number % NODES, number // NODES
        gpu = turn % (GPUS if node % 2 else GPUS - 2)
        found.append(
            Share(Holder(PodUid(f"uid-{number}"), "lab", f"pod-{number}"), GpuUuid(f"GPU-{node:04}-{gpu}"), MiB(12_207))
        )
    return found


def measure() -> Iterator[Figure]:
    nodes, held = cluster(), shares()
    yield Figure("rebuild from 50,000 shares", cpu_seconds(lambda: Ledger(nodes, held), runs=3), "s", 1.0)

    ledger, names = Ledger(nodes, held), [node.name for node in nodes]
    for name, request in REQUESTS.items():
        seconds = cpu_seconds(lambda request=request: candidates(ledger, request, names))  # type: ignore[misc] # bound now
        yield Figure(f"filter 5,000 nodes: {name}", seconds * 1e3, "ms", 2.0)

    for name, request in REQUESTS.items():
        where = candidates(ledger, request, names).fitting[:1000]
        if where:
            seconds = cpu_seconds(lambda request=request, where=where: [place(ledger, request, n) for n in where])  # type: ignore[misc] # bound now
            yield Figure(f"place on one node: {name}", seconds / len(where) * 1e6, "µs", 25.0)

    ranking, request = Ranking(ledger), REQUESTS["8,138 MiB on one GPU"]
    ranking.demand.saw(request)
    first = cpu_seconds(lambda: sorted(ranking.costs(request, names[:500])), runs=1)
    yield Figure("rank 500 nodes, asked for the first time", first * 1e3, "ms")
    again = cpu_seconds(lambda: sorted(ranking.costs(request, names[:500])))
    yield Figure("rank 500 nodes, asked again", again * 1e3, "ms", 2.0)

    yield from _why(ledger, tuple(names))

    taken = [Share(Holder(PodUid(f"new-{n}")), GpuUuid(f"GPU-{n:04}-7"), MiB(1)) for n in range(1000)]

    def take_and_give_back() -> None:
        for share in taken:
            ledger.hold(share)
        for share in taken:
            ledger.forget(share.holder.uid)

    yield Figure("hold and forget one share", cpu_seconds(take_and_give_back) / len(taken) * 1e6, "µs")


def _why(ledger: Ledger, names: tuple[NodeName, ...]) -> Iterator[Figure]:
    """The controller asks this for every pod that waits, every 15 s; pods that ask alike are looked at once."""
    nowhere, node_filter = REQUESTS["4 whole GPUs (nowhere)"], NodeFilter(ledger)
    refused = cpu_seconds(lambda: node_filter.filter(nowhere, names[:500]))
    yield Figure("why each of 500 nodes is refused", refused * 1e3, "ms", 3.0)
    one = Share(Holder(PodUid("another")), GpuUuid("GPU-0001-0"), MiB(1))

    def change_and_ask() -> None:
        ledger.restore([one])
        node_filter.why(nowhere, names)

    yield Figure("why a pod waits, of 5,000 nodes", cpu_seconds(change_and_ask) * 1e3, "ms", 50.0)
    ledger.forget(one.holder.uid)
    node_filter.why(nowhere, names)
    again = cpu_seconds(lambda: node_filter.why(nowhere, names))
    yield Figure("why a pod waits that asks alike", again * 1e6, "µs", 50.0)
