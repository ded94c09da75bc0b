"""The options that several components share. What must be alike for all of them is in the configuration.

A component declares one dataclass of settings: each field has its type, its default and its option (`option_fields`),
and the reason beneath it.

Default ports, all different, so that all components can run on one machine:

    39999   extender       gpushare's own port
    39998   controller
    39997   booking
    39996   agent
    8443    webhook        its Service maps 443 to it
    8080    controller     the pod terminator, as MAIA's clients call it
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.command_errors import USAGE, command_failed
from carrel.dialects.options import DraDriver
from carrel.option_fields import option, secret, setting
from carrel.parsing import Malformed

if TYPE_CHECKING:
    from carrel.cluster.holders import Holders
    from carrel.cluster.options import ClusterOptions
    from carrel.configuration.current import CurrentConfiguration
    from carrel.dialects.seal import Seal
    from carrel.kubernetes.config import Access


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True)
class ClusterSettings:
    """Which Kubernetes cluster, and which namespace of it is Carrel's own."""

    kubeconfig: Path | None = option(
        None, "Kubeconfig file. Without it: $KUBECONFIG, the pod's ServiceAccount, ~/.kube/config."
    )
    """$KUBECONFIG may name several files, as kubectl allows; this option names one."""
    server: str = option("", "Address of an API server that asks for no credential.")
    """For the embedded API of the demo and of tests, which has neither users nor a kubeconfig."""
    carrel_namespace: str = option("carrel", "Namespace of Carrel's own Leases.", envvar="CARREL_NAMESPACE")
    """Nobody else may write there: these Leases are the truth about who holds which GPU."""

    def access(self, context: str = "") -> "Access":
        """Raises `Malformed` if the kubeconfig cannot be used. Without a context, its current one counts."""
        from carrel.kubernetes.config import Access, access_from, access_to

        if self.server:
            return Access(self.server.rstrip("/"))
        if self.kubeconfig is not None:
            return access_to(self.kubeconfig, os.environ, context)
        return access_from(os.environ, context)


@dataclass(frozen=True)
class ContextSettings(ClusterSettings):
    """Commands of people, who have several clusters in their kubeconfig."""

    context: str = setting("", "Context of the kubeconfig.")
    """Without it: the file's current context. A component has a kubeconfig of its own, with one context."""

    def access(self, context: str = "") -> "Access":
        return super().access(context or self.context)


def cluster_access(settings: ClusterSettings) -> "Access":
    """Where the API server is. The command ends if the kubeconfig cannot be used."""
    try:
        return settings.access()
    except Malformed as malformed:
        raise command_failed("No usable kubeconfig", str(malformed), "kubectl config view", USAGE) from None


@dataclass(frozen=True)
class ServingSettings(ClusterSettings):
    """A component that listens. Each has a default port of its own."""

    bind_address: str = setting("127.0.0.1", "Address to listen on.")
    """By default only for this machine, or this pod: who may call `bind` may place pods."""
    port: int = setting(0, "Port to listen on; 0: any free one.", min=0, max=65535)
    log_level: LogLevel = option(
        LogLevel.INFO, "How much is logged to stderr.", envvar=["CARREL_LOG_LEVEL", "LOG_LEVEL"]
    )
    """gpushare's variable and values."""
    config: Path | None = setting(
        None, "File with the configuration, instead of the cluster's own.", exists=True, dir_okay=False
    )
    """The components of a cluster share the one in its ConfigMap, and follow its changes. A file is for a process
    without a cluster, and for trials; it is read when the process starts."""

    @property
    def probed_by_tls(self) -> bool:
        """Whether probes ask by TLS, which a process may be able to answer only when it runs."""
        return False


@dataclass(frozen=True)
class SealSettings:
    """Must be the same for all components of a cluster."""

    seal_key: str = secret(
        "Key that proves that a pod came through the webhook; after a comma, an older key still accepted; "
        "none: pods are not sealed."
    )
    """Needed in a cluster: without seals, a GPU pod that was created while the webhook's configuration was missing is
    placed like any other, with the tier that its author wrote on it."""

    def seal(self) -> "Seal | None":
        from carrel.dialects.seal import Seal
        from carrel.parsing.secret_settings import NO_SEAL

        given = "" if self.seal_key.strip() == NO_SEAL else self.seal_key
        keys = tuple(key.strip().encode() for key in given.split(",") if key.strip())
        return Seal(keys) if keys else None


def cluster_options(
    current: "CurrentConfiguration", namespace: str, *, seal: "Seal | None" = None, reads_makers: bool = True
) -> "ClusterOptions":
    """Return what the configuration says to everything that reads the cluster."""
    from carrel.cluster.options import ClusterOptions

    configuration = current.value
    claims = configuration.resource_claims
    return ClusterOptions(
        namespace,
        configuration.dialect_options(),
        zone=configuration.lab.zone,
        seal=seal,
        tier_policy=current.follow(lambda of: of.tiers.policy()),
        holders=holders_counting(claims.driver if claims.enabled else None),
        reads_makers=reads_makers,
    )


def moved_settings() -> Iterator[str]:
    """Say of each variable in the environment that gave a setting once where the setting went."""
    from carrel.configuration.moved import moved_variables

    return moved_variables(name for name, value in os.environ.items() if value)


def maias_unused_settings() -> list[str]:
    """Return the variables of MAIA's webhook that are given in the environment and have no effect."""
    return [name for name in ("GPU_STATS_URL",) if os.environ.get(name)]


def holders_counting(driver: DraDriver | None) -> "type[Holders]":
    """Return who may hold GPUs: pods, and the ResourceClaims of this driver. What is not used is not imported."""
    if driver is None:
        from carrel.cluster.holders import Holders

        return Holders
    from carrel.resource_claims.holders import holders_with_claims

    return holders_with_claims(driver)


@dataclass(frozen=True)
class PodSettings(SealSettings, ServingSettings):
    """What webhook and controller, which both decide about pods, have in common, and must have alike."""

    api_url: str = option(
        "",
        "Address of a booking service elsewhere, such as MAIA's dashboard; empty: Carrel's own booking "
        "service writes its bookings into the cluster.",
        envvar=["CARREL_API_URL", "API_URL"],
    )
    """Carrel's own booking service need not be asked. At an address that ends in `/api/v1/booking-status` Carrel's own
    JSON is spoken, at any other one MAIA's."""
    api_token: str = secret("Token for the booking service.", "CARREL_API_TOKEN", "API_TOKEN")
    """It goes to --api-url, which is therefore no field of the configuration: whoever writes there gets no token."""
