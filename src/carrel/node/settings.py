"""The settings of the agent, and of the programs in reservation pods and in pods of `carrel doctor`."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from carrel.dialects.options import DeviceList
from carrel.node.memory_mode_decision import MemoryMode
from carrel.option_fields import option, setting
from carrel.settings import (
    ClusterSettings,
    CudaSettings,
    DeviceListSettings,
    DraSettings,
    LogLevel,
    MemoryUnitSettings,
    ServingSettings,
)

CDI_FOLDER = "/var/run/cdi"
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")


class AgentMode(Enum):
    NATIVE = "native"
    COEXIST = "coexist"
    REPORT_ONLY = "report-only"


class MemoryResource(Enum):
    AUTO = "auto"
    PLUGIN = "plugin"
    NODE = "node"

    @property
    def mode(self) -> MemoryMode | None:
        return None if self is MemoryResource.AUTO else MemoryMode(self.value)


@dataclass(frozen=True)
class AgentSettings(CudaSettings, DeviceListSettings, DraSettings, MemoryUnitSettings, ServingSettings):
    port: int = setting(39996, "Port to listen on; 0: any free one.", min=0, max=65535)
    """Probes and Prometheus ask there. Each component has its own default: docs/cli.md lists them."""
    node_name: str = option("", "The name of this node in the cluster.", envvar="NODE_NAME", show_default=False)
    """Must be given: a host's name is not always its node's. The DaemonSet passes it in by the downward API."""
    mode: AgentMode = setting(
        AgentMode.NATIVE,
        "Which device plugin allocates GPUs: Carrel's, or NVIDIA's for whole GPUs (coexist), or others for "
        "everything (report-only: nothing is registered with the kubelet, nor written on the Node).",
    )
    """In native mode Carrel decides which GPU a container gets; beside NVIDIA's plugin the kubelet does. Only to report
    is for a node that gpushare's own plugin and extender serve: GPUs, their health and who has them are known."""
    memory_resource: MemoryResource = setting(
        MemoryResource.AUTO,
        "How gpushare's memory resource is advertised: as devices of a plugin, as a number on the Node's "
        "status, or (auto) by a plugin if this kubelet can handle so many devices.",
    )
    """A kubelet of 1.36 and newer stalls for minutes on tens of thousands of devices. It changes only while no pod of
    the node holds any memory."""
    simulate: Path | None = setting(None, "A file that describes the GPUs, instead of a driver.")
    """For tests, CI and trying it out. It is read again whenever it changes."""
    kubelet_folder: Path = setting(Path("/var/lib/kubelet"), "The kubelet's own folder, its --root-dir.")
    """Its sockets are there, and those of the agent's plugins, which the kubelet must see by the same path. Some
    distributions move it."""
    cdi_folder: Path = setting(Path(CDI_FOLDER), "Where the container runtime reads the devices of claims.")
    """With --dra. Runtimes also read /etc/cdi, which outlives a reboot; claims do not."""
    cgroups: Path = setting(Path("/sys/fs/cgroup"), "Where the host's control groups are mounted.")
    """They tell which pods run, also pods that were deleted by force. In a container they must be mounted from the
    host, read-only. Where they cannot be seen, a GPU is free as soon as its pod is gone from the API server."""

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
        if self.device_list is not DeviceList.VARIABLE and self.memory_resource is MemoryResource.AUTO:
            return MemoryMode.PLUGIN
        return self.memory_resource.mode

    def mistakes(self) -> list[str]:
        if self.device_list is not DeviceList.VARIABLE and self.memory_resource is MemoryResource.NODE:
            way = self.device_list.value
            return [
                f"--memory-resource node and --device-list {way} exclude each other: the kubelet hands over what a "
                "plugin allocates; use --memory-resource plugin and, for large GPUs, --memory-unit GiB"
            ]
        return []


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
