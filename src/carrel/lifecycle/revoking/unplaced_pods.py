"""Gives up GPUs that stay free for booked pods which are not placed.

For a booked pod that waits, GPUs are kept on their Leases, or free ones are left by opportunistic pods
(`ledger.precedence`). If kube-scheduler does not place the pod although GPUs are free for it, because it lacks
something that Carrel knows nothing of, nobody would ever use them. So after `PATIENCE` the pod is told by an Event, its
GPUs are lent (`dialects.lent_gpus`), and nothing is kept for it any more. GPUs that are kept for a member of a gang are
given up too if the gang is not complete for so long. A crash between these steps leaves a pod whose GPUs are lent, or
the next round begins anew.
"""

import logging
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from carrel.cluster.pod_progress import could_not_be_scheduled, holder_of, is_waiting
from carrel.cluster.state import ClusterState
from carrel.dialects.lent_gpus import is_lent, lent_until, scheduler_words
from carrel.ids import HolderId
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.reporting.pod_events import COMPONENT
from carrel.lifecycle.revoking.revocation import Revoker

log = logging.getLogger(__name__)

GIVEN_UP = "GPUGivenUp"
PATIENCE = timedelta(minutes=6)
"""kube-scheduler tries each pod that it could not place again after five minutes at most."""
MOST_WORDS = 400


class UnplacedPods:
    def __init__(self, state: ClusterState, revoker: Revoker) -> None:
        self._state = state
        self._revoker = revoker
        self._events = EventRecorder(state.cluster, COMPONENT, state.options.now)
        self._free_since: dict[HolderId, datetime] = {}  # uid of a booked pod → since when GPUs are free for it

    async def round(self) -> None:
        now = self._state.options.now()
        could_run = {each.holder.uid for each in self._state.booked_waiting()}
        by_claims = {pod.metadata.uid: pod for pod in self._with_claims(now)}
        pods = {pod.metadata.uid: pod for pod in (*self._kept_for_others(could_run), *self._not_placed())} | by_claims
        could_run |= by_claims.keys()
        self._free_since = {uid: self._free_since.get(uid, now) for uid in pods}
        due = [pod for uid, pod in pods.items() if is_lent(pod, now) or now - self._free_since[uid] >= PATIENCE]
        await self._state.isolation.each("unplaced", due, lambda pod: self._give_up(pod, pod.metadata.uid in could_run))

    def _kept_for_others(self, could_run: Iterable[str]) -> Iterator[Pod]:
        """The pods that wait, for which GPUs are kept that would not help them now."""
        for lease in self._state.cluster_ledger.kept_leases():
            pod = self._state.pods.store.by_uid(lease.record.kept_for.uid) if lease.record.kept_for else None
            if pod is not None and is_waiting(pod) and pod.metadata.uid not in could_run:
                yield pod

    def _not_placed(self) -> Iterator[Pod]:
        """The pods that kube-scheduler does not place although GPUs are free for them, and for their gangs."""
        waiting, ledger = list(self._revoker.booked_and_waiting()), self._state.ledger
        fitting = self._revoker.would_fit(waiting)
        others = [each for each in waiting if each.holder.uid not in fitting and ledger.kept_for(each.keeper(ledger))]
        coming = {each.request.gang for each in others} - {None}  # victims of other members have yet to go
        for each in waiting:
            pod = self._state.pods.store.by_uid(each.holder.uid)
            if pod is not None and each.holder.uid in fitting and each.request.gang not in coming:
                yield pod

    def _with_claims(self, now: datetime) -> Iterator[Pod]:
        """The booked pods whose ResourceClaims have GPUs (`claim_allocator`), and that kube-scheduler does not place:
        it takes the allocation away, Carrel allocates again, and so on."""
        shares = (share for lease in self._state.cluster_ledger.leases() for share in lease.record.shares)
        claims = {share.holder.uid for share in shares if share.holder.is_claim}
        for pod in filter(None, map(self._state.holders.pod_of, claims)):
            is_booked = is_waiting(pod) and self._state.covered_pods.of(pod.metadata.uid) is not None
            if is_booked and could_not_be_scheduled(pod) and not is_lent(pod, now):
                yield pod

    async def _give_up(self, pod: Pod, could_run: bool) -> None:
        now, metadata = self._state.options.now(), pod.metadata
        if could_run:
            why = self._state.waiting_reason.why(pod)
            until, notes = lent_until(pod, now, is_known_why=why is not None)
            when = self._state.words.when(until)
            await self._events.try_record(
                pod, not_placed_note(pod, when) if why is None else not_usable_note(why, when)
            )
            touch = MergePatch({"metadata": {"uid": metadata.uid, "annotations": notes}})
            await self._state.cluster.patch(PODS, metadata.name, touch, metadata.namespace)
            log.info("gpus_lent pod=%s until=%s", holder_of(pod), until)
        elif not is_lent(pod, now):
            await self._events.try_record(pod, INCOMPLETE)
        for lease in self._state.cluster_ledger.kept_leases():
            if lease.record.kept_for == holder_of(pod):
                await self._state.lease_writer.stop_keeping(lease.name, metadata.uid)


def not_placed_note(pod: Pod, until: str) -> Note:
    words = scheduler_words(pod)
    said = f"It says: {words[:MOST_WORDS].rstrip('.')}. " if words else ""
    return Note(
        GIVEN_UP,
        f"GPUs were free for this pod for {PATIENCE.total_seconds() / 60:.0f} minutes, and the scheduler did not place"
        f" it. {said}Other pods may use these GPUs now. When the scheduler says something else, GPUs are taken back for"
        f" this pod, not before {until}; to try at once, create the pod again",
        WARNING,
    )


def not_usable_note(why: Refusal, until: str) -> Note:
    return Note(
        GIVEN_UP,
        f"GPUs were free for this pod for {PATIENCE.total_seconds() / 60:.0f} minutes, and it could not use them:"
        f" {why.reason}. Other pods may use these GPUs now. They are left to this pod again, and taken back if that is"
        f" enough, from {until} on",
        WARNING,
    )


INCOMPLETE = Note(
    GIVEN_UP,
    "GPUs were kept for this pod, but its gang is not complete: other pods may use them now. When all members are"
    " there, GPUs are taken back for them",
    WARNING,
)
