"""Which tier a pod was told, by what Carrel or MAIA's admission controller wrote on it, and whose pod it is.

Whether a booking covers the pod now, `cluster.coverage.covered_pods` knows; what is written on the pod follows within
seconds.

MAIA's word is `terminate-at: 2025-06-15T00:00:00Z`, when a pod must give its GPU back, or its mark in the year 1900.
The mark is not an instant: it means that the pod has no booking and may lose its GPU at any time. Whoever reads it as
one would end every such pod at once.

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

from carrel.dialects.booking_objects import person_named
from carrel.dialects.carrel import BOOKED, OPPORTUNISTIC, TIER, UNLISTED_SPAWNER, USER, WHEN_FULL
from carrel.dialects.jupyter import is_of_a_hub
from carrel.dialects.options import WhenFull
from carrel.ids import PersonId
from carrel.kubernetes.objects.kinds import Namespace, Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.ledger.tiers import Tier, TierPolicy
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant, seconds

TERMINATE_AT = "terminate-at"
_MARK = "1900-01-01T08:00:00Z"
_MARK_YEAR = 1900
_TIERS = {BOOKED: Tier.BOOKED, OPPORTUNISTIC: Tier.OPPORTUNISTIC}


class Revocable(Enum):
    """The pod is opportunistic: its GPU may be taken for a booked pod at any time, and at no particular one."""

    ANY_TIME = _MARK


TerminateAt = datetime | Revocable


def read_terminate_at(pod: Pod) -> TerminateAt | None:
    text = pod.metadata.annotations.get(TERMINATE_AT)
    if text is None:
        return None
    moment = instant(text, subject(pod.metadata), annotation_field(TERMINATE_AT))
    return Revocable.ANY_TIME if moment.year <= _MARK_YEAR else moment


def write_terminate_at(when: TerminateAt) -> dict[str, str]:
    if isinstance(when, Revocable):
        return {TERMINATE_AT: _MARK}
    if when.year <= _MARK_YEAR:
        raise ValueError(f"{when} would be read as the mark of a revocable pod")
    return {TERMINATE_AT: seconds(when)}


def tier_of(pod: Pod) -> Tier | None:
    """None: nobody has decided. Then no pod loses a GPU for it, and it loses its own for no other."""
    said = pod.metadata.annotations.get(TIER)
    if said is not None:
        return _TIERS.get(said)
    try:
        is_marked = read_terminate_at(pod) is Revocable.ANY_TIME
    except Malformed:
        return None
    return Tier.OPPORTUNISTIC if is_marked else None


def is_told_a_tier(pod: Pod, policy: TierPolicy) -> bool:
    """Whether the pod has a tier by what is written on it. A pod from before Carrel has one if the admin says so, and
    one without an owner unless the admin lets these keep their GPUs."""
    if policy.nobodys_pods_keep and is_nobodys(pod):
        return False
    return tier_of(pod) is not None or (policy.older_pods_are_revocable and TIER not in pod.metadata.annotations)


def is_nobodys(pod: Pod) -> bool:
    """Whether the pod has no owner. One of a spawner that is not believed has an owner whom nobody knows."""
    return not person_of(pod) and UNLISTED_SPAWNER not in pod.metadata.annotations


def write_tier(covered_until: datetime | None) -> dict[str, str]:
    """What a pod is told: until when a booking covers it; None: none does."""
    if covered_until is None:
        return {TIER: OPPORTUNISTIC, **write_terminate_at(Revocable.ANY_TIME)}
    return {TIER: BOOKED, **write_terminate_at(covered_until)}


def person_of(pod: Pod) -> PersonId:
    """Its person, as bookings name people; empty: nobody."""
    return person_named(pod.metadata.annotations.get(USER, ""))


def counts_as(pod: Pod) -> PersonId:
    """Who it is where people are compared: its person. All pods of a namespace that have no person are one."""
    return person_of(pod) or namespace_as_person(pod.metadata.namespace)


def namespace_as_person(namespace: str) -> PersonId:
    return PersonId(f"namespace {namespace}")


# --- no GPU is free --------------------------------------------------------------------------------------------------


_WHEN_FULL = {each.value: each for each in (WhenFull.CPU, WhenFull.WAIT)}


def when_full(pod: Pod, namespace: Namespace | None, setting: WhenFull) -> WhenFull:
    """CPU or WAIT. A word on the Namespace that cannot be read does not count."""
    says, notes = said_when_full(namespace, setting), pod.metadata.annotations
    if says is not WhenFull.DEFAULT:
        return says
    # Carrel writes `terminate-at` too, but never without the tier: in a second review, it is not MAIA's.
    has_mark_of_maia = TERMINATE_AT in notes and TIER not in notes
    return WhenFull.CPU if has_mark_of_maia or is_of_a_hub(pod) else WhenFull.WAIT


def said_when_full(namespace: Namespace | None, setting: WhenFull) -> WhenFull:
    """What the Namespace says, else the setting; by default it depends on the pod."""
    said = namespace.metadata.annotations.get(WHEN_FULL, "") if namespace else ""
    return _WHEN_FULL.get(said, setting)


def unreadable_when_full(namespace: Namespace | None) -> str:
    """What whoever creates a pod is told about a Namespace whose word cannot be read; empty if it can."""
    said = namespace.metadata.annotations.get(WHEN_FULL, "") if namespace else ""
    if namespace is None or not said or said in _WHEN_FULL:
        return ""
    says = f"namespace {namespace.metadata.name} says {WHEN_FULL}: {said!r}"
    return f"{says}, which is neither cpu nor wait; it does not count"
