"""Hands devices over to the containers they are for. The kubelet says how many it needs, and never for whom.

The extender has promised every pod its cards before: they are on the pod's annotations, as a copy, and on the Leases,
which count. So the container is found among the pods of this node that do not run yet (`node.allocation_order`), and
believed only if a Lease names it. What cannot be found is refused: a container never gets a card that nobody promised.

The devices' names only count. Where the kubelet could not follow our preference, the container still gets the card
that it was promised; `node.comparison` tells whether it sees that one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.dialects import carrel, gpushare, nvidia
from carrel.kubernetes.cluster import Cluster, ClusterError, Conflict, MergePatch, NotFound, Selection
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import ContainerAsk, annotation_field, resource_asked, subject
from carrel.kubernetes.objects.resources import PODS
from carrel.leases.pods import is_ending
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder
from carrel.node.allocation_order import Waiting, in_turn
from carrel.node.device_names import Inventory
from carrel.node.interfaces import HandedOver
from carrel.node.promises import Promises
from carrel.parsing import Malformed
from carrel.parsing.time import instant

OURS = (gpushare.GPU_MEM, nvidia.GPU)
PATIENCE_S = 20.0
"""How long a call waits for an API server that is away: a pod that we refuse is lost, but nobody else is admitted
meanwhile."""
AGAIN_S = 0.25


@dataclass(frozen=True, slots=True)
class Post:
    """Where this agent stands."""

    cluster: Cluster
    node: str
    namespace: str
    """Of Carrel's own Leases."""
    now: Callable[[], datetime]
    clock: Callable[[], float]
    """Seconds; only differences mean something."""
    pods: Callable[[], Iterable[Pod]]
    """Those of this node, as far as we have heard."""
    labels: Callable[[], Mapping[str, str]]
    """Of the node."""


