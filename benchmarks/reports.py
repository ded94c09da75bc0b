"""What reports of use cost a process that decides, on 5,000 nodes × 8 GPUs that are all in use.

An agent reports every 15 seconds. Before each filter comes a third of a second of reports, as they do in such a
cluster; in turns, reports without use, and reports in which only the use is new. The ledger has to stay as it is.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import cycle

import msgspec

from benchmarks.core import REQUESTS, cluster
from benchmarks.measuring import Figure
from benchmarks.monitoring import NOON, full_cluster
from carrel.cluster.state import ClusterState
from carrel.dialects.gpuclaim import NO_REMARKS, node_status
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.decoding import reader_of
from carrel.ledger.gpu_usage import GpuSample, GpuUsage
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.placement import candidates

ROUNDS, REPORTS = 60, 110
BEGAN = NOON - timedelta(days=30)


def _report(node: Node, turn: int, *, with_usage: bool) -> bytes:
    at = NOON + timedelta(seconds=turn)
    sample = GpuSample((turn % 100) / 100, MiB(40_000 + turn), 200.0 + turn, 60)
    usage = GpuUsage(BEGAN, at, sample, *(timedelta(days=20, seconds=turn),) * 3, 1e9 + turn, 1e8 + turn, at, BEGAN)
    remarks = replace(NO_REMARKS, usage={gpu.uuid: usage for gpu in node.gpus}) if with_usage else NO_REMARKS
    users = {gpu.uuid: [f"pod-{gpu.node}-{gpu.index}"] for gpu in node.gpus}
    metadata = {"name": node.name, "uid": node.name, "resourceVersion": str(turn)}
    return msgspec.json.encode({**node_status(node, users, at, remarks), "metadata": metadata})  # type: ignore[arg-type] # ids


class _Process:
    """A process that decides, as far as reports and filters go."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._read = reader_of(GPU_NODE_STATUSES)
        self._names = tuple(state.ledger.nodes)

    def take(self, reports: list[bytes]) -> None:
        for each in reports:
            status = self._read(each)
            old = self.state.node_statuses.store.put(status)
            self.state.cluster_ledger.on_node_status(old, status)

    def ask(self) -> None:
        for request in REQUESTS.values():
            candidates(self.state.ledger, request, self._names)


def measure() -> Iterator[Figure]:
    process, nodes, turns = _Process(full_cluster()), cycle(cluster()), iter(range(1, 1_000_000))
    process.ask()
    version = process.state.ledger.version
    taking, asking = {False: list[float](), True: list[float]()}, {False: list[float](), True: list[float]()}
    for turn in range(2 * ROUNDS):
        with_usage = bool(turn % 2)
        reports = [_report(next(nodes), next(turns), with_usage=with_usage) for _ in range(REPORTS)]
        start = time.process_time()
        process.take(reports)
        taken = time.process_time()
        process.ask()
        taking[with_usage].append((taken - start) / REPORTS)
        asking[with_usage].append((time.process_time() - taken) / len(REQUESTS))
    assert process.state.ledger.version == version, "the ledger has changed"
    for with_usage, what in ((False, "without use"), (True, "in which only the use is new")):
        yield Figure(f"take over a report {what}", min(taking[with_usage]) * 1e6, "µs")
        yield Figure(f"filter 5,000 nodes after reports {what}", min(asking[with_usage]) * 1e3, "ms", 2.0)
