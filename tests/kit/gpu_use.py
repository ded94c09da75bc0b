"""Reports of what GPUs are used for, as an agent writes them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from carrel.cluster.gpu_usages import GpuUsages
from carrel.dialects.gpu_usage import NODE_USAGES, write_usage
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.gpu_usage import GpuSample, GpuUsage
from carrel.ledger.gpus import MiB
from carrel.parsing.time import seconds
from tests.kit.eventually import eventually
from tests.kit.lab import DAY, Lab

BUSY, QUIET, EMPTY = (
    GpuSample(0.9, MiB(9000), 280.0, 70),
    GpuSample(0.0, MiB(9000), 55.0, 40),
    GpuSample(0.0, MiB(0), 25.0),
)
TEN = timedelta(seconds=10)


class ReportingAgent:
    """The agent of a node, whose GPUs do what the test says. They begin empty, a day ago."""

    def __init__(self, lab: Lab, node: str, gpus: int = 2, readers: Sequence[GpuUsages] = ()) -> None:
        """`readers`: processes that know each report before the clock goes on."""
        self._lab = lab
        self._node = NodeName(node)
        self.readers = list(readers)
        began = lab.clock.now - DAY
        first = GpuUsage(began, lab.clock.now, EMPTY, sampled=DAY, sampled_since=began)
        self.usages = {GpuUuid(f"GPU-{node}-{index}"): first for index in range(gpus)}

    async def sample_for(self, length: timedelta, **samples: GpuSample) -> None:
        """`gpu_0=BUSY`: of the other GPUs, the last sample again. It samples as agents do, and reports each minute."""
        given = {GpuUuid(f"GPU-{self._node}-{name[4:]}"): sample for name, sample in samples.items()}
        for step in range(length // TEN):
            self._lab.clock.now += TEN
            for uuid, usage in self.usages.items():
                self.usages[uuid] = usage.after(given.get(uuid, usage.latest), self._lab.clock.now, TEN)
            if step % 6 == 5:
                await self.report()
        await self.report()

    async def report(self, **more: object) -> None:
        status = {**write_usage(self.usages), "heartbeat": seconds(self._lab.clock.now), **more}
        await self._lab.client.patch(NODE_USAGES, self._node, MergePatch({"status": status}), subresource="status")
        for reader in self.readers if not more else ():
            await eventually(partial(self._is_known, reader), "the report")

    def _is_known(self, reader: GpuUsages) -> bool:
        known = reader.of_node(self._node)
        return all(uuid in known and known[uuid].until == usage.until for uuid, usage in self.usages.items())

    async def reports_of_today(self, **samples: GpuSample) -> None:
        """The report of a day in which each GPU did the same: for separate processes, which know only the real time."""
        for name, sample in samples.items():
            uuid = GpuUuid(f"GPU-{self._node}-{name[4:]}")
            last = self._lab.clock.now if sample.utilisation else None
            self.usages[uuid] = replace(self.usages[uuid], latest=sample, last_active=last)
        await self.report()


async def holds_since(lab: Lab, pod: str, since: datetime) -> None:
    """Makes it known that the pod was bound then."""
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": seconds(since)}
    await lab.client.patch(PODS, pod, MergePatch({"status": {"conditions": [bound]}}), "lab", subresource="status")
