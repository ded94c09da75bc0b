"""Compares what the kubelet has handed over with what was promised, and says who uses which card.

A container that reads its cards from the pod's own annotation sees those it was promised, whatever the devices are
called. Another one sees what the plugin answered, which may have been meant for its twin: a pod of equal size that was
promised another card. That is told, and the cards are set aside until it is over; nothing is rewritten behind anybody's
back.
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

OTHER_CARD = "OtherGPUHandedOver"
TELLER = "carrel-agent"


@dataclass(frozen=True, slots=True)
class Mismatch:
    pod: Pod
    container: str
    promised: frozenset[str]
    handed_over: frozenset[str]

    @property
    def words(self) -> str:
        name = f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"
        had = f"was promised {_joined(self.promised)}" if self.promised else "was promised no card"
        return f"the kubelet gave {_joined(self.handed_over)} to container {self.container} of {name}, which {had}"

    @property
    def note(self) -> Note:
        return Note(OTHER_CARD, f"{self.words}; delete the pod", WARNING)


@dataclass(frozen=True, slots=True)
class Findings:
    in_use_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """UUID of a card → uids of the pods that use it."""
    mismatches: tuple[Mismatch, ...] = ()

    def set_aside(self) -> dict[str, str]:
        """UUID → why nobody new may have the card."""
        return {uuid: each.words for each in self.mismatches for uuid in each.promised | each.handed_over}


class Comparison:
    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._told: set[str] = set()
        self._reads_annotation: dict[tuple[str, str], bool] = {}  # uid of the pod, container

    async def compare(
        self, pods: Iterable[Pod], handed_over: Sequence[HandedOver], inventory: Inventory, *, kubelet_chooses: bool
    ) -> Findings:
        """`kubelet_chooses`: which whole cards it hands over is then its own affair."""
        running = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods if pod.status.phase not in FINISHED}
        uses = {pod.metadata.uid: set(_promised(pod)) for pod in running.values() if pod.status.phase == "Running"}
        mismatches: list[Mismatch] = []
        for each in handed_over:
            pod = running.get((each.namespace, each.pod))
            if pod is None or each.resource not in (gpushare.GPU_MEM, nvidia.GPU):
                continue
            promised = frozenset(_promised(pod, each.container))
            has, _ = inventory.cards_of(each.resource, each.devices)
            uses.setdefault(pod.metadata.uid, set()).update(promised or has)
            is_its_own_affair = kubelet_chooses and each.resource == nvidia.GPU
            if has and has != promised and not is_its_own_affair and not await self._sees_promised(pod, each.container):
                mismatches.append(Mismatch(pod, each.container, promised, has))
        self._forget_all_but({pod.metadata.uid for pod in running.values()})
        self._told &= {event_name(each.pod, each.note) for each in mismatches}
        in_use = {gpu.uuid: sorted(uid for uid, cards in uses.items() if gpu.uuid in cards) for gpu in inventory.gpus}
        return Findings(in_use, tuple(mismatches))

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

    async def _sees_promised(self, pod: Pod, container: str) -> bool:
        key = (pod.metadata.uid, container)
        if key not in self._reads_annotation:
            try:
                manifest = await self._cluster.get(PODS, pod.metadata.name, pod.metadata.namespace)
            except ClusterError:
                return True  # not known; the next round asks again
            self._reads_annotation[key] = reads_its_cards(manifest, container)
        return self._reads_annotation[key] and bool(_promised(pod, container))

    def _forget_all_but(self, uids: set[str]) -> None:
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


def _promised(pod: Pod, container: str = "") -> tuple[str, ...]:
    try:
        return carrel.read_devices(pod, container) or carrel.read_devices(pod)
    except Malformed:
        return ()


def _joined(uuids: Iterable[str]) -> str:
    return ", ".join(sorted(uuids))
