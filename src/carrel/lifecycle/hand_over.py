"""Ends a pod that has to give its card back, and sees to it that its work goes on without a GPU.

What is intended is written down first, in a record of its own (`dialects.hand_over_record`), so whoever leads next
goes on where another stopped. From there it is one step at a time, and each step looks at the cluster anew:

    announced    the pod is told, and has until it is due; if it leaves by itself, nothing takes its place
    ending       it is ended by us. A bare pod comes back under its own name as soon as it is gone, as it was then: it
                 may have been resized, or lost a scheduling gate, since it was told. A pod that has a controller is
                 replaced by that, before it is gone or afterwards, as a Job is set; the webhook takes the GPU off the
                 replacement, and says so on it
    done         the successor exists: the record is deleted

Exactly one successor: its name is that of the pod that went, so it cannot be created twice, and it says whom it
succeeds. A pod that somebody else created under that name is left alone. A pod that has finished has no successor.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from carrel.dialects import hand_over_record, maia
from carrel.dialects.carrel import LEAVE_BY, TIER, USER
from carrel.dialects.hand_over_record import HandedOver, HandOver, HandOverPhase, Why
from carrel.kubernetes.announce import About, announce
from carrel.kubernetes.cluster import (
    AlreadyExists,
    Busy,
    Cluster,
    ClusterError,
    Conflict,
    Deletion,
    Forbidden,
    Json,
    MergePatch,
    NotFound,
    Selection,
    Unknown,
)
from carrel.kubernetes.objects.events import NORMAL, WARNING, Note
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PODS
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.pods import FINISHED
from carrel.parsing import Malformed
from carrel.parsing.time import instant, seconds

log = logging.getLogger(__name__)

REVOKED = "GPURevoked"
EXPIRED = "BookingEnded"
HELD_UP = "RevocationHeldUp"
HANDED_OVER = "HandedOverToCPU"

LOOK_AGAIN = timedelta(seconds=1)
"""While a pod is going. Its watch tells us too; this is for what the watch does not tell."""
ASK_AGAIN = timedelta(seconds=10)
"""While a disruption budget does not let a pod go."""
LONGEST_GOODBYE_S = 300
"""What a pod may take between SIGTERM and its end. A pod says itself how long it needs: it could say a year."""
REPLACED_WITHIN = timedelta(minutes=10)
"""After the pod is gone. A controller that has not replaced it by then does not want to: a Job that was suspended, say.
One that has failed several times waits up to six minutes before the next try."""


class End(Enum):
    HANDED_OVER = "handed over"
    LEFT = "it left by itself"
    TAKEN = "its name was taken by another pod"
    UNWANTED = "nobody wants a successor"


@dataclass(frozen=True, slots=True)
class Order:
    """Why a pod has to go, and when."""

    why: Why
    due: datetime
    needed_by: str = ""


@dataclass(frozen=True, slots=True)
class HandOverContext:
    """Where the records are, and what else is known."""

    cluster: Cluster
    namespace: str
    now: Callable[[], datetime]
    pods_of: Callable[[str], Iterable[Pod]]
    """The pods of a namespace, as last heard."""


class HandOvers:
    def __init__(self, context: HandOverContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._now = context.now
        self._told: set[str] = set()  # the records of which the pods know

    async def intend(self, pod: Pod, order: Order) -> str:
        """Writes down that this pod goes. The name of the record; empty if the pod is not what it was taken for."""
        metadata, now = pod.metadata, self._now()
        found = await self._pod(metadata.namespace, metadata.name)
        if not found or not _is_as_it_was(found, pod):
            return ""
        owner = hand_over_record.controller_of(found)
        record = HandOver(
            uid=metadata.uid,
            pod=f"{metadata.namespace}/{metadata.name}",
            why=order.why,
            decided=now,
            due=order.due,
            phase=HandOverPhase.ANNOUNCED if order.due > now else HandOverPhase.ENDING,
            needed_by=order.needed_by,
            owner=owner,
            successor=None if owner else hand_over_record.successor_of(found, order.why, now),
            user=metadata.annotations.get(USER, ""),
        )
        body = hand_over_record.write_record(record, self._context.namespace)
        # Where there is one, somebody was quicker, or our own answer was lost: what is written there counts.
        with contextlib.suppress(AlreadyExists):
            await self._cluster.create(CONFIG_MAPS, body, self._context.namespace)
        return record.name

    async def under_way(self) -> Iterable[str]:
        """The names of all records."""
        ours = Selection(self._context.namespace, labels=hand_over_record.LABEL)
        return [each.metadata.name for each in (await self._cluster.list(CONFIG_MAPS, ours)).items]

    async def advance(self, name: str) -> timedelta | End:
        """One step of one hand-over: when to look again, or how it ended.

        Raises `ClusterError` if the API server does not do as asked: then the same step is due again.
        """
        try:
            written = await self._cluster.get(CONFIG_MAPS, name, self._context.namespace)
        except NotFound:
            return End.HANDED_OVER
        record = hand_over_record.record_of(name, written.get("data", {}))
        pod = await self._pod(*record.place)
        is_here = bool(pod) and pod["metadata"]["uid"] == record.uid
        if is_here and not _is_deleted(pod):
            return await self._see_off(record, written, pod)
        if record.phase is HandOverPhase.ANNOUNCED:
            return await self._close(written, End.LEFT)  # before its time, and not because of us
        if record.owner and await self._is_replaced(record):
            return await self._close(written, End.HANDED_OVER)
        if is_here:
            return LOOK_AGAIN
        if record.owner:
            return await self._await_replacement(record, written)
        return await self._bring_back(record, written, pod)

    # --- before it is gone -------------------------------------------------------------------------------------------

    async def _see_off(self, record: HandOver, written: Json, pod: Json) -> timedelta | End:
        if pod.get("status", {}).get("phase") in FINISHED:
            return await self._close(written, End.LEFT)
        await self._tell_leaving(record, pod)
        if record.phase is HandOverPhase.ANNOUNCED:
            left = record.due - self._now()
            if left > timedelta():
                return left
        # What is written down is what is ended: whoever ends it does so only as it is now.
        owner = hand_over_record.controller_of(pod)
        successor = None if owner else hand_over_record.successor_of(pod, record.why, record.decided)
        ending = replace(record, phase=HandOverPhase.ENDING, owner=owner, successor=successor)
        if ending != record:
            await self._rewrite(written, ending)
        return await self._end(ending, pod)

    async def _end(self, record: HandOver, pod: Json) -> timedelta:
        """Only as it was when we looked: a pod that finishes at this moment must not be run a second time.

        A controller's pod is evicted: so a Job can tell it from one that failed by itself (`podFailurePolicy`). A
        disruption budget may delay that if its card is revoked. When a booking ends was known before.
        """
        asked = pod["spec"].get("terminationGracePeriodSeconds", 0)
        grace = LONGEST_GOODBYE_S if asked > LONGEST_GOODBYE_S else None
        only_it = Deletion(record.uid, pod["metadata"]["resourceVersion"], grace_seconds=grace)
        try:
            await self._ask_to_go(record, only_it)
        except (NotFound, Conflict):
            return timedelta()  # it has changed: look at it anew
        except Busy as busy:
            if not record.owner or record.why is not Why.REVOKED:
                raise
            why = f"a booked pod needs its card, but a disruption budget does not let it go: {busy.message}"
            await self._tell(About.the(pod), Note(HELD_UP, why, WARNING))
            return ASK_AGAIN
        log.info("pod_ended pod=%s uid=%s why=%s", record.pod, record.uid, record.why.value)
        return LOOK_AGAIN

    async def _ask_to_go(self, record: HandOver, how: Deletion) -> None:
        namespace, name = record.place
        if record.owner:
            try:
                await self._cluster.evict(namespace, name, how=replace(how, resource_version=""))
                return
            except Busy:
                if record.why is Why.REVOKED:
                    raise
        await self._cluster.delete(PODS, name, namespace, how=how)

    async def _tell_leaving(self, record: HandOver, pod: Json) -> None:
        """By an Event and, if it has time left, by an annotation that a hook in the pod can read."""
        if record.name in self._told:
            return
        if record.phase is HandOverPhase.ANNOUNCED:
            namespace, name = record.place
            leave_by = {LEAVE_BY: seconds(record.due)}
            touch = MergePatch({"metadata": {"uid": record.uid, "annotations": leave_by}})
            await self._cluster.patch(PODS, name, touch, namespace)
        await self._tell(About.the(pod), leaving_note(record))
        self._told.add(record.name)

    # --- after it is gone --------------------------------------------------------------------------------------------

    async def _await_replacement(self, record: HandOver, written: Json) -> timedelta | End:
        """The time counts from when it was gone: until then a budget may have held it for hours, and a Job with
        `podReplacementPolicy: Failed` does nothing before."""
        if record.gone is None:
            await self._rewrite(written, replace(record, gone=self._now()))
            return ASK_AGAIN
        left = record.gone + REPLACED_WITHIN - self._now()
        return min(left, ASK_AGAIN) if left > timedelta() else await self._close(written, End.UNWANTED)

    async def _is_replaced(self, record: HandOver) -> bool:
        """The webhook writes on a replacement whom it replaces; where there is no webhook, nobody does.

        It does not know the pods. Where several of one controller lose their cards at once, it may name the same one on
        all that come instead: who is named twice gives one of them to this record.
        """
        pods = self._context.pods_of(record.place[0])
        by_age = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        named: set[str] = set()
        spare: list[Pod] = []
        for pod in by_age:
            if not (origin := _origin_of(pod.metadata.annotations)):
                continue
            if origin in named and _is_made_by(pod, record.owner, since=record.decided):
                spare.append(pod)
            named.add(origin)
        return record.uid in named or (bool(spare) and await self._becomes_successor(spare[0], record))

    async def _becomes_successor(self, pod: Pod, record: HandOver) -> bool:
        """Only as we know it: another record may have got it meanwhile."""
        as_seen = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        notes = hand_over_record.write_handed_over(HandedOver(record.decided, record.why, record.uid))
        try:
            patch = MergePatch({"metadata": {**as_seen, "annotations": notes}})
            await self._cluster.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace)
        except (NotFound, Conflict):
            return False
        return True

    async def _bring_back(self, record: HandOver, written: Json, occupant: Json) -> timedelta | End:
        if occupant:
            is_ours = _origin_of(occupant["metadata"].get("annotations", {})) == record.uid
            if is_ours:
                await self._tell(About.the(occupant), handed_over_note(record))
            return await self._close(written, End.HANDED_OVER if is_ours else End.TAKEN)
        if record.successor is None:
            return await self._close(written, End.UNWANTED)
        namespace, _ = record.place
        try:
            successor = await self._cluster.create(PODS, dict(record.successor), namespace)
        except (AlreadyExists, Unknown):
            return timedelta()  # whoever it is, by now: look at it
        except NotFound:
            return await self._close(written, End.UNWANTED)  # the namespace is gone
        except Forbidden as error:
            if not error.is_namespace_going:
                raise
            return await self._close(written, End.UNWANTED)
        log.info("pod_handed_over pod=%s from=%s why=%s", record.pod, record.uid, record.why.value)
        await self._tell(About.the(successor), handed_over_note(record))
        return await self._close(written, End.HANDED_OVER)

    async def _rewrite(self, written: Json, record: HandOver) -> None:
        """Raises `Conflict` if somebody else has written it meanwhile: then it is looked at anew."""
        body = hand_over_record.write_record(record, self._context.namespace)
        body["metadata"] |= {key: written["metadata"][key] for key in ("resourceVersion", "uid")}
        await self._cluster.update(CONFIG_MAPS, body)

    async def _close(self, written: Json, how: End) -> End:
        metadata = written["metadata"]
        try:
            only_it = Deletion(uid=metadata["uid"])
            await self._cluster.delete(CONFIG_MAPS, metadata["name"], self._context.namespace, how=only_it)
        except (NotFound, Conflict):
            pass  # another has closed it
        self._told.discard(metadata["name"])
        log.info("hand_over_closed record=%s how=%r", metadata["name"], how.value)
        return how

    # --- the world ---------------------------------------------------------------------------------------------------

    async def _pod(self, namespace: str, name: str) -> Json:
        """The pod of that name, as the API server has it now; empty if there is none."""
        try:
            return await self._cluster.get(PODS, name, namespace)
        except NotFound:
            return {}

    async def _tell(self, about: About, note: Note) -> None:
        """What cannot be told now must not keep a card from whom it belongs to."""
        try:
            await announce(self._cluster, about, note, self._now())
        except ClusterError as error:
            log.info("event_not_told pod=%s reason=%s: %s", about.metadata.name, note.reason, error)


def leaving_note(record: HandOver) -> Note:
    after = "its controller replaces it" if record.owner else "it is created again"
    if record.why is Why.EXPIRED:
        return Note(EXPIRED, f"its booking ended at {seconds(record.due)}; {after} without a GPU", WARNING)
    when = f"at {seconds(record.due)}" if record.phase is HandOverPhase.ANNOUNCED else "now"
    return Note(REVOKED, f"its card is needed for a booked pod: it is ended {when}, and {after} without a GPU", WARNING)


def handed_over_note(record: HandOver) -> Note:
    return Note(HANDED_OVER, f"{lost(record.why, record.decided)}; handed over to CPU", NORMAL)


def lost(why: Why, at: datetime) -> str:
    """How a pod lost its card, in the words that people see everywhere."""
    when = seconds(at)
    return f"its booking ended {when}" if why is Why.EXPIRED else f"revoked {when} for a booked pod"


def how_lost(pod: Pod) -> str:
    """How a pod lost its card; empty if it did not, or if what it says of itself cannot be read."""
    try:
        mark = hand_over_record.read_handed_over(pod)
    except Malformed:
        return ""
    return lost(mark.why, mark.at) if mark else ""


def _is_as_it_was(found: Json, pod: Pod) -> bool:
    """Whether it is the pod on which was decided: the same one, not going, and with the same rights."""
    notes = found["metadata"].get("annotations", {})
    decided_by = (TIER, maia.TERMINATE_AT)
    return (
        found["metadata"]["uid"] == pod.metadata.uid
        and not _is_deleted(found)
        and found.get("status", {}).get("phase") not in FINISHED
        and all(notes.get(key) == pod.metadata.annotations.get(key) for key in decided_by)
    )


def _is_deleted(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _origin_of(annotations: Mapping[str, str]) -> str:
    """uid of the pod that one with these annotations succeeds; empty if it succeeds none."""
    try:
        mark = hand_over_record.handed_over(annotations, "pod")
    except Malformed:
        return ""
    return mark.origin if mark else ""


def _is_made_by(pod: Pod, owner: str, since: datetime) -> bool:
    is_its_own = any(each.controller and each.uid == owner for each in pod.metadata.owner_references)
    try:
        made = instant(pod.metadata.creation_timestamp, f"pod {pod.metadata.name}", "metadata.creationTimestamp")
    except Malformed:
        return False
    return is_its_own and made >= since
