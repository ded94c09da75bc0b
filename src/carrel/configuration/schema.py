"""The configuration of a cluster: what its admins decide, in one typed value.

    tiers: {revocationGrace: 30s}
    bookings: {rules: {maxDuration: 7d}}

A section is a class; a field has its default, its meaning and the reason. Names are written `maxGpus`, times `14d`.
Secrets come from the environment; what only one process knows is an option of that process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from zoneinfo import ZoneInfo

from carrel.configuration.fields import Change, entry
from carrel.configuration.gpu_memory import GpuMemory
from carrel.dialects.jupyter import HubPeople
from carrel.dialects.options import (
    SCHEDULER,
    CudaDevices,
    DeviceList,
    DialectOptions,
    DraDriver,
    HideFrom,
    WhenFull,
)
from carrel.ledger.tiers import AtEnd, TierPolicy
from carrel.parsing.addresses import normal

NO_TIME = timedelta()
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class PluginMode(Enum):
    NATIVE = "native"
    COEXIST = "coexist"


class Victims(Enum):
    FAIR = "fair"
    RANDOM = "random"


class PodsOfNobody(Enum):
    OPPORTUNISTIC = "opportunistic"
    KEEP = "keep"


class ReservationNaming(Enum):
    KAI = "kai"
    OLD_KAI = "old-kai"


class PlacementStyle(Enum):
    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Lab:
    """The lab whose cluster it is."""

    timezone: str = entry("UTC", "The lab's IANA time zone.", example="Europe/Stockholm", change=Change.RESTART)
    """It says what a day is, and how times are written for people. Bookings themselves are stored in UTC."""

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)


@dataclass(frozen=True, slots=True)
class Dialects:
    """How the manifests of peers are understood."""

    shared_claims_per_gpu: int = entry(
        4, "Shared GpuClaims that name no memory, per GPU.", least=1, most=64, change=Change.WHEN_FREE
    )
    """A shared claim needs an amount, or GPUs could be oversubscribed."""
    cuda_devices: CudaDevices = entry(
        CudaDevices.UUID,
        "What names a container's GPUs to CUDA: UUIDs, or (index) their numbers on the node, for containers that see"
        " all GPUs of the node.",
        change=Change.WHEN_FREE,
    )
    """UUIDs are right in every container. The GpuClaim scheduler writes indices, and some programs read nothing else;
    where NVIDIA's runtime lets in only the pod's own GPUs, an index names another GPU or none."""
    maia_booking_gpus: int = entry(
        1, "The most GPUs that a booking in MAIA's dashboard covers.", example="8", least=1, most=64
    )
    """MAIA's answer names no number. One GPU is booked, and in MAIA all pods of the person then have priority."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """How containers get their GPUs on the nodes."""

    plugin: PluginMode = entry(
        PluginMode.NATIVE,
        "Which device plugin hands out whole GPUs: Carrel's (native), or NVIDIA's (coexist).",
        change=Change.WHEN_FREE,
    )
    """In native mode Carrel decides which GPU a container gets. Beside NVIDIA's plugin the kubelet does, and
    reservation pods hold the GPUs that pods share."""
    device_list: DeviceList = entry(
        DeviceList.VARIABLE,
        "How the container runtime learns which GPUs a container gets: by the environment variable, or from the kubelet"
        " by volume mounts or CDI, where the runtime ignores the variable of unprivileged containers.",
        change=Change.WHEN_FREE,
    )
    """NVIDIA's runtime has `accept-nvidia-visible-devices-envvar-when-unprivileged`. Where that is false, only what the
    kubelet gives is seen, so pods that get their GPU by the variable alone (claims, fractions) are refused."""
    hide_gpus_from: HideFrom = entry(
        HideFrom.NVIDIA_PODS,
        "Which containers are told to see no GPU: the others of GPU pods; also those of other pods that NVIDIA's"
        " runtime may show one; or those of all other pods.",
    )
    """All pods: needed where NVIDIA's runtime is the default one of the nodes, because then an image alone may use any
    GPU. The webhook configuration must call the webhook for these pods: docs/admission.md."""
    runtime_class: str = entry(
        "auto",
        "RuntimeClass of GPU pods and reservation pods that name none; auto: nvidia, if the cluster has it; none:"
        " none.",
        example="nvidia",
        change=Change.RESTART,
    )
    """Where runc is the default runtime, only pods of NVIDIA's RuntimeClass get the GPU that their environment
    names."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Which pods are Carrel's, and whose they are."""

    schedulers: tuple[str, ...] = entry(
        (SCHEDULER,),
        "Schedulers that ask Carrel, besides those of peers. The webhook gives GPU pods to the first, unless they name"
        " another of them; pods of others are not bound, nor told why they wait.",
        example="[gpu-scheduler, default-scheduler]",
        change=Change.RESTART,
    )
    """A pod of another scheduler is not Carrel's to place, and waits for reasons that Carrel does not know."""
    strict: bool = entry(False, "Whether GPU pods without an owner are refused.")
    """Otherwise such a pod is opportunistic, and no booking covers it."""
    owner_annotation: str = entry("owner", "Annotation of a Namespace that names its owner.")
    """The owner of pods that a Deployment or a Job creates. Only users who may write Namespaces can set it."""
    username_prefix: str = entry("", "What the API server puts before people's names.", example='"oidc:"')
    """Bookings are made under the name without it."""
    trusted_users: tuple[str, ...] = entry(
        (), "Users who may write what only Carrel writes.", example="[system:serviceaccount:ops:rescue]"
    )
    """Besides Carrel's own controller. The policies have the same list."""
    longest_grace: timedelta = entry(
        5 * MINUTE,
        "How long a GPU pod may take to end after it was told to. A longer grace period in a manifest is lowered to it;"
        " a pod without a booking that takes longer is deleted again.",
        least=SECOND,
        most=DAY,
        change=Change.RESTART,
    )
    """A pod keeps its GPU until it has ended, and a kubelet that waits for a container does not hear of shorter
    times."""


