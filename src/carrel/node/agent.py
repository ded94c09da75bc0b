"""The agent's rounds: look at the cards and at the kubelet's books, compare, offer, report.

A round is made when something may have changed, and every ten seconds. A part of it that fails is told once and keeps
the others from nothing: without the API server devices are still offered, without the kubelet cards are still reported.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from carrel.dialects import gpushare, nvidia
from carrel.dialects.carrel import DEVICES
from carrel.dialects.gpuclaim import Remarks
from carrel.kubernetes.cluster import Cluster, ClusterError, Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import CONFIG_MAPS, NODES, PODS
from carrel.kubernetes.reflector import DEFAULT_WATCH_TIMING, WatchTiming
from carrel.ledger.gpus import Node
from carrel.node.allocation import Allocation, Post
from carrel.node.comparison import Comparison, Findings, HowOffered
from carrel.node.device_names import NVIDIA_SOCKETS, SOCKETS, Inventory
from carrel.node.interfaces import HandedOver, Look, Machine, PluginMemory, PodResources, Unreachable
from carrel.node.kubelet import Plugin
from carrel.node.memory_offer import Way
from carrel.node.memory_resource import MemoryOffer, Seen, holds_memory
from carrel.node.metrics import Metrics
from carrel.node.promises import Promises
from carrel.node.report import Report, Reporter
from carrel.node.settings import AgentSettings, Mode, WholeCards
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

ROUND_S = 10.0
FIRST_S = 10.0
"""How long the pods of this node are waited for at first: running pods need us less than the kubelet does."""
SETTLE_S = 0.3
"""Several changes in a row are looked at together."""
SILENT = timedelta(seconds=90)
"""Since the last report; then probes are told."""


@dataclass(frozen=True, slots=True)
class Premises:
    """What an agent finds on its node."""

    machine: Machine
    pod_resources: PodResources
    plugin_memory: PluginMemory


class Agent:
    def __init__(
        self,
        cluster: Cluster,
        settings: AgentSettings,
        premises: Premises,
        now: Callable[[], datetime],
        watch_timing: WatchTiming = DEFAULT_WATCH_TIMING,
    ) -> None:
        self._settings = settings
        self._premises = premises
        self._now = now
        self._is_coexisting = settings.mode is Mode.COEXIST
        self._due = asyncio.Event()
        self._handed_over: Sequence[HandedOver] = ()
        self._remembered: frozenset[str] | None = None
        self._aside: dict[int, str] = {}
        self._troubles: dict[str, str] = {}

        self.informers = Informers(cluster, watch_timing)
        self._pods = self.informers.watch(PODS, Selection(fields=f"spec.nodeName={settings.node_name}"))
        self._nodes = self.informers.watch(NODES, Selection(fields=f"metadata.name={settings.node_name}"))
        by_admin = Selection(
            gpushare.UNHEALTHY_NAMESPACE, fields=f"metadata.name={gpushare.UNHEALTHY_PREFIX}{settings.node_name}"
        )
        self._by_admin = self.informers.watch(CONFIG_MAPS, by_admin)
        self._by_admin.on_change(lambda old, new: self._due.set())
        self._pods.on_change(self._see_pod)
        self._nodes.on_change(self._see_node)

        promises = Promises(cluster, settings.node_name, settings.carrel_namespace)
        self._comparison = Comparison(cluster, promises, now)
        self._reporter = Reporter(cluster, now)
        self._offer = MemoryOffer(
            settings.memory_resource.way, lambda: self._reporter.memory_resource(settings.node_name)
        )
        post = Post(
            cluster=cluster,
            node=settings.node_name,
            namespace=settings.carrel_namespace,
            now=now,
            clock=time.monotonic,
            pods=self._pods.store.snapshot,
            labels=lambda: node.metadata.labels if (node := self._node()) else {},
        )
        self._allocation = Allocation(post, self._due.set)
        self._offered: tuple[Inventory, Way | None] | None = None
        self.memory = self._plugin(gpushare.GPU_MEM, lambda: self._offer.way is Way.PLUGIN)
        self.cards = self._plugin(nvidia.GPU, self._offers_whole_cards)
        self.metrics = Metrics(
            {plugin.resource: lambda plugin=plugin: plugin.is_registered for plugin in (self.memory, self.cards)}  # type: ignore[misc] # bound now
        )

    def _plugin(self, resource: str, is_wanted: Callable[[], bool]) -> Plugin:
        return Plugin(resource, self._settings.plugin_folder / SOCKETS[resource], self._allocation, is_wanted)

    def _offers_whole_cards(self) -> bool:
        if self._is_coexisting or self._settings.whole_cards is WholeCards.NO:
            return False
        return self._settings.whole_cards is WholeCards.YES or not _nvidia_is_there(self._settings.plugin_folder)

    def _node(self) -> NodeObject | None:
        return self._nodes.store.get(self._settings.node_name)

    def trouble(self) -> str:
        """Why probes should not be content; empty if all is well."""
        reported_at = self._reporter.said_at
        if reported_at is None or self._now() - reported_at > SILENT:
            return self._troubles.get("report") or "the cluster has not heard of this node's cards yet"
        is_missing = self._offer.way is Way.PLUGIN and not self.memory.is_registered
        return "the kubelet has not taken the device plugin yet" if is_missing else ""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.informers.run())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    await self.informers.wait_synced()
            await self.make_round()  # so that the kubelet's first question finds us prepared
            tasks.create_task(self.memory.run())
            tasks.create_task(self.cards.run())
            tasks.create_task(self._watch_machine())
            tasks.create_task(self._make_rounds())

    # --- when --------------------------------------------------------------------------------------------------------

    def _see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if any(pod and (DEVICES in pod.metadata.annotations or holds_memory(pod)) for pod in (old, new)):
            self._due.set()

    def _see_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if _ours(old) != _ours(new):
            self._due.set()  # the kubelet was restarted, has forgotten what it does not know itself, or forgot a plugin

    async def _watch_machine(self) -> None:
        while True:
            await self._premises.machine.wait_changed()
            self._due.set()
            await asyncio.sleep(SETTLE_S)

    async def _make_rounds(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ROUND_S):
                    await self._due.wait()
                    await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._due.clear()
            await self.make_round()

    # --- what --------------------------------------------------------------------------------------------------------

    async def make_round(self) -> None:
        seen_at, look = self._now(), await self._premises.machine.look()
        self._note("cards", look.trouble)
        await self._ask_kubelet()
        found = Inventory(look.gpus, self._settings.memory_unit)
        await self._try("way", self._offer.choose(self._seen(found)))
        rows = self._allocation.without_namesakes(self._handed_over)
        how = HowOffered(kubelet_chooses=self._is_coexisting, on_node=self._offer.way is Way.NODE)
        findings = await self._comparison.compare(self._pods.store.snapshot(), rows, found, how)
        aside, by_admin = findings.set_aside(), self._set_aside_by_admin()
        gpus = tuple(
            replace(gpu, unusable=gpu.unusable or by_admin.get(gpu.index, "") or aside.get(gpu.uuid, ""))
            for gpu in look.gpus
        )
        inventory = Inventory(gpus, self._settings.memory_unit)
        self._allocation.see(inventory, self._handed_over)
        await self._offer_devices(inventory)
        await self._report(look, inventory, findings, seen_at)
        self.metrics.see(look, gpus, len(findings.mismatches), self._reporter.said_at)
        self.metrics.see_way(self._offer.way)

    def _seen(self, inventory: Inventory) -> Seen:
        is_told = self._pods.is_synced and self._nodes.is_synced
        pods = tuple(self._pods.store.snapshot()) if is_told else None
        return Seen(inventory, pods, self._handed_over, self._remembered, self._node())

    def _set_aside_by_admin(self) -> dict[int, str]:
        """Index → where an admin says so, as gpushare's users do."""
        try:
            self._aside = {
                index: f"set aside by {subject(each.metadata, 'ConfigMap')}"
                for each in self._by_admin.store.snapshot()
                for index in gpushare.read_unhealthy(each)
            }
        except Malformed as malformed:
            self._note("admin", str(malformed))  # what was set aside stays so: a slip of the pen mends no card
            return self._aside
        self._note("admin", "")
        return self._aside

    async def _ask_kubelet(self) -> None:
        try:
            self._handed_over = await self._premises.pod_resources.handed_over()
            self._note("kubelet", "")
        except Unreachable as unreachable:
            self._note("kubelet", str(unreachable))  # what it said last still holds: devices stay where they are
        try:
            self._remembered = await self._premises.plugin_memory.remembered()
            self._note("checkpoint", "")
        except Unreachable as unreachable:
            self._note("checkpoint", str(unreachable))

    async def _offer_devices(self, inventory: Inventory) -> None:
        offer = (inventory, self._offer.way)
        if offer != self._offered:
            self._offered = offer
            is_plugins = self._offer.way is Way.PLUGIN and inventory.fits
            await self.memory.offer(inventory.memory_devices() if is_plugins else ())
            await self.cards.offer(inventory.card_devices())

    async def _report(self, look: Look, inventory: Inventory, findings: Findings, seen_at: datetime) -> None:
        node = Node(self._settings.node_name, inventory.gpus, kubelet_chooses=self._is_coexisting)
        seen, way = self._seen(inventory), self._offer.way
        remarks = Remarks(
            memory_unit=inventory.unit.value if self._offer.is_offered(seen) else "",
            memory_resource=way.value if way else "",
            message="; ".join(filter(None, (look.trouble, self._offer.message(seen), self._reporter.unknown))),
        )
        await self._try("report", self._reporter.report(Report(node, findings, seen_at, remarks)))
        is_stranger = self._nodes.is_synced and self._node() is None
        self._note("node", f"the cluster has no node {node.name}: is --node-name right?" if is_stranger else "")
        memory = self._offer.amounts(seen, is_registered=self.memory.is_registered)
        amounts = {gpushare.GPU_COUNT: len(inventory.gpus), **memory}
        await self._try("amounts", self._reporter.show(self._node(), amounts))
        await self._try("assigned", self._allocation.mark_assigned())
        await self._try("mismatch", self._comparison.tell(findings.mismatches))
        self._note("promise", "; ".join(each.words for each in findings.mismatches))
        self._note("comparison", findings.unsure)
        self._note("memory", self._offer.message(seen))

    async def _try(self, what: str, doing: Awaitable[object]) -> None:
        try:
            await doing
            self._note(what, "")
        except ClusterError as error:
            self._note(what, str(error))

    def _note(self, what: str, trouble: str) -> None:
        """Told when it changes, not in every round."""
        before = self._troubles.get(what, "")
        self._troubles[what] = trouble
        if trouble and trouble != before:
            log.warning("trouble about=%s: %s", what, trouble)
        elif before and not trouble:
            log.info("trouble_over about=%s", what)


def _ours(node: NodeObject | None) -> list[str | None]:
    """What we may have written on a Node, or must put back."""
    shown = (node.status.capacity, node.status.allocatable) if node else ()
    return [each.get(resource) for each in shown for resource in (gpushare.GPU_COUNT, gpushare.GPU_MEM)]


def _nvidia_is_there(folder: Path) -> bool:
    return any(folder.glob(NVIDIA_SOCKETS))
