"""How long an extender takes until it is ready in a large, full cluster, and how much memory it takes for that.

The pods are bound, each with its Lease, as a replica finds them that starts while the cluster is in use.
"""

from collections.abc import Iterator, Sequence

from benchmarks.end_to_end.bulk import add_objects
from benchmarks.end_to_end.real_cluster import (
    GPU_MIB,
    GPUS,
    LAB,
    OURS,
    RealCluster,
    a_node,
    a_pod,
    cpu_s,
    peak_memory_mb,
)
from benchmarks.end_to_end.rounds import LIMITS
from benchmarks.measuring import Figure
from carrel.cluster.options import utc_now
from carrel.dialects.gpu_lease import LeaseRecord, write_lease
from carrel.ids import PodUid
from carrel.kubernetes.cluster import Json
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Holder, Share
from carrel.scheduling.scheduler_config import PROFILE

MOST_S, MOST_MB = 15.0, 500.0
"""The goals, for 5,000 nodes and 50,000 pods."""


async def measure_start(cluster: RealCluster, pods: int) -> list[Figure]:
    nodes = cluster.nodes
    made = (a_pod(number, LIMITS, PROFILE, a_node(number % nodes).name) for number in range(pods))
    uids = [pod["metadata"]["uid"] for pod in add_objects(cluster.api, PODS, made)]
    add_objects(cluster.api, LEASES, _leases(nodes, uids))
    extender = cluster.start_extender()
    memory, used_s = peak_memory_mb(extender.process), cpu_s(extender.process)
    extender.process.stop()
    await cluster.clear()
    what = f"extender with {nodes:,} nodes and {pods:,} pods"
    return [
        Figure(f"{what}: ready after", extender.ready_s, "s", MOST_S),
        Figure(f"{what}: CPU until then", used_s, "s"),
        Figure(f"{what}: most memory", memory, "MB", MOST_MB),
    ]


def _leases(nodes: int, uids: Sequence[str]) -> Iterator[Json]:
    """Of every GPU that has pods. Pod number n is on node n modulo the number of nodes, and there on one GPU after the
    other."""
    by_gpu: dict[tuple[int, int], list[int]] = {}
    for number in range(len(uids)):
        by_gpu.setdefault((number % nodes, number // nodes % GPUS), []).append(number)
    for (node, index), numbers in by_gpu.items():
        gpu = a_node(node).gpus[index]
        shares = tuple(
            Share(Holder(PodUid(uids[number]), LAB, f"pod-{number:05}"), gpu.uuid, MiB(2048))
            for number in sorted(numbers)
        )
        assert len(shares) * 2048 <= GPU_MIB
        yield write_lease(LeaseRecord(gpu.node, index, gpu.uuid, shares), OURS, utc_now())