ANY_ACCOUNT = "any"


@dataclass(frozen=True, slots=True)
class Hubs:
    """What is known of JupyterHub."""

    accounts: tuple[str, ...] = entry(
        (),
        "ServiceAccounts that create pods for others, such as a hub's; [any]: whoever creates a pod.",
        example="[system:serviceaccount:jhub:hub]",
    )
    """JupyterHub's word for whose pod it is counts only on pods that they create: anybody could write it. The log of
    the webhook and the admin page name an account that is missing here as it must be written. `any` is MAIA's way."""
    username_domain: str = entry(
        "", "Domain of the hub's users whose names are no addresses: ada is ada@DOMAIN.", example="lab.example"
    )
    """Bookings are made under addresses; most hubs have short names."""
    users: Mapping[str, str] = entry(
        {}, "Addresses of the hub's users for whom the domain is not enough.", example="{ada: ada.lovelace@lab.example}"
    )
    """For users whose address does not follow from their name."""

    @property
    def named(self) -> frozenset[str]:
        """The ServiceAccounts alone."""
        return frozenset(self.accounts) - {ANY_ACCOUNT}

    @property
    def domain(self) -> str:
        return self.username_domain.strip().lower().removeprefix("@").removesuffix(".")

    def people(self) -> HubPeople:
        return HubPeople(self.domain, {normal(user): normal(address) for user, address in self.users.items()})


