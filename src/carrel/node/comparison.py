"""Compares what the kubelet has handed over with what was promised, and says who uses which card.

A container that reads its cards from the pod's own annotation sees those it was promised, whatever the devices are
called. Another one sees what the plugin answered, which may have been meant for its twin: a pod of equal size that was
promised another card. That is told, and the cards are set aside until it is over; nothing is rewritten behind anybody's
back. An annotation that no Lease confirms is told as well: its pod went round the scheduler, with a twin's devices.

Where memory is offered on the Node, nobody asks us for devices, and the kubelet lets in whoever came round the
scheduler. Then a pod's manifest says which cards it can see: those that it is not promised are set aside.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from carrel.dialects import carrel, gpushare, nvidia, registry
from carrel.dialects.visible_devices import cards_seen
from carrel.kubernetes.cluster import Cluster, ClusterError, Json
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note, event_name
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, resource_asked
from carrel.kubernetes.objects.resources import PODS
from carrel.leases.pods import FINISHED
from carrel.node.device_names import Inventory
from carrel.node.interfaces import HandedOver
from carrel.node.promises import Promises
from carrel.parsing import Malformed

OTHER_CARD = "OtherGPUHandedOver"
NOT_PROMISED = "GPUNotPromised"
COMPONENT = "carrel-agent"
"""Who writes the Events of the agent."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    pod: Pod
    container: str
    named: frozenset[str]
    """By the pod's annotation."""
    handed_over: frozenset[str]
    is_promised: bool
    """Whether Leases say the same as the annotation."""

    @property
    def words(self) -> str:
        name = f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"
        had = "which was promised no card"
        if self.named:
            cards = _joined(self.named)
            had = f"which was promised {cards}" if self.is_promised else f"whose annotation names {cards}, but no Lease"
        return f"the kubelet gave {_joined(self.handed_over)} to container {self.container} of {name}, {had}"

    @property
    def note(self) -> Note:
        return Note(OTHER_CARD, f"{self.words}; delete the pod", WARNING)

    @property
    def cards(self) -> frozenset[str]:
        return self.named | self.handed_over


@dataclass(frozen=True, slots=True)
class Unpromised:
    """A pod that holds memory, and sees cards that no Lease promises it."""

    pod: Pod
    cards: frozenset[str]
    promised: frozenset[str]

    @property
    def words(self) -> str:
        name = f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"
        had = f"is promised {_joined(self.promised)} only" if self.promised else "is promised no card by any Lease"
        return f"{name} holds {gpushare.GPU_MEM}, {had}, and can see {_joined(self.cards)}"

    @property
    def note(self) -> Note:
        cure = "delete the pod, and make it again while Carrel's webhook answers, without a nodeName"
        return Note(NOT_PROMISED, f"{self.words}; {cure}", WARNING)


Finding = Mismatch | Unpromised


@dataclass(frozen=True, slots=True)
class Findings:
    in_use_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """UUID of a card → uids of the pods that use it."""
    mismatches: tuple[Finding, ...] = ()
    unsure: str = ""
    """Why not everything could be compared."""

    def set_aside(self) -> dict[str, str]:
        """UUID → why nobody new may have the card."""
        return {uuid: each.words for each in self.mismatches for uuid in each.cards}


@dataclass(frozen=True, slots=True)
class HowOffered:
    kubelet_chooses: bool = False
    """Which whole cards it hands over is then its own affair, and only those count as used."""
    on_node: bool = False
    """Memory is a number on the Node, and nobody asks us who gets some."""


