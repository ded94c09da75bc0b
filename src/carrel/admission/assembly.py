"""Puts the webhook together on one cluster: what it watches, what it decides with, and the app that answers."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from carrel.admission.admission import Admission, Known, Policy
from carrel.admission.app import webhook_app
from carrel.admission.handlers import ReviewDesk
from carrel.admission.metrics import Metrics, Watched
from carrel.admission.pod_owner import Introduction
from carrel.bookings.client.cache import BookingCache
from carrel.bookings.client.interface import BookingService
from carrel.dialects.hand_over_record import LABEL, OWNED, HandOver, Phase, read_record
from carrel.dialects.seal import Seal
from carrel.http.serving import AsgiApp
from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.resources import CONFIG_MAPS, NAMESPACES, PRIORITY_CLASSES
from carrel.kubernetes.objects.shapes import ConfigMap
from carrel.leases.cluster_state import utc_now
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Customs:
    """How this cluster wants it."""

    carrel_namespace: str
    owner_annotation: str = OWNER
    trusted: frozenset[str] = frozenset()
    spawners: frozenset[str] = frozenset()
    username_prefix: str = ""
    policy: Policy = field(default_factory=Policy)
    seal: Seal | None = None
    now: Callable[[], datetime] = utc_now


class Webhook:
    """One replica. Its mirror has to be run."""

    def __init__(self, cluster: Cluster, service: BookingService | None, customs: Customs) -> None:
        self._customs = customs
        self.informers = Informers(cluster)
        self._namespaces = self.informers.watch(NAMESPACES)
        self._classes = self.informers.watch(PRIORITY_CLASSES)
        self._records = self.informers.watch(
            CONFIG_MAPS,
            Selection(customs.carrel_namespace, labels=f"{LABEL}={OWNED}"),
            indexes={OWNER: lambda record: [record.data.get(OWNER, "")]},
        )
        self._desk = BookingCache(service, time.monotonic) if service is not None else None
        self.is_leaving = False
        known = Known(
            introduce=Introduction(
                customs.carrel_namespace,
                self._owner_of,
                customs.trusted,
                customs.spawners,
                customs.username_prefix,
            ),
            desk=self._desk,
            handed_over=self._handed_over,
            has_priority_class=lambda name: self._classes.store.get(name) is not None,
            now=customs.now,
            seal=customs.seal,
        )
        self.admission = Admission(known, customs.policy)

    def app(self, certificate_expires_at: Callable[[], float]) -> AsgiApp:
        desk = self._desk
        watched = Watched(
            booking_failures=lambda: desk.failures if desk else 0,
            booking_age_s=lambda: desk.oldest_s if desk else 0.0,
            certificate_expires_at=certificate_expires_at,
        )
        metrics = Metrics(watched)
        reviews = ReviewDesk(self.admission, metrics, lambda: self.informers.is_synced)
        return webhook_app(reviews, metrics, self._why_not_ready)

    def _why_not_ready(self) -> str:
        if self.is_leaving:
            return "leaving"
        return "" if self.informers.is_synced else "the cluster is being read"

    def _owner_of(self, namespace: str) -> str:
        found = self._namespaces.store.get(namespace)
        return found.metadata.annotations.get(self._customs.owner_annotation, "") if found else ""

    def _handed_over(self, owner: str) -> HandOver | None:
        """Only while Carrel ends the pod: until then the owner's new pods are none of its successors."""
        for each in self._records.store.find(OWNER, owner):
            record = _readable(each)
            if record is not None and record.phase is Phase.ENDING:
                return record
        return None


def _readable(config_map: ConfigMap) -> HandOver | None:
    try:
        return read_record(config_map)
    except Malformed as malformed:
        log.warning("record_unreadable name=%s why=%r", config_map.metadata.name, str(malformed))
        return None