@dataclass(frozen=True, slots=True)
class Tiers:
    """What pods without a booking may have, and how they give it back."""

    opportunistic_gpus: int = entry(
        0, "GPUs that one person may hold without a booking; 0: any number.", least=0, most=10_000
    )
    """No limit: a GPU that nobody uses helps nobody, and booked pods get theirs by revocation."""
    revoke_older_pods: bool = entry(
        False, "Whether pods that were there before Carrel may lose their GPUs to booked pods.", change=Change.RESTART
    )
    """Their owners were never told; an admin should tell them first."""
    pods_of_nobody: PodsOfNobody = entry(
        PodsOfNobody.OPPORTUNISTIC,
        "GPU pods without an owner: they may lose their GPU to booked pods (opportunistic), or never do (keep).",
    )
    """A pod that nobody answers for could else hold a GPU for ever. MAIA leaves pods without a hub's label alone. Pods
    that were admitted under `keep` keep their GPUs when it is changed."""
    when_full: WhenFull = entry(
        WhenFull.DEFAULT,
        "What a pod without a booking does when no GPU is free: it runs on CPU, or waits. By default pods of a hub or"
        " with MAIA's mark run on CPU, and others wait.",
    )
    """As MAIA: a notebook without a GPU is better than none. A namespace may say otherwise by carrel.dev/when-full."""
    wait_before_cpu: timedelta = entry(
        MINUTE,
        "How long a pod without a booking waits for a GPU before it is created again without one, where whenFull or its"
        " namespace says cpu. 0s: it waits for ever.",
        least=NO_TIME,
    )
    """A minute. A hub gives up on a notebook after five (its start_timeout); GPUs that are being freed take seconds."""
    revocation_grace: timedelta = entry(
        NO_TIME, "Between the announcement that a pod loses its GPU and its end.", least=NO_TIME, most=HOUR
    )
    """None, as MAIA's manual says: a booked pod need not wait. The pod's own termination grace comes on top."""
    notebook_grace: timedelta = entry(
        2 * MINUTE,
        "Between the announcement and the end for pods of a notebook hub; the longer of this and revocationGrace"
        " counts. For a namespace, an admin may set another time by an annotation.",
        least=NO_TIME,
        most=HOUR,
    )
    """Two minutes. A person works in the notebook, and has to see the notice and save."""
    minimum_time: timedelta = entry(
        10 * MINUTE,
        "How long a pod without a booking keeps its GPU, unless no other pod's GPU will do. 0s: no such time.",
        least=NO_TIME,
        most=DAY,
    )
    """Ten minutes. Who was just given a GPU should get something done before it is taken back."""
    victims: Victims = entry(
        Victims.FAIR, "Which pods lose their GPU: fair (of people above the equal share first), or random (MAIA's way)."
    )
    """A newcomer's only GPU is not taken before one of the eight that somebody else has; MAIA chooses at random."""
    at_end: AtEnd = entry(
        AtEnd.CPU,
        "A pod whose booking has come to its end continues on CPU, ends, or stays until it is revoked.",
        change=Change.RESTART,
    )
    """As MAIA: the work continues, more slowly, instead of being lost."""

    def policy(self) -> TierPolicy:
        keep = self.pods_of_nobody is PodsOfNobody.KEEP
        return TierPolicy(self.opportunistic_gpus, self.revoke_older_pods, keep)


@dataclass(frozen=True, slots=True)
class ResourceClaims:
    """Dynamic Resource Allocation."""

    enabled: bool = entry(
        False, "Whether the GPUs of ResourceClaims are counted on the same Leases.", change=Change.RESTART
    )
    """Off: it needs Kubernetes 1.34, and the objects of `manifests/dra.yaml` in the cluster."""
    driver: DraDriver = entry(
        DraDriver.CARREL,
        "Whose devices claims get. Those of NVIDIA's DRA driver are only counted: agents advertise and prepare nothing"
        " for claims.",
        change=Change.WHEN_FREE,
    )
    """NVIDIA's, where its DRA driver is installed and stays: it hands over whole GPUs, those that Carrel's gate let
    through."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Where pods are placed."""

    placement: PlacementStyle = entry(
        PlacementStyle.PACK, "Fill nodes and GPUs up, or keep them evenly free.", change=Change.RESTART
    )
    """Packing keeps whole GPUs and islands free for pods that need them. They are KAI's `gpupack` and `gpuspread`."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """The pods that hold GPUs beside NVIDIA's plugin, so that others can share them."""

    names: ReservationNaming = entry(
        ReservationNaming.KAI, "Which names reservation pods have.", change=Change.WHEN_FREE
    )
    """Tools that look for reservation pods know KAI's names, or those that KAI used before version 0.17."""


