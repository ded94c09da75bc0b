"""Records pods that have GPUs without a Lease, again and again: what the leader does where the setting says so."""

import asyncio
import logging

from carrel.cluster.record.adoption import Adoption, Outcome
from carrel.ids import HolderId

log = logging.getLogger(__name__)

EVERY_S = 15.0


class AdoptionLoop:
    def __init__(self, adoption: Adoption, every_s: float = EVERY_S) -> None:
        self._adoption = adoption
        self._every_s = every_s

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        seen: frozenset[HolderId] = frozenset()
        while True:
            # A pod of which the watch has not shown the Lease yet is gone from here a moment later.
            now = frozenset(pod.holder.uid for _, pod in self._adoption.unrecorded())
            for each in await self._adoption.record(seen & now):
                if each.outcome is Outcome.RECORDED:
                    log.info("pod_adopted pod=%s node=%s gpus=%s", each.holder, each.node, each.gpus)
            seen = now
            await asyncio.sleep(self._every_s)
