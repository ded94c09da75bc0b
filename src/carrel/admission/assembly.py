"""Puts the parts of the webhook together: what it watches, what it decides with, and the app that answers."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from carrel.admission.admission import AdmissionContext, AdmissionOptions, PodAdmission
from carrel.admission.app import webhook_app
from carrel.admission.claim_gate import ClaimGate
from carrel.admission.handlers import ReviewHandler
from carrel.admission.metrics import WebhookMeasures, WebhookMetrics
from carrel.admission.pod_owner import PodOwnerLookup
from carrel.bookings.client.cache import BookingCache, CacheTiming
from carrel.bookings.client.interface import BookingService
from carrel.dialects.hand_over_record import LABEL, OWNED, HandOver, HandOverPhase, read_record
from carrel.dialects.hub_people import HubPeople
from carrel.http.asgi import AsgiApp
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.kinds import ConfigMap
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PRIORITY_CLASSES
from carrel.leases.cluster_state import ClusterState
from carrel.leases.runtime_class import AUTO, RuntimeClasses
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

OWNER = "owner"
SERVICE_TIMING = CacheTiming(fresh_s=60.0)
"""How long the answer of another booking service counts. As often, the controller mirrors its bookings."""


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """What the cluster's admin decides about the webhook."""

    owner_annotation: str = OWNER
    trusted: frozenset[str] = frozenset()
    spawners: frozenset[str] = frozenset()
    username_prefix: str = ""
    runtime_class: str = AUTO
    hub_people: HubPeople = field(default_factory=HubPeople)
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)


class AdmissionWebhook:
    """One replica. It decides from what it watches; the informers, which are those of the state, have to be run."""

    def __init__(self, state: ClusterState, service: BookingService | None, options: WebhookOptions) -> None:
        """`service`: another booking service than Carrel's own; None: there is none."""
        self._options = options
        self._state = state
        self.informers = state.informers
        self._classes = self.informers.watch(PRIORITY_CLASSES)
        self._records = self.informers.watch(
            CONFIG_MAPS,
            Selection(state.options.namespace, labels=f"{LABEL}={OWNED}"),
            indexes={OWNER: lambda record: [record.data.get(OWNER, "")]},
        )
        self._booking_cache = BookingCache(service, time.monotonic, SERVICE_TIMING) if service is not None else None
        self.is_stopping = False
        runtime_classes = RuntimeClasses(self.informers, options.runtime_class)
        context = AdmissionContext(
            owners=PodOwnerLookup(
                state.options.namespace,
                self._namespace_owner,
                options.trusted,
                options.spawners,
                options.username_prefix,
                options.hub_people,
            ),
            state=state,
            booking_lookup=self._booking_cache,
            handed_over=self._handed_over,
            has_priority_class=lambda name: self._classes.store.get(name) is not None,
            runtime_class=runtime_classes.chosen,
            may_show_gpus=runtime_classes.may_show_gpus,
        )
        self.admission = PodAdmission(context, options.admission)
        claims = state.device_claims
        self.claim_gate = ClaimGate(state, claims, options.trusted) if claims is not None else None

    def app(self, certificate_expires_at: Callable[[], float]) -> AsgiApp:
        booking_lookup = self._booking_cache
        measures = WebhookMeasures(
            booking_failures=lambda: booking_lookup.failures if booking_lookup else 0,
            booking_age_s=lambda: booking_lookup.oldest_s if booking_lookup else 0.0,
            certificate_expires_at=certificate_expires_at,
        )
        metrics = WebhookMetrics(measures)
        metrics.show_api_calls(self._state.cluster.calls)
        self._state.isolation.on_failure = metrics.count_object_failure
        claims = self._state.device_claims
        handler = ReviewHandler(self.admission, metrics, lambda: self.informers.is_synced, self.claim_gate, claims)
        return webhook_app(handler, metrics, self._why_not_ready)

    def _why_not_ready(self) -> str:
        if self.is_stopping:
            return "stopping"
        return "" if self.informers.is_synced else "the cluster is being read"

    def _namespace_owner(self, namespace: str) -> str:
        found = self._state.namespaces.store.get(namespace)
        return found.metadata.annotations.get(self._options.owner_annotation, "") if found else ""

    def _handed_over(self, owner: str) -> Iterator[HandOver]:
        """Only while Carrel ends the pod: before that, new pods of the same owner do not succeed it."""
        for each in self._records.store.find(OWNER, owner):
            record = _readable(each)
            if record is not None and record.phase is HandOverPhase.ENDING:
                yield record


def _readable(config_map: ConfigMap) -> HandOver | None:
    try:
        return read_record(config_map)
    except Malformed as malformed:
        log.warning("record_unreadable name=%s why=%r", config_map.metadata.name, str(malformed))
        return None
