"""Whether Leases give a pod the GPUs that its annotation names: the annotation is a copy, and may be forged."""

import contextlib
from collections.abc import Collection, Sequence
from copy import copy

from carrel.dialects import gpu_lease
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.ids import NO_GPU, GpuUuid, HolderId, NodeName
from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.objects.resources import LEASES
from carrel.ledger.gpus import Gpu, place_name
from carrel.parsing import Malformed


class LeaseCheck:
    """For the pods of one node."""

    def __init__(self, cluster: Cluster, node: NodeName, namespace: str, *, has_slots: bool = False) -> None:
        """`namespace`: of Carrel's own Leases. `has_slots`: they are for slots, which may be any GPU of the node."""
        self._cluster = cluster
        self._node = node
        self._namespace = namespace
        self._has_slots = has_slots
        self._read: dict[int, LeaseRecord | None] | None = None

    def reading_once(self) -> "LeaseCheck":
        """A check that reads each Lease once: for one look at many pods, all of them bound before it begins. Who has
        many pods on a node must not cost the API server a question for each pod and GPU."""
        once = copy(self)
        once._read = {}
        return once

    async def confirms(self, uid: HolderId, uuids: Collection[GpuUuid], gpus: Sequence[Gpu]) -> bool:
        """Whether Leases give the pod all of these GPUs, and the node has them. Raises `ClusterError`."""
        home = {gpu.index for gpu in gpus if gpu.uuid in uuids}
        missing = set(uuids)
        if not missing or not missing <= {gpu.uuid for gpu in gpus}:
            return False
        # After a reboot a GPU may have another index than its Lease; and the Lease of a slot may be for any GPU.
        for index in sorted((gpu.index for gpu in gpus), key=lambda index: (index not in home, index)):
            given = await self._gpu_given(index, uid)
            # Where no UUID is reported, a Lease names the place of its GPU.
            is_place = given == place_name(self._node, index) and not self._has_slots
            missing -= {gpu.uuid for gpu in gpus if gpu.index == index} if is_place else {given}
            if not missing:
                return True
        return False

    async def holders(self, index: int) -> list[str]:
        """Who has a share of the GPU, by the Lease of its number. Raises `ClusterError`."""
        record = await self._record(index)
        return [str(share.holder) for share in record.shares] if record else []

    async def _gpu_given(self, index: int, uid: HolderId) -> GpuUuid:
        """The GPU of which this Lease gives the pod a share; empty if none."""
        record = await self._record(index)
        if record is None or not any(share.holder.uid == uid for share in record.shares):
            return NO_GPU
        return record.reservation.gpu if record.reservation else record.gpu

    async def _record(self, index: int) -> LeaseRecord | None:
        """None: there is no Lease, or it cannot be read."""
        if self._read is None:
            return await self._read_lease(index)
        if index not in self._read:
            self._read[index] = await self._read_lease(index)
        return self._read[index]

    async def _read_lease(self, index: int) -> LeaseRecord | None:
        name = gpu_lease.lease_name(self._node, index)
        only_it = Selection(self._namespace, fields=f"metadata.name={name}")
        for lease in (await self._cluster.list(LEASES, only_it)).items:
            with contextlib.suppress(Malformed):
                return gpu_lease.read_lease(lease)
        return None
