"""Filter, prioritize and bind: what kube-scheduler asks of Carrel for each pod.

Filter and prioritize only read. A filter that chooses answers with the best node alone, whose GPUs it promises to the
pod in this process (`offers`): then kube-scheduler asks for no scores, and makes none of its own.

Bind takes the Leases of the GPUs, then writes one Binding with all annotations for the pod. If something fails before
the Binding, everything is given back; if the answer to the Binding is lost, the pod is read. A crash leaves Leases that
name the pod. If they are all that it needs, its next bind uses them; if not, the pod waits until the collector has
freed them, because another replica may be binding it at this moment.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter

from carrel.cluster.pod_facts import PodFacts
from carrel.cluster.pod_progress import holder_of
from carrel.cluster.pod_requests import Asked
from carrel.cluster.record.slot_gpus import gpus_of_slots
from carrel.cluster.state import ClusterState
from carrel.dialects import visible_devices
from carrel.dialects.interface import PodBinding, PodRequest
from carrel.dialects.tier import write_tier
from carrel.ids import NodeName
from carrel.kubernetes.cluster import (
    BindTarget,
    Busy,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.demand import REMEMBERED_PODS
from carrel.ledger.filtering import FilterResult, NodeFilter
from carrel.ledger.machines import MachineRoom, Machines
from carrel.ledger.placement import Placement, left_by_another_bind, place
from carrel.ledger.precedence import WAITED_FOR
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.ledger.scoring import Ranking, by_spreading
from carrel.ledger.shares import Holder
from carrel.scheduling.gangs import GangScheduler, LedgerView, NotTogether, spread_out
from carrel.scheduling.machine_room import machine_of
from carrel.scheduling.offers import NodePreferences, Offer, Offers
from carrel.scheduling.scheduler_config import CPU_PROFILE

BINDING_BEGINS_WITHIN_S = 20.0
BINDING_TIMEOUT_S = 20.0
"""How long after the Leases were taken a Binding may begin, and how long it may take. Together well below the
collector's `TIME_TO_BIND_S`, after which it frees the GPUs of a pod that is not bound."""


