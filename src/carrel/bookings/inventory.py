"""Which GPUs can be booked: those that the cluster reports, or those of a file where there is no cluster."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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


RECOUNT_S = 5.0
"""Which pods keep their GPUs also depends on namespaces, so it is looked at again without a change of the ledger."""


@dataclass(frozen=True, slots=True)
class _Counted:
    ledger_moment: int = -1
    at: float = 0.0
    stock: Mapping[str, ModelCapacity] = field(default_factory=dict)
    idle: Mapping[str, int] = field(default_factory=dict)


class ClusterInventory:
    """The GPUs of the ledger, counted again when it has changed."""

    def __init__(
        self,
        ledger: Ledger,
        is_synced: Callable[[], bool],
        keeps_its_gpus: Callable[[str], bool] = lambda uid: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keeps_its_gpus` says of a pod, by its uid, whether no booking can displace it."""
        self._ledger = ledger
        self._is_synced = is_synced
        self._keeps_its_gpus = keeps_its_gpus
        self._clock = clock
        self._counted = _Counted()

    @property
    def is_known(self) -> bool:
        return self._is_synced()

    def stock(self) -> Mapping[str, ModelCapacity]:
        return self._count().stock

    def idle(self) -> Mapping[str, int]:
        return self._count().idle

    def _count(self) -> _Counted:
        moment, now = self._ledger.moment, self._clock()
        if self._counted.ledger_moment != moment or now >= self._counted.at + RECOUNT_S:
            nodes = (node for name in self._ledger.nodes if (node := self._ledger.node(name)) is not None)
            self._counted = _Counted(moment, now, capacity_of(nodes, self._set_aside()), idle_gpus(self._ledger))
        return self._counted

    def _set_aside(self) -> set[str]:
        """The GPUs of which such a pod holds a part."""
        cards = (card for name in self._ledger.nodes for card in self._ledger.cards(name) if card.shares)
        return {card.gpu.uuid for card in cards if any(map(self._keeps_its_gpus, card.shares))}


def idle_gpus(ledger: Ledger) -> dict[str, int]:
    """By model: healthy GPUs that no pod holds a part of, and that are kept for no booked pod."""
    found: dict[str, int] = {}
    for name in ledger.nodes:
        node = ledger.node(name)
        for card in ledger.cards(name):
            is_idle = not (card.shares or card.kept_for or card.gpu.unusable or (node and node.unusable))
            found[card.gpu.model] = found.get(card.gpu.model, 0) + is_idle
    return dict(sorted(found.items()))
