"""Filter, prioritize and bind: what kube-scheduler asks of Carrel for each pod.

Filter and prioritize only read. Bind takes the Leases of the cards, then writes one Binding that carries everything the
pod is told. What goes wrong before the Binding gives everything back; a Binding whose answer was lost is looked up; a
crash leaves a Lease that names the pod, and the next bind of that pod goes on from there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.core.explanation import why_waiting
from carrel.core.placement import Placement, candidates, place
from carrel.core.reasons import Refusal
from carrel.core.requests import WHOLE
from carrel.core.shares import Holder
from carrel.ports.cluster import BindTarget, Cluster, ClusterError, Conflict, Json, NotFound, Unknown
from carrel.protocols import Malformed, given
from carrel.protocols.asks import Ask, Terms
from carrel.protocols.kubernetes.resources import PODS
from carrel.protocols.kubernetes.shapes import Pod
from carrel.usecases.hold import Cards
from carrel.usecases.observe import Books

AskOf = Callable[[Pod], Ask | Refusal | None]
"""What a pod asks for. Raises `Malformed` where it cannot be understood."""


@dataclass(frozen=True, slots=True)
class Filtered:
    fitting: Sequence[str]
    refused: Mapping[str, str]
    """Why each other node will not do, in one line."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What scheduling needs of the world."""

    cluster: Cluster
    ask_of: AskOf
    now: Callable[[], datetime]
    terms: Terms


class Scheduling:
    def __init__(self, books: Books, cards: Cards, around: Surroundings) -> None:
        self._books = books
        self._cards = cards
        self._around = around

    # --- filter ------------------------------------------------------------------------------------------------------

    def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered:
        ask = self.understand(pod)
        if ask is None:
            return Filtered(nodes, {})
        if isinstance(ask, Refusal):
            return Filtered((), dict.fromkeys(nodes, ask.reason))
        ledger, uid = self._books.ledger, pod.metadata.uid
        with ledger.what_if():
            # What a crash or a lost answer left on Leases for this pod is this pod's own.
            ledger.give_back(uid)
            found = candidates(ledger, ask.request, nodes, uid)
            return Filtered(
                found.fitting, {name: _why(place(ledger, ask.request, name, uid)) for name in found.refused}
            )

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
        """The nodes, best first: where the least would be left over on the cards that the pod takes."""
        ask = self.understand(pod)
        if ask is None or isinstance(ask, Refusal):
            return nodes
        ledger, uid = self._books.ledger, pod.metadata.uid

        def left_over(name: str) -> tuple[int, int, str]:
            answer = place(ledger, ask.request, name, uid)
            if isinstance(answer, Refusal):
                return (1, 0, name)
            cards = [card for card in ledger.cards(name) if card.gpu in answer.gpus]
            if ask.request.amount == WHOLE:
                return (0, ledger.rooms[name].whole - len(cards), name)
            return (0, sum(card.free - ask.request.amount.on(card.gpu.memory) for card in cards), name)

        with ledger.what_if():
            ledger.give_back(uid)
            return sorted(nodes, key=left_over)

    # --- bind --------------------------------------------------------------------------------------------------------

    async def bind(self, pod: Pod, node: str) -> Refusal | None:
        """None: the pod is bound. A refusal means that nothing is left behind, and that the scheduler may try again."""
        ask = self.understand(pod)
        if isinstance(ask, Refusal):
            return ask
        metadata = pod.metadata
        target = BindTarget(metadata.namespace, metadata.name, metadata.uid, node)
        if ask is None:
            return await self._write_binding(target)
        holder = Holder(metadata.uid, f"{metadata.namespace}/{metadata.name}")
        placement = self._already_held(ask, holder, node)
        if placement is None:
            await self._cards.give_back(holder.uid)
            answer = place(self._books.ledger, ask.request, node, holder.uid)
            if isinstance(answer, Refusal):
                return answer
            placement = answer
            refusal = await self._cards.take(placement, holder)
            if refusal is not None:
                return refusal
        now = self._around.now()
        notes = given.annotations(ask, placement, int(now.timestamp() * 1_000_000) * 1_000, self._around.terms)
        refusal = await self._write_binding(BindTarget(target.namespace, target.pod, target.uid, node, notes))
        if refusal is not None:
            await self._cards.give_back(holder.uid)
        return refusal

    def _already_held(self, ask: Ask, holder: Holder, node: str) -> Placement | None:
        """The cards that an earlier try of this bind has taken, if they are what the pod needs on this node."""
        held = self._books.ledger.shares_of(holder.uid)
        gpus = tuple(card.gpu for card in self._books.ledger.cards(node) if card.gpu.uuid in held)
        placement = Placement(node, gpus, ask.request)
        wanted = {share.gpu: share.memory for share in placement.shares(holder)}
        has = {gpu: share.memory for gpu, share in held.items()}
        return placement if has == wanted and len(gpus) == ask.request.cards else None

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


def _why(answer: Placement | Refusal) -> str:
    return answer.reason if isinstance(answer, Refusal) else "it was refused a moment ago and would do now"


def _node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))
