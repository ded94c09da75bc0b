"""Filter, prioritize and bind: what kube-scheduler asks of Carrel for each pod.

Filter and prioritize only read. `choose` answers a filter call with the best node alone, whose GPUs it promises to the
pod in this process (`offers`): then kube-scheduler asks for no scores, and makes none of its own.

Bind takes the Leases of the GPUs, then writes one Binding with all annotations for the pod. If something fails before
the Binding, everything is given back; if the answer to the Binding is lost, the pod is read. A crash leaves Leases that
name the pod. If they are all that it needs, its next bind uses them; if not, the pod waits until the collector has
freed them, because another replica may be binding it at this moment.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime

from carrel.dialects import bind_annotations, carrel
from carrel.dialects.interface import PodBinding, PodRequest
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions
from carrel.dialects.tier import write_tier
from carrel.kubernetes.cluster import (
    BindTarget,
    Busy,
    Cluster,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.lease_writer import LeaseWriter
from carrel.leases.pod_progress import holder_of
from carrel.leases.slot_gpus import gpus_of_slots
from carrel.ledger.coverage import Covered
from carrel.ledger.demand import REMEMBERED_PODS
from carrel.ledger.filtering import FilterResult, NodeFilter
from carrel.ledger.machines import MachineRoom, Machines
from carrel.ledger.never import Never
from carrel.ledger.placement import Placement, WaitingPod, left_by_another_bind, place
from carrel.ledger.precedence import WAITED_FOR, Precedence
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.ledger.scoring import NodeCost, Ranking
from carrel.ledger.shares import Coverage, Holder
from carrel.ledger.tiers import Tier
from carrel.scheduling.gangs import GangScheduler, LedgerView, NotTogether
from carrel.scheduling.machine_room import machine_of, newest_first
from carrel.scheduling.offers import Offers

BINDING_BEGINS_WITHIN_S = 20.0
BINDING_TIMEOUT_S = 20.0
"""How long after the Leases were taken a Binding may begin, and how long it may take. Together well below the
collector's `TIME_TO_BIND_S`, after which it frees the GPUs of a pod that is not bound."""

RequestedBy = Callable[[Pod], PodRequest | Refusal | None]
"""What a pod asks for, or why that is impossible; None if it asks for no GPU."""


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What scheduling needs of its surroundings."""

    cluster: Cluster
    requested_by: RequestedBy
    now: Callable[[], datetime]
    booked: Callable[[], Sequence[WaitingPod]]
    """The booked pods that wait, the oldest first: other pods do not take the GPUs that they wait for."""
    covered: Callable[[Pod], Covered | None]
    keeper: Callable[[Pod], str]
    """In whose name a pod gets what is kept for it."""
    tier: Callable[[Pod], Tier | None]
    why_over_limit: Callable[[Pod, Request], Refusal | None]
    """Why its person may hold no more GPUs without a booking."""
    why_never: Callable[[Pod, Request], Never | None]
    """Why no node could serve it, even if all GPUs were free."""
    preferences_matter: Callable[[Pod, Sequence[str]], bool] = lambda pod, nodes: False
    """Whether kube-scheduler's own scores may decide among the nodes: then `choose` names all that have room."""
    dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS
    machines: Machines | None = None
    """How much CPU and memory the nodes have free; None: not known."""
    spread: bool = False
    """Prefer the emptiest node instead of the one where the least is wasted."""


@dataclass(frozen=True, slots=True)
class _PodToBind:
    """What was known of a pod when its bind began."""

    holder: Holder
    keeper: str
    """In whose name it gets what is kept for it."""
    leaves_room: bool
    """For the booked pods that wait."""
    coverage: Coverage | None
    """To be recorded with its shares."""
    tier: Mapping[str, str]
    """What it is told about its tier."""


