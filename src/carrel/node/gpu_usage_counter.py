"""Counts what the node's GPUs are used for, from a sample of each every ten seconds.

The sums go into the report that is written anyway. A new agent continues those of the one before it, which it reads
from the last report: a restart loses the seconds since then, and nothing else.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from carrel.dialects.gpu_usage import NODE_USAGES, read_usage
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.cluster import Cluster, NotFound
from carrel.kubernetes.decoding import read_object
from carrel.ledger.gpu_usage import GpuUsage
from carrel.ledger.gpus import Gpu
from carrel.node.interfaces import Machine
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

INTERVAL_S = 10.0


class GpuUsageCounter:
    def __init__(
        self,
        cluster: Cluster,
        machine: Machine,
        node: NodeName,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` never jumps, as that of the API server may."""
        self._cluster = cluster
        self._machine = machine
        self._node = node
        self._now = now
        self._clock = clock
        self._usages: dict[GpuUuid, GpuUsage] | None = None
        self._sampled_at: dict[GpuUuid, float] = {}

    async def sample(self) -> None:
        """To be called at intervals. Raises `ClusterError` as long as the last report cannot be read."""
        if self._usages is None:
            self._usages = await self._last_reported()
        for uuid, sample in (await self._machine.sample()).items():
            now, at = self._now(), self._clock()
            passed = timedelta(seconds=at - self._sampled_at.get(uuid, at))
            usage = self._usages.get(uuid) or GpuUsage(now, now)
            self._usages[uuid], self._sampled_at[uuid] = usage.after(sample, now, passed), at

    def usages_of(self, gpus: Sequence[Gpu]) -> Mapping[GpuUuid, GpuUsage] | None:
        """Return what is known of these GPUs; None as long as the last report was not read."""
        known = self._usages
        return None if known is None else {gpu.uuid: known[gpu.uuid] for gpu in gpus if gpu.uuid in known}

    async def _last_reported(self) -> dict[GpuUuid, GpuUsage]:
        try:
            return read_usage(read_object(NODE_USAGES, await self._cluster.get(NODE_USAGES, self._node)))
        except NotFound:
            return {}
        except Malformed as malformed:
            log.warning("usage_begins_anew: %s", malformed)
            return {}
