"""Leases of GPUs as they were last read or written by this process, and those that it is just writing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from carrel.dialects.carrel import LeaseRecord
from carrel.dialects.gpuclaim import lease_name
from carrel.kubernetes.cluster import Json
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


class OwnWrites:
    """The watch often shows a write before its answer, and sometimes what others did to the Lease after it, too."""

    def __init__(self) -> None:
        self._being_written: dict[str, tuple[Json, LeaseRecord]] = {}  # Lease → its new text, and what that says
        self._gone: set[str] = set()  # the uids of those that were deleted meanwhile

    @contextmanager
    def writing(self, body: Json, record: LeaseRecord) -> Iterator[None]:
        """Until the answer was heeded. One write at a time for each Lease (`LeaseWriter` sees to it)."""
        name = body["metadata"]["name"]
        self._being_written[name] = (body, record)
        try:
            yield
        finally:
            del self._being_written[name]
            if not self._being_written:
                self._gone.clear()

    def record_in(self, lease: Lease) -> LeaseRecord | None:
        """What the Lease says, if it is what is being written: one with dozens of shares takes long to read."""
        if lease.metadata.name not in self._being_written:
            return None
        body, record = self._being_written[lease.metadata.name]
        is_ours = lease.metadata.annotations == body["metadata"]["annotations"]
        return record if is_ours and lease.spec.holder_identity == body["spec"].get("holderIdentity", "") else None

    def on_deleted(self, name: str, uid: str) -> None:
        if name in self._being_written:
            self._gone.add(uid)

    def is_gone(self, uid: str) -> bool:
        """Whether the Lease that was written does not exist any more."""
        return uid in self._gone


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
