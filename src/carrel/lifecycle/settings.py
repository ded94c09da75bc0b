"""The settings of the controller."""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from carrel import __version__
from carrel.ledger.tiers import AtEnd
from carrel.settings import PodSettings

if TYPE_CHECKING:
    from carrel.cluster.options import ClusterOptions
    from carrel.lifecycle.reservations.reservation_pods import ReservationOptions
    from carrel.lifecycle.tier_options import TierOptions


class Victims(Enum):
    FAIR = "fair"
    RANDOM = "random"


class ReservationNaming(Enum):
    KAI = "kai"
    OLD_KAI = "old-kai"


@dataclass(frozen=True)
class ControllerSettings(PodSettings):
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535, envvar="CARREL_PORT")
    ] = 39998
    """Below the extender's, so that both can run on one machine."""
    adopt: Annotated[
        bool,
        typer.Option(help="Record pods that have GPUs without a Lease, as `carrel adopt` does.", envvar="CARREL_ADOPT"),
    ] = False
    """Such pods hold their GPUs in any case. Off, because a record hides that another scheduler places pods."""
    revocation_grace: Annotated[
        float,
        typer.Option(
            help="Seconds between the announcement that a pod loses its GPU and its end.",
            envvar="CARREL_REVOCATION_GRACE",
            min=0,
        ),
    ] = 0
    """None, as MAIA's manual says: a booked pod need not wait. The pod's own termination grace comes on top."""
    notebook_grace: Annotated[
        float,
        typer.Option(
            help="The same for pods of a notebook hub; the longer of the two counts."
            " For a namespace, an admin may set another time by an annotation.",
            envvar="CARREL_NOTEBOOK_GRACE",
            min=0,
        ),
    ] = 120
    """Two minutes. A person works in the notebook, and has to see the notice and save."""
    victims: Annotated[
        Victims,
        typer.Option(
            help="Which pods lose their GPU: fair (of people above the equal share first), or random (MAIA's way).",
            envvar="CARREL_VICTIMS",
        ),
    ] = Victims.FAIR
    """A newcomer's only GPU is not taken before one of the eight that somebody else has; MAIA chooses at random."""
    minimum_time: Annotated[
        float,
        typer.Option(
            help="Seconds for which a pod without a booking keeps its GPU, unless no other pod's GPU will do."
            " 0: no such time.",
            envvar="CARREL_MINIMUM_TIME",
            min=0,
        ),
    ] = 600
    """Ten minutes. Who was just given a GPU should get something done before it is taken back."""
    wait_before_cpu: Annotated[
        float,
        typer.Option(
            help="Seconds that a pod without a booking waits for a GPU before it is created again without one, where"
            " --when-full or its namespace says cpu. 0: it waits for ever.",
            envvar="CARREL_WAIT_BEFORE_CPU",
            min=0,
        ),
    ] = 60
    """A minute. A hub gives up on a notebook after five (its start_timeout); GPUs that are being freed take seconds."""
    at_end: Annotated[
        AtEnd,
        typer.Option(
            help="A pod whose booking has come to its end continues on CPU, ends, or stays until it is revoked.",
            envvar="CARREL_AT_END",
        ),
    ] = AtEnd.CPU
    """As MAIA: the work continues, more slowly, instead of being lost."""
    terminator_port: Annotated[
        int,
        typer.Option(
            help="Port of the pod terminator, as MAIA's clients call it; 0: any free one.",
            envvar="CARREL_TERMINATOR_PORT",
            min=0,
            max=65535,
        ),
    ] = 8080
    """MAIA's webhook calls http://pod-terminator:8080. Without a token or --terminator-for-all nothing listens."""
    terminator_token: Annotated[
        str,
        typer.Option(
            help="Bearer token that callers of the pod terminator need.",
            envvar="CARREL_TERMINATOR_TOKEN",
            show_default=False,
        ),
    ] = ""
    """Better in the environment: every user of the machine sees options."""
    terminator_for_all: Annotated[
        bool,
        typer.Option(
            help="Let every caller use the pod terminator, without a token.", envvar="CARREL_TERMINATOR_FOR_ALL"
        ),
    ] = False
    """MAIA's webhook sends no token. With this, every caller can end pods that have no booking."""

    reservation_image: Annotated[
        str,
        typer.Option(
            help="Image of reservation pods, with Carrel in it; for nodes with NVIDIA's plugin.",
            envvar="CARREL_RESERVATION_IMAGE",
        ),
    ] = f"carrel:{__version__}"
    """Carrel's own image, under the name by which the cluster's nodes pull it."""
    reservation_spelling: Annotated[
        ReservationNaming,
        typer.Option(help="Which names reservation pods have.", envvar="CARREL_RESERVATION_SPELLING"),
    ] = ReservationNaming.KAI
    """Tools that look for reservation pods know KAI's names, or those that KAI used before version 0.17."""

    def reservation_options(self) -> "ReservationOptions":
        from carrel.dialects.kai_reservation import BEFORE_KAI_0_17, KAI_0_17
        from carrel.lifecycle.reservations.reservation_pods import ReservationOptions

        is_old = self.reservation_spelling is ReservationNaming.OLD_KAI
        spelling = BEFORE_KAI_0_17 if is_old else KAI_0_17
        return ReservationOptions(self.reservation_image, spelling)

    def serves_terminator(self) -> bool:
        return self.terminator_for_all or bool(self.terminator_token)

    def tier_options(self) -> "TierOptions":
        from carrel.lifecycle.freeing.end_limits import EndLimits
        from carrel.lifecycle.tier_options import TierOptions

        return TierOptions(
            schedulers=frozenset(self.scheduler_names()),
            grace=timedelta(seconds=self.revocation_grace),
            random_victims=self.victims is Victims.RANDOM,
            at_end=self.at_end,
            minimum_time=timedelta(seconds=self.minimum_time),
            notebook_grace=timedelta(seconds=self.notebook_grace),
            wait_before_cpu=timedelta(seconds=self.wait_before_cpu),
            when_full=self.when_full,
            limits=EndLimits(timedelta(seconds=self.longest_grace)),
        )

    def options(self) -> "ClusterOptions":
        from carrel.cluster.options import ClusterOptions

        return ClusterOptions(
            self.carrel_namespace,
            self.dialect_options(),
            seal=self.seal(),
            tier_policy=self.tier_policy(),
            dra=self.dra,
            dra_driver=self.dra_driver,
        )