@dataclass(frozen=True, slots=True)
class BookingRules:
    """The limits of bookings. The defaults are those of MAIA's manual."""

    min_duration: timedelta = entry(DAY, "The shortest booking.", least=36 * SECOND, most=3650 * DAY)
    """One day, as in MAIA's manual."""
    max_duration: timedelta = entry(14 * DAY, "The longest booking.", least=36 * SECOND, most=3650 * DAY)
    """As in MAIA's manual: long enough for a long run, short enough that others get a GPU."""
    cooldown: timedelta = entry(
        14 * DAY,
        "Between the end of a booking and the start of the next of the same person or group; 0s: none.",
        least=NO_TIME,
        most=3650 * DAY,
    )
    """As in MAIA's manual: 14 full days."""
    planned: int = entry(1, "Planned bookings that a person or a group may have at a time.", least=1, most=1000)
    """As in MAIA's manual: a person waits for the planned booking before planning the next."""
    max_gpus: int = entry(4, "The most GPUs of one booking of a person; 0: no limit.", least=0, most=10_000)
    """Bookings of one person never overlap, so nobody has more at a time: a few, and others find GPUs too."""
    group_max_gpus: int = entry(0, "The most GPUs of one booking of a group; 0: no limit.", least=0, most=10_000)
    """No limit: only people whom an admin has named book for a group."""
    shares_per_gpu: int = entry(
        1, "Equal shares of a GPU's memory that may be booked; 1: whole GPUs only.", least=1, most=64
    )
    """More than one where many small jobs would each keep a whole GPU from others."""
    settling_time: timedelta = entry(
        10 * SECOND,
        "After a booking was made or enlarged, nobody loses a GPU to it for so long. Within it, the booking may be"
        " cancelled without a cooldown, if no pod uses it. A booking made ahead has settled when it starts.",
        least=NO_TIME,
        most=HOUR,
    )
    """Long enough to take back a mistyped booking, short enough to wait for."""

    @property
    def usual_length(self) -> timedelta:
        """A week, as far as the limits allow."""
        return max(self.min_duration, min(7 * DAY, self.max_duration))

    def most_gpus(self, is_group: bool) -> int:
        """The limit for one booking; zero: none."""
        return self.group_max_gpus if is_group else self.max_gpus


@dataclass(frozen=True, slots=True)
class Oidc:
    """Sign-in with an OpenID Connect provider."""

    issuer: str = entry("", "The provider.", example="https://login.lab.example", change=Change.RESTART)
    """Empty: nobody signs in that way."""
    client_id: str = entry("", "Client ID at the provider.", example="carrel", change=Change.RESTART)
    """The client's secret is in CARREL_OIDC_CLIENT_SECRET. A public client has none: PKCE alone protects the code."""
    scopes: str = entry("openid email profile", "Scopes to request there.", change=Change.RESTART)
    """Some providers send groups only if a scope requests them."""
    email_claim: str = entry("email", "Claim with the e-mail address.", change=Change.RESTART)
    groups_claim: str = entry("groups", "Claim with the groups.", change=Change.RESTART)


@dataclass(frozen=True, slots=True)
class HubSignIn:
    """Sign-in with a JupyterHub, whose users then need no other password."""

    url: str = entry("", "The hub, as browsers see it.", example="https://hub.lab.example", change=Change.RESTART)
    """The tokens of its users are accepted too."""
    api_url: str = entry(
        "",
        "Its API for this service; empty: URL/hub/api.",
        example="http://hub.jhub:8081/hub/api",
        change=Change.RESTART,
    )
    """Browsers' address may not lead there from within a cluster. The service's api_token: CARREL_HUB_CLIENT_SECRET."""