class Allocation:
    """Implements `node.interfaces.Counter`."""

    def __init__(self, post: Post, when_answered: Callable[[], None] = lambda: None) -> None:
        self._post = post
        self._when_answered = when_answered
        self._promises = Promises(post.cluster, post.node, post.namespace)
        self._inventory = Inventory()
        # Both by the uid of the pod and the container: what we have told the kubelet, and what it has written down.
        self._answered: set[tuple[str, str]] = set()
        self._written_down: set[tuple[str, str]] = set()
        self._owners: dict[HandedOver, str] = {}  # uid of the pod that a row of the kubelet's books is about
        self._one_at_a_time = asyncio.Lock()

    def see(self, inventory: Inventory, handed_over: Sequence[HandedOver]) -> None:
        """What the machine has, and what the kubelet says it has handed over; also after we were restarted."""
        self._inventory = inventory
        uids = {(pod.metadata.namespace, pod.metadata.name): pod.metadata.uid for pod in self._post.pods()}
        alive = set(uids.values())
        self._answered = {key for key in self._answered if key[0] in alive}
        self._written_down = {
            (uids[each.namespace, each.pod], each.container)
            for each in self.without_namesakes(handed_over)
            if each.resource in OURS and (each.namespace, each.pod) in uids
        }

    def without_namesakes(self, handed_over: Sequence[HandedOver]) -> list[HandedOver]:
        """The kubelet names pods by their names. A pod that was made again has the name, not the devices: a row is the
        old pod's, even if we hear of it later than of the new one, until the new one has been answered."""
        uids = {(pod.metadata.namespace, pod.metadata.name): pod.metadata.uid for pod in self._post.pods()}
        owners: dict[HandedOver, str] = {}
        for each in handed_over:
            uid = uids.get((each.namespace, each.pod), "")
            is_its_own = (uid, each.container) in self._answered
            owners[each] = uid if is_its_own else self._owners.get(each) or uid
        self._owners = owners
        return [each for each, owner in owners.items() if owner == uids.get((each.namespace, each.pod))]

    # --- what the kubelet asks ---------------------------------------------------------------------------------------

    async def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        found = await self._find(resource, size, frozenset())
        if isinstance(found, Refusal):
            return ()  # `allocate` will say why
        _, waiting = found
        musts = frozenset(must)
        free = [device for device in available if device not in musts]
        own, others = self._inventory.parted(resource, free, waiting.cards)
        return [*must, *own, *others][:size]

    async def allocate(self, resource: str, devices: Sequence[str]) -> Mapping[str, str] | Refusal:
        cards, unknown = self._inventory.cards_of(resource, devices)
        if not devices or unknown:
            what = f"{len(unknown)} unknown ones, such as {unknown[0]!r:.60}" if unknown else "none"
            return Refusal(f"{len(devices)} devices of {resource} are to be handed over, {what}: this node has no such")
        if len(set(devices)) != len(devices):
            return Refusal(f"some of the {len(devices)} devices of {resource} are named twice")
        async with self._one_at_a_time:
            found = await self._find(resource, len(devices), cards)
            answer = found if isinstance(found, Refusal) else self._answer(resource, *found)
        self._when_answered()
        return answer

    def _answer(self, resource: str, pod: Pod, waiting: Waiting) -> Mapping[str, str] | Refusal:
        broken = [gpu for gpu in self._inventory.gpus if gpu.uuid in waiting.cards and gpu.unusable]
        if broken:
            return Refusal(f"{waiting.holder} was promised {broken[0]}, which is unusable by now: {broken[0].unusable}")
        try:
            environment = self._environment(resource, pod, waiting)
        except Malformed as malformed:
            return Refusal(str(malformed))
        self._answered.add((waiting.holder.uid, waiting.container))
        return environment

    async def _find(self, resource: str, amount: int, cards: frozenset[str]) -> tuple[Pod, Waiting] | Refusal:
        """The pod and container that are meant. A pod may be known to the kubelet a moment before it is to us."""
        deadline, pods = self._post.clock() + PATIENCE_S, tuple(self._post.pods())
        while True:
            try:
                found = await self._confirmed(resource, amount, cards, pods)
                if not isinstance(found, Refusal) and not found[1].is_answered:
                    return found  # one that was answered is more likely the twin of a pod that we have not heard of
                here = Selection(fields=f"spec.nodeName={self._post.node}")
                fresh = (await self._post.cluster.list(PODS, here)).items
                # Leases are written before the Binding, so what the API server says now is final.
                return await self._confirmed(resource, amount, cards, tuple(fresh))
            except ClusterError as error:
                if self._post.clock() >= deadline:
                    return Refusal(f"whose {amount} of {resource} these are cannot be looked up: {error}")
                await asyncio.sleep(AGAIN_S)

    async def _confirmed(
        self, resource: str, amount: int, cards: frozenset[str], pods: Sequence[Pod]
    ) -> tuple[Pod, Waiting] | Refusal:
        by_uid = {pod.metadata.uid: pod for pod in pods}
        waiting = in_turn(self._waiting(resource, pods), amount, cards)
        for each in waiting:
            if await self._promises.are_made(each.holder.uid, each.cards, self._inventory.gpus):
                return by_uid[each.holder.uid], each
        names = ", ".join(sorted({each.holder.full_name for each in waiting}))
        why = f"no Lease gives {names} its cards" if waiting else "no pod of this node waits for so many"
        return Refusal(f"{amount} of {resource} on {self._post.node}: {why}")

    # --- who waits ---------------------------------------------------------------------------------------------------

    def _waiting(self, resource: str, pods: Iterable[Pod]) -> list[Waiting]:
        found: list[Waiting] = []
        for pod in pods:
            if pod.spec.node_name == self._post.node and pod.status.phase in ("", "Pending") and not is_ending(pod):
                try:
                    found += self._containers(resource, pod)
                except Malformed:
                    continue  # written by somebody else than the extender: not promised anything
        return found

    def _containers(self, resource: str, pod: Pod) -> Iterable[Waiting]:
        holder = Holder(pod.metadata.uid, pod.metadata.namespace, pod.metadata.name)
        for position, ask in self._unserved(resource, pod):
            cards = carrel.read_devices(pod, ask.container) or carrel.read_devices(pod)
            if cards:
                is_answered = (holder.uid, ask.container) in self._answered
                yield Waiting(holder, ask.container, position, ask.amount, cards, _since_ns(pod), is_answered)

    def _unserved(self, resource: str, pod: Pod) -> Iterable[tuple[int, ContainerAsk]]:
        """The containers after the last one that is written down: they are served in order, and the kubelet's books do
        not show init containers."""
        asks = tuple(enumerate(resource_asked(pod, resource).containers))
        served = [at for at, ask in asks if (pod.metadata.uid, ask.container) in self._written_down]
        return asks[served[-1] + 1 :] if served else asks

    # --- what they get -----------------------------------------------------------------------------------------------

    def _environment(self, resource: str, pod: Pod, waiting: Waiting) -> dict[str, str]:
        visible = ",".join(waiting.cards)
        environment = {nvidia.VISIBLE_DEVICES: visible, nvidia.CUDA_VISIBLE_DEVICES: visible}
        if resource == gpushare.GPU_MEM:
            assumption = gpushare.read_assumption(pod)
            if assumption is None:
                raise Malformed(subject(pod.metadata), annotation_field(gpushare.INDEX), None, "the index of its card")
            environment |= gpushare.environment(assumption, waiting.amount)
        if self._post.labels().get(gpushare.NO_ISOLATION_LABEL) == "true":
            environment[gpushare.NO_ISOLATION] = "true"
        return environment

    # --- what is written on the pod ----------------------------------------------------------------------------------

    async def mark_assigned(self) -> None:
        """For gpushare's tools: that a pod has its part. A copy, so what fails now is written another time.

        Raises `ClusterError` when it has tried all of them.
        """
        failure: ClusterError | None = None
        for pod in filter(self._is_to_be_marked, self._post.pods()):
            now_ns = int(self._post.now().timestamp() * 1_000_000_000)
            patch = MergePatch({"metadata": {"uid": pod.metadata.uid, "annotations": gpushare.assigned(now_ns)}})
            try:
                await self._post.cluster.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace)
            except (NotFound, Conflict):
                continue  # it is gone, or another of its name came
            except ClusterError as error:
                failure = error
        if failure is not None:
            raise failure

    def _is_to_be_marked(self, pod: Pod) -> bool:
        if pod.metadata.annotations.get(gpushare.ASSIGNED) != "false" or is_ending(pod):
            return False
        try:
            left = self._unserved(gpushare.GPU_MEM, pod)
        except Malformed:
            return False
        return pod.status.phase == "Running" or all(
            (pod.metadata.uid, ask.container) in self._answered for _, ask in left
        )


def _since_ns(pod: Pod) -> int:
    """When a pod was promised its cards; where its dialect does not say, when it was made."""
    if pod.metadata.annotations.get(gpushare.ASSUME_TIME):
        assumption = gpushare.read_assumption(pod)
        if assumption is not None:
            return assumption.assumed_at_ns
    made = instant(pod.metadata.creation_timestamp, subject(pod.metadata), "metadata.creationTimestamp")
    return int(made.timestamp()) * 1_000_000_000
