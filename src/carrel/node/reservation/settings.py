"""The settings of the program in a reservation pod."""

from dataclasses import dataclass
from typing import Annotated

import typer

from carrel.settings import ClusterSettings, LogLevel


@dataclass(frozen=True)
class ReservationSettings(ClusterSettings):
    pod_name: Annotated[str, typer.Option(help="The pod of this process.", envvar="POD_NAME", show_default=False)] = ""
    """From the downward API. The variables have KAI's names, so that its manifests work."""
    pod_namespace: Annotated[
        str, typer.Option(help="The namespace of that pod.", envvar="POD_NAMESPACE", show_default=False)
    ] = ""
    """As above."""
    log_level: Annotated[LogLevel, typer.Option(help="How much is logged on stderr.", envvar="CARREL_LOG_LEVEL")] = (
        LogLevel.INFO
    )
    """As for every component."""
