"""The settings of the controller."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.protocols.gpuclaim import SCHEDULER
from carrel.settings import DialectSettings, ServingSettings

if TYPE_CHECKING:
    from carrel.wiring import House


@dataclass(frozen=True)
class ControllerSettings(DialectSettings, ServingSettings):
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

    def scheduler_names(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.schedulers.split(",") if name.strip())

    def house(self) -> "House":
        from carrel.wiring import House

        return House(self.carrel_namespace, self.terms())