class Scheduler:
    def __init__(
        self,
        cluster_ledger: ClusterLedger,
        lease_writer: LeaseWriter,
        gangs: GangScheduler,
        offers: Offers,
        context: SchedulerContext,
    ) -> None:
        self._cluster_ledger = cluster_ledger
        self._lease_writer = lease_writer
        self._gangs = gangs
        self._offers = offers
        self._context = context
        self._ranking = Ranking(cluster_ledger.ledger, context.machines)
        self._node_filter = NodeFilter(cluster_ledger.ledger)
        self._precedence = Precedence(cluster_ledger.ledger, context.booked)
        self._binding: set[str] = set()

    def expire_promises(self) -> None:
        """To be called every few seconds: gangs and pods whose time is up lose what was promised to them."""
        self._gangs.expire()
        self._offers.expire()

    def learn(self, pods: Iterable[Pod]) -> None:
        """What these pods ask for counts as asked for: after a restart, of the pods that exist."""
        asking: list[tuple[Pod, PodRequest]] = []
        for pod in newest_first(pods):
            asked = self._context.requested_by(pod)
            if isinstance(asked, PodRequest):
                asking.append((pod, asked))
            if len(asking) == REMEMBERED_PODS:
                break
        for pod, asked in reversed(asking):
            self._ranking.demand.saw(asked.request, machine_of(pod), pod.metadata.uid)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod that another replica has bound counts too: this one may be asked next. The first lists are left to
        `learn`."""
        was_bound = old is not None and new is not None and not old.spec.node_name and bool(new.spec.node_name)
        if was_bound and new is not None and not self._ranking.demand.has_counted(new.metadata.uid):
            asked = self._context.requested_by(new)
            if isinstance(asked, PodRequest):
                self._ranking.demand.saw(asked.request, machine_of(new), new.metadata.uid)

    # --- filter ------------------------------------------------------------------------------------------------------

    def filter(self, pod: Pod, nodes: Sequence[str]) -> FilterResult | Refusal:
        """All nodes that have room. A refusal: the request of the pod cannot be read or met, on any node."""
        pod_request = self._context.requested_by(pod)
        if pod_request is None:
            return FilterResult(nodes, {})
        if isinstance(pod_request, Refusal):
            return pod_request
        self._ranking.demand.saw(pod_request.request, machine_of(pod), pod.metadata.uid)
        return self._decided(pod, pod_request, nodes) or self._with_room(pod, pod_request, nodes)

    def choose(self, pod: Pod, nodes: Sequence[str]) -> FilterResult | Refusal:
        """The same, but only the best of the nodes that have room, and its GPUs are promised to the pod; unless
        kube-scheduler's own preferences may decide."""
        self._offers.asked_again(pod.metadata.uid)
        pod_request = self._context.requested_by(pod)
        if not isinstance(pod_request, PodRequest) or self._context.preferences_matter(pod, nodes):
            return self.filter(pod, nodes)
        machine = machine_of(pod)
        self._ranking.demand.saw(pod_request.request, machine, pod.metadata.uid)
        decided = self._decided(pod, pod_request, nodes)
        if decided is not None:
            return decided
        leaves_room = self._leaves_room(pod)
        # Without booked pods that wait, nodes that have no room need not be sorted out: they have no cost.
        are_left = leaves_room and self._precedence.taken_first().nodes
        candidates = self._with_room(pod, pod_request, nodes).fitting if are_left else nodes
        best = self._best(pod, pod_request, candidates, machine)
        if best is None:
            return self._with_room(pod, pod_request, nodes)
        to_bind = self._pod_to_bind(pod)
        placement = self._place(pod_request, to_bind, best)
        if isinstance(placement, Refusal):
            return self._with_room(pod, pod_request, nodes)
        self._offers.make(replace(placement, coverage=to_bind.coverage), to_bind.holder)
        return FilterResult((best,), {})

    def _best(self, pod: Pod, pod_request: PodRequest, nodes: Collection[str], machine: MachineRoom) -> str | None:
        """Not one where the pod's last attempt failed, as long as another will do."""
        best = self._cheapest(pod, pod_request, nodes, machine)
        if best is not None and best.node in (avoided := self._offers.avoided_by(pod.metadata.uid)):
            best = self._cheapest(pod, pod_request, [name for name in nodes if name not in avoided], machine) or best
        return best.node if best is not None else None

    def _cheapest(
        self, pod: Pod, pod_request: PodRequest, nodes: Collection[str], machine: MachineRoom
    ) -> NodeCost | None:
        best = self._ranking.emptiest if self._spreads(pod_request) else self._ranking.best
        return best(pod_request.request, nodes, self._context.keeper(pod), machine)

    def _decided(self, pod: Pod, pod_request: PodRequest, nodes: Sequence[str]) -> FilterResult | None:
        """What is known without looking for room; None: there may be any."""
        over_limit = self._context.why_over_limit(pod, pod_request.request)
        if over_limit is not None:
            return self._refused(pod, pod_request, nodes, over_limit)
        if pod_request.request.gang is not None:
            answer = self._gangs.place(pod_request.request.gang, holder_of(pod), nodes, self._ledger_view(pod))
            if isinstance(answer, Refusal):
                return self._refused(pod, pod_request, nodes, answer)
            if answer is not None:
                return _only_on(
                    answer.node, nodes, f"gang {pod_request.request.gang.name} has its GPUs on {answer.node}"
                )
        holder = holder_of(pod)
        left = left_by_another_bind(self._cluster_ledger.ledger, pod_request.request, holder)
        if isinstance(left, Refusal):
            return FilterResult.by_reason(nodes, left.reason)
        if left is not None:
            return _only_on(left.node, nodes, f"{holder} has its GPUs on {left.node} already")
        return None

    def _with_room(self, pod: Pod, pod_request: PodRequest, nodes: Sequence[str]) -> FilterResult:
        found = self._node_filter.filter(pod_request.request, nodes, self._context.keeper(pod))
        if not found.fitting and (never := self._context.why_never(pod, pod_request.request)) is not None:
            return _nowhere(nodes, never)
        return self._precedence.narrow(found, pod_request.request) if self._leaves_room(pod) else found

    def _refused(self, pod: Pod, pod_request: PodRequest, nodes: Sequence[str], why: Refusal) -> FilterResult:
        """For that reason, unless no node could ever serve the pod."""
        return _nowhere(nodes, self._context.why_never(pod, pod_request.request) or why)

    def _leaves_room(self, pod: Pod) -> bool:
        return self._context.tier(pod) is Tier.OPPORTUNISTIC

    def _ledger_view(self, pod: Pod) -> LedgerView:
        """For an opportunistic pod: as if the booked pods that wait had their GPUs."""
        return self._precedence.served if self._leaves_room(pod) else nullcontext

    # --- prioritize --------------------------------------------------------------------------------------------------

    def rank(self, pod: Pod, nodes: Sequence[str]) -> Mapping[str, bool]:
        """The nodes, best first, and whether they are as good as the first by what goes before everything else: GPUs
        that are kept for the pod, and the links that it asks for. Those that do not fit come last."""
        pod_request = self._context.requested_by(pod)
        if isinstance(pod_request, Refusal) or len(nodes) < 2:
            return dict.fromkeys(nodes, True)
        if pod_request is None:
            return {each.node: True for each in self._ranking.costs(None, nodes, machine=machine_of(pod))}
        best = self._costs(pod, pod_request, nodes)
        if self._spreads(pod_request):
            best.sort(key=lambda each: each.by_spreading)
        ranked = {each.node: each.preference <= best[0].preference for each in best}
        return ranked | {name: False for name in nodes if name not in ranked}

    def _costs(self, pod: Pod, pod_request: PodRequest, nodes: Collection[str]) -> list[NodeCost]:
        """Of the nodes that will do, the best first."""
        return self._ranking.costs(pod_request.request, nodes, self._context.keeper(pod), machine_of(pod))

    def _spreads(self, pod_request: PodRequest) -> bool:
        spreads = pod_request.request.spreads_over_nodes
        return self._context.spread if spreads is None else spreads

    # --- bind --------------------------------------------------------------------------------------------------------

    async def bind(self, pod: Pod, node: str) -> Refusal | None:
        """None: the pod is bound. A refusal means that nothing was taken, and that the scheduler may try again.

        Raises `ClusterError` if the API server does not answer: then the pod may keep the GPUs until the next try, or
        until the collector finds that it was never bound.
        """
        holder = holder_of(pod)
        if holder.uid in self._binding:
            return Refusal(f"a bind of {holder} is under way")
        pod_request = self._requested_at_bind(pod, node)
        if isinstance(pod_request, Refusal):
            return pod_request
        self._binding.add(holder.uid)
        has_failed = True
        try:
            refusal = await self._bind(pod_request, self._pod_to_bind(pod), node)
            has_failed = refusal is not None and not isinstance(refusal, NotTogether)
            return refusal
        finally:
            self._binding.discard(holder.uid)
            if has_failed:
                self._offers.failed(holder.uid, node)

    def bind_refused(self, holder: Holder, node: str) -> None:
        """A bind of the pod was refused before it came here: what was promised to the pod there is free again. A bind
        that is under way goes on."""
        if holder.uid not in self._binding:
            self._offers.cancel(holder.uid)
            self._offers.failed(holder.uid, node)
            self._gangs.attempt_failed(holder, node)

    def _requested_at_bind(self, pod: Pod, node: str) -> PodRequest | Refusal | None:
        """A promise makes a booked pod one that has its GPUs, and then it may have any of the booked model. So an offer
        that this bind cannot use ends before it is read which GPUs the pod may have."""
        uid, asked = pod.metadata.uid, self._context.requested_by(pod)
        offered = self._offers.placement_of(uid)
        if offered is None:
            return asked
        is_asked = isinstance(asked, PodRequest) and asked.request.on_any_covered() == offered.request.on_any_covered()
        there = self._cluster_ledger.ledger.node(node)
        is_open = offered.node == node and there is not None and not there.unusable
        if is_asked and is_open and offered.request.gang is None:  # its gang may have ended since, and must be asked
            return asked
        self._offers.cancel(uid)
        return self._context.requested_by(pod)

    def _pod_to_bind(self, pod: Pod) -> _PodToBind:
        covered = self._context.covered(pod)
        coverage = Coverage(covered.entitlement.booking, self._context.now()) if covered is not None else None
        until = covered.entitlement.ends if covered is not None else None
        tier = write_tier(until) if self._context.tier(pod) is not None else {}
        return _PodToBind(holder_of(pod), self._context.keeper(pod), self._leaves_room(pod), coverage, tier)

    async def _bind(self, pod_request: PodRequest | None, pod: _PodToBind, node: str) -> Refusal | None:
        holder = pod.holder
        if pod_request is None:
            return await self._write_binding(BindTarget(holder.namespace, holder.name, holder.uid, node))
        placement = await self._take(pod_request, pod, node)
        if isinstance(placement, Refusal):
            await self._lease_writer.give_back(holder.uid)
            return placement
        # The process may have been paused. A gang has checked its time for all members: half of it must not fail here.
        if pod_request.request.gang is None and self._lease_writer.held_for(holder.uid) > BINDING_BEGINS_WITHIN_S:
            await self._lease_writer.give_back(holder.uid)
            return Refusal(f"{holder} took its GPUs too long ago to be bound with them")
        annotations = self._annotations(pod_request, placement, holder)
        if isinstance(annotations, Refusal):
            await self._lease_writer.give_back(holder.uid)
            return annotations
        target = BindTarget(holder.namespace, holder.name, holder.uid, node, {**pod.tier, **annotations})
        try:
            refusal = await self._write_binding(target)
        except (Busy, Forbidden, Invalid, Unavailable):
            await self._lease_writer.give_back(holder.uid)  # nothing was written
            raise
        except BaseException:
            self._lease_writer.finish_bind(holder.uid)
            raise
        if refusal is None:
            self._lease_writer.finish_bind(holder.uid)
        else:
            await self._lease_writer.give_back(holder.uid)
        return refusal

    async def _take(self, pod_request: PodRequest, pod: _PodToBind, node: str) -> Placement | Refusal:
        """Takes GPUs on that node, with their Leases; for a member of a gang, when the others have theirs."""
        gang, holder = pod_request.request.gang, pod.holder
        offer = self._offers.take(holder.uid)
        if offer is not None:
            placement = replace(offer.placement, coverage=pod.coverage)
            try:
                return await self._lease_writer.take(placement, holder, is_promised=True) or placement
            finally:
                self._offers.end(holder.uid, offer)
        if gang is not None:
            together = await self._gangs.wait_together(gang, holder, node, pod.coverage)
            if together is not None:
                return together
        left = left_by_another_bind(self._cluster_ledger.ledger, pod_request.request, holder)
        found = left or self._place(pod_request, pod, node)
        if isinstance(found, Refusal):
            return found
        if found.node != node:
            return Refusal(f"{holder} has its GPUs on {found.node} already")
        placement = replace(found, coverage=pod.coverage)
        return await self._lease_writer.take(placement, holder) or placement

    def _place(self, pod_request: PodRequest, pod: _PodToBind, node: str) -> Placement | Refusal:
        with self._precedence.served(node) if pod.leaves_room else nullcontext():
            seen = place(self._cluster_ledger.ledger, pod_request.request, node, pod.keeper)
        if isinstance(seen, Placement):
            return seen
        really = place(self._cluster_ledger.ledger, pod_request.request, node, pod.keeper)
        return really if isinstance(really, Refusal) else Refusal(f"{node} has {WAITED_FOR}")

    def _annotations(self, pod_request: PodRequest, placement: Placement, holder: Holder) -> dict[str, str] | Refusal:
        """What is written on the pod about its GPUs."""
        slots: dict[str, str] = {}
        if self._cluster_ledger.kubelet_chooses(placement.node):
            slots = carrel.write_slots([slot.uuid for slot in placement.gpus])
            if pod_request.request.by_kubelet:
                return slots  # which GPUs they are, the kubelet decides when the pod starts
        real = gpus_of_slots(self._cluster_ledger, placement)
        if real is None:
            return Refusal(f"a GPU of {placement.node} has just lost its reservation pod")
        assumed_at_ns = int(self._context.now().timestamp() * 1_000_000) * 1_000
        labels = self._cluster_ledger.labels_of(placement.node)
        options = self._context.dialect_options
        binding = PodBinding(pod_request, real, holder, assumed_at_ns, options, labels)
        return bind_annotations.annotations(binding) | slots

    async def _write_binding(self, target: BindTarget) -> Refusal | None:
        """Raises `OutcomeUnknown` if it is not known whether it was written: it may even take effect later."""
        try:
            async with asyncio.timeout(BINDING_TIMEOUT_S):
                await self._context.cluster.bind(target)
        except TimeoutError:
            raise OutcomeUnknown(0, "Timeout", f"no answer to the Binding of {target.namespace}/{target.pod}") from None
        except OutcomeUnknown:
            if await self._is_bound(target):
                return None
            raise
        except (Conflict, NotFound) as error:
            if await self._is_bound(target):
                return None
            return Refusal(f"{target.namespace}/{target.pod} cannot be bound to {target.node}: {error.message}")
        return None

    async def _is_bound(self, target: BindTarget) -> bool:
        """Whether the pod is bound to that node with these GPUs: another replica may have bound it with others."""
        try:
            pod = await self._context.cluster.get(PODS, target.pod, target.namespace)
        except NotFound:
            return False
        annotated = carrel.told_cards(pod["metadata"].get("annotations", {}))
        is_there = (pod["metadata"]["uid"], pod["spec"].get("nodeName")) == (target.uid, target.node)
        return is_there and annotated == carrel.told_cards(target.annotations)


def _nowhere(nodes: Sequence[str], why: Refusal) -> FilterResult:
    return FilterResult.by_reason(nodes, why.reason.rstrip("."))  # kube-scheduler adds a full stop


def _only_on(node: str, nodes: Sequence[str], elsewhere: str) -> FilterResult:
    here = [name for name in nodes if name == node]
    return FilterResult(here, FilterResult.by_reason([name for name in nodes if name != node], elsewhere).refused)
