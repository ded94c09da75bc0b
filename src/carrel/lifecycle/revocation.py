"""Revokes GPUs for booked pods that kube-scheduler cannot place, from opportunistic pods.

Booked pods are served in the order in which they were created, then by namespace and name. All of them are considered
together, so that one does not count on a GPU that an earlier one is about to get. A pod that fits without a revocation
is left to the scheduler. For the first that does not:

    1. its GPUs are kept for it: their Leases name it, and the victims that give them back
    2. the victims are handed over to CPU (`hand_over`); when they are gone, the booked pod is placed
    3. when the booked pod is bound, the collector stops keeping its GPUs; when it is gone, they are kept for the next
       pod of its booking for a while

A victim may be a ResourceClaim: then all pods that use it are handed over, and Kubernetes deallocates the claim. A
booked pod may wait for claims: kube-scheduler preempts nobody for these.

The decision is on the Leases: the next round continues it, and chooses no additional victims, unless one is *stuck*: it
should be gone by now, or a disruption budget keeps it. Then others are chosen in its place, if there are any. It stays
told to end, and what it gives back later is for whoever comes; one that a budget kept stays. Before the first write all
Leases and bookings are read again and the decision is made once more, because a cache may not show a GPU that is
free, or a booking that was cancelled.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import TypeVar

from carrel.dialects.hand_over_record import Why
from carrel.dialects.tier import counts_as
from carrel.kubernetes.cluster import Cluster, ClusterError, NotFound
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.isolation import Isolation, title
from carrel.kubernetes.objects.events import NORMAL, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.leases.cluster_ledger import ClusterLedger, PodByUid
from carrel.leases.lease_writer import LeaseWriter
from carrel.leases.pod_progress import (
    SCHEDULED,
    bound_at,
    could_not_be_scheduled,
    created_at,
    holder_of,
    is_ending,
    is_waiting,
)
from carrel.ledger.gpus import Gpu
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod, candidates, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Coverage, Holder, ShareState
from carrel.lifecycle.end_limits import DEFAULT_END_LIMITS, EndLimits
from carrel.lifecycle.hand_over import HandOverOrder, HandOvers
from carrel.lifecycle.pod_events import COMPONENT
from carrel.lifecycle.slow_endings import KUBELET_TIME, LAST_GRACE, is_overdue
from carrel.lifecycle.victim_prices import OpportunisticPod
from carrel.lifecycle.victims import revoke
from carrel.parsing import Malformed
from carrel.parsing.time import instant
from carrel.parsing.time_words import in_utc

T = TypeVar("T")

log = logging.getLogger(__name__)

KEPT = "GPUKept"
UNSCHEDULABLE = "Unschedulable"
"""The reason that kube-scheduler writes on a pod that it could not place."""
MOST_TRIES = 8
"""Booked pods that are tried in one round, if those before them fail."""
CONTESTED_WAIT = timedelta(seconds=10)
"""How long a booked pod that would fit by itself waits for a GPU that an earlier booked pod may take as well."""


@dataclass(frozen=True, slots=True)
class RevocationStep:
    """The next step for one booked pod."""

    booked: Holder
    booking: str
    victims: tuple[Holder, ...]
    gpus: tuple[Gpu, ...] = ()
    """To be kept for it. Empty: they are kept, and only some hand-overs have to begin."""


@dataclass(frozen=True, slots=True)
class RevocationContext:
    """What revocation needs of its surroundings, and what the cluster's admin decides about it."""

    booked: Callable[[], Sequence[WaitingPod]]
    """The booked pods that wait, the oldest first."""
    pod_by_uid: PodByUid
    """Of the uid of a ResourceClaim, the pod whose GPUs its GPUs are."""
    pods_of: Callable[[str], Sequence[Pod]]
    """The pod of that uid; of a claim, all pods that use it."""
    holder_may_lose_gpus: Callable[[str], bool]
    """Whether the pod or the claim of that uid holds its GPUs without a booking."""
    may_lose_gpus: Callable[[Pod], bool]
    gone_pod: PodByUid
    """A pod that is gone and still holds GPUs, as it was last seen; None: it was never seen."""
    reread: Callable[[], Awaitable[bool]]
    """Reads Leases and bookings again. False: what is known of the bookings is old."""
    now: Callable[[], datetime]
    schedulers: frozenset[str]
    """The schedulers that ask Carrel's extender, and so respect what is kept."""
    asks_by_claims: Callable[[Pod], bool] = lambda pod: False
    """Whether the pod waits for ResourceClaims: every scheduler has to respect what is kept, when it allocates them."""
    is_understood: Callable[[Pod], bool] = lambda pod: True
    """Whether it is known which GPUs would do for it. Otherwise nobody loses one for it."""
    grace_of: Callable[[Pod], timedelta] = lambda _: timedelta()
    """How long a victim has to save its work after the announcement."""
    minimum_time: timedelta = timedelta()
    """A pod that has run for less is a victim only if nothing else will do."""
    limits: EndLimits = DEFAULT_END_LIMITS
    """How long a victim may take to end, before another one is chosen."""
    random_for: Callable[[str], Random] | None = None
    """Chooses victims at random instead of fairly, for the booked pod of that uid; always the same for one pod."""
    isolation: Isolation = field(default_factory=Isolation)


