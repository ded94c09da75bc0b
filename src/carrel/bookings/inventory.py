"""The Inventory port: which cards can be booked. From the cluster's GpuNodeStatus, or from a file without a cluster."""

from collections.abc import Mapping
from typing import Protocol

from carrel.bookings.capacity import ModelCapacity


class GpuInventory(Protocol):
    @property
    def is_known(self) -> bool:
        """False until the cluster has been read once: nothing can be booked before."""
        ...

    def stock(self) -> Mapping[str, ModelCapacity]:
        """The healthy cards now, by model."""
        ...

    def idle(self) -> Mapping[str, int] | None:
        """By model, how many healthy cards nobody holds a part of now. None without a cluster: nobody can tell."""
        ...
