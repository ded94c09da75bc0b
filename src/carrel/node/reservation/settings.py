"""The settings of the program in a reservation pod."""

from dataclasses import dataclass
from typing import Annotated

import typer

from carrel.settings import ClusterSettings, LogLevel


@dataclass(frozen=True)
class ReservationSettings(ClusterSettings):
    pod_name: Annotated[str, typer.Option(help="The pod this runs in.", envvar="POD_NAME", show_default=False)] = ""
    """By the downward API. KAI's variables, so that its manifests will do."""
    pod_namespace: Annotated[
        str, typer.Option(help="The namespace of that pod.", envvar="POD_NAMESPACE", show_default=False)
    ] = ""
    """As above."""
    log_level: Annotated[LogLevel, typer.Option(help="How much is told on stderr.", envvar="CARREL_LOG_LEVEL")] = (
        LogLevel.INFO
    )
    """As for every door."""
