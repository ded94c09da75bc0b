"""The records of pods that are losing their GPUs, by the controller that will replace the pod."""

import logging
from collections.abc import Iterator

from carrel.dialects.hand_over_record import LABEL, OWNED, HandOver, HandOverPhase, read_record
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

OWNER = "owner"


class HandOverRecords:
    def __init__(self, informers: Informers, namespace: str) -> None:
        """To be made before the informers run. `namespace`: Carrel's own."""
        self._records = informers.watch(
            CONFIG_MAPS,
            Selection(namespace, labels=f"{LABEL}={OWNED}"),
            indexes={OWNER: lambda record: [record.data.get(OWNER, "")]},
        )

    def of_controller(self, uid: str) -> Iterator[HandOver]:
        """Only while Carrel ends the pod: before that, new pods of the same controller do not succeed it."""
        for found in self._records.store.find(OWNER, uid):
            try:
                record = read_record(found)
            except Malformed as malformed:
                log.warning("record_unreadable name=%s why=%r", found.metadata.name, str(malformed))
                continue
            if record.phase is HandOverPhase.ENDING:
                yield record
