"""How a node offers the memory of its GPUs: as devices of a plugin, or as one number on the Node.

A plugin names every unit of memory, and the kubelet of 1.36 and newer compares each device that is new or changes with
all that it has given out, while nothing else may happen there. So many devices are offered as a number instead. The way
changes only while no pod holds any of the memory: a pod that was given devices cannot be admitted again without them
after a reboot, nor one without devices where a plugin offers them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

COMPARES_SINCE = 36
"""The minor version of the kubelet from which on it compares."""
SAFE_DEVICES = 2048
"""Up to here the worst comparison, all with all, takes the kubelet half a second (some 100 ns for each pair): eight
cards of 256 GiB in GiB. On a machine whose processors have six times as much to do it was seen to take six times as
long."""


class Way(Enum):
    PLUGIN = "plugin"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Situation:
    setting: Way | None
    """What the admin says; None: whatever is safe."""
    devices: int
    """That the memory of all cards would be."""
    fits: bool
    """Whether the kubelet takes so many in one message."""
    kubelet_minor: int | None
    """Of its version 1.x; None: not known."""
    holders: int | None
    """How many pods hold some of the memory; None: not known."""
    before: Way | None
    """The way in force until now."""


@dataclass(frozen=True, slots=True)
class Decision:
    way: Way | None = None
    """None: not known yet, so nothing is begun."""
    later: Way | None = None
    """What it changes to when no pod holds any memory. None: it is as it should be."""


UNDECIDED = Decision()


def decide(situation: Situation) -> Decision:
    wanted, before = _wanted(situation), situation.before
    if wanted is None or wanted is before:
        return Decision(before)
    if before is None:
        return Decision(wanted)
    return Decision(wanted) if situation.holders == 0 else Decision(before, later=wanted)


def _wanted(situation: Situation) -> Way | None:
    if situation.setting is not None:
        return situation.setting
    if not situation.devices or situation.kubelet_minor is None:
        return None  # cards may be late, as after a boot; a way that was begun in haste takes minutes to leave
    is_safe = situation.kubelet_minor < COMPARES_SINCE or situation.devices <= SAFE_DEVICES
    return Way.PLUGIN if situation.fits and is_safe else Way.NODE


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod of the node holds."""

    units: int
    cards: frozenset[str]
    """The cards it was promised, by UUID. Empty: nobody knows."""


def units_offered(cards: Mapping[str, int], usable: Collection[str], holdings: Iterable[Holding]) -> int:
    """What the Node says that it has. `cards`: the units of each, by UUID.

    What is held of an unusable card is held on: so much is added, or it would be missing to those who ask for the other
    cards. It is never less than what is held, because a kubelet that starts again admits its running pods anew, and
    ends those that do not fit.
    """
    held, stranded = 0, 0
    for holding in holdings:
        held += holding.units
        if not holding.cards or not holding.cards <= set(usable):
            stranded += holding.units
    return max(held, stranded + sum(units for uuid, units in cards.items() if uuid in usable))
