"""Options that several commands share."""

from dataclasses import dataclass
from enum import Enum

from carrel.cli.complete import bookings
from carrel.option_fields import argument, option, setting
from carrel.settings import ContextSettings

Words = list[str] | None
"""An option that may be given several times."""


class ListFormat(Enum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


class DataFormat(Enum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True)
class BookingServiceSettings:
    """Which booking service, and as whom."""

    server: str = option("", "URL of the booking service; default: the last login.", envvar="CARREL_URL")
    token: str = setting("", "Token to use instead of the login; better in the environment.")
    """Everybody who may list processes can see options."""
    insecure: bool = setting(False, "Send the token without TLS, even to another machine.")
    """Whoever reads the traffic could book in your name. Within a cluster that may be nobody."""
    hub_token: str = option(
        "", "Token of a notebook, if there is no login.", envvar="JUPYTERHUB_API_TOKEN", hidden=True
    )
    """JupyterHub gives it to each notebook server: there, nobody needs to log in."""


@dataclass(frozen=True)
class BookingOutputSettings(BookingServiceSettings):
    output: ListFormat = option(ListFormat.TABLE, "Output format.", "--output", "-o")
    """JSON, YAML and CSV are for programs: their fields do not change without notice."""


@dataclass(frozen=True)
class OneBookingSettings(BookingOutputSettings):
    booking: str = argument(
        "", "Id of the booking, or how it begins; default: your active or planned one.", autocompletion=bookings
    )


@dataclass(frozen=True)
class ClusterQuerySettings(ContextSettings):
    """Which cluster. By which rules its pods are read, its scheduler says there."""

    output: DataFormat = option(DataFormat.TABLE, "Output format.", "--output", "-o")
    """JSON and YAML are for programs: their fields do not change without notice."""


@dataclass(frozen=True)
class BesideClusterSettings:
    """A booking service, for commands that read the cluster, where `--server` is the API server."""

    booking_service: str = option(
        "",
        "URL of the booking service, for what the cluster does not say; default: the last login.",
        envvar="CARREL_URL",
    )
    token: str = setting("", "Token for the booking service.", show_default=False)
    insecure: bool = setting(False, "Send the token without TLS, even to another machine.")
    hub_token: str = option(
        "", "Token of a notebook, if there is no login.", envvar="JUPYTERHUB_API_TOKEN", hidden=True
    )

    def booking_settings(self) -> BookingServiceSettings:
        return BookingServiceSettings(self.booking_service, self.token, self.insecure, self.hub_token)


@dataclass(frozen=True)
class PodQuerySettings(ClusterQuerySettings):
    namespace: str = option("", "Namespace of the pod; default: that of the kubeconfig.", "--namespace", "-n")
