"""How this node offers the memory of its cards: chooses the way (`node.memory_offer`), and says what the Node shows.

Which way was in force before is found out after every start: the kubelet's books say whether pods have devices, else
the last report says it. Where neither can be read, nothing is begun: to leave a way takes the kubelet minutes, because
it remembers a plugin that has gone, offers nothing in its name, and refuses pods that ask for it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from carrel.dialects import carrel
from carrel.dialects.gpushare import GPU_MEM
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import resource_asked
from carrel.leases.pods import FINISHED
from carrel.node.device_names import Inventory, minor_of
from carrel.node.interfaces import HandedOver
from carrel.node.memory_offer import UNDECIDED, Holding, Situation, Way, decide, units_offered
from carrel.parsing import Malformed

WAYS = {way.value: way for way in Way}
NOTHING: Mapping[str, int | None] = {}


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the node when a way is chosen."""

    inventory: Inventory
    pods: Sequence[Pod] | None
    """Of this node. None: the API server has not told us yet, neither of them nor of the Node."""
    handed_over: Sequence[HandedOver]
    remembered: frozenset[str] | None
    """The resources that the kubelet takes for a plugin's. None: it does not say."""
    node: NodeObject | None

    @property
    def is_plugins(self) -> bool:
        """Whether the kubelet would ask a plugin for memory."""
        return self.remembered is not None and GPU_MEM in self.remembered


class MemoryOffer:
    def __init__(self, setting: Way | None, recorded: Callable[[], Awaitable[str]]) -> None:
        """`setting`: None is whatever is safe. `recorded`: what the last report says; it may raise `ClusterError`."""
        self._setting = setting
        self._recorded = recorded
        self._decision = UNDECIDED
        self._is_begun = False

    @property
    def way(self) -> Way | None:
        return self._decision.way

    async def choose(self, seen: Seen) -> None:
        """Raises `ClusterError` if it cannot be known what is in force."""
        before = self.way
        if not self._is_begun:
            if _has_devices(seen):
                before = Way.PLUGIN
            elif seen.pods is None:
                return
            else:
                before = WAYS.get(await self._recorded()) or _shown(seen)
            self._is_begun = True
        self._decision = decide(
            Situation(
                setting=self._setting,
                devices=sum(seen.inventory.units.values()),
                fits=seen.inventory.fits,
                kubelet_minor=minor_of(seen.node.status.node_info.kubelet_version) if seen.node else None,
                holders=None if seen.pods is None else len(_holders(seen.pods)),
                before=before,
            )
        )

    def is_offered(self, seen: Seen) -> bool:
        if self.way is Way.PLUGIN:
            return seen.inventory.fits
        return self.way is Way.NODE and not seen.is_plugins

    def amounts(self, seen: Seen, *, is_registered: bool) -> Mapping[str, int | None]:
        """What the Node must say of the memory; None: nothing. `is_registered`: the kubelet knows our plugin."""
        if self.way is Way.NODE and not seen.is_plugins and seen.pods is not None:
            usable = {gpu.uuid for gpu in seen.inventory.gpus if not gpu.unusable}
            return {GPU_MEM: units_offered(seen.inventory.units, usable, _holders(seen.pods))}
        if self.way is Way.PLUGIN and not is_registered and seen.remembered is not None and not seen.is_plugins:
            return {GPU_MEM: None}  # a number that is left from the other way; the kubelet writes its own later
        return NOTHING

    def message(self, seen: Seen) -> str:
        """What an admin should know; empty if all is as it should be."""
        if self.way is Way.NODE and seen.is_plugins:
            return (
                f"{GPU_MEM} is not offered yet: the kubelet remembers a device plugin for it, and would refuse pods; "
                "it forgets one five minutes after it has gone"
            )
        parts = []
        if self.way is Way.PLUGIN and not seen.inventory.fits:
            parts.append(_too_fine(seen.inventory))
        if self._decision.later is not None and self.way is not None:
            holders = len(_holders(seen.pods)) if seen.pods is not None else 0
            parts.append(
                f"{GPU_MEM} is offered in the way '{self.way.value}', and will be in the way "
                f"'{self._decision.later.value}' as soon as no pod of this node holds any (pods that do: {holders})"
            )
        return "; ".join(parts)


def holds_memory(pod: Pod) -> bool:
    try:
        return resource_asked(pod, GPU_MEM).total > 0
    except Malformed:
        return True


def _holders(pods: Sequence[Pod]) -> list[Holding]:
    return [_holding(pod) for pod in pods if pod.status.phase not in FINISHED and holds_memory(pod)]


def _holding(pod: Pod) -> Holding:
    try:
        return Holding(resource_asked(pod, GPU_MEM).total, frozenset(carrel.read_devices(pod)))
    except Malformed:
        return Holding(0, frozenset())


def _has_devices(seen: Seen) -> bool:
    return any(each.resource == GPU_MEM for each in seen.handed_over)


def _shown(seen: Seen) -> Way | None:
    """Where no report says it: as after an update, or where somebody deleted the report."""
    if seen.is_plugins:
        return Way.PLUGIN
    shown = seen.node.status.capacity.get(GPU_MEM, "0") if seen.node else "0"
    return Way.NODE if shown != "0" else None


def _too_fine(inventory: Inventory) -> str:
    return (
        f"{GPU_MEM} is not offered: so much memory in {inventory.unit.value} is more than the kubelet takes in one "
        "message; give this agent --memory-resource node, or every door of the cluster "
        f"--memory-unit {inventory.smallest_unit.value}"
    )
