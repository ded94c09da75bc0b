"""Whose turn it is when the kubelet hands devices over: it says how many, and never for whom.

A call is for a container that asks for exactly so many and has not had them. Among several, the order is stated: first
who has not been answered yet, then whose own cards the devices are of, then the pod that was promised its cards first.
A container that was answered counts last, not never: the kubelet may have died before it wrote the answer down. One
that the kubelet has written down waits no more, and is none of these.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from carrel.ledger.shares import Holder


@dataclass(frozen=True, slots=True)
class Waiting:
    """One container of a pod that was placed on this node and does not run yet."""

    holder: Holder
    container: str
    position: int
    """In the pod: the kubelet serves its containers in order."""
    amount: int
    """Devices, in whatever unit they are counted."""
    cards: tuple[str, ...]
    """UUIDs of the cards that the container was promised."""
    since_ns: int
    """When they were promised."""
    is_answered: bool = False


def in_turn(waiting: Iterable[Waiting], amount: int, cards: Collection[str] = ()) -> list[Waiting]:
    """Who may be meant by a call for so many devices, the likeliest first. `cards`: whose devices they are."""

    def turn(each: Waiting) -> tuple[bool, bool, int, str, int]:
        is_elsewhere = bool(cards) and set(each.cards) != set(cards)
        return each.is_answered, is_elsewhere, each.since_ns, each.holder.uid, each.position

    return sorted((each for each in waiting if each.amount == amount), key=turn)
