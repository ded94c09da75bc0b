"""The nodes of the demo: simulated kubelets, and on each node the agent that runs on a real one, in this process.

The agent (`carrel.node`) reports the GPUs and who uses them, marks pods that have their share, and answers the kubelet.
Kubelet and agent call each other without sockets; nothing else is left out. Memory is a number on the Node, so the
kubelet allocates whole GPUs only.

    native     Carrel's plugin hands GPUs over: the kubelet asks the agent which ones, and the agent asks the Leases
    coexist    NVIDIA's plugin does: the kubelet takes the last ones that are free. A reservation pod runs Carrel's
               program (`node.reservation`), which finds its GPU in the files that the driver shows in a container
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zlib import crc32

from carrel.cluster.pod_progress import FINISHED
from carrel.configuration.gpu_memory import MemoryResource
from carrel.demo.kubelets import Kubelets
from carrel.dialects import nvidia
from carrel.dialects.kai_reservation import is_reservation
from carrel.dialects.visible_devices import read_devices
from carrel.ids import GpuUuid
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import ContainerAsk, resource_asked
from carrel.kubernetes.reflector import Reflector
from carrel.ledger.gpu_usage import GpuSample
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.refusals import Refusal
from carrel.node.agent import Agent, AgentContext
from carrel.node.interfaces import AllocatedDevices, ControlGroup, DeviceAllocator, MachineState
from carrel.node.kubelet import KubeletCheckpoint
from carrel.node.nvidia.visible_gpu import GpuSources
from carrel.node.reservation import hold_gpu
from carrel.node.settings import AgentMode, AgentOptions, ReservationSettings
from carrel.node.simulated_activity import UNUSED, Activity, sample_of
from carrel.parsing import Malformed


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the nodes need of the demo."""

    kubelet: Cluster
    agent: Cluster
    reservation: Cluster
    """The API, for each with its own account."""
    mode: AgentMode
    folder: Path
    """For the files of containers; else empty."""


