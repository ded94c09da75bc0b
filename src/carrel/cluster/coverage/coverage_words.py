"""What people are told about coverage, in the same words on the pages, by the command line, in Events and in mail.

    covered by your booking of 1 A100 until Tue 24 Nov 14:00
    your booking of 1 A100 is in use by lab/train-7; this pod runs on what is free
    no booking; may lose its GPU to a booked pod
    keeps its GPU: its namespace is exempt

Pure: bookings and names in, sentences without a full stop out. How times and models are written is passed in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import Enum

from carrel.cluster.activity_words import state_words
from carrel.dialects.booking_objects import is_maias
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpu_activity import GpuActivity
from carrel.ledger.tiers import Tier
from carrel.parsing.time import local

MOST_NAMES = 5
"""Pods that are named in one sentence."""


MOST_HELD = 3
"""Holders of GPUs that are named in an Event."""


class BeyondReason(Enum):
    """Why a booking that runs does not cover a pod of its person."""

    IN_USE = "in use"
    OTHER_MODEL = "other model"
    TOO_FEW = "too few"
    """The pod asks for more GPUs than are booked."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Beyond:
    """A booking of a pod's person that runs and does not cover the pod."""

    entitlement: Entitlement
    why: BeyondReason
    used_by: tuple[str, ...] = ()
    """The pods that it covers."""


@dataclass(frozen=True, slots=True)
class PodCoverage:
    """What there is to say about one pod."""

    tier: Tier | None
    """None: it keeps its GPUs."""
    asks: bool = True
    """Whether it holds GPUs or asks for some."""
    waits: bool = False
    covered: Entitlement | None = None
    beyond: Beyond | None = None
    held_for: Entitlement | None = None
    """The booking for whose start a scheduling gate holds the pod."""
    is_exempt: bool = False
    is_nobodys: bool = False
    """It has no owner."""
    is_decided: bool = True
    """False: nobody has written a tier on it."""


@dataclass(frozen=True, slots=True)
class BookingInUse:
    """How much of a booking that runs is used, and by which pods."""

    entitlement: Entitlement
    used: int
    pods: tuple[str, ...]

    def __str__(self) -> str:
        return in_use(self.used, self.entitlement.gpus, self.pods)


