"""The settings that several components share, and how a component's settings become its command.

A component declares one dataclass of settings: each field has its type, its default, its option with the environment
variables that may give it too, and the reason beneath it. Nothing else reads the environment; an option
wins over it.

Default ports, all different, so that all components can run on one machine:

    39999   extender       gpushare's own port
    39998   controller
    39997   booking
    39996   agent
    8443    webhook        its Service maps 443 to it
    8080    controller     the pod terminator, as MAIA's clients call it
"""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_type_hints

import typer

from carrel.dialects.dra import DraDriver
from carrel.dialects.gpuclaim import SCHEDULER
from carrel.dialects.options import LONGEST_GRACE_S, CudaDevices, DeviceList, DialectOptions, Unit
from carrel.dialects.when_full import WhenFull
from carrel.ledger.tiers import TierPolicy

if TYPE_CHECKING:
    from carrel.dialects.hub_people import HubPeople
    from carrel.dialects.seal import Seal
    from carrel.kubernetes.config import Access

S = TypeVar("S")


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True)
class ClusterSettings:
    """Which Kubernetes cluster, and which namespace of it is Carrel's own."""

    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig file. Without it: $KUBECONFIG, the pod's ServiceAccount, ~/.kube/config."),
    ] = None
    """$KUBECONFIG may name several files, as kubectl allows; this option names one."""
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.", envvar="CARREL_CONTEXT")] = ""
    """Without it: the file's current context."""
    server: Annotated[str, typer.Option(help="Address of an API server that asks for no credential.")] = ""
    """For the embedded API of the demo and of tests, which has neither users nor a kubeconfig."""
    carrel_namespace: Annotated[
        str, typer.Option(help="Namespace of Carrel's own Leases.", envvar="CARREL_NAMESPACE")
    ] = "carrel"
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

    memory_unit: Annotated[
        Unit, typer.Option(help="What one unit of gpushare's memory resource is.", envvar="CARREL_MEMORY_UNIT")
    ] = Unit.MIB
    """As the device plugin's --memory-unit: a number on a pod means nothing without it. MiB is the finest; on machines
    with more memory than the kubelet can count in MiB, the agent says which unit to use."""


@dataclass(frozen=True)
class DialectSettings(MemoryUnitSettings):
    """What the cluster's admin decides about the dialects. Must be the same for all components of a cluster."""

    shared_claims_per_gpu: Annotated[
        int,
        typer.Option(
            help="Shared GpuClaims that name no memory, per GPU.",
            envvar="CARREL_SHARED_CLAIMS_PER_GPU",
            min=1,
        ),
    ] = 4
    """A shared claim needs an amount, or GPUs could be oversubscribed."""

    def dialect_options(self) -> DialectOptions:
        return DialectOptions(self.memory_unit, self.shared_claims_per_gpu)


@dataclass(frozen=True)
class CudaSettings:
    """Must be the same for the webhook, the extender and the agents of a cluster."""

    cuda_devices: Annotated[
        CudaDevices,
        typer.Option(
            help="What names a container's GPUs to CUDA: UUIDs, or (index) their numbers on the node, for containers "
            "that see all GPUs of the node.",
            envvar="CARREL_CUDA_DEVICES",
        ),
    ] = CudaDevices.UUID
    """UUIDs are right in every container. The GpuClaim scheduler writes indices, and some programs read nothing else;
    where NVIDIA's runtime lets in only the pod's own GPUs, an index names another GPU or none."""


@dataclass(frozen=True)
class DeviceListSettings:
    """Must be the same for the webhook and the agents of a cluster."""

    device_list: Annotated[
        DeviceList,
        typer.Option(
            help="How the container runtime learns which GPUs a container gets: by the environment variable, or from "
            "the kubelet by volume mounts or CDI, where the runtime ignores the variable of unprivileged containers.",
            envvar="CARREL_DEVICE_LIST",
        ),
    ] = DeviceList.VARIABLE
    """NVIDIA's runtime has `accept-nvidia-visible-devices-envvar-when-unprivileged`. Where that is false, only what the
    kubelet gives is seen, so pods that get their GPU by the variable alone (claims, fractions) are refused."""


