"""The settings of the booking service."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from carrel.bookings.notifications.settings import LetterSettings, mistakes_in_letters
from carrel.bookings.rules import Rules
from carrel.bookings.sign_in.settings import SignInSettings, mistakes
from carrel.dialects.maia import DEFAULT_TOKENS
from carrel.settings import DialectSettings, ServingSettings

if TYPE_CHECKING:
    from carrel.leases.cluster_state import ClusterOptions


@dataclass(frozen=True)
class BookingSettings(LetterSettings, SignInSettings, DialectSettings, ServingSettings):
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535, envvar="CARREL_PORT")
    ] = 39997
    """Beside the other doors', so that all can run on one machine."""
    database: Annotated[
        str,
        typer.Option(help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.", envvar="CARREL_DATABASE"),
    ] = "sqlite:///carrel.db"
    """A file will do for one replica; several replicas need PostgreSQL. A password belongs in the variable."""
    inventory: Annotated[
        Path | None,
        typer.Option(help="File with the cards, as for `carrel demo --cluster`, instead of a cluster.", exists=True),
    ] = None
    """For a lab whose machines are not in a cluster, and for trying it out."""
    zone: Annotated[str, typer.Option(help="The lab's IANA time zone.", envvar="CARREL_ZONE")] = "UTC"
    """Instants are instants; the zone says what a day is, and how times are written for people."""
    min_hours: Annotated[
        float, typer.Option(help="A booking lasts at least so long.", min=0.01, envvar="CARREL_MIN_HOURS")
    ] = 24.0
    """The manual's: one day."""
    max_days: Annotated[
        float, typer.Option(help="A booking lasts at most so long.", min=0.01, max=3650, envvar="CARREL_MAX_DAYS")
    ] = 14.0
    """The manual's: a long run may be planned, and others get their turn."""
    cooldown_days: Annotated[
        float,
        typer.Option(help="Between a person's bookings; 0: none.", min=0, max=3650, envvar="CARREL_COOLDOWN_DAYS"),
    ] = 14.0
    """The manual's: 14 full days from an end to the next start."""
    planned: Annotated[
        int, typer.Option(help="Bookings that a person may have ahead.", min=1, max=1000, envvar="CARREL_PLANNED")
    ] = 1
    """The manual's: who has planned a booking waits for it before planning the next."""
    shares_per_card: Annotated[
        int,
        typer.Option(
            help="Equal shares of a card's memory that may be booked; 1: whole cards only.",
            min=1,
            max=64,
            envvar="CARREL_SHARES_PER_CARD",
        ),
    ] = 1
    """Where many small jobs would each keep a whole card from others."""
    maia_token: Annotated[
        str,
        typer.Option(
            help="What MAIA's webhook and clients must know. Without it they are not served.",
            envvar=["CARREL_MAIA_TOKEN", "API_TOKEN"],
            show_default=False,
        ),
    ] = ""
    """Its chart's own defaults are public, and are refused. It belongs in the variable: others can see options."""

    def rules(self) -> Rules:
        return Rules(
            min_duration=timedelta(hours=self.min_hours),
            max_duration=timedelta(days=self.max_days),
            cooldown=timedelta(days=self.cooldown_days),
            planned=self.planned,
            shares_per_card=self.shares_per_card,
        )

    def options(self) -> "ClusterOptions":
        from carrel.leases.cluster_state import ClusterOptions

        return ClusterOptions(self.carrel_namespace, self.dialect_options())

    def wrong(self) -> list[str]:
        """Everything that cannot be used, at once."""
        found = [*mistakes(self, self.bind_address), *mistakes_in_letters(self)]
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            found.append(f"--zone is {self.zone!r}; expected an IANA zone such as Europe/Stockholm")
        if timedelta(hours=self.min_hours) > timedelta(days=self.max_days):
            found.append(f"--min-hours is {self.min_hours:g}, which --max-days {self.max_days:g} does not allow")
        if self.maia_token in DEFAULT_TOKENS:
            found.append("--maia-token is a default that everybody knows; expected a secret of your own")
        return found
