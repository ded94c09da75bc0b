"""Answers kube-apiserver's reviews: bytes in, a status and bytes out.

- A review is answered with 200, also if the pod is refused: kubectl shows the reason.
- A body that is no review was not sent by an API server: 400 with the reason.
- Until the caches are complete: 503. A defect of ours: 500. In both cases the webhook's failurePolicy applies: the pod
  is refused.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from carrel.admission import review
from carrel.admission.admission import PodAdmission
from carrel.admission.hub_reports import HubReports
from carrel.admission.metrics import WebhookMetrics
from carrel.admission.review import AdmissionRequest
from carrel.admission.review_decoding import NotAReview, read_pod, read_review
from carrel.cluster.device_claims import DeviceClaims
from carrel.http.post_routes import JsonReply
from carrel.kubernetes.cluster import ClusterError
from carrel.kubernetes.objects import json_patch
from carrel.parsing import Malformed
from carrel.resource_claims.gate.claim_gate import ClaimGate
from carrel.resource_claims.gate.claim_requests import why_not_claimed

log = logging.getLogger(__name__)

POD, EVICTION, CLAIM = "Pod", "Eviction", "ResourceClaim"
CLAIMS = (CLAIM, "ResourceClaimTemplate")

Reviewed = tuple[str, dict[str, Any]]
"""The outcome, for the metrics, and the answer."""


class ReviewHandler:
    def __init__(
        self,
        admission: PodAdmission,
        metrics: WebhookMetrics,
        is_synced: Callable[[], bool],
        claim_gate: ClaimGate | None = None,
        device_claims: DeviceClaims | None = None,
    ) -> None:
        self._admission = admission
        self._is_synced = is_synced
        self.metrics = metrics
        self.claim_gate = claim_gate
        self._device_claims = device_claims
        self._hub_reports = HubReports(metrics)

    async def mutate(self, body: bytes) -> JsonReply:
        return await self._answer("mutate", body, self._review)

    async def allocate(self, body: bytes) -> JsonReply:
        """About a ResourceClaim whose status gets an allocation."""
        return await self._answer("allocate", body, self._review_claim)

    async def _answer(
        self, verb: str, body: bytes, decide: Callable[[AdmissionRequest], Awaitable[Reviewed]]
    ) -> JsonReply:
        start = time.perf_counter()
        outcome = "defect"
        try:
            if not self._is_synced():
                outcome = "not ready"
                return _reply(503, {"message": "the cluster is being read; try again in a moment"})
            request = read_review(body)
            outcome, answer = await decide(request)
            return _reply(200, answer)
        except NotAReview as error:
            outcome = "unreadable"
            return _reply(400, {"message": str(error)})
        except Exception:
            log.exception("%s_broke", verb)
            return _reply(500, {"message": "Carrel made a mistake; its log says which"})
        finally:
            self.metrics.count_review(verb, outcome, time.perf_counter() - start)

    async def _review_claim(self, request: AdmissionRequest) -> Reviewed:
        if self.claim_gate is None or request.kind != CLAIM:
            return "untouched", review.allowed(request)
        where = f"namespace={request.namespace} claim={request.name}"
        try:
            refusal = await self.claim_gate.decide(request)
        except Malformed as malformed:
            return "refused", review.denied(request, str(malformed), 422)
        except ClusterError as error:
            log.warning("claim_not_taken %s why=%r", where, str(error))
            return "failed", review.denied(request, f"the GPU's Lease could not be written: {error}", 503)
        if refusal is not None:
            log.info("claim_refused %s why=%r", where, str(refusal))
            return "refused", review.denied(request, str(refusal))
        return "allowed", review.allowed(request)

    def _new_claim(self, request: AdmissionRequest) -> Reviewed:
        """A ResourceClaim or a template that is created."""
        refusal = why_not_claimed(request, self._device_claims) if self._device_claims is not None else None
        if refusal is None:
            return "untouched", review.allowed(request)
        log.info("refused user=%s namespace=%s why=%r", request.user.name, request.namespace, str(refusal))
        return "refused", review.denied(request, str(refusal))

    async def _review(self, request: AdmissionRequest) -> Reviewed:
        if request.kind in CLAIMS:
            return self._new_claim(request)
        if request.kind == EVICTION:
            return self._eviction(request)
        if request.kind != POD or request.object is None:  # None: it is being deleted
            return "untouched", review.allowed(request)
        try:
            request, pod = read_pod(request)
            decision = await self._admission.mutate(request, pod)
        except Malformed as malformed:
            return "refused", review.denied(request, str(malformed), 422)
        if decision.owner is not None and not request.dry_run:
            self._hub_reports.report(decision.owner)
        if decision.refused:
            log.info("refused user=%s namespace=%s why=%r", request.user.name, request.namespace, decision.refused)
            return decision.outcome, review.denied(request, decision.refused, decision.code, decision.warnings)
        is_of_nobody = decision.owner is not None and not decision.owner.name
        if is_of_nobody and decision.outcome != "cpu" and not request.dry_run:
            self.metrics.count_pod_without_person()
        changes = json_patch.diff(request.object, decision.wanted) if decision.wanted is not None else ()
        return decision.outcome, review.allowed(request, changes, decision.warnings)

    def _eviction(self, request: AdmissionRequest) -> Reviewed:
        try:
            refusal = self._admission.why_not_evicted(request)
        except Malformed as malformed:
            return "refused", review.denied(request, str(malformed), 422)
        if refusal is None:
            return "untouched", review.allowed(request)
        log.info("refused user=%s namespace=%s why=%r", request.user.name, request.namespace, refusal.reason)
        return "refused", review.denied(request, refusal.reason)


def _reply(status: int, answer: dict[str, Any]) -> JsonReply:
    return JsonReply(status, msgspec.json.encode(answer))
