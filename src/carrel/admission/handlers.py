"""Answers kube-apiserver's reviews: bytes in, a status and bytes out.

- A review is answered with 200, also with a no: kubectl shows the sentence.
- What is no review was sent by nobody we know: 400 with a sentence.
- Before everything about the cluster is known: 503. A defect of ours: 500. The webhook's failurePolicy says what that
  means: the pod is refused.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from carrel.admission import review
from carrel.admission.metrics import Metrics
from carrel.admission.requests import NotAReview, read_pod, read_review
from carrel.admission.review import AdmissionRequest
from carrel.kubernetes.objects import json_patch
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

POD = "Pod"


class Reply(NamedTuple):
    status: int
    body: bytes


class Decided(Protocol):
    @property
    def outcome(self) -> str: ...
    @property
    def wanted(self) -> Mapping[str, Any] | None: ...
    @property
    def refused(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...


class Judge(Protocol):
    async def mutate(self, request: AdmissionRequest, pod: Pod) -> Decided: ...


class ReviewDesk:
    def __init__(self, judge: Judge, metrics: Metrics, is_synced: Callable[[], bool]) -> None:
        self._judge = judge
        self._is_synced = is_synced
        self._metrics = metrics

    async def mutate(self, body: bytes) -> Reply:
        start = time.perf_counter()
        outcome = "defect"
        try:
            if not self._is_synced():
                outcome = "not ready"
                return Reply(503, msgspec.json.encode({"message": "the cluster is being read; try again in a moment"}))
            request = read_review(body)
            outcome, review = await self._decided(request)
            return Reply(200, msgspec.json.encode(review))
        except NotAReview as error:
            outcome = "unreadable"
            return Reply(400, msgspec.json.encode({"message": str(error)}))
        except Exception:
            log.exception("mutate_broke")
            return Reply(500, msgspec.json.encode({"message": "Carrel made a mistake; its log says which"}))
        finally:
            self._metrics.saw("mutate", outcome, time.perf_counter() - start)

    async def _decided(self, request: AdmissionRequest) -> tuple[str, dict[str, Any]]:
        if request.kind != POD or request.object is None:  # None: it is deleted
            return "untouched", review.allowed(request)
        try:
            request, pod = read_pod(request)
            answer = await self._judge.mutate(request, pod)
        except Malformed as malformed:
            return "refused", review.denied(request, str(malformed), 422)
        if answer.refused:
            log.info("refused user=%s namespace=%s why=%r", request.user.name, request.namespace, answer.refused)
            return answer.outcome, review.denied(request, answer.refused, answer.code, answer.warnings)
        changes = json_patch.diff(request.object, answer.wanted) if answer.wanted is not None else ()
        return answer.outcome, review.allowed(request, changes, answer.warnings)
