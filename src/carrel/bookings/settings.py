"""The settings of the booking service that are not in the configuration."""

from dataclasses import dataclass
from pathlib import Path

from carrel.bookings.notifications.settings import NotificationSettings, mistakes_in_notifications
from carrel.bookings.sign_in.settings import SignInSettings, mistakes
from carrel.configuration.schema import Bookings, Configuration
from carrel.option_fields import option, secret, setting
from carrel.parsing.secret_settings import mistakes_in_secrets
from carrel.settings import ServingSettings


@dataclass(frozen=True)
class BookingSettings(NotificationSettings, SignInSettings, ServingSettings):
    port: int = setting(39997, "Port to listen on; 0: any free one.", min=0, max=65535)
    """Next to the ports of the other components, so that all can run on one machine."""
    database: str = setting("sqlite:///carrel.db", "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.")
    """One replica can use a file; several replicas need PostgreSQL. A password belongs in the variable."""
    inventory: Path | None = option(
        None, "File with the GPUs, as for `carrel demo --cluster`, instead of a cluster.", exists=True
    )
    """For a lab whose machines are not in a cluster, and for trials."""
    maia_token: str = secret(
        "Secret that MAIA's clients and Carrel's webhook and controller send; without it they are refused.",
        "CARREL_MAIA_TOKEN",
        "API_TOKEN",
    )
    """The defaults of MAIA's chart are public, so they are refused."""

    bookings_elsewhere: str = setting(
        "",
        "Where people book, if not with this service: an address, to which its pages lead. It then takes no bookings, "
        "and shows who holds and uses GPUs.",
    )
    """Webhook and controller ask that service (`--api-url`); this one only tells people where it is."""

    def wrong(self, configuration: Configuration | None) -> list[str]:
        """Every setting that cannot be used, all at once. None: the configuration is not known yet."""
        from carrel.dialects.maia import DEFAULT_TOKENS  # here: `carrel booking --help` needs none of it

        bookings = configuration.bookings if configuration is not None else Bookings()
        found = [*mistakes(self, bookings, self.bind_address), *mistakes_in_secrets(self)]
        if configuration is not None:
            found += mistakes_in_notifications(self, configuration.notifications)
        if self.bookings_elsewhere and not self.bookings_elsewhere.startswith(("https://", "http://")):
            found.append(
                f"--bookings-elsewhere is {self.bookings_elsewhere!r}; expected an address such as https://maia.example"
            )
        if self.maia_token in DEFAULT_TOKENS:
            found.append("CARREL_MAIA_TOKEN is a default that everybody knows; expected a secret of your own")
        if not self.maia_token.isascii():
            found.append("CARREL_MAIA_TOKEN must be ASCII: it is sent in an HTTP header, which has no other letters")
        return found
