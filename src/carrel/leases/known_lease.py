"""A Lease of a GPU as it was last read or written by this process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from carrel.dialects.carrel import LeaseRecord
from carrel.dialects.gpuclaim import lease_name
from carrel.kubernetes.objects.kinds import Lease
from carrel.ledger.gpus import Gpu, Node
from carrel.ledger.slots import Reservation, ReservationState


@dataclass(frozen=True, slots=True)
class KnownLease:
    name: str
    uid: str
    version: str
    record: LeaseRecord

    def is_before(self, version: str) -> bool:
        return _number(self.version) < _number(version)

    def as_read(self, lease: Lease | None) -> tuple[Lease, LeaseRecord] | None:
        """A Lease and what it says, if that is known of this very state of it."""
        if lease is None or (self.uid, self.version) != (lease.metadata.uid, lease.metadata.resource_version):
            return None
        return lease, self.record


def _number(version: str) -> int:
    """Resource versions increase: Kubernetes promises it since 1.35, and it was always so."""
    return int(version) if version.isdecimal() else 0


def slots_in_use(
    node: Node, leases: Mapping[str, KnownLease], users_of: Callable[[Gpu], Sequence[str]]
) -> dict[int, Reservation | None]:
    """The slots of a node that somebody holds a part of, with the GPU behind each: as its reservation pod says or, of a
    pod that asked the kubelet itself, as the agent does (`users_of`). None: nobody says it yet."""
    taken: dict[int, Reservation | None] = {}
    seen: dict[str, list[str]] = {}  # uid → its GPUs that are behind no slot yet
    found = {gpu.index: leases.get(lease_name(node.name, gpu.index)) for gpu in node.gpus}
    for index, record in ((index, lease.record) for index, lease in found.items() if lease is not None):
        taken[index] = record.reservation
        for uid in (share.holder.uid for share in record.shares if record.reservation is None):
            has = seen.setdefault(uid, [gpu.uuid for gpu in node.gpus if uid in users_of(gpu)])
            taken[index] = Reservation(ReservationState.HELD, has.pop(0)) if has else None
    return taken
