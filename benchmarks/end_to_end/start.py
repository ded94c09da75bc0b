"""How long an extender takes until it is ready in a large, full cluster, and how much memory it takes for that.

The pods are bound, each with its Lease, as a replica finds them that starts while the cluster is in use.
"""

from collections.abc import Iterator

from benchmarks.end_to_end.real_cluster import CARD_MIB, CARDS, OURS, RealCluster, a_node, all_at_once, peak_memory_mb
from benchmarks.measuring import Figure
from carrel.dialects.carrel import LeaseRecord, write_lease
from carrel.kubernetes.cluster import Json
from carrel.kubernetes.objects.resources import LEASES
from carrel.leases.cluster_state import utc_now
from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Holder, Share
from carrel.scheduling.scheduler_config import PROFILE

MOST_S, MOST_MB = 10.0, 500.0
"""The goals, for 5,000 nodes and 50,000 pods."""


async def measure_start(cluster: RealCluster, nodes: int, pods: int) -> list[Figure]:
    uids: dict[int, str] = {}
    await cluster.add_pods(
        {"aliyun.com/gpu-mem": "2048"}, pods, PROFILE, [f"node-{number:04}" for number in range(nodes)], uids
    )

    async def record(lease: Json) -> None:
        await cluster.client.create(LEASES, lease, OURS)

    await all_at_once(_leases(nodes, uids), record)
    try:
        extender = cluster.start_extender()
        memory = peak_memory_mb(extender.process)
        extender.process.stop()
    finally:
        await cluster.clear()
    what = f"extender with {nodes:,} nodes and {pods:,} pods"
    return [
        Figure(f"{what}: ready after", extender.ready_s, "s", MOST_S),
        Figure(f"{what}: most memory", memory, "MB", MOST_MB),
    ]


def _leases(nodes: int, uids: dict[int, str]) -> Iterator[Json]:
    """Of every GPU that has pods. Pod number n is on node n modulo the number of nodes, and there on one GPU after the
    other."""
    by_gpu: dict[tuple[int, int], list[int]] = {}
    for number in uids:
        by_gpu.setdefault((number % nodes, number // nodes % CARDS), []).append(number)
    for (node, index), numbers in by_gpu.items():
        gpu = a_node(node).gpus[index]
        shares = tuple(
            Share(Holder(uids[number], "lab", f"pod-{number:05}"), gpu.uuid, MiB(2048)) for number in sorted(numbers)
        )
        assert len(shares) * 2048 <= CARD_MIB
        yield write_lease(LeaseRecord(gpu.node, index, gpu.uuid, shares), OURS, utc_now())
