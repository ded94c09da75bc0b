"""The settings that several components share.

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
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.dialects.gpuclaim import SCHEDULER
from carrel.dialects.options import LONGEST_GRACE_S, CudaDevices, DeviceList, DialectOptions, DraDriver, Unit
from carrel.dialects.tier import WhenFull
from carrel.ledger.tiers import TierPolicy
from carrel.option_fields import option, setting

if TYPE_CHECKING:
    from carrel.cluster.holders import Holders
    from carrel.dialects.jupyter import HubPeople
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
    context: str = setting("", "Context of the kubeconfig.")
    """Without it: the file's current context."""
    server: str = option("", "Address of an API server that asks for no credential.")
    """For the embedded API of the demo and of tests, which has neither users nor a kubeconfig."""
    carrel_namespace: str = option("carrel", "Namespace of Carrel's own Leases.", envvar="CARREL_NAMESPACE")
    """Nobody else may write there: these Leases are the truth about who holds which GPU."""

    def access(self) -> "Access":
        """Raises `Malformed` if the kubeconfig cannot be used."""
        from carrel.kubernetes.config import Access, access_from, access_to

        if self.server:
            return Access(self.server.rstrip("/"))
        if self.kubeconfig is not None:
            return access_to(self.kubeconfig, os.environ, self.context)
        return access_from(os.environ, self.context)


@dataclass(frozen=True)
class MemoryUnitSettings:
    """Must be the same for all components of a cluster."""

    memory_unit: Unit = setting(Unit.MIB, "What one unit of gpushare's memory resource is.")
    """As the device plugin's --memory-unit: a number on a pod means nothing without it. MiB is the finest; on machines
    with more memory than the kubelet can count in MiB, the agent says which unit to use."""


@dataclass(frozen=True)
class DialectSettings(MemoryUnitSettings):
    """What the cluster's admin decides about the dialects. Must be the same for all components of a cluster."""

    shared_claims_per_gpu: int = setting(4, "Shared GpuClaims that name no memory, per GPU.", min=1)
    """A shared claim needs an amount, or GPUs could be oversubscribed."""

    def dialect_options(self) -> DialectOptions:
        return DialectOptions(self.memory_unit, self.shared_claims_per_gpu)


@dataclass(frozen=True)
class CudaSettings:
    """Must be the same for the webhook, the extender and the agents of a cluster."""

    cuda_devices: CudaDevices = setting(
        CudaDevices.UUID,
        "What names a container's GPUs to CUDA: UUIDs, or (index) their numbers on the node, for containers "
        "that see all GPUs of the node.",
    )
    """UUIDs are right in every container. The GpuClaim scheduler writes indices, and some programs read nothing else;
    where NVIDIA's runtime lets in only the pod's own GPUs, an index names another GPU or none."""


@dataclass(frozen=True)
class DeviceListSettings:
    """Must be the same for the webhook and the agents of a cluster."""

    device_list: DeviceList = setting(
        DeviceList.VARIABLE,
        "How the container runtime learns which GPUs a container gets: by the environment variable, or from "
        "the kubelet by volume mounts or CDI, where the runtime ignores the variable of unprivileged containers.",
    )
    """NVIDIA's runtime has `accept-nvidia-visible-devices-envvar-when-unprivileged`. Where that is false, only what the
    kubelet gives is seen, so pods that get their GPU by the variable alone (claims, fractions) are refused."""


@dataclass(frozen=True)
class TierSettings:
    """Must be the same for all components of a cluster."""

    opportunistic_gpus: int = setting(0, "GPUs that one person may hold without a booking; 0: any number.", min=0)
    """No limit: a GPU that nobody uses helps nobody, and booked pods get theirs by revocation."""
    revoke_older_pods: bool = setting(
        False,
        "Whether pods that were there before Carrel may lose their GPUs to booked pods.",
        "--revoke-older-pods/--spare-older-pods",
    )
    """Their owners were never told; an admin should tell them first."""

    def tier_policy(self) -> TierPolicy:
        return TierPolicy(self.opportunistic_gpus, self.revoke_older_pods)


@dataclass(frozen=True)
class SchedulerSettings:
    """Must be the same for webhook, extender and controller."""

    schedulers: str = setting(
        SCHEDULER,
        "Schedulers that ask Carrel, besides those of peers, joined by commas. The webhook gives GPU pods to "
        "the first, unless they name another of them; pods of others are not bound, nor told why they wait.",
    )
    """A pod of another scheduler is not Carrel's to place, and waits for reasons that Carrel does not know."""

    def scheduler_names(self) -> list[str]:
        return names_in(self.schedulers) or [SCHEDULER]


@dataclass(frozen=True)
class WhenFullSettings:
    """Must be the same for webhook and controller."""

    when_full: WhenFull = setting(
        WhenFull.DEFAULT,
        "What an opportunistic pod does when no GPU is free: it runs on CPU, or waits. By default pods of a "
        "hub or with MAIA's mark run on CPU, and others wait.",
    )
    """As MAIA: a notebook without a GPU is better than none. A namespace may say otherwise by carrel.dev/when-full."""


@dataclass(frozen=True)
class GraceSettings:
    """Must be the same for webhook and controller."""

    longest_grace: int = setting(
        LONGEST_GRACE_S,
        "Seconds that a GPU pod may take to end after it was told to. A longer grace period in a manifest is "
        "lowered to it; a pod without a booking that takes longer is deleted again.",
        min=1,
    )
    """A pod keeps its GPU until it has ended, and a kubelet that waits for a container does not hear of
    shorter times."""


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