class Scheduler:
    def __init__(
        self,
        state: ClusterState,
        gangs: GangScheduler,
        offers: Offers,
        preferences: NodePreferences,
        machines: Machines,
        *,
        spread: bool = False,
    ) -> None:
        """`machines`: how much CPU and memory the nodes have free. `spread`: prefer the emptiest node and the emptiest
        GPU instead of those where the least is wasted."""
        self._state = state
        self._ledger = state.ledger
        self._cluster_ledger = state.cluster_ledger
        self._lease_writer = state.lease_writer
        self._gangs = gangs
        self._offers = offers
        self._preferences = preferences
        self._spread = spread
        self._ranking = Ranking(state.ledger, machines)
        self._node_filter = NodeFilter(state.ledger)
        self._precedence = state.precedence
        self._binding: set[str] = set()

    def expire_promises(self) -> None:
        """To be called every few seconds: gangs and pods whose time is up lose what was promised to them."""
        self._gangs.expire()
        self._offers.expire()

    def learn(self, pods: Iterable[Pod]) -> None:
        """What these pods ask for counts as asked for: after a restart, of the pods that exist."""
        asking: list[tuple[Pod, PodRequest]] = []
        newest_first = sorted(pods, key=attrgetter("metadata.creation_timestamp", "metadata.uid"), reverse=True)
        for pod in newest_first:
            asked = self.asked(pod)
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
            asked = self.asked(new)
            if isinstance(asked, PodRequest):
                self._ranking.demand.saw(asked.request, machine_of(new), new.metadata.uid)

    def asked(self, pod: Pod) -> Asked:
        """What the pod asks of this scheduler; None if it asks for no GPU, or only by ResourceClaims."""
        return self._facts(pod).asked

    def _facts(self, pod: Pod) -> PodFacts:
        facts = self._state.pod_facts(pod)
        if not isinstance(asked := facts.asked, PodRequest):
            return facts
        if asked.dialect.any_scheduler:
            return replace(facts, asked=None)
        return replace(facts, asked=replace(asked, request=spread_out(asked.request))) if self._spread else facts

    # --- filter ------------------------------------------------------------------------------------------------------

    def filter(self, pod: Pod, nodes: Sequence[NodeName], *, chooses: bool = False) -> FilterResult | Refusal:
        """All nodes that have room. A refusal: the request of the pod cannot be read or met, on any node.

        `chooses`: only the best of them, whose GPUs are promised to the pod; unless kube-scheduler's own preferences
        may decide."""
        if chooses:
            self._offers.asked_again(pod.metadata.uid)
            chooses = not self._preferences.matter(pod, nodes)
        facts = self._facts(pod)
        if facts.asked is None:
            return FilterResult(nodes, {})
        if isinstance(facts.asked, Refusal):
            return facts.asked
        version, machine = self._ledger.version, machine_of(pod)
        self._ranking.demand.saw(facts.asked.request, machine, facts.holder.uid)
        decided = self._decided(facts, facts.asked.request, nodes)
        if decided is not None:
            return decided
        if version != self._ledger.version:
            # A gang's plan has ended meanwhile: with the GPUs that it had, a booking may cover the pod.
            facts = self._facts(pod)
        asked = facts.asked
        if not isinstance(asked, PodRequest):
            return FilterResult(nodes, {}) if asked is None else asked
        chosen = self._chosen(facts, asked.request, nodes, machine) if chooses else None
        if chosen is None:
            return self._with_room(facts, asked.request, nodes)
        self._offers.make(replace(chosen, coverage=facts.coverage), facts.holder)
        return FilterResult((chosen.node,), {})

    def _chosen(
        self, pod: PodFacts, request: Request, nodes: Sequence[NodeName], machine: MachineRoom
    ) -> Placement | None:
        """On the best node, but not one where the pod's last attempt failed, as long as another will do."""
        # Without booked pods that wait, nodes that have no room need not be sorted out: they have no cost.
        are_left = pod.leaves_room and self._precedence.taken_first().nodes
        candidates = self._with_room(pod, request, nodes).fitting if are_left else nodes
        first = partial(self._ranking.best, request, spreads=bool(request.spreads_over_nodes))
        best, avoided = first(candidates, pod.keeper, machine), self._offers.avoided_by(pod.holder.uid)
        if best is not None and best.node in avoided:
            best = first([name for name in candidates if name not in avoided], pod.keeper, machine) or best
        placement = self._place(pod, request, best.node) if best is not None else None
        return placement if isinstance(placement, Placement) else None

    def _decided(self, pod: PodFacts, request: Request, nodes: Sequence[NodeName]) -> FilterResult | None:
        """What is known without looking for room; None: there may be any."""
        over_limit = self._state.person_limit.why_over(pod, request)
        if over_limit is not None:
            return self._refused(pod, request, nodes, over_limit)
        if request.gang is not None:
            # For an opportunistic pod: as if the booked pods that wait had their GPUs.
            view: LedgerView = self._precedence.served if pod.leaves_room else nullcontext
            answer = self._gangs.place(request.gang, pod.holder, nodes, view)
            if isinstance(answer, Refusal):
                return self._refused(pod, request, nodes, answer)
            if answer is not None:
                return _only_on(answer.node, nodes, f"gang {request.gang.name} has its GPUs on {answer.node}")
        left = left_by_another_bind(self._ledger, request, pod.holder)
        if isinstance(left, Refusal):
            return FilterResult.by_reason(nodes, left.reason)
        if left is not None:
            return _only_on(left.node, nodes, f"{pod.holder} has its GPUs on {left.node} already")
        return None

    def _with_room(self, pod: PodFacts, request: Request, nodes: Sequence[NodeName]) -> FilterResult:
        found = self._node_filter.filter(request, nodes, pod.keeper)
        if not found.fitting and (never := self._state.waiting_reason.why_never(pod.pod, request)) is not None:
            return _nowhere(nodes, never)
        return self._precedence.narrow(found, request) if pod.leaves_room else found

    def _refused(self, pod: PodFacts, request: Request, nodes: Sequence[NodeName], why: Refusal) -> FilterResult:
        """For that reason, unless no node could ever serve the pod."""
        return _nowhere(nodes, self._state.waiting_reason.why_never(pod.pod, request) or why)

    # --- prioritize --------------------------------------------------------------------------------------------------

    def rank(self, pod: Pod, nodes: Sequence[NodeName]) -> Mapping[NodeName, bool]:
        """The nodes, best first, and whether they are as good as the first by what goes before everything else: GPUs
        that are kept for the pod, and the links that it asks for. Those that do not fit come last. None is good for a
        pod that Carrel does not rank: kube-scheduler's other scores decide."""
        facts = self._facts(pod)
        if isinstance(facts.asked, Refusal) or (facts.asked is None and pod.spec.scheduler_name != CPU_PROFILE):
            return dict.fromkeys(nodes, False)
        request = facts.asked.request if facts.asked is not None else None
        costs = self._ranking.costs(request, nodes, facts.keeper, machine_of(pod))
        best = sorted(costs, key=by_spreading if request is not None and request.spreads_over_nodes else None)
        ranked = {each.node: each.preference <= best[0].preference for each in best}
        return ranked | {name: False for name in nodes if name not in ranked}

    # --- bind --------------------------------------------------------------------------------------------------------

    async def bind(self, pod: Pod, node: NodeName) -> Refusal | None:
        """None: the pod is bound. A refusal means that nothing was taken, and that the scheduler may try again.

        Raises `ClusterError` if the API server does not answer: then the pod may keep the GPUs until the next try, or
        until the collector finds that it was never bound.
        """
        holder = holder_of(pod)
        if holder.uid in self._binding:
            return Refusal(f"a bind of {holder} is under way")
        facts, offer = self._facts_at_bind(pod, node)
        if isinstance(facts.asked, Refusal):
            return facts.asked
        self._binding.add(holder.uid)
        has_failed = True
        try:
            refusal = await self._bind(facts.asked, facts, node, offer)
            has_failed = refusal is not None and not isinstance(refusal, NotTogether)
            return refusal
        finally:
            self._binding.discard(holder.uid)
            if has_failed:
                self._offers.failed(holder.uid, node)

    def bind_refused(self, holder: Holder, node: NodeName) -> None:
        """A bind of the pod was refused before it came here: what was promised to the pod there is free again. A bind
        that is under way goes on."""
        if holder.uid not in self._binding:
            self._offers.cancel(holder.uid)
            self._offers.failed(holder.uid, node)
            self._gangs.attempt_failed(holder, node)

    def _facts_at_bind(self, pod: Pod, node: NodeName) -> tuple[PodFacts, Offer | None]:
        """A promise makes a booked pod one that has its GPUs, and then it may have any of the booked model. So an offer
        that this bind cannot use ends before it is read which GPUs the pod may have."""
        facts, offer = self._facts(pod), self._offers.take(pod.metadata.uid)
        if offer is None:
            return facts, None
        asked, offered = facts.asked, offer.placement
        is_asked = isinstance(asked, PodRequest) and asked.request.on_any_covered() == offered.request.on_any_covered()
        there = self._ledger.node(node)
        is_open = offered.node == node and there is not None and not there.unusable
        if is_asked and is_open and offered.request.gang is None:  # its gang may have ended since, and must be asked
            return facts, offer
        self._offers.end(pod.metadata.uid, offer)
        return self._facts(pod), None

    async def _bind(
        self, pod_request: PodRequest | None, pod: PodFacts, node: NodeName, offer: Offer | None
    ) -> Refusal | None:
        holder = pod.holder
        if pod_request is None:
            return await self._write_binding(BindTarget(holder.namespace, holder.name, holder.uid, node))
        placement = await self._take(pod_request.request, pod, node, offer)
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
        until = pod.covered.entitlement.ends if pod.covered is not None else None
        tier = write_tier(until) if pod.tier is not None else {}
        target = BindTarget(holder.namespace, holder.name, holder.uid, node, {**tier, **annotations})
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

    async def _take(self, request: Request, pod: PodFacts, node: NodeName, offer: Offer | None) -> Placement | Refusal:
        """Takes GPUs on that node, with their Leases; for a member of a gang, when the others have theirs."""
        holder, coverage = pod.holder, pod.coverage
        if offer is not None:
            placement = replace(offer.placement, coverage=coverage)
            try:
                return await self._lease_writer.take(placement, holder, is_promised=True) or placement
            finally:
                self._offers.end(holder.uid, offer)
        if request.gang is not None:
            together = await self._gangs.wait_together(request.gang, holder, node, coverage)
            if together is not None:
                return together
        found = left_by_another_bind(self._ledger, request, holder) or self._place(pod, request, node)
        if isinstance(found, Refusal):
            return found
        if found.node != node:
            return Refusal(f"{holder} has its GPUs on {found.node} already")
        placement = replace(found, coverage=coverage)
        return await self._lease_writer.take(placement, holder) or placement

    def _place(self, pod: PodFacts, request: Request, node: NodeName) -> Placement | Refusal:
        with self._precedence.served(node) if pod.leaves_room else nullcontext():
            seen = place(self._ledger, request, node, pod.keeper)
        if isinstance(seen, Placement):
            return seen
        really = place(self._ledger, request, node, pod.keeper)
        return really if isinstance(really, Refusal) else Refusal(f"{node} has {WAITED_FOR}")

    def _annotations(self, pod_request: PodRequest, placement: Placement, holder: Holder) -> dict[str, str] | Refusal:
        """What is written on the pod about its GPUs."""
        real: Placement | None = placement
        slots: dict[str, str] = {}
        if self._cluster_ledger.kubelet_chooses(placement.node):
            slots = visible_devices.write_slots([slot.uuid for slot in placement.gpus])
            if pod_request.request.by_kubelet:
                return slots  # which GPUs they are, the kubelet decides when the pod starts
            real = gpus_of_slots(self._cluster_ledger, placement)
        if real is None:
            return Refusal(f"a GPU of {placement.node} has just lost its reservation pod")
        assumed_at_ns = int(self._state.options.now().timestamp() * 1_000_000) * 1_000
        there = self._ledger.node(placement.node)
        options = self._state.options.dialect_options
        binding = PodBinding(pod_request, real, holder, assumed_at_ns, options, there.labels if there else {})
        return visible_devices.bind_annotations(binding) | slots

    async def _write_binding(self, target: BindTarget) -> Refusal | None:
        """Raises `OutcomeUnknown` if it is not known whether it was written: it may even take effect later."""
        try:
            async with asyncio.timeout(BINDING_TIMEOUT_S):
                await self._state.cluster.bind(target)
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
            pod = await self._state.cluster.get(PODS, target.pod, target.namespace)
        except NotFound:
            return False
        annotated = visible_devices.bound_gpus(pod["metadata"].get("annotations", {}))
        is_there = (pod["metadata"]["uid"], pod["spec"].get("nodeName")) == (target.uid, target.node)
        return is_there and annotated == visible_devices.bound_gpus(target.annotations)


def _nowhere(nodes: Sequence[NodeName], why: Refusal) -> FilterResult:
    return FilterResult.by_reason(nodes, why.reason.rstrip("."))  # kube-scheduler adds a full stop


def _only_on(node: NodeName, nodes: Sequence[NodeName], elsewhere: str) -> FilterResult:
    here = [name for name in nodes if name == node]
    return FilterResult(here, {name: elsewhere for name in nodes if name != node})
