"""A Lease of a GPU as it was last read or written by this process."""

from dataclasses import dataclass

from carrel.dialects.carrel import LeaseRecord
from carrel.kubernetes.objects.kinds import Lease


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
