"""Options that several commands share."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer

from carrel.settings import ClusterSettings

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

    server: Annotated[
        str, typer.Option(help="URL of the booking service; default: the last login.", envvar="CARREL_URL")
    ] = ""
    token: Annotated[
        str,
        typer.Option(help="Token to use instead of the login; better in the environment.", envvar="CARREL_TOKEN"),
    ] = ""
    """Everybody who may list processes can see options."""
    insecure: Annotated[
        bool,
        typer.Option(help="Send the token without TLS, even to another machine.", envvar="CARREL_INSECURE"),
    ] = False
    """Whoever reads the traffic could book in your name. Within a cluster that may be nobody."""
    hub_token: Annotated[
        str,
        typer.Option(help="Token of a notebook, if there is no login.", envvar="JUPYTERHUB_API_TOKEN", hidden=True),
    ] = ""
    """JupyterHub gives it to each notebook server: there, nobody needs to log in."""


@dataclass(frozen=True)
class BookingOutputSettings(BookingServiceSettings):
    output: Annotated[ListFormat, typer.Option("--output", "-o", help="Output format.")] = ListFormat.TABLE
    """JSON, YAML and CSV are for programs: their fields do not change without notice."""


@dataclass(frozen=True)
class OneBookingSettings(BookingOutputSettings):
    booking: Annotated[str, typer.Argument(help="Id of the booking; default: your active or planned one.")] = ""


@dataclass(frozen=True)
class ClusterQuerySettings(ClusterSettings):
    """Which cluster. By which rules its pods are read, its scheduler says there."""

    output: Annotated[DataFormat, typer.Option("--output", "-o", help="Output format.")] = DataFormat.TABLE
    """JSON and YAML are for programs: their fields do not change without notice."""


@dataclass(frozen=True)
class PodQuerySettings(ClusterQuerySettings):
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the pod; default: that of the kubeconfig.")
    ] = ""