@dataclass(frozen=True)
class TierSettings:
    """Must be the same for all components of a cluster."""

    opportunistic_gpus: Annotated[
        int,
        typer.Option(
            help="GPUs that one person may hold without a booking; 0: any number.",
            envvar="CARREL_OPPORTUNISTIC_GPUS",
            min=0,
        ),
    ] = 0
    """No limit: a GPU that nobody uses helps nobody, and booked pods get theirs by revocation."""
    revoke_older_pods: Annotated[
        bool,
        typer.Option(
            "--revoke-older-pods/--spare-older-pods",
            help="Whether pods that were there before Carrel may lose their GPUs to booked pods.",
            envvar="CARREL_REVOKE_OLDER_PODS",
        ),
    ] = False
    """Their owners were never told; an admin should tell them first."""

    def tier_policy(self) -> TierPolicy:
        return TierPolicy(self.opportunistic_gpus, self.revoke_older_pods)


@dataclass(frozen=True)
class SchedulerSettings:
    """Must be the same for webhook, extender and controller."""

    schedulers: Annotated[
        str,
        typer.Option(
            help="Schedulers that ask Carrel, besides those of peers, joined by commas. The webhook gives GPU pods to "
            "the first; pods of others are not bound, nor told why they wait.",
            envvar="CARREL_SCHEDULERS",
        ),
    ] = SCHEDULER
    """A pod of another scheduler is not Carrel's to place, and waits for reasons that Carrel does not know."""

    def scheduler_names(self) -> list[str]:
        return names_in(self.schedulers) or [SCHEDULER]


@dataclass(frozen=True)
class WhenFullSettings:
    """Must be the same for webhook and controller."""

    when_full: Annotated[
        WhenFull,
        typer.Option(
            help="What an opportunistic pod does when no GPU is free: it runs on CPU, or waits. By default pods of a "
            "hub or with MAIA's mark run on CPU, and others wait.",
            envvar="CARREL_WHEN_FULL",
        ),
    ] = WhenFull.DEFAULT
    """As MAIA: a notebook without a GPU is better than none. A namespace may say otherwise by carrel.dev/when-full."""


@dataclass(frozen=True)
class GraceSettings:
    """Must be the same for webhook and controller."""

    longest_grace: Annotated[
        int,
        typer.Option(
            help="Seconds that a GPU pod may take to end after it was told to. A longer grace period in a manifest is "
            "lowered to it; a pod without a booking that takes longer is deleted again.",
            envvar="CARREL_LONGEST_GRACE",
            min=1,
        ),
    ] = LONGEST_GRACE_S
    """A pod keeps its GPU until it has ended, and a kubelet that waits for a container does not hear of
    shorter times."""


@dataclass(frozen=True)
class ServingSettings(ClusterSettings):
    """A component that listens. Each has a default port of its own."""

    bind_address: Annotated[str, typer.Option(help="Address to listen on.", envvar="CARREL_BIND_ADDRESS")] = "127.0.0.1"
    """By default only for this machine, or this pod: who may call `bind` may place pods."""
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=65535, envvar="CARREL_PORT")
    ] = 0
    log_level: Annotated[
        LogLevel, typer.Option(help="How much is logged to stderr.", envvar=["CARREL_LOG_LEVEL", "LOG_LEVEL"])
    ] = LogLevel.INFO
    """gpushare's variable and values."""


@dataclass(frozen=True)
class SealSettings:
    """Must be the same for all components of a cluster."""

    seal_key: Annotated[
        str,
        typer.Option(
            help="Key that proves that a pod came through the webhook; after a comma, an older key still accepted; "
            "none: pods are not sealed.",
            envvar="CARREL_SEAL_KEY",
            show_default=False,
        ),
    ] = ""
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
    runtime_class: Annotated[
        str,
        typer.Option(
            help="RuntimeClass of GPU pods and reservation pods that name none; auto: nvidia, if the cluster has it; "
            "none: none.",
            envvar="CARREL_RUNTIME_CLASS",
        ),
    ] = "auto"
    """Where runc is the default runtime, only pods of NVIDIA's RuntimeClass get the GPU that their environment names.
    Webhook and controller must have the same."""


