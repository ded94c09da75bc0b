"""What the leader does about Leases, claims and pods: it watches them, and reconciles those that a change may concern.

Each kind has its own queue: what fails is retried later and does not delay the others. At regular intervals everything
is reconciled again, so that a missed change or a crash is handled. A replica that does not lead sees the same changes
and does nothing; when it begins to lead, it reconciles everything once.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from itertools import islice
from typing import NamedTuple

from carrel.cluster.coverage.coverage_reader import CoverageReader
from carrel.cluster.pod_progress import FINISHED, could_not_be_scheduled, holder_of, is_ending, is_waiting
from carrel.cluster.record.unrecorded_pods import users_by_gpu
from carrel.cluster.state import ClusterState
from carrel.cluster.waiting.waiting_reason import WaitCause
from carrel.cluster.waiting.wake import WakeLimiter
from carrel.dialects.gpu_lease import lease_name
from carrel.dialects.gpuclaim import CLAIM
from carrel.dialects.gpuclaim_objects import GpuClaim, GpuNodeStatus
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai import without_effect
from carrel.ids import HolderId, NodeName
from carrel.kubernetes.cluster import Conflict
from carrel.kubernetes.isolation import title
from carrel.kubernetes.objects.events import Note
from carrel.kubernetes.objects.kinds import Lease, Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.kubernetes.timing import Backoff
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.ledger.placement import candidates
from carrel.ledger.shares import Holder
from carrel.lifecycle.assembly import collector_on
from carrel.lifecycle.metrics import ControllerMetrics
from carrel.lifecycle.reporting.claim_status import ClaimStatusWriter
from carrel.lifecycle.reporting.pod_events import (
    WITHOUT_EFFECT,
    PodEventWriter,
    assigned_note,
    waiting_note,
    without_gpu_note,
)

log = logging.getLogger(__name__)

SWEEP_S = 30.0
"""How often all Leases and claims are reconciled if nothing changes."""
SETTLE_S = 0.5
"""The changes of a pod, its claim and its Leases arrive one after the other: wait until all are here."""
RECHECK_S = 15.0
"""How often a pod or a claim that waits is reconciled: what it waits for changes with every other pod."""
MOST_WOKEN = 20
"""Pods that are woken for one freed GPU: more than fit on it, because a few of them may have other obstacles."""
RETRY = Backoff(first_s=0.5, limit_s=15.0)
"""A GPU must be free a minute after its pod is gone, also if the API server was away for a while."""


class ClaimKey(NamedTuple):
    namespace: str
    name: str


class Reconciler:
    def __init__(self, state: ClusterState, schedulers: frozenset[str], metrics: ControllerMetrics) -> None:
        self._state = state
        self._schedulers = schedulers
        self._metrics = metrics
        self._collector = collector_on(state)
        self._claims = ClaimStatusWriter(state)
        self._events = PodEventWriter(state.cluster, state.options.now)
        self._coverage_reader = CoverageReader(state)
        self._wake_limiter = WakeLimiter(state.options.clock)
        self._waiting: set[HolderId] = set()
        self._open_queues()
        self._close_queues()
        state.pods.on_change(self._on_pod)
        state.claims.on_change(self._on_claim)
        state.leases.on_change(self._on_lease)
        state.node_statuses.on_change(self._on_node_status)
        state.holders.on_change(self._on_other_holder)

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._events = PodEventWriter(self._state.cluster, self._state.options.now)
        self._wake_limiter = WakeLimiter(self._state.options.clock)
        self._waiting.clear()
        self._open_queues()
        try:
            for pod in self._state.pods.store:
                self._pods_due.add_after(pod.metadata.uid, SETTLE_S)
            async with asyncio.TaskGroup() as tasks:
                failed = self._state.isolation.count
                tasks.create_task(run_worker(self._leases_due, self._reconcile_lease, lambda _: failed("collection")))
                tasks.create_task(
                    run_worker(self._claims_due, self._reconcile_claim, lambda _: failed("claim"), "/".join)
                )
                tasks.create_task(
                    run_worker(self._pods_due, self._reconcile_pod, lambda _: failed("event"), self._pod_named)
                )
                tasks.create_task(self._sweep())
        finally:
            self._close_queues()
            self._metrics.waiting_pods.clear()

    def _open_queues(self) -> None:
        self._leases_due: WorkQueue[str] = WorkQueue(backoff=RETRY)
        self._claims_due: WorkQueue[ClaimKey] = WorkQueue(backoff=RETRY)
        self._pods_due: WorkQueue[HolderId] = WorkQueue(backoff=RETRY)

    def _close_queues(self) -> None:
        for queue in (self._leases_due, self._claims_due, self._pods_due):
            queue.close()

    async def _sweep(self) -> None:
        while True:
            for name in self._collector.due():
                self._leases_due.add(name)
            for claim in self._state.claims.store:
                self._add_claim(claim)
            await asyncio.sleep(SWEEP_S)

    # --- changes -----------------------------------------------------------------------------------------------------

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None, "a change has an old or a new object"
        if new is None or new.status.phase in FINISHED:
            for lease in self._state.cluster_ledger.leases_of(pod.metadata.uid):
                self._leases_due.add(lease.name)
        if new is None or new.spec.node_name:
            self._add_kept_leases(pod.metadata.uid)
        self._add_pod(pod)

    def _add_kept_leases(self, uid: HolderId) -> None:
        """The pod is bound, or gone: GPUs that are kept for it become free for others."""
        ledger = self._state.ledger
        for entry in filter(None, map(ledger.entry, ledger.kept_for(uid))):
            self._leases_due.add(lease_name(entry.gpu.node, entry.gpu.index))

    def _on_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        if new is None:
            return
        self._add_claim(new)
        if old is None or old.spec != new.spec:
            # Pods that wait for it, or for another one of its name: the scheduler does not watch claims.
            for pod in filter(is_waiting, self._claims.pods_of(new)):
                self._pods_due.add_after(pod.metadata.uid, SETTLE_S)

    def _add_claim(self, claim: GpuClaim) -> None:
        self._claims_due.add_after(ClaimKey(claim.metadata.namespace, claim.metadata.name), SETTLE_S)

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        known = self._state.cluster_ledger.lease(new.metadata.name) if new else None
        for holder in known.record.holders() if known else ():
            pod = self._state.pods.store.by_uid(holder.uid)
            if pod is not None:
                self._add_pod(pod)
            elif known is not None:
                # The watch reported the end of the pod before its Lease; or the pod itself is yet to be reported.
                self._leases_due.add_after(known.name, SETTLE_S)

    def _on_other_holder(self, uid: HolderId, users: Collection[Pod]) -> None:
        for lease in self._state.cluster_ledger.leases_of(uid):
            self._leases_due.add(lease.name)

    def _on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        """It may confirm that the containers of a pod are gone, or say which GPUs the kubelet gave to one."""
        for name in self._collector.awaited_on(new.metadata.name) if new else ():
            self._leases_due.add(name)
        if old and new and users_by_gpu(old) != users_by_gpu(new):  # a claim may be prepared no more
            for entry in self._state.ledger.entries(new.metadata.name):
                if any(share.holder.is_claim for share in entry.shares.values()):
                    self._leases_due.add(lease_name(entry.gpu.node, entry.gpu.index))
            for pod in map(self._state.pods.store.by_uid, users_by_gpu(new).keys() - users_by_gpu(old).keys()):
                if pod is not None:
                    self._add_claim_of(pod)

    def _add_pod(self, pod: Pod) -> None:
        self._pods_due.add_after(pod.metadata.uid, SETTLE_S)
        self._add_claim_of(pod)

    def _add_claim_of(self, pod: Pod) -> None:
        claim = pod.metadata.annotations.get(CLAIM)
        if claim:
            self._claims_due.add_after(ClaimKey(pod.metadata.namespace, claim), SETTLE_S)

    # --- work --------------------------------------------------------------------------------------------------------

    async def _reconcile_lease(self, name: str) -> None:
        freed = await self._collector.collect_lease(name)
        for each in freed:
            self._metrics.freed.inc()
            log.info("gpu_freed node=%s gpu=%d pod=%s why=%r", each.node, each.index, each.holder, each.why)
        if freed:
            self.on_room({each.node for each in freed})

    def on_room(self, nodes: set[NodeName]) -> None:
        """Called when GPUs of these nodes have become free."""
        for uid in self._waiting:
            self._pods_due.add(uid)
        self._state.wake(self._waiting_pods_that_fit(nodes))

    def _waiting_pods_that_fit(self, nodes: set[NodeName]) -> list[Holder]:
        """Pods that wait and fit on these nodes, the oldest first.

        Only the scheduler knows all reasons against a node, so every pod with room there is worth another try.
        """
        ask = self._state.isolation.ask

        def waits(pod: Pod) -> bool:
            return is_waiting(pod) and self._is_gpu_pod_of_carrel(pod)

        waiting = [pod for pod in self._state.pods.store if ask("wake", pod, waits, False)]
        waiting.sort(key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        fitting = (pod for pod in waiting if ask("wake", pod, lambda pod: self._fits(pod, nodes), False))
        return [holder_of(pod) for pod in islice(fitting, MOST_WOKEN)]

    def _fits(self, pod: Pod, nodes: set[NodeName]) -> bool:
        """Without its gang: whether the rest of the gang fits too, the extender finds out."""
        facts = self._state.pod_facts(pod)
        if not isinstance(facts.asked, PodRequest):
            return False
        return bool(candidates(self._state.ledger, facts.asked.request, tuple(nodes), facts.keeper).fitting)

    def _is_gpu_pod_of_carrel(self, pod: Pod) -> bool:
        """Also one whose claims another scheduler allocates."""
        is_ours = pod.spec.scheduler_name in self._schedulers or self._state.requests.asks_any_scheduler(pod)
        return is_ours and self._state.pod_facts.asked(pod) is not None

    async def _reconcile_claim(self, key: ClaimKey) -> None:
        claim = self._state.claims.store.get(key.name, key.namespace)
        if claim is None:
            return
        try:
            written = await self._claims.write(claim)
        except Conflict:
            self._claims_due.add_after(key, SETTLE_S)  # when the watch has reported its new version
            return
        if written is not None:
            self._metrics.claims.inc()
            log.info("claim_written claim=%s/%s phase=%s", key.namespace, key.name, written.phase.value)
        if any(is_waiting(pod) for pod in self._claims.pods_of(claim)):
            self._claims_due.add_after(key, RECHECK_S)
        await asyncio.sleep(0)  # let other tasks run, however long the queue is

    async def _reconcile_pod(self, uid: HolderId) -> None:
        pod = self._state.pods.store.by_uid(uid)
        if pod is None:
            self._events.forget(uid)
            self._wake_limiter.forget(uid)
            self._waiting.discard(uid)
            self._metrics.waiting_pods.forget(uid)
        elif self._is_gpu_pod_of_carrel(pod):
            if await self._events.tell_without_effect(pod, without_effect(pod)):
                self._metrics.events.labels(WITHOUT_EFFECT).inc()
            await (self._reconcile_waiting_pod(pod) if is_waiting(pod) else self._reconcile_placed_pod(pod))
        elif (note := without_gpu_note(pod, self._state.options.now())) is not None:
            await self._tell(pod, note)
        await asyncio.sleep(0)

    async def _reconcile_waiting_pod(self, pod: Pod) -> None:
        uid, waiting = pod.metadata.uid, self._state.waiting_reason.of(pod)
        cause = waiting.cause if waiting is not None else WaitCause.KUBE_SCHEDULER
        self._metrics.waiting_pods.note(uid, cause, self._state.covered_pods.tier(pod))
        if waiting is not None:
            self._waiting.add(uid)
            await self._tell(pod, waiting_note(waiting.refusal, self._why_beyond(pod)), lambda: self._held_by(pod))
        elif uid in self._waiting or could_not_be_scheduled(pod):
            # The scheduler could not place it when there was no room, or when the extender was away. Nothing that it
            # watches tells it that there is room now.
            if uid in self._waiting:
                self._wake_limiter.forget(uid)
            self._waiting.discard(uid)
            if self._wake_limiter.is_due(uid):
                self._state.wake([holder_of(pod)])
        self._pods_due.add_after(uid, RECHECK_S)

    def _why_beyond(self, pod: Pod) -> str:
        """Why a booking of its person does not cover the pod; empty if there is none, or if it does."""
        beyond = self._coverage_reader.of(pod).beyond
        return self._state.words.why_beyond(beyond) if beyond is not None else ""

    def _held_by(self, pod: Pod) -> str:
        """Who holds the GPUs that it waits for. It does not wait for anybody's if its person may have no more."""
        facts = self._state.pod_facts(pod)
        asked = facts.asked
        if not isinstance(asked, PodRequest) or self._state.person_limit.why_over(facts, asked.request) is not None:
            return ""
        return self._state.words.held_by(self._coverage_reader.holders(pod))

    async def _reconcile_placed_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._waiting.discard(uid)
        self._wake_limiter.forget(uid)
        if gates_of(pod) and not is_ending(pod):
            self._metrics.waiting_pods.note(uid, WaitCause.SCHEDULING_GATE, self._state.covered_pods.tier(pod))
        else:
            self._metrics.waiting_pods.forget(uid)
        leases = self._state.cluster_ledger.leases_of(uid)
        note = assigned_note(pod, leases, self._state.options.now())
        if note is not None:
            await self._tell(pod, note)

    async def _tell(self, pod: Pod, note: Note, held_by: Callable[[], str] = str) -> None:
        if await self._events.tell(pod, note, held_by):
            self._metrics.events.labels(note.reason).inc()

    # --- the cache ---------------------------------------------------------------------------------------------------

    def _pod_named(self, uid: HolderId) -> str:
        return title(self._state.pods.store.by_uid(uid) or uid)
