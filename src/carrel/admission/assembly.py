"""Puts the parts of the webhook together: what it watches, what it decides with, and the app that answers.

Its routes are `/mutate` (MAIA's path too), `/allocate` where ResourceClaims are counted, and what probes and Prometheus
ask for.
"""

import asyncio
import time
from collections.abc import Set as AbstractSet

from starlette.applications import Starlette

from carrel.admission.admission import PodAdmission
from carrel.admission.handlers import ReviewHandler
from carrel.admission.metrics import WebhookMetrics
from carrel.admission.options import AdmissionOptions
from carrel.admission.review import ClaimReviews
from carrel.admission.served_certificate import ServedCertificate
from carrel.bookings.client import BookingCache, BookingService, CacheTiming
from carrel.cluster.state import ClusterState
from carrel.http.asgi import AsgiApp
from carrel.http.health import health_routes
from carrel.http.post_routes import BodyLimit, BodyMemory, PostRoute, post_routes

SERVICE_TIMING = CacheTiming(fresh_s=60.0)
"""How long the answer of another booking service counts. As often, the controller mirrors its bookings."""
ERROR_FIELD = "message"
LARGEST_REVIEW = 24 * 1024 * 1024
"""An object has at most 1.5 MiB in etcd, an update sends two of them, and Go writes `<` with six characters. A review
that is refused for its size would let a pod through that may see GPUs: that entry ignores failures."""
ALL_REVIEWS = 32 * 1024 * 1024
"""Of all reviews that are read or answered at one moment: decoded, one may take ten times its size."""


class AdmissionWebhook:
    """One replica. It decides from what it watches; the informers, which are those of the state, have to be run."""

    def __init__(self, state: ClusterState, service: BookingService | None, options: AdmissionOptions) -> None:
        """`service`: another booking service than Carrel's own; None: there is none."""
        self._state = state
        self.informers = state.informers
        self._booking_cache = BookingCache(service, time.monotonic, SERVICE_TIMING) if service is not None else None
        self.stopping = asyncio.Event()
        self.answers = asyncio.Event()
        """A probe has heard that it is ready: its Service leads here, and the API server may depend on it."""
        self.admission = PodAdmission(state, options, self._booking_cache)
        self._claim_reviews = claim_reviews_on(state, options.trusted)

    def app(self, certificate: ServedCertificate | None = None) -> AsgiApp:
        """`certificate`: what is served with it."""
        metrics = WebhookMetrics(certificate, self._booking_cache)
        metrics.show_api_calls(self._state.cluster.calls)
        metrics.show_failures(self._state.isolation.failures)
        handler = ReviewHandler(self.admission, metrics, lambda: self.informers.is_synced, self._claim_reviews)
        limit = BodyLimit(LARGEST_REVIEW, ERROR_FIELD, BodyMemory(ALL_REVIEWS))
        posts = {"/mutate": PostRoute(handler.mutate, limit)}
        if self._state.holders.driver is not None:
            posts["/allocate"] = PostRoute(handler.allocate, limit)
        return Starlette(routes=[*post_routes(posts), *health_routes(self._why_not_ready, metrics.text)])

    def _why_not_ready(self) -> str:
        if self.stopping.is_set():
            return "stopping"
        if not self.informers.is_synced:
            return "the cluster is being read"
        self.answers.set()
        return ""


def claim_reviews_on(state: ClusterState, trusted: AbstractSet[str] = frozenset()) -> ClaimReviews:
    """`trusted`: who may write shadow claims, besides the controller."""
    if state.holders.driver is None:
        return ClaimReviews()
    from carrel.resource_claims.gate.claim_gate import ClaimGate
    from carrel.resource_claims.holders import claims_in

    return ClaimGate(state, claims_in(state), trusted)
