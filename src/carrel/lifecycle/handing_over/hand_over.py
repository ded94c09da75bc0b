"""Ends a pod that loses its GPU, and creates it again without a GPU: the hand-over to CPU.

First a record is written (`dialects.hand_over_record`), so the next leader can continue after a crash. Then one step
after another is done, and each step reads the cluster again:

    announced    an Event says that the pod will end, and when; if it ends by itself before, it gets no successor
    called off   nobody needs its GPU any more (`kept_gpus`), or a booking covers it now: it stays, and is told so
    ending       The manifest of the successor is kept in a Secret (`dialects.hand_over_record`), then Carrel ends the
                 pod. A bare pod is created again under its own name as soon as it is gone, as it was at its end: since
                 the announcement it may have been resized, or have lost a scheduling gate. A pod with a controller is
                 replaced by its controller, before it is gone or afterwards, depending on the controller; the webhook
                 removes the GPU from the replacement, and writes on it which pod it succeeds; not if the booking is
                 gone by then
    withdrawn    somebody else deletes a bare pod while it is ending, because its owner wants it gone: no successor
    done         the successor exists and has what the pod owned (`successors`): the record is deleted

There is exactly one successor: it has the name of the pod that ended, so it cannot be created twice, and it names the
pod that it succeeds. If somebody else created a pod of that name, it is left alone. A finished pod gets no successor.
"""

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from carrel.cluster.pod_progress import FINISHED
from carrel.cluster.state import ClusterState
from carrel.dialects import hand_over_record
from carrel.dialects.carrel import LEAVE_BY, NOTICE, TIER, USER
from carrel.dialects.hand_over_record import HandOver, HandOverPhase, Why
from carrel.dialects.notice import revocation_notice, wants_no_successor, what_follows
from carrel.dialects.tier import TERMINATE_AT
from carrel.ids import NO_BOOKING, BookingId, PodUid
from carrel.kubernetes.cluster import (
    AlreadyExists,
    Busy,
    Cluster,
    Conflict,
    DeleteOptions,
    Forbidden,
    Invalid,
    Json,
    MergePatch,
    NotFound,
    OutcomeUnknown,
    Selection,
)
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import Metadata, Object, Pod
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PODS
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.freeing.slow_endings import BudgetDelays
from carrel.lifecycle.handing_over.notices import STAYS, end_note, handed_over_note
from carrel.lifecycle.handing_over.successors import (
    ORPHAN,
    Successors,
    origin_of,
    outlives_its_pod,
    real_controller_of,
)
from carrel.lifecycle.reporting.pod_events import COMPONENT
from carrel.lifecycle.revoking.kept_gpus import KeptGpus
from carrel.lifecycle.tier_options import LONGEST_GRACE
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

HELD_UP = "RevocationHeldUp"
NOT_HANDED_OVER = "NotHandedOver"

POLL = timedelta(seconds=1)
"""While a pod is ending. The watch reports its end too; this is for what the watch misses."""
RETRY = timedelta(seconds=10)
"""While a disruption budget does not allow an eviction."""
INTERNAL_ERROR = 500
MOST_CONFLICTS = 5
"""So often a pod that is being ended may change meanwhile. Then it is ended in whatever version it is, and its
successor is the one that was kept last."""
REPLACED_WITHIN = timedelta(minutes=10)
"""After the pod is gone. A controller that has not replaced it by then will not: a suspended Job, for example. A Job
that has failed several times waits up to six minutes before the next try."""


class HandOverResult(Enum):
    HANDED_OVER = "handed over"
    LEFT = "the pod ended by itself"
    TAKEN = "its name was taken by another pod"
    UNWANTED = "no successor is wanted"
    CALLED_OFF = "a booking covers the pod now, it has got the GPU that it waited for, or another pod gives one back"
    WITHDRAWN = "somebody else deleted the pod while it was ending"


@dataclass(frozen=True, slots=True)
class HandOverOrder:
    """Why a pod has to end, and when."""

    why: Why
    due: datetime
    needed_by: str = ""
    booking: BookingId = NO_BOOKING


