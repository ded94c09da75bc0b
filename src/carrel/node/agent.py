"""The agent's loop: read the GPUs and the kubelet's allocations, compare, advertise devices, report.

It runs when something may have changed, and every ten seconds. A part that fails is logged once and does not stop the
others: without the API server devices are still advertised, without the kubelet GPUs are still reported.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from carrel.cluster.record.unrecorded_pods import may_have_gpus
from carrel.dialects import gpushare, mig, nvidia
from carrel.dialects.carrel import DEVICES
from carrel.dialects.gpuclaim import Remarks
from carrel.ids import PodUid
from carrel.kubernetes.cluster import Cluster, ClusterError, Selection
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import CONFIG_MAPS, NODES, PODS
from carrel.kubernetes.reflector import DEFAULT_WATCH_TIMING, Informers, WatchTiming
from carrel.ledger.gpus import Gpu, Node
from carrel.node.advertised_memory import AdvertisedMemory, NodeSnapshot
from carrel.node.allocation import DeviceAllocation
from carrel.node.claim_driver import ClaimDriver
from carrel.node.comparison import AllocationMode, Comparison, ComparisonResult, Mismatch
from carrel.node.device_names import DeviceInventory, socket_of
from carrel.node.gpu_usage_counter import INTERVAL_S as SAMPLE_S
from carrel.node.gpu_usage_counter import GpuUsageCounter
from carrel.node.interfaces import (
    NO_DETAILS,
    AllocatedDevices,
    KubeletUnreachable,
    Machine,
    MachineState,
    PodResources,
)
from carrel.node.kubelet import DevicePlugin, KubeletCheckpoint
from carrel.node.lease_check import LeaseCheck
from carrel.node.limit_check import LimitCheck
from carrel.node.memory_limits import why_no_limits
from carrel.node.memory_mode_decision import MemoryMode
from carrel.node.metrics import AgentMetrics
from carrel.node.nvidia_socket import NvidiaPluginSocket
from carrel.node.pod_cgroups import PodCgroups
from carrel.node.report import Report, Reporter
from carrel.node.settings import AgentMode, AgentOptions
from carrel.node.shared_memory import counts_all_memory, with_usable_memory
from carrel.node.slice_plugins import SlicePlugins
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

INTERVAL_S = 10.0
SHOWN = 3
"""Containers without their limit that are named in the report."""
FIRST_SYNC_S = 10.0
"""How long the first run waits for the pods of this node. After that the kubelet is served without knowing them."""
DEBOUNCE_S = 0.3
"""Several changes in a row cause one run."""
REPORT_OVERDUE = timedelta(seconds=90)
"""Since the last report; then the readiness probe fails."""


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an agent needs of its node."""

    machine: Machine
    pod_resources: PodResources
    checkpoint: KubeletCheckpoint
    cgroups: PodCgroups | None = None
    """None: what runs on the machine cannot be seen."""
    claim_driver: type[ClaimDriver] = ClaimDriver
    serves_kubelet: bool = True
    """Whether the kubelet calls the device plugins over sockets."""


