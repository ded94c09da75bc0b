"""Filter, prioritize and bind: what kube-scheduler asks of Carrel for each pod.

Filter and prioritize only read. Bind takes the Leases of the cards, then writes one Binding that carries everything the
pod is told. What goes wrong before the Binding gives everything back; a Binding whose answer was lost is looked up.
A crash leaves Leases that name the pod. If they are all that it needs, its next bind goes on with them; if not, it
waits until the collector has freed them, because another replica may be binding it just now.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime

from carrel.dialects import bind_annotations, carrel
from carrel.dialects.interface import PodBinding, PodRequest
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions
from carrel.dialects.tier import is_opportunistic
from carrel.kubernetes.cluster import (
    BindTarget,
    Busy,
    Cluster,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
    Unknown,
)
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.lease_writer import LeaseWriter
from carrel.leases.pods import holder_of
from carrel.ledger.filtering import FilterResult, NodeFilter
from carrel.ledger.placement import Placement, WaitingPod, left_by_another_bind, place
from carrel.ledger.precedence import WAITED_FOR, Precedence
from carrel.ledger.refusals import Refusal
from carrel.ledger.scoring import Ranking
from carrel.ledger.shares import Holder
from carrel.scheduling.gangs import GangScheduler, View

LATEST_BINDING_S = 20.0
LONGEST_BINDING_S = 20.0
"""When a Binding is begun at the latest after the Leases were taken, and how long it may take. Together well below the
collector's patience, which would free what nobody seems to want any more."""

