"""What the controller counts for Prometheus, on 5,000 nodes × 8 GPUs that are all in use, by 40,000 pods.

The invariants are counted every minute, in a thread; of the time on the loop, only the collection of what is read is a
part. The GPUs are counted at each scrape.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from benchmarks.core import cluster
from benchmarks.measuring import Figure, cpu_seconds
from carrel.cluster.invariants import violations
from carrel.cluster.options import ClusterOptions
from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.state import ClusterState
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.gpuclaim import node_status
from carrel.dialects.gpuclaim_objects import GpuNodeStatus
from carrel.ids import PodUid
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpus import Gpu
from carrel.ledger.shares import Holder, Share
from carrel.lifecycle.reporting.gpu_counts import gpu_counts
from carrel.lifecycle.reporting.invariant_check import observed_on
from kubernetes_in_memory import EmbeddedApi

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def full_cluster() -> ClusterState:
    """Filled by hand, as its informers would."""
    state = ClusterState(Client(EmbeddedApi()), ClusterOptions(now=lambda: NOON))
    for node in cluster():
        users = {gpu.uuid: [_uid(gpu)] for gpu in node.gpus}
        body = {**node_status(node, users, NOON), "metadata": {"name": node.name}}
        status = msgspec.convert(body, GpuNodeStatus)
        state.node_statuses.store.put(status)
        state.cluster_ledger.on_node_status(None, status)
        for gpu in node.gpus:
            state.pods.store.put(_pod(gpu))
            shares = (Share(Holder(_uid(gpu), "lab", _uid(gpu)), gpu.uuid, None),)
            record = LeaseRecord(gpu.node, gpu.index, gpu.uuid, shares)
            state.cluster_ledger.lease_written(KnownLease(f"gpu-{gpu.node}-{gpu.index}", "uid", "1", record))
    return state


def _uid(gpu: Gpu) -> PodUid:
    return PodUid(f"pod-{gpu.node}-{gpu.index}")


def _pod(gpu: Gpu) -> Pod:
    body = {
        "metadata": {
            "name": _uid(gpu),
            "namespace": "lab",
            "uid": _uid(gpu),
            "annotations": {"carrel.dev/devices": gpu.uuid},
        },
        "spec": {"nodeName": gpu.node, "containers": []},
        "status": {"phase": "Running"},
    }
    return msgspec.convert(body, Pod)


def measure() -> Iterator[Figure]:
    state = full_cluster()
    observed = observed_on(state)
    assert (len(observed.leases), violations(observed)) == (40_000, [])
    collected = cpu_seconds(lambda: observed_on(state), runs=3)
    yield Figure("collect what the invariants are counted from, on the loop", collected * 1e3, "ms", 100.0)
    counted = cpu_seconds(lambda: violations(observed), runs=3)
    yield Figure("count the invariants, in a thread, once a minute", counted, "s", 2.0)
    scrape = cpu_seconds(lambda: list(gpu_counts(state.ledger, ())), runs=5)
    yield Figure("count the GPUs at a scrape", scrape * 1e3, "ms", 150.0)
