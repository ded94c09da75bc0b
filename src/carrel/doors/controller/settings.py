"""The settings of the controller."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.protocols.gpuclaim import SCHEDULER
from carrel.settings import ClusterSettings, DialectSettings, LogLevel

if TYPE_CHECKING:
    from carrel.wiring import House


@dataclass(frozen=True)
class ControllerSettings(DialectSettings, ClusterSettings):
    bind_address: Annotated[str, typer.Option(help="Address to listen on.", envvar="CARREL_BIND_ADDRESS")] = "127.0.0.1"
    """Only probes and Prometheus come here; in a pod it is the pod's own address."""
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535, envvar="CARREL_PORT")
    ] = 39998
    """Beside the extender's, so that both can run on one machine."""
    schedulers: Annotated[
        str,
        typer.Option(
            help="Schedulers whose pods are told why they wait, joined by commas.", envvar="CARREL_SCHEDULERS"
        ),
    ] = SCHEDULER
    """Whoever else schedules a pod with a GPU has reasons of its own, which Carrel does not know."""
    log_level: Annotated[
        LogLevel, typer.Option(help="How much is told on stderr.", envvar=["CARREL_LOG_LEVEL", "LOG_LEVEL"])
    ] = LogLevel.INFO
    """The same words as the extender's."""

    def scheduler_names(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.schedulers.split(",") if name.strip())

    def house(self) -> "House":
        from carrel.wiring import House

        return House(self.carrel_namespace, self.terms())
