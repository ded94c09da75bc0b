"""The Leases that this process is just writing. The watch often shows a write before its answer comes, and sometimes
what others did to the Lease after it, too."""

from collections.abc import Iterator
from contextlib import contextmanager

from carrel.dialects.carrel import LeaseRecord
from carrel.kubernetes.cluster import Json
from carrel.kubernetes.objects.kinds import Lease


class OwnWrites:
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
