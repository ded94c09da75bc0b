"""Moves the Leases of GPUs that were renumbered, so that the GPUs which have their numbers now can be used. The leader
does it.

The Lease of a GPU is named by the GPU's index, and records its UUID. After a node's GPUs have changed their indices, a
Lease stands in the way of the GPU that has the index now; both are set aside (`cluster.record.cluster_ledger`). The
Lease is written anew under the index that its GPU has now, and then deleted, each only if nobody has changed it. In
between, and after a crash there, both record the same holders: they count once, the GPU is still set aside, and the
next round goes on. Where GPUs have changed places in a circle and each has holders, no name is free: they stay set
aside until the holders of one of them have ended (decision 64).
"""

import asyncio
import logging

from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.state import ClusterState

log = logging.getLogger(__name__)

EVERY_S = 5.0
"""Between the looks, of which two must find the same. By then every process has seen the numbers that the node reports,
and nobody takes the GPU by the Lease of its former number."""


class RenumberedGpus:
    def __init__(self, state: ClusterState) -> None:
        self._state = state

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        seen: dict[str, int] = {}
        while True:
            found = self.found()
            await self.move([name for name, index in found.items() if seen.get(name) == index])
            seen = found
            await asyncio.sleep(EVERY_S)

    def found(self) -> dict[str, int]:
        """Lease → the index that its GPU has now; of Leases with holders whose GPU has another index on its node."""
        leases = self._state.cluster_ledger.leases()
        indices = {lease.name: self._other_index(lease) for lease in leases}
        return {name: index for name, index in indices.items() if index is not None}

    def _other_index(self, lease: KnownLease) -> int | None:
        record, state = lease.record, self._state
        entry = state.ledger.entry(record.gpu) if record.shares else None
        if entry is None or (entry.gpu.node, entry.gpu.index) == (record.node, record.index):
            return None
        is_sure = not state.cluster_ledger.kubelet_chooses(record.node) and not state.cluster_ledger.why_silent(
            record.node
        )
        return entry.gpu.index if entry.gpu.node == record.node and is_sure else None

    async def move(self, names: list[str]) -> list[str]:
        """The names of those that were moved. One that waits for the name of another is tried again after that."""
        done = await self._state.isolation.each("renumbered_gpu", names, self._move)
        return [name for name in done if name]

    async def _move(self, name: str) -> str:
        lease = self._state.cluster_ledger.lease(name)
        index = self._other_index(lease) if lease is not None else None
        if lease is None or index is None or not await self._state.lease_writer.move(lease, index):
            return ""
        log.info("lease_moved lease=%s gpu=%s index=%d", name, lease.record.gpu, index)
        return name
