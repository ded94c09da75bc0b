"""A share: a part of one GPU, held by one pod or one ResourceClaim; and its states, as a table.

A terminating pod still runs, so a releasing share still holds its memory: only a share that is gone frees it.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from carrel.ids import NO_POD, BookingId, GpuUuid, HolderId, PodUid
from carrel.ledger.gpus import MiB


class ShareState(Enum):
    """How far a share is between its promise and its end."""

    ASSUMED = "assumed"
    """Promised by the scheduler; the node has not handed it over yet."""
    ASSIGNED = "assigned"
    """Handed over by the node."""
    RELEASING = "releasing"
    """The pod is going, but its containers may still run."""
    GONE = "gone"


class ShareEvent(Enum):
    """What changes the state of a share."""

    ASSIGN = "the node hands the GPU over"
    RELEASE = "the pod is told to go"
    LEAVE = "the pod is gone, or its bind failed"


LIFE: dict[tuple[ShareState, ShareEvent], ShareState] = {
    (ShareState.ASSUMED, ShareEvent.ASSIGN): ShareState.ASSIGNED,
    (ShareState.ASSUMED, ShareEvent.RELEASE): ShareState.RELEASING,
    (ShareState.ASSUMED, ShareEvent.LEAVE): ShareState.GONE,
    # Watches repeat themselves: an event that says what is known already changes nothing.
    (ShareState.ASSIGNED, ShareEvent.ASSIGN): ShareState.ASSIGNED,
    (ShareState.ASSIGNED, ShareEvent.RELEASE): ShareState.RELEASING,
    (ShareState.ASSIGNED, ShareEvent.LEAVE): ShareState.GONE,
    # The node may hand over a GPU to a pod that was told to go a moment ago: it is still going.
    (ShareState.RELEASING, ShareEvent.ASSIGN): ShareState.RELEASING,
    (ShareState.RELEASING, ShareEvent.RELEASE): ShareState.RELEASING,
    (ShareState.RELEASING, ShareEvent.LEAVE): ShareState.GONE,
}
"""From `gone` there is no way back: a pod of the same name that comes later has another uid."""


class HolderKind(Enum):
    """What may hold a share."""

    POD = "pod"
    CLAIM = "claim"
    """A ResourceClaim: its pods use the GPU as long as it is allocated."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner of a share: a pod, or a ResourceClaim. The uid identifies it; namespace and name are for people and for
    finding it."""

    uid: HolderId
    namespace: str = ""
    name: str = ""
    """Empty if only the uid is known."""
    kind: HolderKind = HolderKind.POD

    @property
    def is_claim(self) -> bool:
        return self.kind is HolderKind.CLAIM

    @property
    def full_name(self) -> str:
        """`namespace/name`; empty if only the uid is known."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        if self.is_claim:
            return f"ResourceClaim {self.full_name or self.uid}"
        return self.full_name or f"pod {self.uid}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The record that a booking covers a share. `coverage` decides what is true; the record keeps the order."""

    booking: BookingId
    """Its id."""
    since: datetime


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one GPU, or a whole GPU, that one holder has."""

    holder: Holder
    gpu: GpuUuid
    """UUID of the GPU."""
    memory: MiB | None
    """None: the whole GPU, whatever its size."""
    state: ShareState = ShareState.ASSUMED
    coverage: Coverage | None = None
    """None: no booking is recorded for it."""
    for_pod: PodUid = NO_POD
    """Of a ResourceClaim, while it is taken: the uid of the pod that uses it."""

    def may_have(self, kept_for: Holder) -> bool:
        """Whether its holder may have a GPU that is kept: for it, for its pod, or for the booking that covers it."""
        return kept_for.uid in (self.holder.uid, self.for_pod, self.coverage.booking if self.coverage else "")

    def in_state(self, state: ShareState) -> "Share":
        """Most shares are in it already, and a copy of each would cost more than all the rest of a change."""
        if self.state is state:
            return self
        # Not by `replace`, which takes three times as long: a process that starts does this for every pod.
        return Share(self.holder, self.gpu, self.memory, state, self.coverage, self.for_pod)
