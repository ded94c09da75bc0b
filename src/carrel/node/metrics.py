"""Metrics and probes of the agent: base units, and no user's name in any label."""

from collections.abc import Callable
from datetime import datetime
from functools import partial

from prometheus_client import Gauge

from carrel.http.metrics import ComponentMetrics
from carrel.ledger.gpus import Gpu
from carrel.node.interfaces import MachineState
from carrel.node.memory_mode_decision import MemoryMode


class AgentMetrics(ComponentMetrics):
    def __init__(self, is_registered: dict[str, Callable[[], bool]]) -> None:
        super().__init__()
        registry = self.registry
        self._gpus = Gauge("carrel_node_gpus", "GPUs of this node.", ["usable"], registry=registry)
        self._processes = Gauge(
            "carrel_node_gpu_processes", "Processes that compute on a GPU.", ["gpu"], registry=registry
        )
        self._mismatches = Gauge(
            "carrel_node_mismatches", "Pods and containers with other GPUs than promised.", registry=registry
        )
        self._not_limited = Gauge(
            "carrel_node_containers_not_limited",
            "Containers whose GPU memory the driver limits to another amount than promised, or not at all.",
            registry=registry,
        )
        self._reported = Gauge(
            "carrel_node_reported_timestamp_seconds", "When this node's GPUs were last reported.", registry=registry
        )
        self._ways = Gauge(
            "carrel_node_memory_resource",
            "1 for the way in which memory is advertised (plugin or node).",
            ["way"],
            registry=registry,
        )
        registered = Gauge(
            "carrel_node_plugin_registered",
            "1 while the device plugin is registered with the kubelet.",
            ["resource"],
            registry=registry,
        )
        for resource, is_so in is_registered.items():
            registered.labels(resource).set_function(partial(_as_number, is_so))

    def update(self, state: MachineState, gpus: tuple[Gpu, ...], mismatches: int, reported_at: datetime | None) -> None:
        usable = sum(not gpu.unusable for gpu in gpus)
        self._gpus.labels("true").set(usable)
        self._gpus.labels("false").set(len(gpus) - usable)
        self._mismatches.set(mismatches)
        self._processes.clear()
        for gpu in gpus:
            if gpu.uuid in state.processes:
                self._processes.labels(str(gpu.index)).set(state.processes[gpu.uuid])
        if reported_at is not None:
            self._reported.set(reported_at.timestamp())

    def set_not_limited(self, containers: int) -> None:
        self._not_limited.set(containers)

    def set_memory_mode(self, mode: MemoryMode | None) -> None:
        for each in MemoryMode:
            self._ways.labels(each.value).set(each is mode)


def _as_number(is_so: Callable[[], bool]) -> float:
    return float(is_so())
