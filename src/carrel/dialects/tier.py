"""Which tier a pod was told, by what Carrel or MAIA's admission controller wrote on it, and whose pod it is.

Whether a booking covers the pod now, `cluster.coverage.covered_pods` knows; what is written on the pod follows within
seconds.

1. `carrel.dev/tier` says `booked` or `opportunistic`: that is the tier. Carrel's own webhook writes MAIA's mark too, so
   where both are there, Carrel's word counts.
2. `carrel.dev/tier` says anything else: nobody has decided. A newer version wrote it, or a user past the webhook. It
   entitles to nothing, and MAIA's mark beside it does not count: a pod that a newer version protects must not lose its
   GPU to an older controller.
3. `carrel.dev/tier` is missing, and MAIA's mark (`terminate-at` in 1900) is there: opportunistic.
4. Otherwise nobody has decided.

What an opportunistic pod does when no GPU is free for it, run on CPU or wait, the annotation `carrel.dev/when-full` of
its Namespace decides, else the setting. By default a notebook of a hub, or a pod that carries MAIA's mark, runs on CPU,
as with MAIA: a notebook without a GPU is better than none. All other pods wait. The webhook asks about pods that are
created, which carry MAIA's mark if they come with `terminate-at`, as MAIA's webhook writes it. The controller asks
about pods that wait: there the mark cannot be told from Carrel's own `terminate-at`, and does not count.
"""

from datetime import datetime
from enum import Enum

from carrel.dialects import maia
from carrel.dialects.booking_objects import person_named
from carrel.dialects.carrel import BOOKED, OPPORTUNISTIC, TIER, USER, WHEN_FULL
from carrel.dialects.jupyter import is_of_a_hub
from carrel.kubernetes.objects.kinds import Namespace, Pod
from carrel.ledger.tiers import Tier, TierPolicy
from carrel.parsing.malformed import Malformed

_TIERS = {BOOKED: Tier.BOOKED, OPPORTUNISTIC: Tier.OPPORTUNISTIC}


def tier_of(pod: Pod) -> Tier | None:
    """None: nobody has decided. Then no pod loses a GPU for it, and it loses its own for no other."""
    said = pod.metadata.annotations.get(TIER)
    if said is not None:
        return _TIERS.get(said)
    try:
        is_marked = maia.read_terminate_at(pod) is maia.Revocable.ANY_TIME
    except Malformed:
        return None
    return Tier.OPPORTUNISTIC if is_marked else None


def is_told_a_tier(pod: Pod, policy: TierPolicy) -> bool:
    """Whether the pod has a tier by what is written on it. A pod from before Carrel has one if the admin says so."""
    return tier_of(pod) is not None or (policy.older_pods_are_revocable and TIER not in pod.metadata.annotations)


def write_tier(covered_until: datetime | None) -> dict[str, str]:
    """What a pod is told: until when a booking covers it; None: none does."""
    if covered_until is None:
        return {TIER: OPPORTUNISTIC, **maia.write_terminate_at(maia.Revocable.ANY_TIME)}
    return {TIER: BOOKED, **maia.write_terminate_at(covered_until)}


def person_of(pod: Pod) -> str:
    """Whose pod it is, as bookings name people; empty: nobody's."""
    return person_named(pod.metadata.annotations.get(USER, ""))


def counts_as(pod: Pod) -> str:
    """Who it is where people are compared: its person. All pods of a namespace that have no person are one."""
    return person_of(pod) or namespace_as_person(pod.metadata.namespace)


def namespace_as_person(namespace: str) -> str:
    return f"namespace {namespace}"


# --- no GPU is free --------------------------------------------------------------------------------------------------


class WhenFull(Enum):
    CPU = "cpu"
    WAIT = "wait"
    DEFAULT = "default"
    """On CPU if a hub made it or it carries MAIA's mark; else it waits."""


_WHEN_FULL = {each.value: each for each in (WhenFull.CPU, WhenFull.WAIT)}


def when_full(pod: Pod, namespace: Namespace | None, setting: WhenFull) -> WhenFull:
    """CPU or WAIT. A word on the Namespace that cannot be read does not count."""
    said, notes = namespace.metadata.annotations.get(WHEN_FULL, "") if namespace else "", pod.metadata.annotations
    says = _WHEN_FULL.get(said, setting)
    if says is not WhenFull.DEFAULT:
        return says
    # Carrel writes `terminate-at` too, but never without the tier: in a second review, it is not MAIA's.
    has_mark_of_maia = maia.TERMINATE_AT in notes and TIER not in notes
    return WhenFull.CPU if has_mark_of_maia or is_of_a_hub(pod) else WhenFull.WAIT


def unreadable_when_full(namespace: Namespace | None) -> str:
    """What whoever creates a pod is told about a Namespace whose word cannot be read; empty if it can."""
    said = namespace.metadata.annotations.get(WHEN_FULL, "") if namespace else ""
    if namespace is None or not said or said in _WHEN_FULL:
        return ""
    says = f"namespace {namespace.metadata.name} says {WHEN_FULL}: {said!r}"
    return f"{says}, which is neither cpu nor wait; it does not count"
