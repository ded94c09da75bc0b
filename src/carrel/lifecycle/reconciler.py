"""What the leader does: it hears of every change, and looks after the Leases, claims and pods that it may concern.

Each has its own queue: what fails comes again later and keeps nobody else waiting. Every so often all of it is looked
at anew, so that a change of which nobody heard, or a crash half-way, is caught up with. A replica that does not lead
hears the same changes and does nothing; when it begins to lead, it looks at everything once.
"""

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from carrel.dialects.gpuclaim import CLAIM, lease_name
from carrel.dialects.interface import PodRequest
from carrel.kubernetes.backoff import Backoff
from carrel.kubernetes.cluster import Conflict
from carrel.kubernetes.objects.shapes import GpuClaim, Lease, Pod
from carrel.kubernetes.work_queue import Queue, serve
from carrel.leases.cluster_state import NAMESPACE_OF, ClusterState
from carrel.leases.pods import FINISHED, holder_of, is_waiting, was_put_aside
from carrel.leases.wake import WakeLimiter
from carrel.ledger.placement import candidates
from carrel.ledger.shares import Holder
from carrel.lifecycle.assembly import collector_on
from carrel.lifecycle.claim_status import ClaimContext, Claims
from carrel.lifecycle.metrics import Metrics
from carrel.lifecycle.pod_events import PodEventWriter, assigned_note, waiting_note

log = logging.getLogger(__name__)

SWEEP_S = 30.0
"""How often all Leases and claims are looked at, should nobody have told us that something changed."""
SETTLE_S = 0.5
"""A pod, its claim and its Leases are heard of one after the other: their story is read when it is complete."""
AGAIN_S = 15.0
"""How often a pod or a claim that waits is looked at: what it waits for changes with every other pod."""
MOST_WOKEN = 20
"""Pods that are woken for one card: more than it can take, so that a few of them may not fit after all."""
RETRY = Backoff(first_s=0.5, limit_s=15.0)
"""A card must be free a minute after its pod is gone, also if the API server was away for a while."""


class ClaimKey(NamedTuple):
    namespace: str
    name: str


