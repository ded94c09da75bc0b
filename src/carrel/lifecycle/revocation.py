"""Takes cards back for booked pods that kube-scheduler cannot place, from pods without a booking.

Booked pods are served in the order in which they were created, then by namespace and name. All of them are thought
through together, so that one does not count on a card that an earlier one is about to get. A pod that fits without
anybody's card is left to the scheduler. For the first that does not:

    1. its cards are kept for it, and on their Leases is named who gives them back
    2. these pods are handed over to CPU (`hand_over`), and when they are gone it is placed
    3. when it is bound or gone, the collector keeps its cards no more

What was decided is on the Leases: whoever decides again goes on with it, and chooses nobody in addition. Before the
first write everything is read anew and decided once more, because a cache may not have heard of a card that is free.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from carrel.dialects.carrel import BOOKED, TIER
from carrel.dialects.hand_over_record import Why
from carrel.dialects.interface import PodRequest
from carrel.dialects.tier import tier_of
from carrel.kubernetes.cluster import Cluster, NotFound
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.cluster_ledger import ClusterLedger, PodByUid
from carrel.leases.lease_writer import LeaseWriter
from carrel.leases.pods import SCHEDULED, holder_of, is_going, is_waiting
from carrel.ledger.gpus import Gpu
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod, candidates, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder, ShareState
from carrel.ledger.tiers import Tier
from carrel.lifecycle.expiry import end_of
from carrel.lifecycle.hand_over import HandOvers, Order
from carrel.lifecycle.victims import OpportunisticPod, revoke
from carrel.parsing import Malformed
from carrel.parsing.time import instant

log = logging.getLogger(__name__)

UNSCHEDULABLE = "Unschedulable"
"""kube-scheduler's word for a pod that it has tried to place, and could not."""
SHARED_HOPE = timedelta(seconds=10)
"""How long a booked pod that would fit by itself waits for a card that an earlier booked pod may take as well."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done for one booked pod."""

    booked: Holder
    victims: tuple[Holder, ...]
    gpus: tuple[Gpu, ...] = ()
    """To be kept for it. Empty: they are, and only victims have still to be told."""


