"""Leases of GPUs as they were last read or written by this process, and the slots that they name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from carrel.dialects.gpu_lease import LeaseRecord, lease_name
from carrel.ids import GpuUuid, HolderId
from carrel.kubernetes.reflector import version_number
from carrel.ledger.gpus import Gpu, Node
from carrel.ledger.slots import Reservation, ReservationState


@dataclass(frozen=True, slots=True)
class KnownLease:
    name: str
    uid: str
    version: str
    record: LeaseRecord

    def is_before(self, version: str) -> bool:
        return version_number(self.version) < version_number(version)


def slots_in_use(
    node: Node, leases: Mapping[str, KnownLease], users_of: Callable[[Gpu], Sequence[HolderId]]
) -> dict[int, Reservation | None]:
    """The slots of a node that somebody holds a part of, with the GPU behind each: as its reservation pod says or, of a
    pod that asked the kubelet itself, as the agent does (`users_of`). None: nobody says it yet."""
    taken: dict[int, Reservation | None] = {}
    seen: dict[HolderId, list[GpuUuid]] = {}  # uid → its GPUs that are behind no slot yet
    found = {gpu.index: leases.get(lease_name(node.name, gpu.index)) for gpu in node.gpus}
    for index, record in ((index, lease.record) for index, lease in found.items() if lease is not None):
        taken[index] = record.reservation
        for uid in (share.holder.uid for share in record.shares if record.reservation is None):
            has = seen.setdefault(uid, [gpu.uuid for gpu in node.gpus if uid in users_of(gpu)])
            taken[index] = Reservation(ReservationState.HELD, has.pop(0)) if has else None
    return taken