class Comparison:
    def __init__(self, cluster: Cluster, promises: Promises, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._promises = promises
        self._events = EventRecorder(cluster, COMPONENT, now)
        self._unsure = ""
        self._told: set[str] = set()
        self._manifests: dict[str, Json] = {}  # by uid, of those that were looked at
        self._promised: set[tuple[str, frozenset[str]]] = set()  # uid of the pod, cards

    async def compare(
        self, pods: Iterable[Pod], handed_over: Sequence[HandedOver], inventory: Inventory, how: HowOffered
    ) -> Findings:
        running = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods if pod.status.phase not in FINISHED}
        self._unsure = ""
        uses: dict[str, set[str]] = {}
        mismatches: list[Finding] = []
        for each in handed_over:
            pod = running.get((each.namespace, each.pod))
            if pod is None or each.resource not in registry.ALL.offers:
                continue
            named = frozenset(_named(pod, each.container))
            has, _ = inventory.cards_of(each.resource, each.devices)
            if how.kubelet_chooses and each.resource == nvidia.GPU:
                uses.setdefault(pod.metadata.uid, set()).update(has)
                continue
            is_promised = await self._is_promised(pod, named, inventory)
            if not how.kubelet_chooses:
                uses.setdefault(pod.metadata.uid, set()).update(named if is_promised else has)
            sees_others = has != named and not await self._sees_named(pod, each.container)
            if has and (sees_others or not is_promised):
                mismatches.append(Mismatch(pod, each.container, named, has, is_promised))
        for pod in running.values():
            # Claims and fractions ask the kubelet for nothing, so it does not show them.
            named = frozenset(_named(pod))
            is_running = pod.status.phase == "Running" and not how.kubelet_chooses
            if is_running and await self._is_promised(pod, named, inventory):
                uses.setdefault(pod.metadata.uid, set()).update(named)
            if how.on_node and (sees := await self._unpromised(pod, inventory)) is not None:
                mismatches.append(sees)
        self._forget_all_but({pod.metadata.uid for pod in running.values()})
        self._told &= {event_name(each.pod, each.note) for each in mismatches}
        in_use = {gpu.uuid: sorted(uid for uid, cards in uses.items() if gpu.uuid in cards) for gpu in inventory.gpus}
        return Findings(in_use, tuple(mismatches), self._unsure)

    async def _unpromised(self, pod: Pod, inventory: Inventory) -> Unpromised | None:
        asking = _asking(pod)
        manifest = await self._manifest(pod) if asking else None
        if manifest is None:
            return None  # it holds no memory; or it is not known, and the next round asks again
        # As it was when we first saw it, and as it is now: who changes an annotation hides nothing.
        changed = {"metadata": {"annotations": pod.metadata.annotations}, "spec": manifest.get("spec")}
        seen = {
            card
            for container in asking
            for version in (manifest, changed)
            for card in cards_seen(version, container, inventory.gpus)
        }
        promised = {card for card in sorted(seen) if await self._is_promised(pod, frozenset({card}), inventory)}
        return Unpromised(pod, frozenset(seen - promised), frozenset(promised)) if seen - promised else None

    async def tell(self, mismatches: Iterable[Finding]) -> None:
        """By an Event on the pod, once. Raises `ClusterError`."""
        for each in mismatches:
            name = event_name(each.pod, each.note)
            if name not in self._told:
                await self._events.record(each.pod, each.note)
                self._told.add(name)

    async def _sees_named(self, pod: Pod, container: str) -> bool:
        manifest = await self._manifest(pod)
        if manifest is None:
            return True  # not known; the next round asks again
        return reads_its_cards(manifest, container) and bool(_named(pod, container))

    async def _manifest(self, pod: Pod) -> Json | None:
        """All of it: our own view of a pod has no environment. None if it could not be had."""
        uid = pod.metadata.uid
        if uid not in self._manifests:
            try:
                manifest = await self._cluster.get(PODS, pod.metadata.name, pod.metadata.namespace)
            except ClusterError as error:
                self._unsure = str(error)
                return None
            if manifest["metadata"]["uid"] != uid:
                return None  # another of its name came; the next round knows it
            self._manifests[uid] = manifest
        return self._manifests[uid]

    async def _is_promised(self, pod: Pod, cards: frozenset[str], inventory: Inventory) -> bool:
        """What was promised once stays so as long as the pod lives, so it is not asked again."""
        key = (pod.metadata.uid, cards)
        if cards and key not in self._promised:
            try:
                promised = await self._promises.are_made(*key, inventory.gpus)
            except ClusterError as error:
                self._unsure = str(error)
                return True  # not known; the next round asks again
            if promised:
                self._promised.add(key)
        return key in self._promised

    def _forget_all_but(self, uids: set[str]) -> None:
        self._promised = {key for key in self._promised if key[0] in uids}
        self._manifests = {uid: manifest for uid, manifest in self._manifests.items() if uid in uids}


def reads_its_cards(pod: Json, container: str) -> bool:
    """Whether a container takes its cards from the pod's annotation, through the downward API."""
    keys = {annotation_field(carrel.devices_key(name)) for name in ("", container)}
    spec = pod.get("spec", {})
    return any(
        variable.get("name") == nvidia.VISIBLE_DEVICES
        and ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") in keys
        for each in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        if each.get("name") == container
        for variable in each.get("env") or ()
    )


def _asking(pod: Pod) -> list[str]:
    """The containers that hold memory; if that cannot be read, all."""
    try:
        return [ask.container for ask in resource_asked(pod, gpushare.GPU_MEM).containers]
    except Malformed:
        return [each.name for each in (*pod.spec.init_containers, *pod.spec.containers)]


def _named(pod: Pod, container: str = "") -> tuple[str, ...]:
    try:
        return carrel.read_devices(pod, container) or carrel.read_devices(pod)
    except Malformed:
        return ()


def _joined(uuids: Iterable[str]) -> str:
    return ", ".join(sorted(uuids))