class Agent:
    def __init__(
        self,
        cluster: Cluster,
        options: AgentOptions,
        context: AgentContext,
        now: Callable[[], datetime],
        watch_timing: WatchTiming = DEFAULT_WATCH_TIMING,
    ) -> None:
        self._options = options
        self._context = context
        self._now = now
        self._is_coexisting = options.mode is AgentMode.COEXIST
        self._only_reports = options.mode is AgentMode.REPORT_ONLY
        self._nvidia_plugin = NvidiaPluginSocket(options.plugin_folder, time.monotonic)
        self._due = asyncio.Event()
        self._allocated_devices: Sequence[AllocatedDevices] = ()
        self._remembered: frozenset[str] | None = None
        self._excluded: dict[int, str] = {}
        self._troubles: dict[str, str] = {}

        self._isolation = Isolation()
        self.informers = Informers(cluster, watch_timing, isolation=self._isolation)
        self._pods = self.informers.watch(PODS, Selection(fields=f"spec.nodeName={options.node_name}"))
        self._nodes = self.informers.watch(NODES, Selection(fields=f"metadata.name={options.node_name}"))
        by_admin = Selection(
            gpushare.UNHEALTHY_NAMESPACE, fields=f"metadata.name={gpushare.UNHEALTHY_PREFIX}{options.node_name}"
        )
        self._by_admin = self.informers.watch(CONFIG_MAPS, by_admin)
        self._by_admin.on_change(lambda old, new: self._due.set())
        self._pods.on_change(self._on_pod_change)
        self._nodes.on_change(self._on_node_change)

        lease_check = LeaseCheck(cluster, options.node_name, options.carrel_namespace, has_slots=self._is_coexisting)
        self._comparison = Comparison(cluster, lease_check, now, self._isolation)
        self._limit_check = LimitCheck(cluster, context.cgroups, context.machine, self._isolation)
        self._not_limited: tuple[Mismatch, ...] = ()
        self._reporter = Reporter(cluster, now)
        self._usage = GpuUsageCounter(cluster, context.machine, options.node_name, now)
        self._reporting = asyncio.Lock()
        self._last_report: Report | None = None
        self.claims = context.claim_driver(cluster, options, lease_check, self._report_claims)
        self.claims.watch(self.informers, self._due.set)
        self._gpu_mem = AdvertisedMemory(
            options.memory_mode(), lambda: self._reporter.memory_resource(options.node_name)
        )
        self._allocation = DeviceAllocation(
            cluster,
            options,
            lease_check,
            self._pods.store,
            now,
            isolation=self._isolation,
            when_answered=self._due.set,
        )
        self._advertised: tuple[DeviceInventory, MemoryMode | None] | None = None
        self.memory = self._device_plugin(gpushare.GPU_MEM, lambda: self._gpu_mem.mode is MemoryMode.PLUGIN)
        self.whole_gpus = self._device_plugin(nvidia.GPU, self._advertises_whole_gpus)
        self.slices = SlicePlugins(lambda resource: self._device_plugin(resource, self._advertises_whole_gpus))
        self.metrics = AgentMetrics(
            {plugin.resource: lambda plugin=plugin: plugin.is_registered for plugin in (self.memory, self.whole_gpus)}  # type: ignore[misc] # bound now
        )
        self.metrics.show_api_calls(cluster.calls)
        self.metrics.show_failures(self._isolation.failures)

    def _device_plugin(self, resource: str, is_wanted: Callable[[], bool]) -> DevicePlugin:
        socket, device_list = self._options.plugin_folder / socket_of(resource), self._options.device_list
        return DevicePlugin(resource, socket, self._allocation, is_wanted, device_list)

    def _advertises_whole_gpus(self) -> bool:
        """Not beside NVIDIA's plugin: two plugins for one resource would allocate each GPU twice."""
        return not self._is_coexisting and not self._nvidia_plugin.is_served()

    def _node(self) -> NodeObject | None:
        return self._nodes.store.get(self._options.node_name)

    def trouble(self) -> str:
        """Why the agent is not ready; empty if it is."""
        reported_at = self._reporter.reported_at
        if reported_at is None or self._now() - reported_at > REPORT_OVERDUE:
            return self._troubles.get("report") or "this node's GPUs are not reported yet"
        is_missing = (
            not self._only_reports and self._gpu_mem.mode is MemoryMode.PLUGIN and not self.memory.is_registered
        )
        return "the device plugin is not registered with the kubelet yet" if is_missing else ""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.informers.run())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_SYNC_S):
                    await self.informers.wait_synced()
            await self._round()  # before the kubelet's first call
            if self._context.serves_kubelet and not self._only_reports:
                tasks.create_task(self.memory.run())
                tasks.create_task(self.whole_gpus.run())
                tasks.create_task(self.slices.run())
            tasks.create_task(self.claims.run())
            tasks.create_task(self._watch_machine())
            tasks.create_task(self._count_usage())
            tasks.create_task(self._run_rounds())

    # --- when --------------------------------------------------------------------------------------------------------

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if any(pod and (DEVICES in pod.metadata.annotations or may_have_gpus(pod)) for pod in (old, new)):
            self._due.set()

    def _on_node_change(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if _written_resources(old) != _written_resources(new):
            self._due.set()  # the kubelet was restarted, or removed resources that it does not manage

    async def _watch_machine(self) -> None:
        while True:
            await self._context.machine.wait_changed()
            self._due.set()
            await asyncio.sleep(DEBOUNCE_S)

    async def _count_usage(self) -> None:
        while True:
            await self._try("usage", self._usage.sample())
            await asyncio.sleep(SAMPLE_S)

    async def _run_rounds(self) -> None:
        while True:
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._due.wait()
                    await asyncio.sleep(DEBOUNCE_S)
            except TimeoutError:
                pass
            self._due.clear()
            await self._round()

    async def _round(self) -> None:
        """A round that fails is tried again: the kubelet must be served meanwhile."""
        try:
            await self.run_once()
        except Exception as error:
            self._isolation.failed("round", self._options.node_name, error)

    # --- what --------------------------------------------------------------------------------------------------------

    async def run_once(self) -> None:
        seen_at, state = self._now(), self._as_shared(await self._context.machine.read_state())
        self._note("gpus", state.trouble)
        await self._ask_kubelet()
        found = DeviceInventory(state.gpus, self._options.memory_unit)
        if not self._only_reports:
            await self._try("memory_mode", self._gpu_mem.choose(self._snapshot(found)))
        rows = self._allocation.without_replaced_pods(self._allocated_devices)
        how = AllocationMode(
            kubelet_chooses=self._is_coexisting,
            memory_on_node=self._gpu_mem.mode is MemoryMode.NODE,
            by_others=self._only_reports,
        )
        result = await self._comparison.compare(tuple(self._pods.store), rows, found, how)
        await self._try("limits", self._check_limits(gpus=state.gpus))
        excluded, by_admin = result.excluded(), self._excluded_by_admin()
        gpus = tuple(
            replace(gpu, unusable=gpu.unusable or by_admin.get(gpu.index, "") or excluded.get(gpu.uuid, ""))
            for gpu in state.gpus
        )
        node = self._node()
        labels = node.metadata.labels if node else {}
        inventory = DeviceInventory(mig.advertised_as_gpus(gpus, labels), self._options.memory_unit)
        self._allocation.update(inventory, self._allocated_devices, labels)
        self._note("claims", self.claims.look(gpus, node, seen_at))
        await self._advertise_devices(inventory)
        await self._report(state, inventory, result, seen_at)
        self.metrics.update(state, gpus, len(result.mismatches), self._reporter.reported_at)
        self.metrics.set_memory_mode(self._gpu_mem.mode)
        self.metrics.set_not_limited(len(self._not_limited))

    def _as_shared(self, state: MachineState) -> MachineState:
        capacity, by_gpushare = self._options.capacity, self._only_reports
        if counts_all_memory(capacity, self._node(), serves_gpushare=by_gpushare):
            return state
        return replace(state, gpus=with_usable_memory(state.gpus, state.details))

    def _snapshot(self, inventory: DeviceInventory) -> NodeSnapshot:
        is_told = self._pods.is_synced and self._nodes.is_synced
        pods = tuple(self._pods.store) if is_told else None
        return NodeSnapshot(inventory, pods, self._allocated_devices, self._remembered, self._node())

    def _excluded_by_admin(self) -> dict[int, str]:
        """Index of a GPU that an admin has excluded, as gpushare's users do → where that is written."""
        try:
            self._excluded = {
                index: f"excluded by {subject(each.metadata, 'ConfigMap')}"
                for each in self._by_admin.store
                for index in gpushare.read_unhealthy(each)
            }
        except Malformed as malformed:
            self._note("admin", str(malformed))  # the GPUs stay excluded: a typing error repairs no GPU
            return self._excluded
        self._note("admin", "")
        return self._excluded

    async def _ask_kubelet(self) -> None:
        try:
            self._allocated_devices = await self._context.pod_resources.allocated_devices()
            self._note("kubelet", "")
        except KubeletUnreachable as unreachable:
            self._note("kubelet", str(unreachable))  # its last answer still holds: a container keeps its devices
        try:
            self._remembered = await self._context.checkpoint.remembered()
            self._note("checkpoint", "")
        except KubeletUnreachable as unreachable:
            self._note("checkpoint", str(unreachable))

    async def _check_limits(self, gpus: Sequence[Gpu]) -> None:
        self._not_limited = await self._limit_check.look(tuple(self._pods.store), gpus)

    def _why_no_limits(self, state: MachineState) -> str:
        cgroups, gpus = self._context.cgroups, {gpu.uuid: state.details.get(gpu.uuid, NO_DETAILS) for gpu in state.gpus}
        return why_no_limits(gpus, cgroups_v2=cgroups.are_version_2() if cgroups is not None else None)

    async def _orphans(self) -> tuple[PodUid, ...] | None:
        """Pods that run here, although the cluster has them no more. None: that cannot be seen."""
        cgroups = self._context.cgroups
        running = await asyncio.to_thread(cgroups.running) if cgroups is not None and self._pods.is_synced else None
        if running is None:
            return None
        return tuple(sorted(running - {pod.metadata.uid for pod in self._pods.store}))

    async def _advertise_devices(self, inventory: DeviceInventory) -> None:
        wanted = (inventory, self._gpu_mem.mode)
        if wanted != self._advertised:
            self._advertised = wanted
            by_plugin = self._gpu_mem.mode is MemoryMode.PLUGIN and inventory.fits
            await self.memory.advertise(inventory.memory_devices() if by_plugin else ())
            await self.whole_gpus.advertise(inventory.gpu_devices(nvidia.GPU))
            await self.slices.advertise(inventory)

    async def _report(
        self, state: MachineState, inventory: DeviceInventory, result: ComparisonResult, seen_at: datetime
    ) -> None:
        limits, chooses = self._why_no_limits(state), self._is_coexisting
        node = Node(self._options.node_name, inventory.gpus, why_no_limits=limits, kubelet_chooses=chooses)
        snapshot, mode = self._snapshot(inventory), self._gpu_mem.mode
        socket = "" if self._is_coexisting or self._only_reports else self._nvidia_plugin.trouble()
        remarks = Remarks(
            memory_unit=inventory.unit.value,
            memory_resource=mode.value if mode else "",
            message="; ".join(
                filter(
                    None,
                    (
                        state.trouble,
                        self._gpu_mem.message(snapshot),
                        self._reporter.unknown,
                        self._reporter.restored,
                        socket,
                        self._troubles.get("claims"),
                        *(each.words for each in self._not_limited[:SHOWN]),
                    ),
                )
            ),
            orphans=await self._orphans(),
            usage=self._usage.usages_of(inventory.gpus),
        )
        await self._try("report", self._write_report(Report(node, result, seen_at, remarks)))
        await self._try("slice", self.claims.publish(replace(state, gpus=inventory.gpus), self._node()))
        is_unknown = self._nodes.is_synced and self._node() is None
        self._note("node", f"the cluster has no node {node.name}: is --node-name right?" if is_unknown else "")
        memory = self._gpu_mem.amounts(snapshot, is_registered=self.memory.is_registered)
        if not self._only_reports:
            amounts = {gpushare.GPU_COUNT: len(inventory.gpus), **memory}
            await self._try("amounts", self._reporter.show(self._node(), amounts))
            await self._try("assigned", self._allocation.mark_assigned())
        await self._try("dropped", self._reporter.tell_unknown(self._node()))
        self._note("definition", self._reporter.unknown)
        self._note("socket", socket)
        await self._try("mismatch", self._comparison.write_events([*result.mismatches, *self._not_limited]))
        self._note("limited", "; ".join(each.words for each in self._not_limited))
        self._note("promise", "; ".join(each.words for each in result.mismatches))
        self._note("comparison", result.unsure)
        self._note("memory", self._gpu_mem.message(snapshot))

    async def _write_report(self, report: Report) -> None:
        async with self._reporting:
            self._last_report = report
            used = self.claims.with_users(report.result.in_use_by)
            remarks = replace(report.remarks, prepared_claims=self.claims.prepared())
            report = replace(report, result=replace(report.result, in_use_by=used), remarks=remarks)
            await self._reporter.report(report)

    async def _report_claims(self) -> None:
        """The last report once more, with the claims that are prepared now: before the kubelet is answered."""
        if self._last_report is not None:
            await self._write_report(replace(self._last_report, seen_at=self._now()))

    async def _try(self, what: str, doing: Awaitable[object]) -> None:
        try:
            await doing
            self._note(what, "")
        except ClusterError as error:
            self._note(what, str(error))
        except Exception as error:
            self._isolation.failed(what, self._options.node_name, error)
            self._note(what, f"{type(error).__name__}: {error}")

    def _note(self, what: str, trouble: str) -> None:
        """Logged when it changes, not in every run."""
        before = self._troubles.get(what, "")
        self._troubles[what] = trouble
        if trouble and trouble != before:
            log.warning("trouble about=%s: %s", what, trouble)
        elif before and not trouble:
            log.info("trouble_over about=%s", what)


def _written_resources(node: NodeObject | None) -> list[str | None]:
    """The resources that the agent writes on a Node."""
    shown = (node.status.capacity, node.status.allocatable) if node else ()
    return [each.get(resource) for each in shown for resource in (gpushare.GPU_COUNT, gpushare.GPU_MEM)]
