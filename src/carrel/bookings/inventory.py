"""Which GPUs can be booked: those that the cluster reports, or those of a file where there is no cluster."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from carrel.bookings.capacity import ModelCapacity, capacity_of
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger


class GpuInventory(Protocol):
    @property
    def is_known(self) -> bool:
        """False until the cluster has been read once: nothing can be booked before."""
        ...

    def stock(self) -> Mapping[str, ModelCapacity]:
        """The healthy GPUs now, by model."""
        ...

    def idle(self) -> Mapping[str, int] | None:
        """By model, how many healthy GPUs no pod holds a part of now. None without a cluster: it is not known."""
        ...


class FileInventory:
    """The GPUs of a file, in the form of `carrel demo --cluster`. It is read once."""

    is_known = True

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._stock = capacity_of(nodes)

    def stock(self) -> Mapping[str, ModelCapacity]:
        return self._stock

    def idle(self) -> None:
        return None


class ClusterInventory:
    """The GPUs of the ledger, counted again when it has changed."""

    def __init__(self, ledger: Ledger, is_synced: Callable[[], bool]) -> None:
        self._ledger = ledger
        self._is_synced = is_synced
        self._counted: tuple[int, Mapping[str, ModelCapacity], Mapping[str, int]] = (-1, {}, {})

    @property
    def is_known(self) -> bool:
        return self._is_synced()

    def stock(self) -> Mapping[str, ModelCapacity]:
        return self._count()[1]

    def idle(self) -> Mapping[str, int]:
        return self._count()[2]

    def _count(self) -> tuple[int, Mapping[str, ModelCapacity], Mapping[str, int]]:
        if self._counted[0] != self._ledger.moment:
            nodes = (node for name in self._ledger.nodes if (node := self._ledger.node(name)) is not None)
            self._counted = (self._ledger.moment, capacity_of(nodes), idle_gpus(self._ledger))
        return self._counted


def idle_gpus(ledger: Ledger) -> dict[str, int]:
    """By model: healthy GPUs that no pod holds a part of, and that are kept for no booked pod."""
    found: dict[str, int] = {}
    for name in ledger.nodes:
        node = ledger.node(name)
        for card in ledger.cards(name):
            is_idle = not (card.shares or card.kept_for or card.gpu.unusable or (node and node.unusable))
            found[card.gpu.model] = found.get(card.gpu.model, 0) + is_idle
    return dict(sorted(found.items()))
