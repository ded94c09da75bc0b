"""Hears from the cluster whose pod lost its card, and notes it, so that its person is told.

The controller's record of a hand-over says it, before the pod goes and until its work goes on. Every replica hears it;
the pod's uid makes it one note. A record that comes and goes while no replica runs is not heard of.
"""

import logging

from carrel.bookings.notifications.interface import Outbox
from carrel.bookings.people import is_address, normal
from carrel.bookings.records import LogEntry
from carrel.dialects.hand_over_record import LABEL, HandOver, Why, read_record
from carrel.kubernetes.backoff import Backoff
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.kinds import ConfigMap
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.leases.cluster_state import ClusterState
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

CONTROLLER = "the controller"
RETRY = Backoff(first_s=1.0, limit_s=60.0)


class Revocations:
    """To be made before the mirror runs."""

    def __init__(self, carrel: ClusterState, outbox: Outbox) -> None:
        self._outbox = outbox
        self._heard: dict[str, HandOver] = {}
        self._due: WorkQueue[str] = WorkQueue(backoff=RETRY)
        ours = Selection(carrel.options.namespace, labels=LABEL)
        carrel.informers.watch(CONFIG_MAPS, ours).on_change(self._hear)

    async def run(self) -> None:
        await run_worker(self._due, self._note)

    def _hear(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None or old is not None:
            return
        try:
            record = read_record(new)
        except Malformed as malformed:
            log.warning("record_not_understood: %s", malformed)
            return
        if record.why is Why.REVOKED and is_address(normal(record.user)):
            self._heard[record.uid] = record
            self._due.add(record.uid)

    async def _note(self, uid: str) -> None:
        """Raises `StoreUnavailable`: then it is due again."""
        record = self._heard[uid]
        namespace, pod = record.place
        why = f"a card was needed for the booked pod {record.needed_by}" if record.needed_by else ""
        details = {"namespace": namespace, "pod": pod}
        entry = LogEntry(record.decided, CONTROLLER, "revoked", normal(record.user), why=why, details=details)
        await self._outbox.note(f"revoked-{uid}", entry)
        del self._heard[uid]