Understand = Callable[[Pod], PodRequest | Refusal | None]
"""What a pod asks for, or why it cannot be had; None if it asks for no GPU."""


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What scheduling needs of the world."""

    cluster: Cluster
    understand: Understand
    now: Callable[[], datetime]
    dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS
    spread: bool = False
    """Prefer the emptiest node instead of the one where the least is wasted."""
    booked: Callable[[], Sequence[WaitingPod]] = tuple
    """The booked pods that wait, the oldest first: others do not take what they wait for."""


class Scheduler:
    def __init__(
        self, cluster_ledger: ClusterLedger, lease_writer: LeaseWriter, gangs: GangScheduler, context: SchedulerContext
    ) -> None:
        self._cluster_ledger = cluster_ledger
        self._lease_writer = lease_writer
        self._gangs = gangs
        self._context = context
        self._ranking = Ranking(cluster_ledger.ledger)
        self._node_filter = NodeFilter(cluster_ledger.ledger)
        self._precedence = Precedence(cluster_ledger.ledger, context.booked)
        self._binding: set[str] = set()

    def expire_gangs(self) -> None:
        """To be called every few seconds: gangs whose time is up give back what was promised to them."""
        self._gangs.expire()

    # --- filter ------------------------------------------------------------------------------------------------------

    def filter(self, pod: Pod, nodes: Sequence[str]) -> FilterResult | Refusal:
        """A refusal: the pod cannot be understood, whatever the node."""
        ask = self._context.understand(pod)
        if ask is None:
            return FilterResult(nodes, {})
        if isinstance(ask, Refusal):
            return ask
        self._ranking.demand.saw(ask.request)
        if ask.request.gang is not None:
            answer = self._gangs.place(ask.request.gang, holder_of(pod), nodes, self._ledger_view(pod))
            if isinstance(answer, Refusal):
                return FilterResult.by_reason(nodes, answer.reason)
            if answer is not None:
                return _only(answer.node, nodes, f"gang {ask.request.gang.name} has its cards on {answer.node}")
        holder = holder_of(pod)
        left = left_by_another_bind(self._cluster_ledger.ledger, ask.request, holder)
        if isinstance(left, Refusal):
            return FilterResult.by_reason(nodes, left.reason)
        if left is not None:
            return _only(left.node, nodes, f"{holder} has its cards on {left.node} already")
        found = self._node_filter.filter(ask.request, nodes, holder.uid)
        return self._precedence.narrow(found, ask.request) if is_opportunistic(pod) else found

    def _ledger_view(self, pod: Pod) -> View:
        """How the pod is to see the ledger."""
        return self._precedence.served if is_opportunistic(pod) else nullcontext

    # --- prioritize --------------------------------------------------------------------------------------------------

    def rank(self, pod: Pod, nodes: Sequence[str]) -> Sequence[str]:
        """The nodes, best first; those that will not do come last."""
        ask = self._context.understand(pod)
        if ask is None or isinstance(ask, Refusal) or len(nodes) < 2:
            return nodes
        best = self._ranking.costs(ask.request, nodes, pod.metadata.uid)
        spreads = ask.request.spreads_over_nodes
        if self._context.spread if spreads is None else spreads:
            best.sort(key=lambda each: (-each.left_over, each.node))
        ranked = dict.fromkeys(each.node for each in best)
        return [*ranked, *(name for name in nodes if name not in ranked)]

    # --- bind --------------------------------------------------------------------------------------------------------

    async def bind(self, pod: Pod, node: str) -> Refusal | None:
        """None: the pod is bound. A refusal means that nothing is left behind, and that the scheduler may try again.

        Raises `ClusterError` if the API server does not answer: then the cards may stay the pod's until it is tried
        again, or until the collector finds that it never was bound.
        """
        ask = self._context.understand(pod)
        if isinstance(ask, Refusal):
            return ask
        holder = holder_of(pod)
        if holder.uid in self._binding:
            return Refusal(f"a bind of {holder} is under way")
        self._binding.add(holder.uid)
        try:
            return await self._bind(ask, holder, node, self._ledger_view(pod))
        finally:
            self._binding.discard(holder.uid)

    async def _bind(self, ask: PodRequest | None, holder: Holder, node: str, view: View) -> Refusal | None:
        if ask is None:
            return await self._write_binding(BindTarget(holder.namespace, holder.name, holder.uid, node))
        placement = await self._take(ask, holder, node, view)
        if isinstance(placement, Refusal):
            await self._lease_writer.give_back(holder.uid)
            return placement
        # The process may have slept. Gangs have looked at their clock together: half of one must not turn back here.
        if ask.request.gang is None and self._lease_writer.held_for(holder.uid) > LATEST_BINDING_S:
            await self._lease_writer.give_back(holder.uid)
            return Refusal(f"{holder} had its cards too long ago to be bound with them")
        notes = self._notes(ask, placement, holder)
        if isinstance(notes, Refusal):
            await self._lease_writer.give_back(holder.uid)
            return notes
        try:
            refusal = await self._write_binding(BindTarget(holder.namespace, holder.name, holder.uid, node, notes))
        except (Busy, Forbidden, Invalid, Unavailable):
            await self._lease_writer.give_back(holder.uid)  # nothing was written
            raise
        except BaseException:
            self._lease_writer.let_stand(holder.uid)
            raise
        if refusal is None:
            self._lease_writer.let_stand(holder.uid)
        else:
            await self._lease_writer.give_back(holder.uid)
        return refusal

    async def _take(self, ask: PodRequest, holder: Holder, node: str, view: View) -> Placement | Refusal:
        """The cards on that node, with their Leases; for a member of a gang, when the others have theirs."""
        gang = ask.request.gang
        if gang is not None:
            together = await self._gangs.wait_together(gang, holder, node)
            if together is not None:
                return together
        left = left_by_another_bind(self._cluster_ledger.ledger, ask.request, holder)
        placement = left or self._place(ask, holder, node, view)
        if isinstance(placement, Refusal):
            return placement
        if placement.node != node:
            return Refusal(f"{holder} has its cards on {placement.node} already")
        return await self._lease_writer.take(placement, holder) or placement

    def _place(self, ask: PodRequest, holder: Holder, node: str, view: View) -> Placement | Refusal:
        with view():
            seen = place(self._cluster_ledger.ledger, ask.request, node, holder.uid)
        if isinstance(seen, Placement):
            return seen
        really = place(self._cluster_ledger.ledger, ask.request, node, holder.uid)
        return really if isinstance(really, Refusal) else Refusal(f"{node} has {WAITED_FOR}")

    def _notes(self, ask: PodRequest, placement: Placement, holder: Holder) -> dict[str, str] | Refusal:
        """What the pod is told of its cards."""
        slots: dict[str, str] = {}
        kubelet_chooses = self._cluster_ledger.kubelet_chooses(placement.node)
        if kubelet_chooses:
            slots = carrel.write_slots([slot.uuid for slot in placement.gpus])
            if ask.request.by_kubelet:
                return slots  # which cards they are, the kubelet decides when the pod starts
        behind = self._cluster_ledger.cards_behind(placement)
        if behind is None:
            return Refusal(f"a card of {placement.node} has lost its reservation pod just now")
        assumed_at_ns = int(self._context.now().timestamp() * 1_000_000) * 1_000
        labels = self._cluster_ledger.labels_of(placement.node)
        options = self._context.dialect_options
        return slots | bind_annotations.annotations(
            PodBinding(ask, behind, holder, assumed_at_ns, options, labels, kubelet_chooses)
        )

    async def _write_binding(self, target: BindTarget) -> Refusal | None:
        """Raises `Unknown` if nobody can say whether it was written: it may even take effect later."""
        try:
            async with asyncio.timeout(LONGEST_BINDING_S):
                await self._context.cluster.bind(target)
        except TimeoutError:
            raise Unknown(0, "Timeout", f"no answer to the Binding of {target.namespace}/{target.pod}") from None
        except Unknown:
            if await self._is_bound(target):
                return None
            raise
        except (Conflict, NotFound) as error:
            if await self._is_bound(target):
                return None
            return Refusal(f"{target.namespace}/{target.pod} cannot be bound to {target.node}: {error.message}")
        return None

    async def _is_bound(self, target: BindTarget) -> bool:
        """Whether the pod is bound to that node and told these cards: another replica may have told it others."""
        try:
            pod = await self._context.cluster.get(PODS, target.pod, target.namespace)
        except NotFound:
            return False
        told = carrel.told_cards(pod["metadata"].get("annotations", {}))
        is_there = (pod["metadata"]["uid"], pod["spec"].get("nodeName")) == (target.uid, target.node)
        return is_there and told == carrel.told_cards(target.annotations)


def _only(node: str, nodes: Sequence[str], elsewhere: str) -> FilterResult:
    here = [name for name in nodes if name == node]
    return FilterResult(here, FilterResult.by_reason([name for name in nodes if name != node], elsewhere).refused)
