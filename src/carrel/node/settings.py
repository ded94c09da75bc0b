"""The settings of the agent, and of the programs in reservation pods and in pods of `carrel doctor`."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from carrel.configuration.gpu_memory import Capacity, MemoryResource
from carrel.configuration.schema import Configuration
from carrel.dialects.options import CudaDevices, DeviceList, Unit
from carrel.ids import NO_NODE, NodeName
from carrel.node.memory_mode_decision import MemoryMode
from carrel.option_fields import option, setting
from carrel.settings import ClusterSettings, LogLevel, ServingSettings

CDI_FOLDER = Path("/var/run/cdi")
"""Where all container runtimes read devices. They also read /etc/cdi, which outlives a reboot; claims do not."""
KUBELET_FOLDER = Path("/var/lib/kubelet")
DEVICE_PLUGINS = KUBELET_FOLDER / "device-plugins"


class AgentMode(Enum):
    NATIVE = "native"
    COEXIST = "coexist"
    REPORT_ONLY = "report-only"


@dataclass(frozen=True)
class AgentSettings(ServingSettings):
    port: int = setting(39996, "Port to listen on; 0: any free one.", min=0, max=65535)
    """Probes and Prometheus ask there. Each component has its own default: docs/cli.md lists them."""
    node_name: NodeName = option(
        NO_NODE, "The name of this node in the cluster.", envvar="NODE_NAME", show_default=False
    )
    """Must be given: a host's name is not always its node's. The DaemonSet passes it in by the downward API."""
    report_only: bool = setting(False, "Report the node's GPUs, and register nothing with the kubelet.")
    """For a node that gpushare's own plugin and extender serve: GPUs, their health and who has them are known. Nothing
    is written on its Node."""
    simulate: str = setting(
        "", "GPUs instead of a driver: a file that describes them, or COUNTxMODEL:MIB, as 8xTesla-T4:15360."
    )
    """For tests, CI and trying it out. A file is read again whenever it changes."""
    kubelet_folder: Path = setting(KUBELET_FOLDER, "The kubelet's own folder, its --root-dir.")
    """Its sockets are there, and those of the agent's plugins, which the kubelet must see by the same path. Some
    distributions move it."""
    cgroups: Path = setting(Path("/sys/fs/cgroup"), "Where the host's control groups are mounted.")
    """They tell which pods run, also pods that were deleted by force. In a container they must be mounted from the
    host, read-only. Where they cannot be seen, a GPU is free as soon as its pod is gone from the API server."""

    def options(self, configuration: Configuration) -> "AgentOptions":
        nodes, mode = configuration.nodes, AgentMode(configuration.nodes.plugin.value)
        return AgentOptions(
            self.node_name,
            self.carrel_namespace,
            AgentMode.REPORT_ONLY if self.report_only else mode,
            configuration.memory.unit,
            configuration.memory.resource,
            nodes.device_list,
            configuration.dialects.cuda_devices,
            self.kubelet_folder,
            capacity=configuration.memory.capacity,
        )


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent does on its node, as its options and the configuration say."""

    node_name: NodeName
    carrel_namespace: str = "carrel"
    mode: AgentMode = AgentMode.NATIVE
    """In native mode Carrel decides which GPU a container gets; beside NVIDIA's plugin the kubelet does."""
    memory_unit: Unit = Unit.MIB
    memory_resource: MemoryResource = MemoryResource.AUTO
    device_list: DeviceList = DeviceList.VARIABLE
    cuda_devices: CudaDevices = CudaDevices.UUID
    kubelet_folder: Path = KUBELET_FOLDER
    cdi_folder: Path = CDI_FOLDER
    capacity: Capacity = Capacity.AUTO

    @property
    def plugin_folder(self) -> Path:
        """Fixed in the kubelet, which may have moved all others; a simulated one has it beside them."""
        there = self.kubelet_folder / "device-plugins"
        is_elsewhere = self.kubelet_folder.is_dir() and not there.is_dir() and DEVICE_PLUGINS.is_dir()
        return DEVICE_PLUGINS if is_elsewhere else there

    @property
    def pod_resources(self) -> Path:
        return self.kubelet_folder / "pod-resources" / "kubelet.sock"

    def memory_mode(self) -> MemoryMode | None:
        """None: whatever is safe. What the kubelet does not allocate, it cannot hand over."""
        if self.memory_resource is not MemoryResource.AUTO:
            return MemoryMode(self.memory_resource.value)
        return None if self.device_list is DeviceList.VARIABLE else MemoryMode.PLUGIN


@dataclass(frozen=True)
class ReservationSettings(ClusterSettings):
    """The program in a reservation pod."""

    pod_name: str = option("", "The pod of this process.", envvar="POD_NAME", show_default=False)
    """From the downward API. The variables have KAI's names, so that its manifests work."""
    pod_namespace: str = option("", "The namespace of that pod.", envvar="POD_NAMESPACE", show_default=False)
    """As above."""
    log_level: LogLevel = setting(LogLevel.INFO, "How much is logged on stderr.")
    """As for every component."""


@dataclass(frozen=True)
class VisibleGpusSettings:
    write: Path | None = option(None, "File to write it to as well, such as /dev/termination-log.")
    """The kubelet shows what is in that file as the message of a container that has ended."""
