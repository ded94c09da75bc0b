"""Which container a call of the kubelet is for: it says how many devices it needs, but not for which container.

Only containers that need as many devices are candidates. Among them the one whose GPUs the devices belong to comes
first, then the one that was promised its GPUs first. A container that was already answered comes last, but stays a
candidate: the kubelet may have died before it recorded the answer. A container that the kubelet has recorded is not
among them.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from carrel.ledger.shares import Holder


@dataclass(frozen=True, slots=True)
class WaitingContainer:
    """One container of a pod that was placed on this node and does not run yet."""

    holder: Holder
    container: str
    position: int
    """In the pod: the kubelet serves its containers in order."""
    amount: int
    """Devices: units of memory, or GPUs."""
    gpus: tuple[str, ...]
    """UUIDs of the GPUs that the container was promised."""
    since_ns: int
    """When they were promised."""
    is_answered: bool = False


def candidates_in_order(
    waiting: Iterable[WaitingContainer], amount: int, gpus: Collection[str] = ()
) -> list[WaitingContainer]:
    """Whom a call for so many devices may be for, the likeliest first. `gpus`: UUIDs of the GPUs of the devices."""

    def order(each: WaitingContainer) -> tuple[bool, bool, int, str, int]:
        is_elsewhere = bool(gpus) and set(each.gpus) != set(gpus)
        return each.is_answered, is_elsewhere, each.since_ns, each.holder.uid, each.position

    return sorted((each for each in waiting if each.amount == amount), key=order)