@dataclass(frozen=True, slots=True)
class RevocationContext:
    """What is known of the pods, and the house rules of revocation."""

    pods: Callable[[], Iterable[Pod]]
    pod_by_uid: PodByUid
    understand: Callable[[Pod], PodRequest | Refusal | None]
    nodes_for: Callable[[Pod], Sequence[str]]
    now: Callable[[], datetime]
    schedulers: frozenset[str]
    """Who heeds what is kept."""
    grace: timedelta = timedelta()
    """How long a victim has to save its work after it was told."""
    lot: Callable[[str], Random] | None = None
    """Draws victims by lot among the fewest, for the booked pod of that uid; always alike for the same pod."""


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
        self._told: set[str] = set()  # victims whose hand-over we have begun
        self._hopes: dict[str, datetime] = {}  # booked uid → since when it would fit, were it not for an earlier one

    async def round(self) -> list[str]:
        """Does what is due for the first booked pod that needs somebody's card. The names of the hand-overs begun.

        To be called again until nothing is due. Raises `ClusterError` if the API server does not do as asked.
        """
        if self._first_step() is None:
            return []
        await self._lease_writer.read_anew()
        step = self._first_step()
        if step is None or not await self._still_waits(step.booked) or not await self._keep(step):
            return []
        due = self._context.now() + self._context.grace
        begun = []
        for victim in step.victims:
            pod = self._context.pod_by_uid(victim.uid)
            order = Order(Why.REVOKED, due, step.booked.full_name)
            if pod is not None and (name := await self._hand_overs.intend(pod, order)):
                log.info("card_revoked pod=%s uid=%s for=%s", victim, victim.uid, step.booked)
                self._told.add(victim.uid)
                begun.append(name)
        return begun

    async def _keep(self, step: Step) -> bool:
        """False: somebody else wrote on a Lease, and it has to be decided anew."""
        for gpu in step.gpus:
            if not await self._lease_writer.keep(gpu, step.booked, self._on(gpu, step.victims)):
                return False
        uuids = {gpu.uuid for gpu in step.gpus}
        for lease in self._cluster_ledger.leases() if uuids else ():
            if lease.record.kept_for == step.booked and lease.record.gpu not in uuids:
                await self._lease_writer.keep_no_more(
                    lease.name, step.booked.uid
                )  # an earlier decision, which will not do
        return True

    # --- what is due -------------------------------------------------------------------------------------------------

    def _first_step(self) -> Step | None:
        ledger = self._cluster_ledger.ledger
        waiting = list(self._booked_and_waiting())
        if not waiting:
            return None
        would_fit = {each.holder.uid for each in waiting if self._fits(each)}
        self._hopes = {uid: since for uid, since in self._hopes.items() if uid in would_fit}
        self._told = {uid for uid in self._told if self._context.pod_by_uid(uid)}
        opportunists = list(self._opportunists(ledger))
        with ledger.what_if():
            for lease in self._cluster_ledger.leases():
                for victim in lease.record.kept_from:
                    if self._is_going(victim) or self._may_lose(victim):
                        ledger.release(victim.uid)
            for each in waiting:
                step = self._step_for(each, ledger, opportunists)
                if step is not None and (each.holder.uid not in would_fit or self._hoped_enough(each.holder.uid)):
                    return step
        return None

    def _booked_and_waiting(self) -> Iterable[WaitingPod]:
        """In the order in which they are served."""
        now = self._context.now()
        pods = [pod for pod in self._context.pods() if _is_booked_in_vain(pod, self._context.schedulers)]
        pods = [pod for pod in pods if (end := end_of(pod)) is None or now < end]  # else it is about to go itself
        for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, holder_of(pod).full_name)):
            ask = self._context.understand(pod)
            if isinstance(ask, PodRequest) and not self._cluster_ledger.ledger.shares_of(pod.metadata.uid):
                yield WaitingPod(holder_of(pod), ask.request, tuple(self._context.nodes_for(pod)))

    def _step_for(self, waiting: WaitingPod, ledger: Ledger, opportunists: Sequence[OpportunisticPod]) -> Step | None:
        """What is to be done for the pod now. If nothing is, it takes what it may count on, for this what-if."""
        booked, named = waiting.holder, self._named_for(waiting.holder)
        staying = tuple(victim for victim in named if not self._is_going(victim) and victim.uid not in self._told)
        if self._is_begun(waiting, ledger):
            return Step(booked, staying) if staying else None
        lot = self._context.lot(booked.uid) if self._context.lot else None
        answer = revoke(ledger, waiting, opportunists, lot)
        if isinstance(answer, Refusal):
            return None
        if isinstance(answer, Placement):
            for share in answer.shares(booked):
                ledger.hold(share)
            return None
        # Whom an earlier decision has named, perhaps without telling it, is still meant where it stands in the way.
        there = {gpu.uuid for gpu in answer.gpus}
        meant = [victim for victim in staying if there & ledger.shares_of(victim.uid).keys()]
        return Step(booked, (*answer.victims, *meant), answer.gpus)

    def _is_begun(self, waiting: WaitingPod, ledger: Ledger) -> bool:
        """Whether the cards that are kept for the pod will do, when everybody has gone who is to go."""
        uid = waiting.holder.uid
        kept = [card for card in map(ledger.card, ledger.kept_for(uid)) if card is not None]
        with ledger.what_if():
            for share in [share for card in kept for share in card.shares.values()]:
                if share.state is ShareState.RELEASING:
                    ledger.give_back(share.holder.uid)
            nodes = {card.gpu.node for card in kept}.intersection(waiting.nodes)
            return any(isinstance(place(ledger, waiting.request, node, uid), Placement) for node in nodes)

    def _fits(self, waiting: WaitingPod) -> bool:
        return bool(candidates(self._cluster_ledger.ledger, waiting.request, waiting.nodes, waiting.holder.uid).fitting)

    def _hoped_enough(self, uid: str) -> bool:
        """A pod that would fit by itself may be placed before the earlier one that counts on the same card."""
        now = self._context.now()
        return now - self._hopes.setdefault(uid, now) >= SHARED_HOPE

    # --- who has to go -----------------------------------------------------------------------------------------------

    def _opportunists(self, ledger: Ledger) -> Iterable[OpportunisticPod]:
        now = self._context.now()
        for uid in ledger.holders():
            pod = self._context.pod_by_uid(uid)
            if pod is not None and tier_of(pod) is Tier.OPPORTUNISTIC and not is_going(pod):
                yield OpportunisticPod(holder_of(pod), _work(pod, now))

    def _named_for(self, booked: Holder) -> list[Holder]:
        records = [lease.record for lease in self._cluster_ledger.leases() if lease.record.kept_for == booked]
        return list(dict.fromkeys(victim for record in records for victim in record.kept_from))

    def _may_lose(self, victim: Holder) -> bool:
        pod = self._context.pod_by_uid(victim.uid)
        return pod is not None and tier_of(pod) is Tier.OPPORTUNISTIC

    def _is_going(self, victim: Holder) -> bool:
        pod = self._context.pod_by_uid(victim.uid)
        return pod is None or is_going(pod)

    def _on(self, gpu: Gpu, victims: Sequence[Holder]) -> list[Holder]:
        return [victim for victim in victims if gpu.uuid in self._cluster_ledger.ledger.shares_of(victim.uid)]

    async def _still_waits(self, booked: Holder) -> bool:
        """By what the API server says now."""
        try:
            pod = await self._cluster.get(PODS, booked.name, booked.namespace)
        except NotFound:
            return False
        return (
            pod["metadata"]["uid"] == booked.uid
            and not pod["metadata"].get("deletionTimestamp")
            and not pod["spec"].get("nodeName")
            and pod["metadata"].get("annotations", {}).get(TIER) == BOOKED
        )


def _is_booked_in_vain(pod: Pod, schedulers: frozenset[str]) -> bool:
    """Whether it has a booking, and kube-scheduler has found no place for it.

    Before that nobody need go; and where no scheduler is at work, it would be for nothing.
    """
    return (
        is_waiting(pod)
        and tier_of(pod) is Tier.BOOKED
        and pod.spec.scheduler_name in schedulers
        and any(
            (condition.type, condition.status, condition.reason) == (SCHEDULED, "False", UNSCHEDULABLE)
            for condition in pod.status.conditions
        )
    )


def _work(pod: Pod, now: datetime) -> timedelta:
    """What is lost if it must stop now: as long as it has run. Nothing, if it has not begun."""
    try:
        return max(timedelta(), now - instant(pod.status.start_time, f"pod {pod.metadata.name}", "status.startTime"))
    except Malformed:
        return timedelta()
