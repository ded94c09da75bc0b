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

from carrel.adapters.kube.mirror import Mirror
from carrel.adapters.kube.reflector import NORMAL_RHYTHM, Rhythm
from carrel.adapters.kubelet import Plugin
from carrel.core.gpus import Node
from carrel.doors.agent.metrics import Metrics
from carrel.doors.agent.settings import AgentSettings, Mode, WholeCards
from carrel.ports.cluster import Cluster, ClusterError, Selection
from carrel.ports.node import HandedOver, Look, Machine, PodResources, Unreachable
from carrel.protocols import Malformed, gpushare, nvidia
from carrel.protocols.carrel import DEVICES
from carrel.protocols.kubelet import NVIDIA_SOCKETS, SOCKETS, Inventory
from carrel.protocols.kubernetes.pods import subject
from carrel.protocols.kubernetes.resources import CONFIG_MAPS, NODES, PODS
from carrel.protocols.kubernetes.shapes import NodeObject, Pod
from carrel.usecases.allocate import Allocation, Post
from carrel.usecases.compare import Comparison, Findings
from carrel.usecases.promises import Promises
from carrel.usecases.report import Report, Reporter

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


class Agent:
    def __init__(
        self,
        cluster: Cluster,
        settings: AgentSettings,
        premises: Premises,
        now: Callable[[], datetime],
        rhythm: Rhythm = NORMAL_RHYTHM,
    ) -> None:
        self._settings = settings
        self._premises = premises
        self._now = now
        self._is_coexisting = settings.mode is Mode.COEXIST
        self._due = asyncio.Event()
        self._handed_over: Sequence[HandedOver] = ()
        self._aside: dict[int, str] = {}
        self._troubles: dict[str, str] = {}

        self.mirror = Mirror(cluster, rhythm)
        self._pods = self.mirror.watch(PODS, Selection(fields=f"spec.nodeName={settings.node_name}"))
        self._nodes = self.mirror.watch(NODES, Selection(fields=f"metadata.name={settings.node_name}"))
        by_admin = Selection(
            gpushare.UNHEALTHY_NAMESPACE, fields=f"metadata.name={gpushare.UNHEALTHY_PREFIX}{settings.node_name}"
        )
        self._by_admin = self.mirror.watch(CONFIG_MAPS, by_admin)
        self._by_admin.on_change(lambda old, new: self._due.set())
        self._pods.on_change(self._see_pod)
        self._nodes.on_change(self._see_node)

        promises = Promises(cluster, settings.node_name, settings.carrel_namespace)
        self._comparison = Comparison(cluster, promises, now)
        self._reporter = Reporter(cluster, now)
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
        self._inventory: Inventory | None = None
        self.memory = self._plugin(gpushare.GPU_MEM, lambda: True)
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
        return "" if self.memory.is_registered else "the kubelet has not taken the device plugin yet"

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.mirror.run())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    await self.mirror.wait_synced()
            await self.make_round()  # so that the kubelet's first question finds us prepared
            tasks.create_task(self.memory.run())
            tasks.create_task(self.cards.run())
            tasks.create_task(self._watch_machine())
            tasks.create_task(self._make_rounds())

    # --- when --------------------------------------------------------------------------------------------------------

    def _see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if any(pod is not None and DEVICES in pod.metadata.annotations for pod in (old, new)):
            self._due.set()

    def _see_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        counted = [node and node.status.allocatable.get(gpushare.GPU_COUNT) for node in (old, new)]
        if counted[0] != counted[1]:
            self._due.set()  # the kubelet was restarted, and has forgotten what it does not know itself

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
        seen = Inventory(look.gpus, self._settings.memory_unit)
        rows = self._allocation.without_namesakes(self._handed_over)
        findings = await self._comparison.compare(
            self._pods.store.snapshot(), rows, seen, kubelet_chooses=self._is_coexisting
        )
        aside, by_admin = findings.set_aside(), self._set_aside_by_admin()
        gpus = tuple(
            replace(gpu, unusable=gpu.unusable or by_admin.get(gpu.index, "") or aside.get(gpu.uuid, ""))
            for gpu in look.gpus
        )
        inventory = Inventory(gpus, self._settings.memory_unit)
        self._allocation.see(inventory, self._handed_over)
        await self._offer(inventory)
        await self._report(look, inventory, findings, seen_at)
        self.metrics.see(look, gpus, len(findings.mismatches), self._reporter.said_at)

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

    async def _offer(self, inventory: Inventory) -> None:
        if inventory != self._inventory:
            self._inventory = inventory
            await self.memory.offer(inventory.memory_devices() if inventory.fits else ())
            await self.cards.offer(inventory.card_devices())

    async def _report(self, look: Look, inventory: Inventory, findings: Findings, seen_at: datetime) -> None:
        node = Node(self._settings.node_name, inventory.gpus, kubelet_chooses=self._is_coexisting)
        unit = inventory.unit.value if inventory.fits else ""
        message = "; ".join(filter(None, (look.trouble, _too_fine(inventory), self._reporter.unknown)))
        report = Report(node, findings, seen_at, unit, message)
        await self._try("report", self._reporter.report(report))
        is_stranger = self._nodes.is_synced and self._node() is None
        self._note("node", f"the cluster has no node {node.name}: is --node-name right?" if is_stranger else "")
        await self._try("count", self._reporter.count_cards(self._node(), len(inventory.gpus)))
        await self._try("assigned", self._allocation.mark_assigned())
        await self._try("mismatch", self._comparison.tell(findings.mismatches))
        self._note("promise", "; ".join(each.words for each in findings.mismatches))
        self._note("comparison", findings.unsure)
        self._note("unit", _too_fine(inventory))

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


def _too_fine(inventory: Inventory) -> str:
    if inventory.fits:
        return ""
    return (
        f"{gpushare.GPU_MEM} is not offered: so much memory in {inventory.unit.value} is more than the kubelet takes "
        f"in one message; give every door of the cluster --memory-unit {inventory.smallest_unit.value}"
    )


def _nvidia_is_there(folder: Path) -> bool:
    return any(folder.glob(NVIDIA_SOCKETS))
