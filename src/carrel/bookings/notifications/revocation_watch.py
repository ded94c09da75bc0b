"""Records in the log that a pod lost its GPU, so that its owner is notified.

The controller writes a hand-over record into the cluster before it ends the pod, and deletes it when the pod's
successor exists. Every replica sees the record; the pod's uid makes it one log entry. A record that appears and
disappears while no replica runs is missed.
"""

import logging

from carrel.bookings.records import LogEntry
from carrel.bookings.store.outbox import SqlOutbox
from carrel.cluster.state import ClusterState
from carrel.dialects.hand_over_record import LABEL, HandOver, Why, read_record
from carrel.dialects.notice import what_follows
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.kinds import ConfigMap
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.kubernetes.timing import Backoff
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

CONTROLLER = "the controller"
RETRY = Backoff(first_s=1.0, limit_s=60.0)


class RevocationWatch:
    """To be created before the informers run."""

    def __init__(self, carrel: ClusterState, outbox: SqlOutbox) -> None:
        self._outbox = outbox
        self._records: dict[str, HandOver] = {}
        self._due: WorkQueue[str] = WorkQueue(backoff=RETRY)
        ours = Selection(carrel.options.namespace, labels=LABEL)
        carrel.informers.watch(CONFIG_MAPS, ours).on_change(self._on_change)

    async def run(self) -> None:
        await run_worker(self._due, self._note)

    def _on_change(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None or old is not None:
            return
        try:
            record = read_record(new)
        except Malformed as malformed:
            log.warning("hand_over_record_malformed: %s", malformed)
            return
        if record.why is Why.REVOKED and is_address(normal(record.user)):
            self._records[record.uid] = record
            self._due.add(record.uid)

    async def _note(self, uid: str) -> None:
        """Raises `StoreUnavailable`: then it is tried again."""
        record = self._records[uid]
        namespace, pod = record.place
        why = f"a GPU was needed for the booked pod {record.needed_by}" if record.needed_by else ""
        details = {"namespace": namespace, "pod": pod, "ends": seconds(record.lost_at)}
        details["then"] = what_follows({}, has_controller=bool(record.owner))
        entry = LogEntry(record.decided, CONTROLLER, "revoked", normal(record.user), why=why, details=details)
        await self._outbox.note(f"revoked-{uid}", entry)
        del self._records[uid]
