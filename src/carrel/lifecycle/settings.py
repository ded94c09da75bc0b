"""The settings of the controller."""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from carrel import __version__
from carrel.dialects.gpuclaim import SCHEDULER
from carrel.settings import DeskSettings, DialectSettings, SealSettings, ServingSettings

if TYPE_CHECKING:
    from carrel.leases.cluster_state import ClusterOptions
    from carrel.lifecycle.reservation_pods import ReservationOptions
    from carrel.lifecycle.tier_reconciler import Rules


class Victims(Enum):
    LEAST_WORK = "least-work"
    RANDOM = "random"


class AfterBooking(Enum):
    CPU = "cpu"
    END = "end"


class ReservationWords(Enum):
    KAI = "kai"
    OLD_KAI = "old-kai"


@dataclass(frozen=True)
class ControllerSettings(DeskSettings, DialectSettings, SealSettings, ServingSettings):
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

    revocation_grace: Annotated[
        float,
        typer.Option(
            help="Seconds between telling a pod that it loses its card and ending it.",
            envvar="CARREL_REVOCATION_GRACE",
            min=0,
        ),
    ] = 0
    """None, as MAIA's manual says: who has booked need not wait. The pod's own termination grace comes on top."""
    victims: Annotated[
        Victims, typer.Option(help="Whose card is taken back, among the fewest.", envvar="CARREL_VICTIMS")
    ] = Victims.LEAST_WORK
    """The least work is lost if those go who have run the shortest; MAIA draws them by lot."""
    after_booking: Annotated[
        AfterBooking,
        typer.Option(help="What becomes of a pod whose booking is over.", envvar="CARREL_AFTER_BOOKING"),
    ] = AfterBooking.CPU
    """As MAIA's: the work goes on, more slowly, instead of being lost."""
    terminator_port: Annotated[
        int,
        typer.Option(
            help="Port of the pod terminator, as MAIA's clients call it; 0: any free one.",
            envvar="CARREL_TERMINATOR_PORT",
            min=0,
            max=65535,
        ),
    ] = 8080
    """MAIA's webhook calls http://pod-terminator:8080. Nothing listens unless somebody may call."""
    terminator_token: Annotated[
        str,
        typer.Option(
            help="Bearer token that callers of the pod terminator need.",
            envvar="CARREL_TERMINATOR_TOKEN",
            show_default=False,
        ),
    ] = ""
    """Better given by the environment: other users of a machine see a process's options."""
    terminator_for_all: Annotated[
        bool,
        typer.Option(help="Let anybody call the pod terminator, without a token.", envvar="CARREL_TERMINATOR_FOR_ALL"),
    ] = False
    """MAIA's webhook sends no token. Whoever reaches the port can then end pods that have no booking."""

    reservation_image: Annotated[
        str,
        typer.Option(
            help="Image of reservation pods, with Carrel in it; for nodes beside NVIDIA's plugin.",
            envvar="CARREL_RESERVATION_IMAGE",
        ),
    ] = f"carrel:{__version__}"
    """The image that Carrel itself runs from will do, under the name that the cluster's nodes know it by."""
    reservation_spelling: Annotated[
        ReservationWords,
        typer.Option(help="Whose names reservation pods have.", envvar="CARREL_RESERVATION_SPELLING"),
    ] = ReservationWords.KAI
    """Tools that look for reservation pods know them by KAI's names, or by those that it had before version 0.17."""

    def reservations(self) -> "ReservationOptions":
        from carrel.dialects.kai_reservation import BEFORE_KAI_0_17, KAI_0_17
        from carrel.lifecycle.reservation_pods import ReservationOptions

        is_old = self.reservation_spelling is ReservationWords.OLD_KAI
        return ReservationOptions(self.reservation_image, BEFORE_KAI_0_17 if is_old else KAI_0_17)

    def listens_for_maia(self) -> bool:
        return self.terminator_for_all or bool(self.terminator_token)

    def rules(self) -> "Rules":
        from carrel.lifecycle.tier_reconciler import Rules

        return Rules(
            schedulers=self.scheduler_names(),
            grace=timedelta(seconds=self.revocation_grace),
            by_lot=self.victims is Victims.RANDOM,
            go_on_without_gpu=self.after_booking is AfterBooking.CPU,
        )

    def scheduler_names(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.schedulers.split(",") if name.strip())

    def options(self) -> "ClusterOptions":
        from carrel.leases.cluster_state import ClusterOptions

        return ClusterOptions(self.carrel_namespace, self.dialect_options(), seal=self.seal())
