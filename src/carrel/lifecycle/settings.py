"""The settings of the controller."""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

from carrel import __version__
from carrel.ledger.tiers import AtEnd
from carrel.option_fields import setting
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
    port: int = setting(39998, "Port to listen on; 0: any free one.", min=0, max=65535)
    """Below the extender's, so that both can run on one machine."""
    adopt: bool = setting(False, "Record pods that have GPUs without a Lease, as `carrel adopt` does.")
    """Such pods hold their GPUs in any case. Off, because a record hides that another scheduler places pods."""
    revocation_grace: float = setting(
        0, "Seconds between the announcement that a pod loses its GPU and its end.", min=0
    )
    """None, as MAIA's manual says: a booked pod need not wait. The pod's own termination grace comes on top."""
    notebook_grace: float = setting(
        120,
        "The same for pods of a notebook hub; the longer of the two counts."
        " For a namespace, an admin may set another time by an annotation.",
        min=0,
    )
    """Two minutes. A person works in the notebook, and has to see the notice and save."""
    victims: Victims = setting(
        Victims.FAIR, "Which pods lose their GPU: fair (of people above the equal share first), or random (MAIA's way)."
    )
    """A newcomer's only GPU is not taken before one of the eight that somebody else has; MAIA chooses at random."""
    minimum_time: float = setting(
        600,
        "Seconds for which a pod without a booking keeps its GPU, unless no other pod's GPU will do. 0: no such time.",
        min=0,
    )
    """Ten minutes. Who was just given a GPU should get something done before it is taken back."""
    wait_before_cpu: float = setting(
        60,
        "Seconds that a pod without a booking waits for a GPU before it is created again without one, where"
        " --when-full or its namespace says cpu. 0: it waits for ever.",
        min=0,
    )
    """A minute. A hub gives up on a notebook after five (its start_timeout); GPUs that are being freed take seconds."""
    at_end: AtEnd = setting(
        AtEnd.CPU, "A pod whose booking has come to its end continues on CPU, ends, or stays until it is revoked."
    )
    """As MAIA: the work continues, more slowly, instead of being lost."""
    terminator_port: int = setting(
        8080, "Port of the pod terminator, as MAIA's clients call it; 0: any free one.", min=0, max=65535
    )
    """MAIA's webhook calls http://pod-terminator:8080. Without a token or --terminator-for-all nothing listens."""
    terminator_token: str = setting("", "Bearer token that callers of the pod terminator need.", show_default=False)
    """Better in the environment: every user of the machine sees options."""
    terminator_for_all: bool = setting(False, "Let every caller use the pod terminator, without a token.")
    """MAIA's webhook sends no token. With this, every caller can end pods that have no booking."""

    reservation_image: str = setting(
        f"carrel:{__version__}", "Image of reservation pods, with Carrel in it; for nodes with NVIDIA's plugin."
    )
    """Carrel's own image, under the name by which the cluster's nodes pull it."""
    reservation_spelling: ReservationNaming = setting(ReservationNaming.KAI, "Which names reservation pods have.")
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
        from carrel.lifecycle.tier_options import EndLimits, TierOptions

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
            holders=self.holders(),
        )