class DemoKubelets(Kubelets):
    def __init__(
        self, context: NodeContext, nodes: Sequence[Node], pods: Reflector[Pod], now: Callable[[], datetime]
    ) -> None:
        super().__init__(context.kubelet, nodes, pods, now)
        self._pods = pods
        self._context = context
        self._devices = {node.name: DeviceManager(node.gpus, pods.store.by_uid) for node in nodes}
        self._agents = [self._agent(node, now) for node in nodes]
        self._programs: dict[str, asyncio.Task[None]] = {}  # uid of a reservation pod → what runs in it

    def _agent(self, node: Node, now: Callable[[], datetime]) -> Agent:
        folder, devices = self._context.folder, self._devices[node.name]
        settings = AgentOptions(
            node_name=node.name,
            mode=self._context.mode,
            memory_resource=MemoryResource.NODE,
            kubelet_folder=folder,
        )
        # The kubelet below calls the allocator itself.
        machine = SteadyMachine(node, lambda: self._pods.store, now)
        context = AgentContext(machine, devices, KubeletCheckpoint(folder), serves_kubelet=False)
        agent = Agent(self._context.agent, settings, context, now)
        if self._context.mode is AgentMode.NATIVE:
            devices.allocator = agent.whole_gpus.allocator
        return agent

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for agent in self._agents:
                tasks.create_task(agent.run())
            try:
                await super().run()
            finally:
                for program in self._programs.values():
                    program.cancel()

    async def admit(self, pod: Pod) -> str:
        return await self._devices[pod.spec.node_name].admit(pod)

    async def start_containers(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if is_reservation(pod) and uid not in self._programs:
            shown = self._driver_files(uid, self._devices[pod.spec.node_name].gpus_of(uid))
            settings = ReservationSettings(pod_name=pod.metadata.name, pod_namespace=pod.metadata.namespace)
            sources = GpuSources({}, shown)
            program = hold_gpu(self._context.reservation, settings, sources, asyncio.Event())
            self._programs[uid] = asyncio.create_task(program)

    async def end_containers(self, pod: Pod) -> None:
        if program := self._programs.pop(pod.metadata.uid, None):
            program.cancel()

    def _driver_files(self, uid: str, gpus: Iterable[str]) -> Path:
        """Write what the container sees of `/proc/driver/nvidia/gpus`, and return the folder."""
        folder = self._context.folder / uid
        for number, gpu in enumerate(gpus):
            address = folder / f"0000:{number:02x}:00.0"
            address.mkdir(parents=True, exist_ok=True)
            (address / "information").write_text(f"GPU UUID: \t {gpu}\n")
        return folder


class DeviceManager:
    """The part of a kubelet that gives whole GPUs to containers. Like a real one, it serves one pod after the other,
    and takes back what pods had that have ended when it needs it."""

    def __init__(self, gpus: Sequence[Gpu], pod_by_uid: Callable[[str], Pod | None]) -> None:
        self._healthy = [gpu.uuid for gpu in gpus if not gpu.unusable]
        self._pod_by_uid = pod_by_uid
        self.allocator: DeviceAllocator | None = None
        """Carrel's plugin; None: NVIDIA's, which hands over whatever the kubelet takes."""
        self._given: dict[str, list[AllocatedDevices]] = {}  # by the uid of the pod
        self._one_at_a_time = asyncio.Lock()

    async def allocated_devices(self) -> Sequence[AllocatedDevices]:
        self._take_back()
        return [each for given in self._given.values() for each in given]

    def gpus_of(self, uid: str) -> list[str]:
        return [device for each in self._given.get(uid, ()) for device in each.devices]

    async def admit(self, pod: Pod) -> str:
        """Return why the pod gets no GPUs; empty: it has as many as it asks for."""
        try:
            asked = resource_asked(pod, nvidia.GPU).containers
        except Malformed as malformed:
            return str(malformed)
        async with self._one_at_a_time:
            self._take_back()
            if not asked or pod.metadata.uid in self._given:
                return ""
            given: list[AllocatedDevices] = []
            for_later: list[str] = []  # what init containers had, the containers get
            for ask in asked:
                taken = {device for each in given for device in each.devices}
                devices = await self._allocate(ask, taken, [each for each in for_later if each not in taken])
                if isinstance(devices, Refusal):
                    return f"Allocate failed due to {devices.reason}, which is unexpected"
                if ask.init:
                    for_later = devices
                else:
                    row = (pod.metadata.namespace, pod.metadata.name, ask.container, nvidia.GPU, tuple(devices))
                    given.append(AllocatedDevices(*row))
            self._given[pod.metadata.uid] = given
            return ""

    async def _allocate(self, ask: ContainerAsk, taken: set[str], for_it: Sequence[str]) -> list[str] | Refusal:
        held = taken | {uuid for uid in self._given for uuid in self.gpus_of(uid)}
        free = [uuid for uuid in self._healthy if uuid not in held]
        if ask.amount > len(free):
            amounts = f"Requested: {ask.amount}, Available: {len(free)}"
            return Refusal(f"requested number of devices unavailable for {nvidia.GPU}. {amounts}")
        must = for_it[: ask.amount]
        others = [uuid for uuid in reversed(free) if uuid not in must]
        devices = [*must, *others][: ask.amount]
        if self.allocator is not None:
            devices = [*await self.allocator.prefer(nvidia.GPU, free, must, ask.amount)] or devices
            answer = await self.allocator.allocate(nvidia.GPU, devices)
            if isinstance(answer, Refusal):
                return answer
        return devices

    def _take_back(self) -> None:
        pods = {uid: self._pod_by_uid(uid) for uid in self._given}
        gone = {uid for uid, pod in pods.items() if pod is None or pod.status.phase in FINISHED}
        self._given = {uid: given for uid, given in self._given.items() if uid not in gone}


class SteadyMachine:
    """A machine whose GPUs stay as they are. What a GPU does is what the pods that have it do, each in its own way."""

    def __init__(self, node: Node, pods: Callable[[], Iterable[Pod]], now: Callable[[], datetime]) -> None:
        self._node = node
        self._pods = pods
        self._now = now

    async def read_state(self) -> MachineState:
        return MachineState(self._node.gpus)

    async def memory_limits(self, groups: Sequence[ControlGroup]) -> Mapping[ControlGroup, MiB | None]:
        return {}  # nobody limits a simulated GPU

    async def sample(self) -> Mapping[GpuUuid, GpuSample]:
        users: dict[GpuUuid, list[str]] = {}
        for pod in self._pods():
            if pod.spec.node_name == self._node.name and pod.status.phase == "Running":
                for uuid in read_devices(pod):
                    users.setdefault(uuid, []).append(pod.metadata.uid)
        return {gpu.uuid: self._sample(gpu, users.get(gpu.uuid, ())) for gpu in self._node.gpus}

    def _sample(self, gpu: Gpu, users: Sequence[str]) -> GpuSample:
        samples = [sample_of(_activity_of(uid), uid, MiB(gpu.memory // len(users)), self._now()) for uid in users]
        return max(samples, key=lambda each: each.utilisation or 0.0, default=UNUSED)

    async def wait_changed(self) -> None:
        await asyncio.Event().wait()


def _activity_of(uid: str) -> Activity:
    """Return what a pod does: most train; some are notebooks, wait for their data, or have been forgotten; and the
    counter of a few stands still."""
    kinds = (*4 * (Activity.TRAINING,), *2 * (Activity.NOTEBOOK, Activity.LOADING, Activity.IDLE), Activity.STUCK)
    return kinds[crc32(uid.encode()) % len(kinds)]