@dataclass(frozen=True)
class SealSettings:
    """Must be the same for all components of a cluster."""

    seal_key: str = setting(
        "",
        "Key that proves that a pod came through the webhook; after a comma, an older key still accepted; "
        "none: pods are not sealed.",
        show_default=False,
    )
    """Needed in a cluster: without seals, a GPU pod that was created while the webhook's configuration was missing is
    placed like any other, with the tier that its author wrote on it. Better in the environment: every user of the
    machine sees options."""

    def seal(self) -> "Seal | None":
        from carrel.dialects.seal import Seal
        from carrel.parsing.secret_settings import NO_SEAL

        given = "" if self.seal_key.strip() == NO_SEAL else self.seal_key
        keys = tuple(key.strip().encode() for key in given.split(",") if key.strip())
        return Seal(keys) if keys else None


@dataclass(frozen=True)
class RuntimeClassSettings:
    runtime_class: str = setting(
        "auto",
        "RuntimeClass of GPU pods and reservation pods that name none; auto: nvidia, if the cluster has it; "
        "none: none.",
    )
    """Where runc is the default runtime, only pods of NVIDIA's RuntimeClass get the GPU that their environment names.
    Webhook and controller must have the same."""


@dataclass(frozen=True)
class DraSettings:
    """Must be the same for all components of a cluster."""

    dra: bool = setting(
        False, "Count the GPUs of ResourceClaims (Dynamic Resource Allocation) on the same Leases.", "--dra/--no-dra"
    )
    """Off: it needs Kubernetes 1.34, and the objects of `manifests/dra.yaml` in the cluster."""
    dra_driver: DraDriver = setting(
        DraDriver.CARREL,
        "With --dra: whose devices claims get. Those of NVIDIA's DRA driver are only counted: agents "
        "advertise and prepare nothing for claims.",
    )
    """NVIDIA's, where its DRA driver is installed and stays: it hands over whole GPUs, those that Carrel's gate let
    through."""

    def holders(self) -> "type[Holders]":
        return holders_counting(self.dra_driver if self.dra else None)


def holders_counting(driver: DraDriver | None) -> "type[Holders]":
    """Return who may hold GPUs: pods, and the ResourceClaims of this driver. What is not used is not imported."""
    if driver is None:
        from carrel.cluster.holders import Holders

        return Holders
    from carrel.resource_claims.holders import holders_with_claims

    return holders_with_claims(driver)


@dataclass(frozen=True)
class HubSettings:
    """What is known of JupyterHub. Must be the same for all components of a cluster."""

    spawners: str = setting(
        "",
        "ServiceAccounts that create pods for others, such as a hub's, joined by commas, each written "
        "system:serviceaccount:NAMESPACE:NAME, as system:serviceaccount:jhub:hub.",
    )
    """JupyterHub's word for whose pod it is counts only on pods that they create: anybody could write it. The log of
    the webhook and the admin page name an account that is missing here as it must be written."""
    username_domain: str = setting(
        "", "Domain of the hub's users whose names are no addresses: with lab.example, ada is ada@lab.example."
    )
    """Bookings are made under addresses; most hubs have short names."""
    hub_users: Path | None = setting(
        None,
        "YAML file that maps the hub's users to addresses, as ada: ada.lovelace@lab.example.",
        exists=True,
        dir_okay=False,
    )
    """For users whose address does not follow from their name. It is read when the component starts."""

    def hub_people(self) -> "HubPeople":
        """Raises `Malformed` if the file or the domain cannot be used."""
        import yaml

        from carrel.dialects.jupyter import HubPeople, read_addresses
        from carrel.parsing.addresses import is_address
        from carrel.parsing.malformed import Malformed

        domain = self.username_domain.strip().lower().removeprefix("@").removesuffix(".")
        if domain and not is_address(f"a@{domain}"):
            raise Malformed("the options", "--username-domain", self.username_domain, "a domain such as lab.example")
        if self.hub_users is None:
            return HubPeople(domain)
        try:
            content = yaml.safe_load(self.hub_users.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise Malformed(f"--hub-users {self.hub_users}", "the file", str(error), "YAML") from None
        return HubPeople(domain, read_addresses(content, f"--hub-users {self.hub_users}"))

    def spawner_accounts(self) -> frozenset[str]:
        return frozenset(names_in(self.spawners))


BOOKING_SERVICE_URL = "http://carrel-booking:39997"
"""Where Carrel's own booking service is, within the cluster."""


@dataclass(frozen=True)
class BookingClientSettings:
    """Which booking service a component asks."""

    api_url: str = option(
        "",
        "Address of a booking service elsewhere, such as MAIA's dashboard; empty: Carrel's own booking "
        "service writes its bookings into the cluster.",
        envvar=["CARREL_API_URL", "API_URL"],
    )
    """Carrel's own booking service need not be asked. At an address that ends in `/api/v1/booking-status` Carrel's own
    JSON is spoken, at any other one MAIA's."""
    api_token: str = option(
        "", "Token for the booking service.", envvar=["CARREL_API_TOKEN", "API_TOKEN"], show_default=False
    )
    """Better in the environment: every user of the machine sees options."""


@dataclass(frozen=True)
class PodSettings(
    SchedulerSettings,
    WhenFullSettings,
    GraceSettings,
    RuntimeClassSettings,
    BookingClientSettings,
    TierSettings,
    DraSettings,
    DialectSettings,
    SealSettings,
    ServingSettings,
):
    """What the webhook and the controller, which both decide about pods, have in common."""


def names_in(joined: str) -> list[str]:
    return [name.strip() for name in joined.split(",") if name.strip()]