@dataclass(frozen=True, slots=True)
class SignIn:
    """Who may sign in."""

    oidc: Oidc = field(default_factory=Oidc)
    hub: HubSignIn = field(default_factory=HubSignIn)
    token_audience: str = entry("", "Audience that tokens of the cluster must have.", change=Change.RESTART)
    """Without it the API server's own tokens are accepted. With it, a token for Carrel is useless elsewhere."""
    trusted_proxies: tuple[str, ...] = entry(
        (), "Networks of proxies whose X-Forwarded-For is trusted.", example="[10.0.0.0/8]", change=Change.RESTART
    )
    """For the rate limit per address. Without it an ingress counts as one caller."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Who may do what in the booking service."""

    member_groups: tuple[str, ...] = entry(
        (),
        "Groups whose members may book; empty: everybody who signs in.",
        example="[gpu-users]",
        change=Change.RESTART,
    )
    lab_admin_groups: tuple[str, ...] = entry(
        (), "Groups of lab admins.", example="[gpu-admins]", change=Change.RESTART
    )
    platform_admin_groups: tuple[str, ...] = entry(
        (), "Groups of platform admins.", example="[platform]", change=Change.RESTART
    )
    lab_admins: tuple[str, ...] = entry(
        (), "E-mail addresses of lab admins.", example="[ada@lab.example]", change=Change.RESTART
    )
    platform_admins: tuple[str, ...] = entry(
        (), "E-mail addresses of platform admins.", example="[grace@lab.example]", change=Change.RESTART
    )
    """The first one must be named here or by a group: platform admins grant the other roles."""


@dataclass(frozen=True, slots=True)
class Bookings:
    """Carrel's own booking service."""

    public_url: str = entry(
        "", "URL of the service, as browsers see it.", example="https://gpus.lab.example", change=Change.RESTART
    )
    """Never taken from a request, which anybody can forge. With https, cookies are secure. It may have a path: a hub
    shows its services under its own host, as /services/NAME, and its proxy does not take the path off."""
    rules: BookingRules = field(default_factory=BookingRules)
    usage_names_kept: timedelta = entry(1096 * DAY, "How long usage keeps names.", least=7 * DAY, most=1096 * DAY)
    """As long as the sums: three years. Older sums are nobody's then, and the hours stay."""
    sign_in: SignIn = field(default_factory=SignIn)
    roles: Roles = field(default_factory=Roles)

    @property
    def link(self) -> str:
        """The address of the service for people; empty: it is not known."""
        return self.public_url.rstrip("/")

    @property
    def base_path(self) -> str:
        """`/services/carrel`; empty: it has the host for itself."""
        _, *path = self.link.partition("://")[2].split("/", 1)
        return "/".join(["", *path])


@dataclass(frozen=True, slots=True)
class Notifications:
    """How people are told. Without a channel, nothing is sent."""

    mail_from: str = entry("", "Sender of the mails.", example="Carrel <gpus@lab.example>")
    """The mail server, with its password, is in CARREL_SMTP_URL."""
    allowed_hosts: tuple[str, ...] = entry((), "Hosts of people's own webhooks.", example="['*.logic.azure.com']")
    """The service calls what people name there. `*.DOMAIN`: only at public addresses."""
    matrix_url: str = entry("", "Matrix homeserver for messages to people.", example="https://matrix.lab.example")
    """The access token of the user that writes to them is in CARREL_MATRIX_TOKEN."""
    webhook_url: str = entry("", "Where every notification is posted.", example="https://chat.lab.example/hook")
    """Signed with CARREL_WEBHOOK_SECRET. Who may read the configuration sees the address: it must be of no use."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that the cluster's admins decide."""

    lab: Lab = field(default_factory=Lab)
    memory: GpuMemory = field(default_factory=GpuMemory)
    dialects: Dialects = field(default_factory=Dialects)
    nodes: Nodes = field(default_factory=Nodes)
    pods: Pods = field(default_factory=Pods)
    hubs: Hubs = field(default_factory=Hubs)
    tiers: Tiers = field(default_factory=Tiers)
    resource_claims: ResourceClaims = field(default_factory=ResourceClaims)
    scheduling: Scheduling = field(default_factory=Scheduling)
    reservations: Reservations = field(default_factory=Reservations)
    bookings: Bookings = field(default_factory=Bookings)
    notifications: Notifications = field(default_factory=Notifications)

    def dialect_options(self) -> DialectOptions:
        return DialectOptions(
            self.memory.unit, self.dialects.shared_claims_per_gpu, cuda_devices=self.dialects.cuda_devices
        )
