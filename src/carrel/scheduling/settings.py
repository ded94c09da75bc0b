"""The settings of the extender."""

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.caller_settings import CallerSettings
from carrel.option_fields import option, setting
from carrel.settings import (
    CudaSettings,
    DialectSettings,
    DraSettings,
    SchedulerSettings,
    SealSettings,
    ServingSettings,
    TierSettings,
)

if TYPE_CHECKING:
    from carrel.cluster.options import ClusterOptions
    from carrel.http.serving import Address
    from carrel.scheduling.assembly import SchedulerOptions

LAST_PORT = 65535


class PlacementStyle(Enum):
    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True)
class ExtenderSettings(
    SchedulerSettings,
    TierSettings,
    CudaSettings,
    DraSettings,
    DialectSettings,
    SealSettings,
    CallerSettings,
    ServingSettings,
):
    port: int = option(39999, "Port to listen on; 0: any free one.", envvar=["CARREL_PORT", "PORT"], min=0, max=65535)
    """gpushare's own port and variable, so that a scheduler that is configured for gpushare finds this extender."""
    tls_folder: Path | None = setting(
        None, "Folder with tls.crt and tls.key, read again when they change; without it: plain HTTP."
    )
    """Where kube-scheduler runs beside the extender, in one pod, nobody is between them."""
    placement: PlacementStyle = setting(PlacementStyle.PACK, "Fill nodes and GPUs up, or keep them evenly free.")
    """Packing keeps whole GPUs and islands free for pods that need them. They are KAI's `gpupack` and `gpuspread`."""
    health_address: str = setting(
        "", "Where probes and Prometheus find this process besides, such as 0.0.0.0:39995; empty: nowhere else."
    )
    """Whoever reaches the extender may place pods, so beside kube-scheduler it listens on loopback. Probes come from
    outside of the pod."""

    def health(self) -> "Address | None":
        """Raises `Malformed`."""
        from carrel.http.serving import Address
        from carrel.parsing.malformed import Malformed

        if not self.health_address:
            return None
        host, _, port = self.health_address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > LAST_PORT:
            raise Malformed("--health-address", "the address", self.health_address, "an address and a port")
        return Address(host.strip("[]"), int(port))

    def options(self) -> "ClusterOptions":
        from carrel.cluster.options import ClusterOptions

        dialects = replace(self.dialect_options(), cuda_devices=self.cuda_devices)
        return ClusterOptions(
            self.carrel_namespace,
            dialects,
            seal=self.seal(),
            tier_policy=self.tier_policy(),
            holders=self.holders(),
        )

    def scheduler_options(self) -> "SchedulerOptions":
        from carrel.scheduling.assembly import SchedulerOptions

        is_spread = self.placement is PlacementStyle.SPREAD
        return SchedulerOptions(
            spread=is_spread,
            schedulers=frozenset(self.scheduler_names()),
        )