@dataclass(frozen=True)
class DraSettings:
    """Must be the same for all components of a cluster."""

    dra: Annotated[
        bool,
        typer.Option(
            "--dra/--no-dra",
            help="Count the GPUs of ResourceClaims (Dynamic Resource Allocation) on the same Leases.",
            envvar="CARREL_DRA",
        ),
    ] = False
    """Off: it needs Kubernetes 1.34, and the objects of `manifests/dra.yaml` in the cluster."""
    dra_driver: Annotated[
        DraDriver,
        typer.Option(
            help="With --dra: whose devices claims get. Those of NVIDIA's DRA driver are only counted: agents "
            "advertise and prepare nothing for claims.",
            envvar="CARREL_DRA_DRIVER",
        ),
    ] = DraDriver.CARREL
    """NVIDIA's, where its DRA driver is installed and stays: it hands over whole GPUs, those that Carrel's gate let
    through."""


@dataclass(frozen=True)
class HubSettings:
    """What is known of JupyterHub. Must be the same for all components of a cluster."""

    spawners: Annotated[
        str,
        typer.Option(
            help="ServiceAccounts that create pods for others, such as a hub's, joined by commas, each written "
            "system:serviceaccount:NAMESPACE:NAME, as system:serviceaccount:jhub:hub.",
            envvar="CARREL_SPAWNERS",
        ),
    ] = ""
    """JupyterHub's word for whose pod it is counts only on pods that they create: anybody could write it. The log of
    the webhook and the admin page name an account that is missing here as it must be written."""
    username_domain: Annotated[
        str,
        typer.Option(
            help="Domain of the hub's users whose names are no addresses: with lab.example, ada is ada@lab.example.",
            envvar="CARREL_USERNAME_DOMAIN",
        ),
    ] = ""
    """Bookings are made under addresses; most hubs have short names."""
    hub_users: Annotated[
        Path | None,
        typer.Option(
            help="YAML file that maps the hub's users to addresses, as ada: ada.lovelace@lab.example.",
            envvar="CARREL_HUB_USERS",
            exists=True,
            dir_okay=False,
        ),
    ] = None
    """For users whose address does not follow from their name. It is read when the component starts."""

    def hub_people(self) -> "HubPeople":
        """Raises `Malformed` if the file or the domain cannot be used."""
        import yaml

        from carrel.dialects.hub_people import HubPeople, read_addresses
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

    api_url: Annotated[
        str,
        typer.Option(
            help="Address of a booking service elsewhere, such as MAIA's dashboard; empty: Carrel's own booking "
            "service writes its bookings into the cluster.",
            envvar=["CARREL_API_URL", "API_URL"],
        ),
    ] = ""
    """Carrel's own booking service need not be asked. At an address that ends in `/api/v1/booking-status` Carrel's own
    JSON is spoken, at any other one MAIA's."""
    api_token: Annotated[
        str,
        typer.Option(
            help="Token for the booking service.", envvar=["CARREL_API_TOKEN", "API_TOKEN"], show_default=False
        ),
    ] = ""
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


def command(settings: type[S], run: Callable[[S], None]) -> Callable[..., None]:
    """The command of a component: its options are the fields of its settings, its help is the docstring of `run`."""

    def run_with_options(**options: object) -> None:
        run(settings(**options))

    run_with_options.__doc__ = run.__doc__
    run_with_options.__name__ = run.__name__
    run_with_options.__annotations__ = get_type_hints(settings, include_extras=True)
    run_with_options.__signature__ = inspect.signature(settings)  # type: ignore[attr-defined] # what typer reads
    return run_with_options