@dataclass(frozen=True, slots=True)
class NextFree:
    """When a GPU that would do for a pod will be free, as far as the cluster knows."""

    is_free: bool = False
    """One can be had now."""
    at: datetime | None = None
    """The earliest end of a booking that covers such a GPU; None: there is none."""
    without_end: bool = False
    """Whether pods without a booking hold such GPUs."""


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A pod that holds a GPU which another pod waits for."""

    gpu: str
    """`GPU 0 of dgx-1`."""
    model: str
    pod: str
    user: str
    tier: Tier | None
    until: datetime | None = None
    """The end of the booking that covers it."""
    unsure: str = ""
    """Why nobody can say whether it still runs; empty if it does."""
    activity: GpuActivity | None = None
    """What it does with the GPU; None: this process does not look."""


class CoverageWords:
    def __init__(
        self,
        zone: tzinfo,
        model: Callable[[str], str] = str,
        when: Callable[[datetime, tzinfo], str] = local,
    ) -> None:
        """`model` writes the name of a model, `when` an instant in a zone."""
        self.zone = zone
        self._model = model
        self._write = when

    def when(self, instant: datetime) -> str:
        return self._write(instant, self.zone)

    # --- a booking ---------------------------------------------------------------------------------------------------

    def amount(self, entitlement: Entitlement) -> str:
        """`1 A100`, `2 GPUs`, `1/4 A100`; `up to 8 A100` of a booking in MAIA's dashboard, which names no number."""
        count = f"1/{entitlement.share_of}" if entitlement.share_of > 1 else str(entitlement.gpus)
        any_model = "GPU" if entitlement.gpus == 1 else "GPUs"
        count = f"up to {count}" if is_maias(entitlement.booking) and entitlement.gpus > 1 else count
        return f"{count} {self._model(entitlement.model) if entitlement.model else any_model}"

    def booking(self, entitlement: Entitlement) -> str:
        """For its people: `your booking of 1 A100`, `the booking of 2 A100 for vision`."""
        amount = self.amount(entitlement)
        return f"the booking of {amount} for {entitlement.group}" if entitlement.group else f"your booking of {amount}"

    # --- a pod -------------------------------------------------------------------------------------------------------

    def about(self, pod: PodCoverage) -> str:
        """For the pod's person."""
        if not pod.asks:
            return "asks for no GPU"
        if pod.held_for is not None:
            return self.held_for(pod.held_for)
        if pod.covered is not None:
            return self.covered(pod.covered)
        if pod.tier is None:
            return self.keeps_its_gpu(pod)
        if pod.beyond is not None:
            return self.beyond(pod.beyond, waits=pod.waits)
        return self.without_booking(waits=pod.waits)

    def for_others(self, pod: PodCoverage) -> str:
        """For everybody who sees the pod: `covered by a booking of 1 A100 until …`."""
        if pod.covered is not None:
            group = f" for {pod.covered.group}" if pod.covered.group else ""
            return f"covered by a booking of {self.amount(pod.covered)}{group} until {self.when(pod.covered.ends)}"
        if pod.tier is not None and pod.beyond is not None:
            return "beyond its person's booking; may lose its GPU to a booked pod"
        return self.about(pod)

    def covered(self, entitlement: Entitlement) -> str:
        return f"covered by {self.booking(entitlement)} until {self.when(entitlement.ends)}"

    def beyond(self, beyond: Beyond, *, waits: bool = False) -> str:
        then = "this pod waits for what is free" if waits else "this pod runs on what is free"
        return f"{self.why_beyond(beyond)}; {then}"

    def why_beyond(self, beyond: Beyond) -> str:
        booking = self.booking(beyond.entitlement)
        if beyond.why is BeyondReason.IN_USE and beyond.used_by:
            return f"{booking} is in use by {named(beyond.used_by)}"
        if beyond.why is BeyondReason.OTHER_MODEL:
            return f"{booking} is for another model than this pod's"
        if beyond.why is BeyondReason.TOO_FEW:
            return f"{booking} is for fewer GPUs than this pod's"
        return f"{booking} does not cover this pod"

    def without_booking(self, *, waits: bool = False) -> str:
        return "no booking; waits for a free GPU" if waits else "no booking; may lose its GPU to a booked pod"

    def keeps_its_gpu(self, pod: PodCoverage) -> str:
        if pod.is_exempt:
            return "keeps its GPU: its namespace is exempt"
        if pod.is_nobodys:
            return "keeps its GPU: it has no owner"
        return "keeps its GPU: its tier is not known" if pod.is_decided else "keeps its GPU: it is older than Carrel"

    def held_for(self, entitlement: Entitlement) -> str:
        """Of a pod that was made for a booking that starts later."""
        return f"waits for {self.booking(entitlement)}, which starts {self.when(entitlement.start)}"

    # --- who holds what a pod waits for ------------------------------------------------------------------------------

    def holder(self, holder: GpuHolder) -> str:
        """`GPU 0 of dgx-1 (A100): lab/train-7 of ada@lab.org, booked until …, idle since …`."""
        whose = f" of {holder.user}" if holder.user else ""
        activity = holder.activity if not holder.unsure else None
        use = f", {state_words(activity, self.when)}" if activity is not None else ""
        return f"{holder.gpu} ({self._model(holder.model)}): {holder.pod}{whose}, {self.until(holder)}{use}"

    def held_by(self, holders: Sequence[GpuHolder]) -> str:
        """For an Event, about the first of them; empty if there is none."""
        some, more = [self.holder(each) for each in holders[:MOST_HELD]], len(holders) - MOST_HELD
        return f"{'; '.join(some)}{f'; and {more} more' if more > 0 else ''}"

    def until(self, holder: GpuHolder) -> str:
        if holder.unsure:
            return f"may still run: {holder.unsure}"
        if holder.until is not None:
            return f"booked until {self.when(holder.until)}"
        return "opportunistic: may be asked back" if holder.tier is Tier.OPPORTUNISTIC else "keeps its GPU"

    def free_again(self, free: NextFree, *, can_start_again: bool = False) -> str:
        """When a GPU will be free that would do. `can_start_again`: for a pod that runs without one."""
        if free.is_free:
            return "one is free now" + ("; stop this pod and start it again to get it" if can_start_again else "")
        if free.at is None:
            why = ": pods without a booking hold them" if free.without_end else ""
            return f"it is not known when one will be free{why}"
        earlier = "; pods without a booking may give one back earlier" if free.without_end else ""
        return f"the first booking of one ends {self.when(free.at)}{earlier}"


def in_use(used: int, gpus: int, pods: Sequence[str]) -> str:
    """Say how many GPUs of a booking are held: `1 of 2 held: lab/train-7`; `0 of 2 held`."""
    return f"{used} of {gpus} held{f': {named(pods)}' if pods else ''}"


def named(pods: Sequence[str]) -> str:
    more = f" and {len(pods) - MOST_NAMES} more" if len(pods) > MOST_NAMES else ""
    return f"{', '.join(pods[:MOST_NAMES])}{more}"
