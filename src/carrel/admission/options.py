"""What the cluster's admin decides about admission."""

from dataclasses import dataclass, field

from carrel.cluster.runtime_class import AUTO
from carrel.dialects.gpuclaim import SCHEDULER
from carrel.dialects.jupyter import HubPeople
from carrel.dialects.options import LONGEST_GRACE_S, DeviceList, HideFrom
from carrel.dialects.tier import WhenFull


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
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
    username_prefix: str = ""
    """What the API server puts before the names of people, as `oidc:`."""
    hub_people: HubPeople = field(default_factory=HubPeople)
