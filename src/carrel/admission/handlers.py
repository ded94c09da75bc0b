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
from carrel.admission.metrics import WebhookMetrics
from carrel.admission.new_pod import PodOwner
from carrel.admission.review import AdmissionRequest, ClaimReviews, NotAReview, read_pod, read_review
from carrel.http.post_routes import JsonReply
from carrel.kubernetes.cluster import ClusterError
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

POD, EVICTION, CLAIM = "Pod", "Eviction", "ResourceClaim"
CLAIMS = (CLAIM, "ResourceClaimTemplate")
NO_CLAIMS = ClaimReviews()
MOST_NAMES = 200
"""Of hubs' accounts, and of their users, that are logged by one process."""

Reviewed = tuple[str, dict[str, Any]]
"""The outcome, for the metrics, and the answer."""


class ReviewHandler:
    def __init__(
        self,
        admission: PodAdmission,
        metrics: WebhookMetrics,
        is_synced: Callable[[], bool],
        claim_reviews: ClaimReviews = NO_CLAIMS,
    ) -> None:
        self._admission = admission
        self._is_synced = is_synced
        self.metrics = metrics
        self._claim_reviews = claim_reviews
        self._accounts: set[str] = set()
        self._users: set[str] = set()

    async def mutate(self, body: bytes) -> JsonReply:
        return await self._answer("mutate", body, self._review)

    async def allocate(self, body: bytes) -> JsonReply:
        """About a ResourceClaim whose status gets an allocation."""
        return await self._answer("allocate", body, self._review_claim)

    async def _answer(
        self, verb: str, body: bytes, decide: Callable[[AdmissionRequest], Awaitable[Reviewed]]
    ) -> JsonReply:
        start = time.perf_counter()
        status, outcome = 500, "defect"
        answer: dict[str, Any] = {"message": "Carrel made a mistake; its log says which"}
        try:
            if self._is_synced():
                outcome, answer = await decide(read_review(body))
                status = 200
            else:
                status, outcome = 503, "not ready"
                answer = {"message": "the cluster is being read; try again in a moment"}
        except NotAReview as error:
            status, outcome, answer = 400, "unreadable", {"message": str(error)}
        except Exception:
            log.exception("%s_broke", verb)
        finally:  # also if the caller has gone
            self.metrics.count_review(verb, outcome, time.perf_counter() - start)
        return JsonReply(status, msgspec.json.encode(answer))

    async def _review_claim(self, request: AdmissionRequest) -> Reviewed:
        if request.kind != CLAIM:
            return "untouched", review.allowed(request)
        where = f"namespace={request.namespace} claim={request.name}"
        try:
            refusal = await self._claim_reviews.decide(request)
        except Malformed as malformed:
            return "refused", review.denied(request, str(malformed), 422)
        except ClusterError as error:
            log.warning("claim_not_taken %s why=%r", where, str(error))
            return "failed", review.denied(request, f"the GPU's Lease could not be written: {error}", 503)
        if refusal is not None:
            log.info("claim_refused %s why=%r", where, str(refusal))
            return "refused", review.denied(request, str(refusal))
        return "allowed", review.allowed(request)

    async def _review(self, request: AdmissionRequest) -> Reviewed:
        try:
            if request.kind in CLAIMS:
                return _unless(self._claim_reviews.why_not_new(request), request)
            if request.kind == EVICTION:
                return _unless(self._admission.why_not_evicted(request), request)
            if request.kind != POD or request.object is None:  # None: it is being deleted
                return _unless(None, request)
            request, pod = read_pod(request)
            decision = await self._admission.mutate(request, pod)
        except Malformed as malformed:
            return "refused", review.denied(request, str(malformed), 422)
        owner = decision.owner if not request.dry_run else None
        if owner is not None and (owner.unlisted_spawner or owner.unmatched_user):
            self._report_hub(owner)
        if decision.refused:
            log.info("refused user=%s namespace=%s why=%r", request.user.name, request.namespace, decision.refused)
            return decision.outcome, review.denied(request, decision.refused, decision.code, decision.warnings)
        if owner is not None and not owner.name and decision.outcome != "cpu":
            self.metrics.without_person.inc()
        return decision.outcome, review.allowed(request, decision.wanted, decision.warnings)

    def _report_hub(self, owner: PodOwner) -> None:
        """Tell an admin about hubs whose word Carrel does not believe, and about their users of whom no address is
        known: with the option that is missing, once for each account and each user. Anybody who may create pods can
        make up names, so only so many are remembered and logged; the metric counts on."""
        if account := owner.unlisted_spawner:
            self.metrics.of_unlisted_spawners.inc()
            if _is_new(account, self._accounts):
                log.warning(
                    "unlisted_spawner account=%s why='it creates GPU pods for users of a hub; if it is your hub, add"
                    " %s to hubs.accounts of the configuration, else no booking covers these pods'",
                    account,
                    account,
                )
        if user := owner.unmatched_user:
            self.metrics.of_unmatched_users.inc()
            if _is_new(user, self._users):
                log.warning(
                    "hub_user_without_address user=%r why='bookings are made under addresses; set"
                    " hubs.usernameDomain in the configuration, or list the user in hubs.users'",
                    user,
                )


def _unless(refusal: Refusal | None, request: AdmissionRequest) -> Reviewed:
    """Answer about what is allowed as it is, unless it is refused."""
    if refusal is None:
        return "untouched", review.allowed(request)
    log.info("refused user=%s namespace=%s why=%r", request.user.name, request.namespace, str(refusal))
    return "refused", review.denied(request, str(refusal))


def _is_new(name: str, known: set[str]) -> bool:
    if name in known or len(known) >= MOST_NAMES:
        return False
    known.add(name)
    return True
