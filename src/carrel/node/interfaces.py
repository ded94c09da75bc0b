"""The ports of a node: its cards, its kubelet's books, and what the kubelet may ask of Carrel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from carrel.ledger.gpus import Gpu
from carrel.ledger.refusals import Refusal


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen of a machine's cards at one moment."""

    gpus: tuple[Gpu, ...]
    trouble: str = ""
    """Why cards may be there that are not seen, in words for an admin. Empty: all is well."""
    processes: Mapping[str, int] = field(default_factory=dict)
    """UUID → programs that compute on the card."""


class Machine(Protocol):
    """The cards of this machine: through NVIDIA's library, or simulated from a file."""

    async def look(self) -> Look: ...

    async def wait_changed(self) -> None:
        """Until another look may show something else. It may come back without a reason, and need never do so."""
        ...


class Unreachable(Exception):
    """The kubelet does not answer: it is restarting, or its socket is elsewhere."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Devices that the kubelet has given to a container."""

    namespace: str
    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]


class PodResources(Protocol):
    async def handed_over(self) -> Sequence[HandedOver]:
        """Raises `Unreachable`."""
        ...


class PluginMemory(Protocol):
    async def remembered(self) -> frozenset[str]:
        """The resources that the kubelet takes for a device plugin's: it asks a plugin whenever a pod wants some, also
        for minutes after that has gone, and refuses the pod. Raises `Unreachable`."""
        ...


class Counter(Protocol):
    """Where the kubelet comes for devices. Implemented by `node.allocation`."""

    async def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """Which of the devices the kubelet should hand over; empty if it is all the same."""
        ...

    async def allocate(self, resource: str, devices: Sequence[str]) -> Mapping[str, str] | Refusal:
        """The environment of the container that the devices are for."""
        ...
