"""The settings of the extender."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.settings import DialectSettings, SealSettings, ServingSettings

if TYPE_CHECKING:
    from carrel.leases.cluster_state import ClusterOptions
    from carrel.scheduling.assembly import SchedulerOptions


class PlacementStyle(Enum):
    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True)
class ExtenderSettings(DialectSettings, SealSettings, ServingSettings):
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535, envvar=["CARREL_PORT", "PORT"])
    ] = 39999
    """gpushare's own, and its variable, so that a scheduler that is set up for it finds this one."""
    placement: Annotated[
        PlacementStyle, typer.Option(help="Fill nodes up, or keep them evenly free.", envvar="CARREL_PLACEMENT")
    ] = PlacementStyle.PACK
    """Packing keeps whole cards and islands free for those who need them."""
    gang_timeout: Annotated[
        float, typer.Option(help="Seconds a gang may take to come together.", min=1, envvar="CARREL_GANG_TIMEOUT")
    ] = 120.0
    """Binds of the early members wait so long; kube-scheduler's time-out for the extender must be longer."""

    def options(self) -> "ClusterOptions":
        from carrel.leases.cluster_state import ClusterOptions

        return ClusterOptions(namespace=self.carrel_namespace, dialect_options=self.dialect_options(), seal=self.seal())

    def scheduler_options(self) -> "SchedulerOptions":
        from carrel.scheduling.assembly import SchedulerOptions
        from carrel.scheduling.gangs import GangTimeouts

        is_spread = self.placement is PlacementStyle.SPREAD
        return SchedulerOptions(spread=is_spread, timeouts=GangTimeouts(together_s=self.gang_timeout))
