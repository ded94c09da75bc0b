"""The settings of the extender."""

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.caller_settings import CallerSettings
from carrel.dialects.gpuclaim import SCHEDULER
from carrel.settings import CudaSettings, DialectSettings, DraSettings, SealSettings, ServingSettings, TierSettings

if TYPE_CHECKING:
    from carrel.http.serving import Address
    from carrel.leases.cluster_options import ClusterOptions
    from carrel.scheduling.assembly import SchedulerOptions

LAST_PORT = 65535


class NodeChoice(Enum):
    CARREL = "carrel"
    SCHEDULER = "kube-scheduler"


class PlacementStyle(Enum):
    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True)
class ExtenderSettings(
    TierSettings, CudaSettings, DraSettings, DialectSettings, SealSettings, CallerSettings, ServingSettings
):
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535, envvar=["CARREL_PORT", "PORT"])
    ] = 39999
    """gpushare's own port and variable, so that a scheduler that is configured for gpushare finds this extender."""
    tls_folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder with tls.crt and tls.key, read again when they change; without it: plain HTTP.",
            envvar="CARREL_TLS_FOLDER",
        ),
    ] = None
    """Where kube-scheduler runs beside the extender, in one pod, nobody is between them."""
    schedulers: Annotated[
        str,
        typer.Option(
            help="Schedulers that ask this extender, besides those of peers; pods of others are not bound. Joined by"
            " commas.",
            envvar="CARREL_SCHEDULERS",
        ),
    ] = SCHEDULER
    """A pod of another scheduler is not Carrel's to place."""
    placement: Annotated[
        PlacementStyle,
        typer.Option(help="Fill nodes and GPUs up, or keep them evenly free.", envvar="CARREL_PLACEMENT"),
    ] = PlacementStyle.PACK
    """Packing keeps whole GPUs and islands free for pods that need them. They are KAI's `gpupack` and `gpuspread`."""
    node_choice: Annotated[
        NodeChoice,
        typer.Option(
            help="Who chooses among the nodes that have room: Carrel names one, unless the pod or a node states a"
            " preference; or kube-scheduler, by Carrel's score beside its own.",
            envvar="CARREL_NODE_CHOICE",
        ),
    ] = NodeChoice.CARREL
    """One name saves kube-scheduler's scores and a call for Carrel's: most of the time that a pod takes. What is given
    up is in decision 42."""
    gang_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds until all members of a gang must be ready to bind.", min=1, envvar="CARREL_GANG_TIMEOUT"
        ),
    ] = 120.0
    """So long the binds of the first members wait. kube-scheduler's time-out for the extender must be longer."""

    health_address: Annotated[
        str,
        typer.Option(
            help="Where probes and Prometheus find this process besides, such as 0.0.0.0:39995; empty: nowhere else.",
            envvar="CARREL_HEALTH_ADDRESS",
        ),
    ] = ""
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
        from carrel.leases.cluster_options import ClusterOptions

        dialects = replace(self.dialect_options(), cuda_devices=self.cuda_devices)
        return ClusterOptions(
            self.carrel_namespace,
            dialects,
            seal=self.seal(),
            tier_policy=self.tier_policy(),
            dra=self.dra,
            dra_driver=self.dra_driver,
        )

    def scheduler_options(self) -> "SchedulerOptions":
        from carrel.scheduling.assembly import SchedulerOptions
        from carrel.scheduling.gangs import GangTimeouts

        is_spread = self.placement is PlacementStyle.SPREAD
        return SchedulerOptions(
            spread=is_spread,
            chooses_node=self.node_choice is NodeChoice.CARREL,
            timeouts=GangTimeouts(together_s=self.gang_timeout),
            schedulers=frozenset(name.strip() for name in self.schedulers.split(",") if name.strip()),
        )
