"""Revokes GPUs for booked pods that kube-scheduler cannot place, from opportunistic pods.

Booked pods are served in the order in which they were created, then by namespace and name. All of them are considered
together, so that one does not count on a GPU that an earlier one is about to get. A pod that fits without a revocation
is left to the scheduler. Nobody loses a GPU to a booking that has not settled (`dialects.booking_objects`), nor to a
gang of which too few members would have GPUs then. For the first that does not fit:

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
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

from carrel.cluster.pod_progress import (
    SCHEDULED,
    could_not_be_scheduled,
    holder_of,
    is_ending,
    is_waiting,
)
from carrel.cluster.state import ClusterState
from carrel.dialects.carrel import LEAVE_BY
from carrel.dialects.hand_over_record import Why
from carrel.ids import BookingId, HolderId
from carrel.kubernetes.cluster import NotFound
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import NORMAL, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.gpus import Gpu
from carrel.ledger.placement import Placement, WaitingPod, candidates, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request
from carrel.ledger.shares import Coverage, Holder, ShareState
from carrel.ledger.victims import Opportunists, choose_victims, place_anywhere
from carrel.lifecycle.handing_over.hand_over import HandOverOrder, HandOvers
from carrel.lifecycle.reporting.pod_events import COMPONENT
from carrel.lifecycle.revoking.opportunistic_pods import STEP, OpportunisticPods
from carrel.lifecycle.tier_options import TierOptions
from carrel.parsing.time import seconds

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
    booking: BookingId
    victims: tuple[Holder, ...]
    gpus: tuple[Gpu, ...] = ()
    """To be kept for it. Empty: they are kept, and only some hand-overs have to begin."""

    def __str__(self) -> str:
        return str(self.booked)


@dataclass(frozen=True, slots=True)
class _Decision:
    """What is worked out once for all booked pods that wait."""

    opportunists: Opportunists
    tried: AbstractSet[str] = frozenset()
    would_fit: AbstractSet[str] = frozenset()
    named: dict[HolderId, dict[Holder, None]] = field(default_factory=dict)
    """In whose name GPUs are kept → who gives them back, by earlier decisions."""
    refused: set[tuple[Request, int]] = field(default_factory=set)
    """Requests, and the nodes where they may run, for which there are no victims."""


class Revoker:
    def __init__(self, state: ClusterState, hand_overs: HandOvers, options: TierOptions) -> None:
        self._state = state
        self._cluster_ledger = state.cluster_ledger
        self._lease_writer = state.lease_writer
        self._now = state.options.now
        self._options = options
        self._hand_overs = hand_overs
        self._isolation = state.isolation
        self._events = EventRecorder(state.cluster, COMPONENT, self._now)
        self.pods = OpportunisticPods(state, hand_overs, options)
        self._decision = _Decision(Opportunists({}))
        # Uid of a booked pod → since when it would fit, if an earlier one did not count on the GPU.
        self._contested_since: dict[HolderId, datetime] = {}

    async def revoke_for_next(self) -> list[str]:
        """Does the next step for the first booked pod that needs a revocation. The names of the hand-overs begun.

        To be called again until nothing is due. If it fails for one booked pod, or if none of its victims can be told
        to go now, the next one is served. Raises `ClusterError` if Leases and bookings cannot be read.
        """
        if self.decide() is None or not await self._state.reread():
            return []
        tried: set[HolderId] = set()
        while len(tried) < MOST_TRIES and (step := self.decide(tried)) is not None:
            tried.add(step.booked.uid)
            done = await self._isolation.each("revocation", [step], self._do)
            if done and (done[0] is None or done[0]):
                return done[0] or []
        return []

    async def _do(self, step: RevocationStep) -> list[str] | None:
        """The names of the hand-overs begun. None: something has changed, and the decision has to be made again."""
        booked = step.booked
        try:
            now = await self._state.cluster.get(PODS, booked.name, booked.namespace)
        except NotFound:
            return None
        is_ending_now = now["metadata"]["uid"] != booked.uid or now["metadata"].get("deletionTimestamp")
        if is_ending_now or now["spec"].get("nodeName") or not await self._keep_gpus(step):
            return None
        users = (pod for victim in step.victims for pod in self._state.holders.pods_of(victim.uid))
        pods = {pod.metadata.uid: pod for pod in users if not is_ending(pod)}  # one pod may have several claims
        victims = [pod for uid, pod in pods.items() if uid not in self._hand_overs.begun]
        begun = await self._isolation.each("victim", victims, lambda pod: self._begin(pod, step))
        told = [f"{pod} has to end by {self._state.words.when(due)}" for pod, due, name in begun if name]
        last = max((due for _, due, name in begun if name), default=self._now())
        waiting = self._state.holders.pod_of(booked.uid)
        if told and waiting is not None:
            text = f"a GPU is kept for this pod; it is still in use: {', '.join(told)}"
            await self._events.try_record(waiting, Note(KEPT, text, NORMAL, ((LEAVE_BY, seconds(last)),)))
        return [name for _, _, name in begun if name]

    async def _begin(self, pod: Pod, step: RevocationStep) -> tuple[str, datetime, str]:
        """Which pod has to end, when, and the name of its hand-over; empty if none was begun."""
        victim = holder_of(pod)
        due = self._now() + self._options.grace_of(pod, self._state.namespaces.store.get(pod.metadata.namespace))
        order = HandOverOrder(Why.REVOKED, due, step.booked.full_name, step.booking)
        name = await self._hand_overs.begin(pod, order)
        if name:
            log.info("gpu_revoked pod=%s uid=%s for=%s", victim, victim.uid, step.booked)
        return victim.full_name, order.due, name

    async def _keep_gpus(self, step: RevocationStep) -> bool:
        """False: a Lease has changed, and the decision has to be made again."""
        for gpu in step.gpus:
            shares_of = self._cluster_ledger.ledger.shares_of
            victims = [victim for victim in step.victims if gpu.uuid in shares_of(victim.uid)]
            if not await self._lease_writer.keep_for(gpu, step.booked, victims, step.booking):
                return False
        uuids = {gpu.uuid for gpu in step.gpus}
        for lease in self._cluster_ledger.kept_leases() if uuids else ():
            if lease.record.kept_for == step.booked and lease.record.gpu not in uuids:
                # From an earlier decision that is no longer enough.
                await self._lease_writer.stop_keeping(lease.name, step.booked.uid)
        return True

    # --- what is due -------------------------------------------------------------------------------------------------

    def decide(self, tried: AbstractSet[str] = frozenset()) -> RevocationStep | None:
        """The next step of the first booked pod that needs one, was not tried before in this round, and is not waiting
        for its next try."""
        ledger = self._cluster_ledger.ledger
        waiting = list(self.booked_and_waiting())
        if not waiting:
            self.pods.forget_changed()
            return None
        self._decision = _Decision(self.pods.read(), tried, self.would_fit(waiting))
        would_fit, stuck, named = self._decision.would_fit, self._decision.opportunists.stuck, self._decision.named
        self._contested_since = {uid: since for uid, since in self._contested_since.items() if uid in would_fit}
        for record in (lease.record for lease in self._cluster_ledger.kept_leases()):
            if record.kept_for is not None:
                named.setdefault(record.kept_for.uid, {}).update(dict.fromkeys(record.kept_from))
        with ledger.what_if():
            for victim in {victim for victims in named.values() for victim in victims}:
                is_going = self._is_ending(victim) or self._state.pod_facts.holder_may_lose_gpus(victim.uid)
                if is_going and victim.uid not in stuck:
                    ledger.release(victim.uid)
            helps: dict[Gang, bool] = {}
            for each in waiting:
                gang = each.request.gang
                if gang is not None and gang not in helps:
                    helps[gang] = self._would_help(gang, waiting)
                if gang is None or helps[gang]:
                    step = self._isolation.ask(STEP, each, self._step_for, None)
                    if step is not None:
                        return step
        return None

    def booked_and_waiting(self) -> Iterable[WaitingPod]:
        """In the order in which they are served. For a gang that can never start, nobody loses a GPU."""
        never: dict[str, Refusal | None] = {}  # of each gang
        for waiting in self._state.booked_waiting():
            pod, request = self._state.holders.pod_of(waiting.holder.uid), waiting.request
            if pod is None or not self._is_unschedulable(pod) or not self._state.requests.is_understood(pod):
                continue
            if request.gang is not None and request.gang.name not in never:
                never[request.gang.name] = self._state.waiting_reason.why_never(pod, request)
            if request.gang is None or never[request.gang.name] is None:
                yield waiting

    def _is_unschedulable(self, pod: Pod) -> bool:
        """Whether kube-scheduler has found no node for it.

        Before that no revocation is needed; and without a scheduler it would be useless. Of a claim that the gate has
        refused, a scheduler says that something went wrong, and not that the pod is unschedulable.
        """
        if self._state.requests.asks_any_scheduler(pod):
            return is_waiting(pod) and could_not_be_scheduled(pod)
        return (
            is_waiting(pod)
            and pod.spec.scheduler_name in self._options.schedulers
            and any(
                (condition.type, condition.status, condition.reason) == (SCHEDULED, "False", UNSCHEDULABLE)
                for condition in pod.status.conditions
            )
        )

    def _step_for(self, waiting: WaitingPod) -> RevocationStep | None:
        """The next step for the pod. If it needs none, it takes what it can count on, within this what-if."""
        decision, booked, ledger = self._decision, waiting.holder, self._cluster_ledger.ledger
        named = decision.named.get(waiting.keeper(ledger), {})
        staying = tuple(victim for victim in named if not self._is_ending(victim) and not self._is_begun(victim))
        is_enough_kept = self._is_enough_kept(waiting)
        # Whoever asks alike gets the same answer: those before have only taken away from it.
        question = None if ledger.kept_for(waiting.keeper(ledger)) else (waiting.request, id(waiting.nodes))
        if not staying if is_enough_kept else question in decision.refused or self._serve(waiting):
            return None
        is_next = booked.uid not in decision.tried and self._isolation.is_due("revocation", str(booked))
        is_next &= waiting.settled is None or waiting.settled <= self._now()
        if not is_next or (booked.uid in decision.would_fit and not self._has_waited_enough(booked.uid)):
            return None
        if is_enough_kept:
            return RevocationStep(booked, waiting.booking, staying)
        rng = Random(booked.uid) if self._options.random_victims else None  # noqa: S311 - always the same for one pod
        answer = choose_victims(ledger, decision.opportunists, waiting, self._now(), rng)
        if isinstance(answer, Refusal):
            if question is not None:
                decision.refused.add(question)
            return None
        # A victim of an earlier decision is still one if it holds one of these: the Leases must go on naming it.
        there = {gpu.uuid for gpu in answer.gpus}
        leases = [lease.record for lease in self._cluster_ledger.kept_leases() if lease.record.gpu in there]
        on_these = {victim for record in leases for victim in record.kept_from}.intersection(named)
        stuck = decision.opportunists.stuck
        still_needed = [each for each in on_these if not self._is_ending(each) and each.uid not in stuck]
        victims = (*answer.victims, *sorted(still_needed, key=str))
        return RevocationStep(booked, waiting.booking, victims, answer.gpus)

    def _would_help(self, gang: Gang, waiting: Iterable[WaitingPod]) -> bool:
        """Whether as many members would have GPUs as the gang needs. For fewer nobody loses one: all or none are
        placed. All victims count as gone, and members that are not among these pods as if they had theirs."""
        members = self._state.gang_members(gang)
        if members.bound:
            return True
        # Those first that have the least choice: each takes the first node with room.
        booked = sorted(
            (each for each in waiting if each.request.gang == gang),
            key=lambda each: (len(each.nodes), -each.request.gpus),
        )
        ledger, opportunists = self._cluster_ledger.ledger, self._decision.opportunists
        ending = [
            uid
            for uid in ledger.holders()
            if any(share.state is ShareState.RELEASING for share in ledger.shares_of(uid).values())
        ]
        with ledger.what_if():
            for uid in {*opportunists.victims, *ending} - opportunists.stuck.keys():
                ledger.give_back(uid)
            served = self._isolation.found(STEP, booked, self._serve)
        return len(members.waiting) - len(booked) + len(served) >= gang.size

    def _serve(self, waiting: WaitingPod) -> bool | None:
        """Gives GPUs to the pod, within a what-if. None: there are none for it."""
        ledger = self._cluster_ledger.ledger
        placed = place_anywhere(ledger, waiting)
        if placed is None:
            return None
        ledger.hold(*replace(placed, coverage=Coverage(waiting.booking, self._now())).shares(waiting.holder))
        return True

    def _is_enough_kept(self, waiting: WaitingPod) -> bool:
        """Whether the GPUs that are kept for the pod are enough, once all victims are gone."""
        ledger = self._cluster_ledger.ledger
        keeper = waiting.keeper(ledger)
        kept = [entry for entry in map(ledger.entry, ledger.kept_for(keeper)) if entry is not None]
        with ledger.what_if():
            for share in [share for entry in kept for share in entry.shares.values()]:
                if share.state is ShareState.RELEASING and share.holder.uid not in self._decision.opportunists.stuck:
                    ledger.give_back(share.holder.uid)
            nodes = {entry.gpu.node for entry in kept}.intersection(waiting.nodes)
            return any(isinstance(place(ledger, waiting.request, node, keeper), Placement) for node in nodes)

    def would_fit(self, waiting: Iterable[WaitingPod]) -> set[HolderId]:
        """The uids of those that fit as it is. Many ask alike, and are looked at once."""
        ledger = self._cluster_ledger.ledger
        known: dict[tuple[Request, int], bool] = {}

        def fits(each: WaitingPod) -> HolderId | None:
            keeper = each.keeper(ledger)
            if ledger.kept_for(keeper):
                return each.holder.uid if candidates(ledger, each.request, each.nodes, keeper).fitting else None
            question = (each.request, id(each.nodes))  # a hash of 5,000 names would cost as much as the answer
            if question not in known:
                known[question] = bool(candidates(ledger, each.request, each.nodes).fitting)
            return each.holder.uid if known[question] else None

        return set(self._isolation.found(STEP, waiting, fits))

    def _has_waited_enough(self, uid: HolderId) -> bool:
        """A pod that would fit by itself may be placed before the earlier one that counts on the same GPU."""
        now = self._now()
        return now - self._contested_since.setdefault(uid, now) >= CONTESTED_WAIT

    # --- victims -----------------------------------------------------------------------------------------------------

    def _is_begun(self, victim: Holder) -> bool:
        staying = [pod for pod in self._state.holders.pods_of(victim.uid) if not is_ending(pod)]
        return all(pod.metadata.uid in self._hand_overs.begun for pod in staying)

    def _is_ending(self, victim: Holder) -> bool:
        pod = self._state.holders.pod_of(victim.uid)
        return pod is None or is_ending(pod)
