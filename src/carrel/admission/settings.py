"""The settings of the webhook."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from carrel.dialects.gpuclaim import SCHEDULER
from carrel.settings import BOOKING, DeskSettings, SealSettings, ServingSettings

SERVICE = "carrel-webhook"
CONFIGURATION = "carrel"
"""As in `manifests/webhooks.yaml`."""


class WhenFull(Enum):
    CPU = "cpu"
    WAIT = "wait"


class HideFrom(Enum):
    GPU_PODS = "gpu-pods"
    ALL_PODS = "all-pods"


class Mode(Enum):
    NATIVE = "native"
    COEXIST = "coexist"


@dataclass(frozen=True)
class WebhookSettings(DeskSettings, SealSettings, ServingSettings):
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535, envvar="CARREL_PORT")
    ] = 8443
    """Its Service maps 443 to it: no privilege is needed to listen here."""
    gpu_stats_url: Annotated[
        str,
        typer.Option(
            help="Where free cards are asked for; empty: never.", envvar=["CARREL_GPU_STATS_URL", "GPU_STATS_URL"]
        ),
    ] = f"{BOOKING}/maia-api/gpu-stats/"
    """Without it an opportunistic pod waits when no card is free."""
    spawners: Annotated[
        str,
        typer.Option(
            help="ServiceAccounts that make pods for others, joined by commas, as system:serviceaccount:jhub:hub.",
            envvar="CARREL_SPAWNERS",
        ),
    ] = ""
    """Only they are believed when a pod says whose it is: anybody could write JupyterHub's label."""
    trusted: Annotated[
        str,
        typer.Option(
            help="Users who may write what only Carrel writes, joined by commas.", envvar="CARREL_TRUSTED_USERS"
        ),
    ] = ""
    """Besides the ServiceAccounts of Carrel's own namespace."""
    owner_annotation: Annotated[
        str, typer.Option(help="Annotation of a Namespace that names its owner.", envvar="CARREL_OWNER_ANNOTATION")
    ] = "owner"
    """Whose pods those are that a Deployment or a Job makes. Only who may write Namespaces may say so."""
    username_prefix: Annotated[
        str,
        typer.Option(help="What the API server puts before people's names, as oidc:.", envvar="CARREL_USERNAME_PREFIX"),
    ] = ""
    """Bookings are made under the name without it."""
    strict: Annotated[
        bool, typer.Option("--strict/--lenient", help="Refuse GPU pods of nobody.", envvar="CARREL_STRICT")
    ] = False
    """Lenient, as MAIA: such a pod is placed like any other and has no tier."""
    when_full: Annotated[
        WhenFull,
        typer.Option(
            help="An opportunistic pod, when no card is free: runs on CPU, or waits.", envvar="CARREL_WHEN_FULL"
        ),
    ] = WhenFull.CPU
    """As MAIA: a notebook without a GPU is better than none."""
    mode: Annotated[
        Mode, typer.Option(help="Who hands out whole cards: Carrel, or NVIDIA's plugin.", envvar="CARREL_MODE")
    ] = Mode.NATIVE
    """Where NVIDIA's plugin does, it tells the containers which card, and nothing may stand in its way."""
    hide_cards_from: Annotated[
        HideFrom,
        typer.Option(
            help="Who is told to see no card: other containers of GPU pods, or also pods that ask for none.",
            envvar="CARREL_HIDE_CARDS_FROM",
        ),
    ] = HideFrom.GPU_PODS
    """All pods: only where the NVIDIA runtime is the default one, and an image could help itself to cards."""
    scheduler: Annotated[
        str, typer.Option(help="The scheduler that GPU pods are given to.", envvar="CARREL_SCHEDULER")
    ] = SCHEDULER
    """Which asks the extender."""
    tls_folder: Annotated[
        Path | None,
        typer.Option(help="Folder with tls.crt and tls.key that others renew.", envvar="CARREL_TLS_FOLDER"),
    ] = None
    """For cert-manager, whose injector also tells the API server whom to trust. Without it Carrel does all of it."""
    tls_secret: Annotated[
        str, typer.Option(help="Secret of Carrel's own certificates.", envvar="CARREL_TLS_SECRET")
    ] = f"{SERVICE}-tls"
    """MAIA's is called gpu-booking-webhook-tls."""
    certificate_names: Annotated[
        str,
        typer.Option(
            help="Names the API server calls the webhook by, joined by commas; empty: those of its Service.",
            envvar="CARREL_CERTIFICATE_NAMES",
        ),
    ] = ""
    """Others are needed where it runs outside of the cluster."""
    configuration: Annotated[
        str,
        typer.Option(help="Name of the webhook configuration to tell the authority.", envvar="CARREL_CONFIGURATION"),
    ] = CONFIGURATION
    """MAIA's is called gpu-booking-webhook."""
    certificate_days: Annotated[
        int, typer.Option(help="How long a certificate is valid.", min=1, max=825, envvar="CARREL_CERTIFICATE_DAYS")
    ] = 90
    """It is renewed when a third of it is left."""
    leave_after: Annotated[
        float, typer.Option(help="Seconds to go on answering after SIGTERM.", min=0, envvar="CARREL_LEAVE_AFTER")
    ] = 5.0
    """API servers hear a moment later that this replica is gone, and a pod that nobody answers for is not admitted."""

    def served_names(self) -> tuple[str, ...]:
        given = names_in(self.certificate_names)
        service = f"{SERVICE}.{self.carrel_namespace}"
        return tuple(given) or (f"{service}.svc", service, f"{service}.svc.cluster.local")


def names_in(joined: str) -> list[str]:
    return [name.strip() for name in joined.split(",") if name.strip()]