class Revoker:
    def __init__(
        self,
        cluster: Cluster,
        cluster_ledger: ClusterLedger,
        lease_writer: LeaseWriter,
        hand_overs: HandOvers,
        context: RevocationContext,
    ) -> None:
        self._cluster = cluster
        self._cluster_ledger = cluster_ledger
        self._lease_writer = lease_writer
        self._hand_overs = hand_overs
        self._context = context
        self._isolation = context.isolation
        self._events = EventRecorder(cluster, COMPONENT, context.now)
        self._gone_since: dict[str, datetime] = {}  # uid → since when the pod is gone, and its GPU not free
        self._stuck: Mapping[str, OpportunisticPod] = {}
        # Uid of a booked pod → since when it would fit, if an earlier one did not count on the GPU.
        self._contested_since: dict[str, datetime] = {}

    async def revoke_for_next(self) -> list[str]:
        """Does the next step for the first booked pod that needs a revocation. The names of the hand-overs begun.

        To be called again until nothing is due. If it fails for one booked pod, or if none of its victims can be told
        to go now, the next one is served. Raises `ClusterError` if Leases and bookings cannot be read.
        """
        if self._first_step() is None or not await self._context.reread():
            return []
        tried: set[str] = set()
        while len(tried) < MOST_TRIES and (step := self._first_step(tried)) is not None:
            tried.add(step.booked.uid)
            done = await self._isolation.each("revocation", [step], self._do, lambda step: step.booked.full_name)
            if done and (done[0] is None or done[0]):
                return done[0] or []
        return []

    async def _do(self, step: RevocationStep) -> list[str] | None:
        """The names of the hand-overs begun. None: something has changed, and the decision has to be made again."""
        if not await self._still_waits(step.booked) or not await self._keep_gpus(step):
            return None
        found = [pod for victim in step.victims for pod in self._context.pods_of(victim.uid) if not is_ending(pod)]
        victims = list({pod.metadata.uid: pod for pod in found}.values())  # one pod may have several claims
        begun = await self._isolation.each("victim", victims, lambda pod: self._begin(pod, step.booked))
        told = [f"{pod} has to end by {in_utc(due)}" for pod, due, name in begun if name]
        if told:
            await self._tell(step.booked, f"a GPU is kept for this pod; it is still in use: {', '.join(told)}")
        return [name for _, _, name in begun if name]

    async def _begin(self, pod: Pod, booked: Holder) -> tuple[str, datetime, str]:
        """Which pod has to end, when, and the name of its hand-over; empty if none was begun."""
        victim = holder_of(pod)
        order = HandOverOrder(Why.REVOKED, self._context.now() + self._context.grace_of(pod), booked.full_name)
        name = await self._hand_overs.begin(pod, order)
        if name:
            log.info("gpu_revoked pod=%s uid=%s for=%s", victim, victim.uid, booked)
        return victim.full_name, order.due, name

    async def _tell(self, booked: Holder, text: str) -> None:
        """An Event that cannot be written must not delay the revocation."""
        pod = self._context.pod_by_uid(booked.uid)
        try:
            if pod is not None:
                await self._events.record(pod, Note(KEPT, text, NORMAL))
        except ClusterError as error:
            log.info("event_not_written pod=%s reason=%s: %s", booked, KEPT, error)

    async def _keep_gpus(self, step: RevocationStep) -> bool:
        """False: a Lease has changed, and the decision has to be made again."""
        for gpu in step.gpus:
            victims = self._victims_on(gpu, step.victims)
            if not await self._lease_writer.keep_for(gpu, step.booked, victims, step.booking):
                return False
        uuids = {gpu.uuid for gpu in step.gpus}
        for lease in self._cluster_ledger.leases() if uuids else ():
            if lease.record.kept_for == step.booked and lease.record.gpu not in uuids:
                # From an earlier decision that is no longer enough.
                await self._lease_writer.stop_keeping(lease.name, step.booked.uid)
        return True

    # --- what is due -------------------------------------------------------------------------------------------------

    def _first_step(self, tried: AbstractSet[str] = frozenset()) -> RevocationStep | None:
        """Of the first booked pod that was not tried before in this round, and is not waiting for its next try."""
        ledger = self._cluster_ledger.ledger
        waiting = list(self._booked_and_waiting())
        if not waiting:
            return None
        would_fit = set(self._found(waiting, lambda each: each.holder.uid if self._fits(each) else None))
        self._contested_since = {uid: since for uid, since in self._contested_since.items() if uid in would_fit}
        self._stuck = self._find_stuck(ledger)
        opportunistic = [pod for pod in self._opportunistic_pods(ledger) if pod.holder.uid not in self._stuck]
        with ledger.what_if():
            for lease in self._cluster_ledger.leases():
                for victim in lease.record.kept_from:
                    is_going = self._is_ending(victim) or self._is_opportunistic(victim)
                    if is_going and victim.uid not in self._stuck:
                        ledger.release(victim.uid)
            for each in waiting:
                uid = each.holder.uid
                steps = self._found([each], lambda each: self._step_for(each, ledger, opportunistic))
                is_next = uid not in tried and self._isolation.is_due("revocation", each.holder.full_name)
                if steps and is_next and (uid not in would_fit or self._has_waited_enough(uid)):
                    return steps[0]
        return None

    def _found(self, waiting: Iterable[WaitingPod], look: Callable[[WaitingPod], T | None]) -> list[T]:
        return self._isolation.found("revocation_choice", waiting, look, lambda each: each.holder.full_name)

    def _booked_and_waiting(self) -> Iterable[WaitingPod]:
        """In the order in which they are served."""
        for waiting in self._context.booked():
            pod = self._context.pod_by_uid(waiting.holder.uid)
            if pod is not None and self._is_unschedulable(pod) and self._context.is_understood(pod):
                yield waiting

    def _is_unschedulable(self, pod: Pod) -> bool:
        """Whether kube-scheduler has found no node for it.

        Before that no revocation is needed; and without a scheduler it would be useless. Of a claim that the gate has
        refused, a scheduler says that something went wrong, and not that the pod is unschedulable.
        """
        if self._context.asks_by_claims(pod):
            return is_waiting(pod) and could_not_be_scheduled(pod)
        return (
            is_waiting(pod)
            and pod.spec.scheduler_name in self._context.schedulers
            and any(
                (condition.type, condition.status, condition.reason) == (SCHEDULED, "False", UNSCHEDULABLE)
                for condition in pod.status.conditions
            )
        )

    def _step_for(
        self, waiting: WaitingPod, ledger: Ledger, opportunistic: Sequence[OpportunisticPod]
    ) -> RevocationStep | None:
        """The next step for the pod. If there is none, it takes what it can count on, within this what-if."""
        booked, named = waiting.holder, self._named_for(waiting.keeper(ledger))
        staying = tuple(victim for victim in named if not self._is_ending(victim) and not self._is_begun(victim))
        if self._is_enough_kept(waiting, ledger):
            return RevocationStep(booked, waiting.booking, staying) if staying else None
        rng = self._context.random_for(booked.uid) if self._context.random_for else None
        answer = revoke(ledger, waiting, opportunistic, rng, self._stuck)
        if isinstance(answer, Refusal):
            return None
        if isinstance(answer, Placement):
            coverage = Coverage(waiting.booking, self._context.now())
            for share in replace(answer, coverage=coverage).shares(booked):
                ledger.hold(share)
            return None
        # A victim of an earlier decision whose hand-over has not begun is still a victim if it holds one of these.
        there = {gpu.uuid for gpu in answer.gpus}
        still_needed = [victim for victim in staying if there & ledger.shares_of(victim.uid).keys()]
        return RevocationStep(booked, waiting.booking, (*answer.victims, *still_needed), answer.gpus)

    def _is_enough_kept(self, waiting: WaitingPod, ledger: Ledger) -> bool:
        """Whether the GPUs that are kept for the pod are enough, once all victims are gone."""
        keeper = waiting.keeper(ledger)
        kept = [card for card in map(ledger.card, ledger.kept_for(keeper)) if card is not None]
        with ledger.what_if():
            for share in [share for card in kept for share in card.shares.values()]:
                if share.state is ShareState.RELEASING and share.holder.uid not in self._stuck:
                    ledger.give_back(share.holder.uid)
            nodes = {card.gpu.node for card in kept}.intersection(waiting.nodes)
            return any(isinstance(place(ledger, waiting.request, node, keeper), Placement) for node in nodes)

    def _fits(self, waiting: WaitingPod) -> bool:
        ledger = self._cluster_ledger.ledger
        return bool(candidates(ledger, waiting.request, waiting.nodes, waiting.keeper(ledger)).fitting)

    def _has_waited_enough(self, uid: str) -> bool:
        """A pod that would fit by itself may be placed before the earlier one that counts on the same GPU."""
        now = self._context.now()
        return now - self._contested_since.setdefault(uid, now) >= CONTESTED_WAIT

    # --- victims -----------------------------------------------------------------------------------------------------

    def _find_stuck(self, ledger: Ledger) -> Mapping[str, OpportunisticPod]:
        """The pods on which a booked pod must not wait any longer, by uid."""
        now, found, gone = self._context.now(), {}, {}
        for uid in ledger.holders():
            pod, holder = self._context.pod_by_uid(uid), _holder_in(ledger, uid)
            if pod is None and holder.is_claim:
                continue  # it is no pod, so nobody can find it gone by looking for one
            if pod is None:
                gone[uid] = self._gone_since.get(uid, now)
                if now >= gone[uid] + LAST_GRACE + KUBELET_TIME:
                    last = self._context.gone_pod(uid)
                    person = counts_as(last) if last is not None and self._context.may_lose_gpus(last) else ""
                    found[uid] = OpportunisticPod(Holder(uid), timedelta(), person)
            elif self._isolation.ask("revocation_choice", pod, self._is_stuck, otherwise=False):
                person = counts_as(pod) if self._context.may_lose_gpus(pod) else ""
                found[uid] = OpportunisticPod(holder, timedelta(), person)
        self._gone_since = gone
        return found

    def _is_stuck(self, pod: Pod) -> bool:
        if is_ending(pod):
            return is_overdue(pod, self._context.now(), self._context.limits)
        return self._hand_overs.is_held_up(pod.metadata.uid)

    def _opportunistic_pods(self, ledger: Ledger) -> Iterable[OpportunisticPod]:
        now = self._context.now()

        def seen(uid: str) -> OpportunisticPod | None:
            if not self._context.holder_may_lose_gpus(uid):
                return None
            pods = [pod for pod in self._context.pods_of(uid) if not is_ending(pod)]
            is_young = min(_age(pod, now) for pod in pods) < self._context.minimum_time
            work = max(_work(pod, now) for pod in pods)
            return OpportunisticPod(_holder_in(ledger, uid), work, counts_as(pods[0]), is_young)

        return self._isolation.found("revocation_choice", tuple(ledger.holders()), seen, self._title_of)

    def _named_for(self, keeper: str) -> list[Holder]:
        records = [lease.record for lease in self._cluster_ledger.leases()]
        records = [record for record in records if record.kept_for is not None and record.kept_for.uid == keeper]
        return list(dict.fromkeys(victim for record in records for victim in record.kept_from))

    def _is_opportunistic(self, victim: Holder) -> bool:
        return self._context.holder_may_lose_gpus(victim.uid)

    def _is_begun(self, victim: Holder) -> bool:
        staying = [pod for pod in self._context.pods_of(victim.uid) if not is_ending(pod)]
        return all(self._hand_overs.is_begun(pod.metadata.uid) for pod in staying)

    def _title_of(self, uid: str) -> str:
        pod = self._context.pod_by_uid(uid)
        return title(pod) if pod is not None else uid

    def _is_ending(self, victim: Holder) -> bool:
        pod = self._context.pod_by_uid(victim.uid)
        return pod is None or is_ending(pod)

    def _victims_on(self, gpu: Gpu, victims: Sequence[Holder]) -> list[Holder]:
        return [victim for victim in victims if gpu.uuid in self._cluster_ledger.ledger.shares_of(victim.uid)]

    async def _still_waits(self, booked: Holder) -> bool:
        """As the API server says now."""
        try:
            pod = await self._cluster.get(PODS, booked.name, booked.namespace)
        except NotFound:
            return False
        return (
            pod["metadata"]["uid"] == booked.uid
            and not pod["metadata"].get("deletionTimestamp")
            and not pod["spec"].get("nodeName")
        )


def _holder_in(ledger: Ledger, uid: str) -> Holder:
    return next((share.holder for share in ledger.shares_of(uid).values()), Holder(uid))


def _age(pod: Pod, now: datetime) -> timedelta:
    """How long it has had its GPUs: since its start; since it was bound or created, if it has not started."""
    return _work(pod, now) or max(timedelta(), now - (bound_at(pod) or created_at(pod)))


def _work(pod: Pod, now: datetime) -> timedelta:
    """What is lost if it must stop now: the time it has run; zero if it has not started."""
    try:
        return max(timedelta(), now - instant(pod.status.start_time, f"pod {pod.metadata.name}", "status.startTime"))
    except Malformed:
        return timedelta()
