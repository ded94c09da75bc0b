"""Filter, prioritize and bind: what kube-scheduler asks of Carrel for each pod.

Filter and prioritize only read. Bind takes the Leases of the cards, then writes one Binding that carries everything the
pod is told. What goes wrong before the Binding gives everything back; a Binding whose answer was lost is looked up; a
crash leaves a Lease that names the pod, and the next bind of that pod goes on from there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.core.explanation import why_waiting
from carrel.core.placement import Placement, held_placement, place
from carrel.core.reasons import Refusal
from carrel.core.scoring import Cost, Demand, cost
from carrel.core.shares import Holder
from carrel.core.sieve import Filtered, Sieve
from carrel.ports.cluster import BindTarget, Cluster, ClusterError, Conflict, Json, NotFound, Unknown
from carrel.protocols import Malformed, given
from carrel.protocols.asks import DEFAULT_TERMS, Ask, Terms
from carrel.protocols.kubernetes.resources import PODS
from carrel.protocols.kubernetes.shapes import Pod
from carrel.usecases.hold import Cards
from carrel.usecases.muster import Musters
from carrel.usecases.observe import Books

AskOf = Callable[[Pod], Ask | Refusal | None]
"""What a pod asks for. Raises `Malformed` where it cannot be understood."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What scheduling needs of the world."""

    cluster: Cluster
    ask_of: AskOf
    now: Callable[[], datetime]
    terms: Terms = DEFAULT_TERMS
    spread: bool = False
    """Prefer the emptiest node instead of the one where the least is wasted."""


class Scheduling:
    def __init__(self, books: Books, cards: Cards, musters: Musters, around: Surroundings) -> None:
        self._books = books
        self._cards = cards
        self._musters = musters
        self._around = around
        self._demand = Demand()
        self._sieve = Sieve(books.ledger)
        self._binding: set[str] = set()

    # --- filter ------------------------------------------------------------------------------------------------------

    def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered:
        ask = self.understand(pod)
        if ask is None:
            return Filtered(nodes, {})
        if isinstance(ask, Refusal):
            return Filtered((), dict.fromkeys(nodes, ask.reason))
        self._demand.saw(ask.request)
        if ask.request.gang is not None:
            answer = self._musters.place(ask.request.gang, holder_of(pod), nodes)
            if isinstance(answer, Refusal):
                return Filtered((), dict.fromkeys(nodes, answer.reason))
            if answer is not None:
                elsewhere = f"gang {ask.request.gang.name} has its cards on {answer.node}"
                return Filtered((answer.node,), {name: elsewhere for name in nodes if name != answer.node})
        ledger, uid = self._books.ledger, pod.metadata.uid
        with ledger.what_if():
            # What a crash or a lost answer left on Leases for this pod is this pod's own.
            ledger.give_back(uid)
            return self._sieve.filter(ask.request, nodes, uid)

    def why(self, pod: Pod, nodes: Sequence[str]) -> Refusal | None:
        """Why the pod waits, in the words that people see everywhere; None if it need not."""
        ask = self.understand(pod)
        if ask is None or isinstance(ask, Refusal):
            return ask
        with self._books.ledger.what_if():
            self._books.ledger.give_back(pod.metadata.uid)
            return why_waiting(self._books.ledger, ask.request, nodes, pod.metadata.uid)

    def understand(self, pod: Pod) -> Ask | Refusal | None:
        try:
            return self._around.ask_of(pod)
        except Malformed as malformed:
            return Refusal(str(malformed))

    # --- prioritize --------------------------------------------------------------------------------------------------

    def rank(self, pod: Pod, nodes: Sequence[str]) -> Sequence[str]:
        """The nodes, best first; those that will not do come last."""
        ask = self.understand(pod)
        if ask is None or isinstance(ask, Refusal) or len(nodes) < 2:
            return nodes
        ledger, uid, typical = self._books.ledger, pod.metadata.uid, self._demand.typical()
        with ledger.what_if():
            ledger.give_back(uid)
            costs = [cost(ledger, ask.request, name, typical, uid) for name in nodes]
        best = sorted(each for each in costs if isinstance(each, Cost))
        if self._around.spread:
            best.sort(key=lambda each: (-each.left_over, each.node))
        ranked = [each.node for each in best]
        return ranked + [name for name in nodes if name not in set(ranked)]

    # --- bind --------------------------------------------------------------------------------------------------------

    async def bind(self, pod: Pod, node: str) -> Refusal | None:
        """None: the pod is bound. A refusal means that nothing is left behind, and that the scheduler may try again.

        Raises `ClusterError` if the API server does not answer: then the cards may stay the pod's until it is tried
        again, or until the collector finds that it never was bound.
        """
        ask = self.understand(pod)
        if isinstance(ask, Refusal):
            return ask
        holder = holder_of(pod)
        if holder.uid in self._binding:
            return Refusal(f"a bind of {holder} is under way")
        self._binding.add(holder.uid)
        try:
            return await self._bind(ask, holder, node)
        finally:
            self._binding.discard(holder.uid)

    async def _bind(self, ask: Ask | None, holder: Holder, node: str) -> Refusal | None:
        namespace, _, name = holder.name.partition("/")
        if ask is None:
            return await self._write_binding(BindTarget(namespace, name, holder.uid, node))
        placement = await self._take(ask, holder, node)
        if isinstance(placement, Refusal):
            await self._cards.give_back(holder.uid)
            return placement
        assumed_at_ns = int(self._around.now().timestamp() * 1_000_000) * 1_000
        notes = given.annotations(ask, placement, assumed_at_ns, self._around.terms)
        refusal = await self._write_binding(BindTarget(namespace, name, holder.uid, node, notes))
        if refusal is not None:
            await self._cards.give_back(holder.uid)
        return refusal

    async def _take(self, ask: Ask, holder: Holder, node: str) -> Placement | Refusal:
        """The cards on that node, with their Leases; for a member of a gang, when the others have theirs."""
        gang, ledger = ask.request.gang, self._books.ledger
        if gang is not None:
            planned = self._musters.place(gang, holder, [node])
            if planned is not None:
                return planned if isinstance(planned, Refusal) else await self._musters.wait_together(gang, holder)
        held = held_placement(ledger, ask.request, holder)
        if held is not None and held.node == node:
            return await self._cards.take(held, holder) or held  # an earlier try came this far
        await self._cards.give_back(holder.uid)
        placement = place(ledger, ask.request, node, holder.uid)
        if isinstance(placement, Refusal):
            return placement
        return await self._cards.take(placement, holder) or placement

    async def _write_binding(self, target: BindTarget) -> Refusal | None:
        try:
            await self._around.cluster.bind(target)
        except Unknown:
            return await self._look_whether_bound(target)
        except (Conflict, NotFound) as error:
            if await self._is_bound(target):
                return None
            return Refusal(f"{target.namespace}/{target.pod} cannot be bound to {target.node}: {error.message}")
        return None

    async def _look_whether_bound(self, target: BindTarget) -> Refusal | None:
        """The Binding's answer was lost. It may even take effect later: until we know, the cards stay the pod's."""
        if await self._is_bound(target):
            return None
        raise Unknown(0, "Unknown", f"whether {target.namespace}/{target.pod} was bound to {target.node} is not known")

    async def _is_bound(self, target: BindTarget) -> bool:
        try:
            pod = await self._around.cluster.get(PODS, target.pod, target.namespace)
        except ClusterError:
            return False
        return pod["metadata"]["uid"] == target.uid and _node_of(pod) == target.node


def holder_of(pod: Pod) -> Holder:
    return Holder(pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}")


def _node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))
