"""Compares what the kubelet has handed over with what was promised, and says who uses which card.

A container that reads its cards from the pod's own annotation sees those it was promised, whatever the devices are
called. Another one sees what the plugin answered, which may have been meant for its twin: a pod of equal size that was
promised another card. That is told, and the cards are set aside until it is over; nothing is rewritten behind anybody's
back. An annotation that no Lease confirms is told as well: its pod went round the scheduler, with a twin's devices.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from carrel.ports.cluster import AlreadyExists, Cluster, ClusterError, Forbidden, Json
from carrel.ports.node import HandedOver
from carrel.protocols import Malformed, carrel, gpushare, nvidia
from carrel.protocols.kubelet import Inventory
from carrel.protocols.kubernetes.events import WARNING, Note, event, event_name
from carrel.protocols.kubernetes.pods import annotation_field
from carrel.protocols.kubernetes.resources import EVENTS, PODS
from carrel.protocols.kubernetes.shapes import Pod
from carrel.usecases.observe import FINISHED
from carrel.usecases.promises import Promises

OTHER_CARD = "OtherGPUHandedOver"
TELLER = "carrel-agent"


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


@dataclass(frozen=True, slots=True)
class Findings:
    in_use_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """UUID of a card → uids of the pods that use it."""
    mismatches: tuple[Mismatch, ...] = ()
    unsure: str = ""
    """Why not everything could be compared."""

    def set_aside(self) -> dict[str, str]:
        """UUID → why nobody new may have the card."""
        return {uuid: each.words for each in self.mismatches for uuid in each.named | each.handed_over}


class Comparison:
    def __init__(self, cluster: Cluster, promises: Promises, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._promises = promises
        self._now = now
        self._unsure = ""
        self._told: set[str] = set()
        self._reads_annotation: dict[tuple[str, str], bool] = {}  # uid of the pod, container
        self._promised: set[tuple[str, frozenset[str]]] = set()  # uid of the pod, cards

    async def compare(
        self, pods: Iterable[Pod], handed_over: Sequence[HandedOver], inventory: Inventory, *, kubelet_chooses: bool
    ) -> Findings:
        """`kubelet_chooses`: which whole cards it hands over is then its own affair, and only those count as used."""
        running = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods if pod.status.phase not in FINISHED}
        self._unsure = ""
        uses: dict[str, set[str]] = {}
        mismatches: list[Mismatch] = []
        for each in handed_over:
            pod = running.get((each.namespace, each.pod))
            if pod is None or each.resource not in (gpushare.GPU_MEM, nvidia.GPU):
                continue
            named = frozenset(_named(pod, each.container))
            has, _ = inventory.cards_of(each.resource, each.devices)
            if kubelet_chooses and each.resource == nvidia.GPU:
                uses.setdefault(pod.metadata.uid, set()).update(has)
                continue
            is_promised = await self._is_promised(pod, named, inventory)
            if not kubelet_chooses:
                uses.setdefault(pod.metadata.uid, set()).update(named if is_promised else has)
            sees_others = has != named and not await self._sees_named(pod, each.container)
            if has and (sees_others or not is_promised):
                mismatches.append(Mismatch(pod, each.container, named, has, is_promised))
        for pod in running.values():
            # Claims and fractions ask the kubelet for nothing, so it does not show them.
            named = frozenset(_named(pod))
            if pod.status.phase == "Running" and not kubelet_chooses and await self._is_promised(pod, named, inventory):
                uses.setdefault(pod.metadata.uid, set()).update(named)
        self._forget_all_but({pod.metadata.uid for pod in running.values()})
        self._told &= {event_name(each.pod, each.note) for each in mismatches}
        in_use = {gpu.uuid: sorted(uid for uid, cards in uses.items() if gpu.uuid in cards) for gpu in inventory.gpus}
        return Findings(in_use, tuple(mismatches), self._unsure)

    async def tell(self, mismatches: Iterable[Mismatch]) -> None:
        """By an Event on the pod, once. Raises `ClusterError`."""
        for each in mismatches:
            name, namespace = event_name(each.pod, each.note), each.pod.metadata.namespace
            if name not in self._told:
                told = event(each.pod, PODS, each.note, TELLER, self._now())
                try:
                    await self._cluster.create(EVENTS, told, namespace)
                except AlreadyExists:
                    pass  # we told it before we were restarted
                except Forbidden as error:
                    if not error.is_namespace_going:
                        raise
                self._told.add(name)

    async def _sees_named(self, pod: Pod, container: str) -> bool:
        key = (pod.metadata.uid, container)
        if key not in self._reads_annotation:
            try:
                manifest = await self._cluster.get(PODS, pod.metadata.name, pod.metadata.namespace)
            except ClusterError as error:
                self._unsure = str(error)
                return True  # not known; the next round asks again
            self._reads_annotation[key] = reads_its_cards(manifest, container)
        return self._reads_annotation[key] and bool(_named(pod, container))

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
        self._reads_annotation = {key: reads for key, reads in self._reads_annotation.items() if key[0] in uids}


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


def _named(pod: Pod, container: str = "") -> tuple[str, ...]:
    try:
        return carrel.read_devices(pod, container) or carrel.read_devices(pod)
    except Malformed:
        return ()


def _joined(uuids: Iterable[str]) -> str:
    return ", ".join(sorted(uuids))
