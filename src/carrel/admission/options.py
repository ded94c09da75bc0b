"""What the cluster's admin decides about admission."""

from dataclasses import dataclass, field

from carrel.cluster.runtime_class import AUTO
from carrel.configuration.gpu_memory import Limits
from carrel.configuration.schema import ANY_ACCOUNT, Configuration, PluginMode
from carrel.dialects.jupyter import HubPeople
from carrel.dialects.options import LONGEST_GRACE_S, SCHEDULER, DeviceList, HideFrom, WhenFull


@dataclass(slots=True)
class AdmissionOptions:
    """Changes while the webhook runs, with the configuration."""

    strict: bool = False
    """A GPU pod without a person is refused."""
    when_full: WhenFull = WhenFull.DEFAULT
    """What an opportunistic pod does if no GPU is free, where its Namespace does not say."""
    coexist: bool = False
    """NVIDIA's device plugin hands out `nvidia.com/gpu`, and tells containers which GPU they have."""
    hide_from: HideFrom = HideFrom.NVIDIA_PODS
    """Which pods that ask for no GPU are told to see none."""
    schedulers: tuple[str, ...] = (SCHEDULER,)
    """Those that ask Carrel. The first gets the pods that choose none, or that of a peer."""
    device_list: DeviceList = DeviceList.VARIABLE
    """How the container runtime learns the GPUs of a container."""
    longest_grace_s: int = LONGEST_GRACE_S
    """A GPU pod's grace period is lowered to it."""
    runtime_class: str = AUTO
    """Of GPU pods that name none."""
    owner_annotation: str = "owner"
    """Of a Namespace: whose it is."""
    trusted: frozenset[str] = frozenset()
    """Users who count as Carrel, besides its controller."""
    spawners: frozenset[str] = frozenset()
    """Users who create pods for other people, and say for whom."""
    believes_all: bool = False
    """Whoever creates a pod may say for which user of a hub."""
    username_prefix: str = ""
    """What the API server puts before the names of people, as `oidc:`."""
    limits_memory: bool = False
    """Containers that use a part of a GPU get a limit of its memory."""
    hub_people: HubPeople = field(default_factory=HubPeople)


def admission_options(of: Configuration) -> AdmissionOptions:
    """Return what the configuration says about admission."""
    return AdmissionOptions(
        strict=of.pods.strict,
        when_full=of.tiers.when_full,
        coexist=of.nodes.plugin is PluginMode.COEXIST,
        hide_from=of.nodes.hide_gpus_from,
        schedulers=of.pods.schedulers,
        device_list=of.nodes.device_list,
        longest_grace_s=int(of.pods.longest_grace.total_seconds()),
        runtime_class=of.nodes.runtime_class,
        owner_annotation=of.pods.owner_annotation,
        trusted=frozenset(of.pods.trusted_users),
        spawners=of.hubs.named,
        believes_all=ANY_ACCOUNT in of.hubs.accounts,
        username_prefix=of.pods.username_prefix,
        limits_memory=of.memory.limits is Limits.REQUIRED,
        hub_people=of.hubs.people(),
    )