class Reconciler:
    def __init__(self, carrel: ClusterState, schedulers: frozenset[str], metrics: Metrics) -> None:
        self._carrel = carrel
        self._schedulers = schedulers
        self._metrics = metrics
        self._collector = collector_on(carrel)
        known = ClaimContext(carrel.cluster_ledger, self._pods_of, carrel.why, carrel.options.dialect_options)
        self._claims = Claims(carrel.cluster, known)
        self._telling = PodEventWriter(carrel.cluster, carrel.options.now)
        self._knocks = WakeLimiter(carrel.options.clock)
        self._waiting: set[str] = set()
        self._open_queues()
        self._close_queues()
        carrel.pods.on_change(self._see_pod)
        carrel.claims.on_change(self._see_claim)
        carrel.leases.on_change(self._see_lease)

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._telling = PodEventWriter(self._carrel.cluster, self._carrel.options.now)
        self._knocks = WakeLimiter(self._carrel.options.clock)
        self._waiting.clear()
        self._open_queues()
        try:
            for pod in self._carrel.pods.store:
                self._pods_due.add_after(pod.metadata.uid, SETTLE_S)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(serve(self._leases_due, self._look_after_lease))
                tasks.create_task(serve(self._claims_due, self._look_after_claim))
                tasks.create_task(serve(self._pods_due, self._look_after_pod))
                tasks.create_task(self._sweep())
        finally:
            self._close_queues()

    def _open_queues(self) -> None:
        self._leases_due: Queue[str] = Queue(backoff=RETRY)
        self._claims_due: Queue[ClaimKey] = Queue(backoff=RETRY)
        self._pods_due: Queue[str] = Queue(backoff=RETRY)

    def _close_queues(self) -> None:
        for queue in (self._leases_due, self._claims_due, self._pods_due):
            queue.close()

    async def _sweep(self) -> None:
        while True:
            for name in self._collector.due():
                self._leases_due.add(name)
            for claim in self._carrel.claims.store:
                self._see_claim(None, claim)
            await asyncio.sleep(SWEEP_S)

    # --- what was heard ----------------------------------------------------------------------------------------------

    def _see_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None, "a change is about something"
        if new is None or new.status.phase in FINISHED:
            for lease in self._carrel.cluster_ledger.leases_of(pod.metadata.uid):
                self._leases_due.add(lease.name)
        if new is None or new.spec.node_name:
            self._look_after_kept(pod.metadata.uid)
        self._pod_has_news(pod)

    def _look_after_kept(self, uid: str) -> None:
        """The pod is bound, or gone: what is kept for it is free for others."""
        ledger = self._carrel.ledger
        for card in filter(None, map(ledger.card, ledger.kept_for(uid))):
            self._leases_due.add(lease_name(card.gpu.node, card.gpu.index))

    def _see_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        if new is not None:
            self._claims_due.add_after(ClaimKey(new.metadata.namespace, new.metadata.name), SETTLE_S)

    def _see_lease(self, old: Lease | None, new: Lease | None) -> None:
        known = self._carrel.cluster_ledger.lease(new.metadata.name) if new else None
        for holder in known.record.holders() if known else ():
            pod = self._carrel.pods.store.by_uid(holder.uid)
            if pod is not None:
                self._pod_has_news(pod)
            elif known is not None:
                # We heard that the pod is gone before we heard that it had the card; or it is only now to come.
                self._leases_due.add_after(known.name, SETTLE_S)

    def _pod_has_news(self, pod: Pod) -> None:
        self._pods_due.add_after(pod.metadata.uid, SETTLE_S)
        claim = pod.metadata.annotations.get(CLAIM)
        if claim:
            self._claims_due.add_after(ClaimKey(pod.metadata.namespace, claim), SETTLE_S)

    # --- what is done about it ---------------------------------------------------------------------------------------

    async def _look_after_lease(self, name: str) -> None:
        freed = await self._collector.look_at(name)
        for each in freed:
            self._metrics.freed.inc()
            log.info("card_freed node=%s gpu=%d pod=%s why=%r", each.node, each.index, each.holder, each.why)
        if freed:
            self.tell_of_room({each.node for each in freed})

    def tell_of_room(self, nodes: set[str]) -> None:
        """There is room on these nodes that was not there before."""
        for uid in self._waiting:
            self._pods_due.add(uid)
        self._carrel.wake(self._who_fits_now(nodes))

    def _who_fits_now(self, nodes: set[str]) -> list[Holder]:
        """Pods that the scheduler gave up on and that the freed cards would do for, the oldest first.

        Only the scheduler knows all of its reasons against a node; so whoever has room there is worth another look.
        """
        waiting = [pod for pod in self._carrel.pods.store if is_waiting(pod) and self._is_ours(pod)]
        waiting.sort(key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        return [holder_of(pod) for pod in islice((pod for pod in waiting if self._fits(pod, nodes)), MOST_WOKEN)]

    def _fits(self, pod: Pod, nodes: set[str]) -> bool:
        """By itself; whether the rest of its gang fits too, the extender finds out."""
        ask = self._carrel.understand(pod)
        if not isinstance(ask, PodRequest):
            return False
        return bool(candidates(self._carrel.ledger, ask.request, tuple(nodes), pod.metadata.uid).fitting)

    def _is_ours(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name in self._schedulers and self._carrel.understand(pod) is not None

    async def _look_after_claim(self, key: ClaimKey) -> None:
        claim = self._carrel.claims.store.get(key.name, key.namespace)
        if claim is None:
            return
        try:
            standing = await self._claims.write(claim)
        except Conflict:
            self._claims_due.add_after(key, SETTLE_S)  # when we have heard what it says now
            return
        if standing is not None:
            self._metrics.claims.inc()
            log.info("claim_written claim=%s/%s phase=%s", key.namespace, key.name, standing.phase.value)
        if any(is_waiting(pod) for pod in self._pods_of(claim)):
            self._claims_due.add_after(key, AGAIN_S)
        await asyncio.sleep(0)  # others want to go on too, whatever the length of the queue

    async def _look_after_pod(self, uid: str) -> None:
        pod = self._carrel.pods.store.by_uid(uid)
        if pod is None:
            self._telling.forget(uid)
            self._knocks.forget(uid)
            self._waiting.discard(uid)
        elif self._is_ours(pod):
            await (self._look_after_waiting(pod) if is_waiting(pod) else self._look_after_placed(pod))
        await asyncio.sleep(0)

    async def _look_after_waiting(self, pod: Pod) -> None:
        uid, refusal = pod.metadata.uid, self._carrel.why(pod)
        if refusal is not None:
            self._waiting.add(uid)
            note = waiting_note(refusal)
            if await self._telling.tell(pod, note):
                self._metrics.told.labels(note.reason).inc()
        elif uid in self._waiting or was_put_aside(pod):
            # The scheduler gave up on it when there was no room, or when the extender was away, and nothing that it
            # watches says that there is room now.
            if uid in self._waiting:
                self._knocks.forget(uid)
            self._waiting.discard(uid)
            if self._knocks.is_due(uid):
                self._carrel.wake([holder_of(pod)])
        self._pods_due.add_after(uid, AGAIN_S)

    async def _look_after_placed(self, pod: Pod) -> None:
        self._waiting.discard(pod.metadata.uid)
        self._knocks.forget(pod.metadata.uid)
        leases = self._carrel.cluster_ledger.leases_of(pod.metadata.uid)
        note = assigned_note(pod, leases, self._carrel.options.now())
        if note is not None and await self._telling.tell(pod, note):
            self._metrics.told.labels(note.reason).inc()

    # --- what is known -----------------------------------------------------------------------------------------------

    def _pods_of(self, claim: GpuClaim) -> list[Pod]:
        pods: Iterable[Pod] = self._carrel.pods.store.find(NAMESPACE_OF, claim.metadata.namespace)
        return [pod for pod in pods if pod.metadata.annotations.get(CLAIM) == claim.metadata.name]