@dataclass(slots=True)
class _UnderWay:
    """What this process remembers of one hand-over."""

    is_announced: bool = False
    grace_s: int | None = None
    """Carrel ends the pod, which has no controller, and asked for this grace."""
    is_withdrawn: bool = False
    """The watch has shown the pod with less."""
    conflicts: int = 0
    """How often the pod was changed while it was being ended."""


class HandOvers:
    def __init__(self, state: ClusterState, cluster: Cluster, longest_grace: timedelta = LONGEST_GRACE) -> None:
        """`cluster`: by which everything is written; that of the state writes only while this process leads."""
        self.cluster = cluster
        self._namespace = state.options.namespace
        self._now = state.options.now
        self._zone = state.options.zone
        self._coverage = state.covered_pods
        self._kept = KeptGpus(state)
        self._longest_s = int(longest_grace.total_seconds())
        self._events = EventRecorder(cluster, COMPONENT, self._now)
        self._successors = Successors(state, cluster)
        self.begun: set[PodUid] = set()
        """The uids of the pods that this process has begun to hand over. One that was called off may be begun again."""
        self._under_way: defaultdict[PodUid, _UnderWay] = defaultdict(_UnderWay)
        self.budgets = BudgetDelays(self._now)
        self.closed: Counter[tuple[Why, HandOverResult]] = Counter()
        """How many hand-overs this process has ended, by why and how: for a metric."""

    async def begin(self, pod: Pod, order: HandOverOrder) -> str:
        """Writes the record. Its name; empty if the pod is not as it was when this was decided."""
        metadata, now = pod.metadata, self._now()
        found = await self._pod(metadata.namespace, metadata.name)
        notes = _annotations(found) if found else {}
        if (
            not found
            or found["metadata"]["uid"] != metadata.uid
            or found["metadata"].get("deletionTimestamp")
            or found.get("status", {}).get("phase") in FINISHED
            or any(notes.get(key) != metadata.annotations.get(key) for key in (TIER, TERMINATE_AT))
        ):
            return ""
        owner = await real_controller_of(self.cluster, found)
        record = HandOver(
            uid=metadata.uid,
            pod=f"{metadata.namespace}/{metadata.name}",
            why=order.why,
            decided=now,
            due=order.due,
            phase=HandOverPhase.ANNOUNCED if order.due > now else HandOverPhase.ENDING,
            needed_by=order.needed_by,
            booking=order.booking,
            owner=owner,
            user=metadata.annotations.get(USER, ""),
        )
        body = hand_over_record.write_record(record, self._namespace)
        # If there is one already, another replica was faster, or our answer was lost: the one that exists counts.
        with contextlib.suppress(AlreadyExists):
            await self.cluster.create(CONFIG_MAPS, body, self._namespace)
        self.begun.add(record.uid)
        return record.name

    async def record_names(self) -> Iterable[str]:
        """The names of all records."""
        ours = Selection(self._namespace, labels=hand_over_record.LABEL)
        names = [each.metadata.name for each in (await self.cluster.list(CONFIG_MAPS, ours)).items]
        self.begun &= set(map(hand_over_record.pod_of, names))  # another replica may have closed some
        return names

    async def advance(self, name: str) -> timedelta | HandOverResult:
        """One step of one hand-over: when to call again, or how it ended.

        Raises `ClusterError` if the API server refuses a call: then the same step is due again.
        """
        try:
            written = await self.cluster.get(CONFIG_MAPS, name, self._namespace)
        except NotFound:
            return HandOverResult.HANDED_OVER
        record = hand_over_record.record_of(name, written.get("data", {}))
        pod = await self._pod(*record.place)
        is_here = bool(pod) and pod["metadata"]["uid"] == record.uid
        if is_here and not pod["metadata"].get("deletionTimestamp"):
            return await self._end_when_due(record, written, pod)
        if record.phase is HandOverPhase.ANNOUNCED:
            return await self._close(record, written, HandOverResult.LEFT)  # before its time, and not by Carrel
        if record.owner and await self._successors.is_replaced(record):
            return await self._close(record, written, HandOverResult.HANDED_OVER)
        if record.owner and record.booking and await self._kept.is_gone(record.booking):
            return await self._close(record, written, HandOverResult.CALLED_OFF)  # its controller's next pod gets a GPU
        if is_here:
            return await self._wait_for_end(record, written, pod)
        self.budgets.forget(record.uid)
        if record.owner:
            return await self._look_for_replacement(record, written)
        return await self._create_successor(record, written, pod)

    def observe(self, pod: Pod) -> None:
        """What the watch shows of a pod: before it is read again it may be gone."""
        metadata, known = pod.metadata, self._under_way.get(pod.metadata.uid)
        if known is not None and known.grace_s is not None:
            given_s = metadata.deletion_grace_period_seconds
            known.is_withdrawn |= is_withdrawn(metadata.annotations, given_s, known.grace_s)

    # --- the pod exists ----------------------------------------------------------------------------------------------

    async def _end_when_due(self, record: HandOver, written: Json, pod: Json) -> timedelta | HandOverResult:
        if pod.get("status", {}).get("phase") in FINISHED:
            return await self._close(record, written, HandOverResult.LEFT)
        has_its_gpu = record.why is Why.FULL and bool(pod["spec"].get("nodeName"))
        if has_its_gpu or self._coverage.of(record.uid) is not None:
            return await self._call_off(record, written)
        if record.needed_by:
            # Before the end of the pod the API server is asked.
            is_last_look = record.phase is HandOverPhase.ENDING or record.due <= self._now()
            is_needed = await self._kept.is_needed(record.uid, is_last_look=is_last_look)
            if is_needed is None:
                return POLL
        if record.needed_by and not is_needed:
            if self._under_way[record.uid].is_announced or LEAVE_BY in _annotations(pod):
                await self._tell(pod, STAYS)
            return await self._call_off(record, written)
        await self._announce(record, pod)
        if record.phase is HandOverPhase.ANNOUNCED:
            left = record.due - self._now()
            if left > timedelta():
                return left
        # The record must describe the pod that is ended: the deletion below is only for this version of it. But nobody
        # keeps a GPU by changing the pod all the time.
        conflicts = self._under_way[record.uid].conflicts
        is_restless = record.phase is HandOverPhase.ENDING and conflicts >= MOST_CONFLICTS
        if is_restless and record.why is not Why.FULL:
            return await self._end(record, written, pod, version="")
        ending = await self._prepare_end(record, written, pod)
        if record.why is Why.FULL and not ending.owner and not ending.manifest:
            return await self._call_off(record, written)  # it only waits: without a successor it would be lost
        if ending != record:
            written = await self._rewrite(written, ending)
        return await self._end(ending, written, pod, version=pod["metadata"]["resourceVersion"])

    async def _prepare_end(self, record: HandOver, written: Json, pod: Json) -> HandOver:
        """The record of the pod that is ended now. If it has a successor, its manifest is in a Secret before."""
        owner = await real_controller_of(self.cluster, pod)
        grace_s = 0 if owner else max(0, min(pod["spec"].get("terminationGracePeriodSeconds", 0), self._longest_s))
        bare = replace(record, manifest="", services={})
        ending = replace(bare, phase=HandOverPhase.ENDING, owner=owner, grace_s=grace_s)
        if owner or wants_no_successor(_annotations(pod)):
            return ending
        manifest = await self._successors.keep(record, written, pod)
        if isinstance(manifest, Refusal):
            why = f"it is ended and not created again without a GPU: {manifest.reason}; create it again yourself"
            await self._tell(pod, Note(NOT_HANDED_OVER, why, WARNING))
            return ending
        return replace(ending, manifest=manifest, services=await self._successors.services_of(pod))

    async def _call_off(self, record: HandOver, written: Json) -> HandOverResult:
        """When this was decided, no booking covered the pod. By now another pod of its owner has ended, or another
        booking was made. Or a GPU was given to a pod that had waited too long. Or another pod loses its GPU instead."""
        namespace, name = record.place
        with contextlib.suppress(NotFound):
            stays = MergePatch({"metadata": {"uid": record.uid, "annotations": {LEAVE_BY: None, NOTICE: None}}})
            await self.cluster.patch(PODS, name, stays, namespace)
        return await self._close(record, written, HandOverResult.CALLED_OFF)

    async def _end(self, record: HandOver, written: Json, pod: Json, version: str) -> timedelta | HandOverResult:
        """Only in the version that was read: a pod that finishes at this moment must not run a second time. An empty
        `version` means any.

        A controller's pod is evicted, so that a Job can tell it from one that failed by itself (`podFailurePolicy`). A
        disruption budget may delay a revocation for some time. Meanwhile another pod may lose its GPU instead; then
        this one stays. A budget does not delay the end of a booking, which was known before.
        """
        grace = self._longest_s if pod["spec"].get("terminationGracePeriodSeconds", 0) > self._longest_s else None
        propagation = ORPHAN if record.manifest and outlives_its_pod(pod) else ""
        only_it = DeleteOptions(record.uid, version, grace, propagation)
        known = self._under_way[record.uid]
        known.grace_s = None if record.owner else record.grace_s
        try:
            await self._evict_or_delete(record, only_it)
        except (NotFound, Conflict):
            known.conflicts += 1
            return timedelta() if known.conflicts == 1 else POLL  # it has changed: read it again
        except Busy as busy:
            if not record.owner or record.why is not Why.REVOKED:
                raise
            needed = "a booked pod needs the GPU of this pod"
            why = f"{needed}, but a disruption budget does not allow the eviction: {busy.message}"
            await self._tell(pod, Note(HELD_UP, why, WARNING))
            return RETRY
        log.info("pod_ended pod=%s uid=%s why=%s", record.pod, record.uid, record.why.value)
        return POLL

    async def _evict_or_delete(self, record: HandOver, how: DeleteOptions) -> None:
        namespace, name = record.place
        if record.owner:
            try:
                await self.cluster.evict(namespace, name, how=replace(how, resource_version=""))
                return
            except (Busy, OutcomeUnknown) as error:
                # 500: several budgets select the pod, and Kubernetes evicts none of those.
                if isinstance(error, OutcomeUnknown) and error.status != INTERNAL_ERROR:
                    raise
                if record.why is Why.REVOKED and self.budgets.refused(record.uid, record.due):
                    raise Busy(error.status, error.reason, error.message, error.details) from error
        await self.cluster.delete(PODS, name, namespace, how=how)

    async def _announce(self, record: HandOver, pod: Json) -> None:
        """By an Event and, if the pod has time left, by an annotation that a hook in the pod can read."""
        known = self._under_way[record.uid]
        if known.is_announced:
            return
        if record.phase is HandOverPhase.ANNOUNCED:
            namespace, name = record.place
            then = what_follows(_annotations(pod), has_controller=bool(record.owner))
            notes = {LEAVE_BY: seconds(record.due), NOTICE: revocation_notice(record.due, then, self._zone)}
            touch = MergePatch({"metadata": {"uid": record.uid, "annotations": notes}})
            try:
                await self.cluster.patch(PODS, name, touch, namespace)
            except Invalid as error:  # its annotations are full: it is told by the Event alone
                log.warning("pod_not_told pod=%s: %s", record.pod, error)
        await self._tell(pod, end_note(record, self._zone, is_last=wants_no_successor(_annotations(pod))))
        known.is_announced = True

    # --- the pod is ending -------------------------------------------------------------------------------------------

    async def _wait_for_end(self, record: HandOver, written: Json, pod: Json) -> timedelta:
        if not record.owner and not record.is_withdrawn:
            known = self._under_way[record.uid]
            known.grace_s = record.grace_s
            given_s = pod["metadata"].get("deletionGracePeriodSeconds") or 0
            if is_withdrawn(_annotations(pod), given_s, record.grace_s) or known.is_withdrawn:
                await self._rewrite(written, replace(record, is_withdrawn=True))
        return POLL

    # --- the pod is gone ---------------------------------------------------------------------------------------------

    async def _look_for_replacement(self, record: HandOver, written: Json) -> timedelta | HandOverResult:
        """The time counts from when the pod was gone: a budget may have delayed that for hours, and a Job with
        `podReplacementPolicy: Failed` does nothing before."""
        if record.gone is None:
            await self._rewrite(written, replace(record, gone=self._now()))
            return RETRY
        left = record.gone + REPLACED_WITHIN - self._now()
        return min(left, RETRY) if left > timedelta() else await self._close(record, written, HandOverResult.UNWANTED)

    async def _create_successor(self, record: HandOver, written: Json, occupant: Json) -> timedelta | HandOverResult:
        if occupant:
            if origin_of(_annotations(occupant)) == record.uid:
                return await self._finish(record, written, HandOverResult.HANDED_OVER, occupant)
            return await self._finish(record, written, HandOverResult.TAKEN)
        if record.is_withdrawn or self._under_way[record.uid].is_withdrawn:
            return await self._finish(record, written, HandOverResult.WITHDRAWN)
        manifest = await self._successors.manifest(record)
        if manifest is None:
            return await self._finish(record, written, HandOverResult.UNWANTED)
        namespace, _ = record.place
        try:
            successor = await self.cluster.create(PODS, manifest, namespace)
        except (AlreadyExists, OutcomeUnknown):
            return timedelta()  # there may be a pod of that name now: read it
        except NotFound:
            return await self._close(record, written, HandOverResult.UNWANTED)  # the namespace is gone
        except Invalid as error:
            why = f"this pod was ended, and cannot be created again without a GPU: {error.message}; create it yourself"
            gone = {"name": record.place[1], "namespace": namespace, "uid": record.uid}
            await self._tell({"metadata": gone}, Note(NOT_HANDED_OVER, why, WARNING))
            return await self._finish(record, written, HandOverResult.UNWANTED)
        except Forbidden as error:
            if not error.is_namespace_terminating:
                raise
            return await self._close(record, written, HandOverResult.UNWANTED)
        log.info("pod_handed_over pod=%s from=%s why=%s", record.pod, record.uid, record.why.value)
        return await self._finish(record, written, HandOverResult.HANDED_OVER, successor)

    async def _finish(
        self, record: HandOver, written: Json, how: HandOverResult, successor: Json | None = None
    ) -> HandOverResult:
        """What the pod owned becomes the successor's. Without one it gets its owner back: that is gone, so Kubernetes
        deletes what it owned."""
        await self._successors.give_services(record, successor["metadata"]["uid"] if successor else record.uid)
        if successor:
            await self._tell(successor, handed_over_note(record, self._zone))
        return await self._close(record, written, how)

    async def _rewrite(self, written: Json, record: HandOver) -> Json:
        """Raises `Conflict` if another replica has written it meanwhile: then the step is done again."""
        body = hand_over_record.write_record(record, self._namespace)
        body["metadata"] |= {key: written["metadata"][key] for key in ("resourceVersion", "uid")}
        return await self.cluster.update(CONFIG_MAPS, body)

    async def _close(self, record: HandOver, written: Json, how: HandOverResult) -> HandOverResult:
        try:
            only_it = DeleteOptions(uid=written["metadata"]["uid"])
            await self.cluster.delete(CONFIG_MAPS, record.name, self._namespace, how=only_it)
        except (NotFound, Conflict):
            pass  # another replica has closed it
        else:
            self.closed[record.why, how] += 1
        self.begun.discard(record.uid)
        self._under_way.pop(record.uid, None)
        log.info("hand_over_closed record=%s how=%r", record.name, how.value)
        return how

    # --- the API server ----------------------------------------------------------------------------------------------

    async def _pod(self, namespace: str, name: str) -> Json:
        """The pod of that name, as the API server has it now; empty if there is none."""
        try:
            return await self.cluster.get(PODS, name, namespace)
        except NotFound:
            return {}

    async def _tell(self, pod: Json, note: Note) -> None:
        metadata = Metadata(**{key: pod["metadata"][key] for key in ("name", "namespace", "uid")})
        await self._events.try_record(Object(metadata=metadata), note)


def is_withdrawn(annotations: Mapping[str, str], given_s: int, asked_s: int) -> bool:
    """Whether somebody else wants a pod gone that Carrel is ending: they say so, or gave it less time than Carrel did.

    A grace of 0 says nothing: that is how the kubelet reports the end of the pod.
    """
    return wants_no_successor(annotations) or 0 < given_s < asked_s


def _annotations(pod: Json) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}
