"""What GPUs are used for, as the agents of their nodes report it.

A watch of its own, only in processes that show usage. The others follow the same objects without this part, so that a
report in which only a sample is new is a heartbeat to them.
"""

from collections.abc import Callable, Mapping

from carrel.dialects.gpu_usage import NODE_USAGES, NodeUsage, read_usage, read_usage_of
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.reflector import Informers, Reflector
from carrel.ledger.gpu_usage import GpuUsage

NOTHING: Mapping[GpuUuid, GpuUsage] = {}


class GpuUsages:
    """The informers have to be run."""

    def __init__(self, informers: Informers, isolation: Isolation) -> None:
        self._statuses: Reflector[NodeUsage] = informers.watch(NODE_USAGES, optional=True)
        self._isolation = isolation

    def of_node(self, node: NodeName) -> Mapping[GpuUuid, GpuUsage]:
        """Return what the node's agent has counted last, however old that is. A report that cannot be read counts as
        none."""
        status = self._statuses.store.get(node)
        return NOTHING if status is None else self._isolation.ask("usage", status, read_usage, NOTHING)

    def of_gpu(self, node: NodeName, gpu: GpuUuid) -> GpuUsage | None:
        """Return what the agent has counted last of one GPU; None: the report has nothing about it."""
        status = self._statuses.store.get(node)
        if status is None:
            return None
        return self._isolation.ask("usage", status, lambda status: read_usage_of(status, gpu), None)

    def watts(self, node: NodeName) -> Mapping[GpuUuid, int]:
        """Return what each GPU drew last, where it says so."""
        status = self._statuses.store.get(node)
        entries = status.status.usage if status is not None else ()
        return {entry.uuid: entry.power_watts for entry in entries if entry.power_watts is not None}

    def on_report(self, handler: Callable[[NodeName, bool], None]) -> None:
        """`handler` is told of which node there is a report, and whether there still is one."""
        self._statuses.on_change(lambda old, new: handler((new or old).metadata.name, new is not None))  # type: ignore[union-attr] # one of them is there
