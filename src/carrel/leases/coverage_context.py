"""What coverage needs to know of pods, claims and namespaces."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.requests import Request


@dataclass(frozen=True, slots=True)
class CoverageContext:
    pods_of: Callable[[str], Iterable[Pod]]
    """All pods of a person."""
    pods_counted_as: Callable[[str], Iterable[Pod]]
    """The same; also of a namespace that counts as a person, and those that are gone and still hold GPUs."""
    pod_by_uid: Callable[[str], Pod | None]
    """Of the uid of a ResourceClaim, the pod whose GPUs its GPUs are."""
    request_of: Callable[[Pod], Request | None]
    """None: it asks for no GPU, or its request cannot be met."""
    nodes_for: Callable[[Pod], tuple[str, ...]]
    nodes_when_open: Callable[[Pod], tuple[str, ...]]
    """The same, as if no node were closed (`closed_nodes`)."""
    has_tier: Callable[[Pod], bool]
    """Whether a pod that no booking covers is opportunistic."""
    is_exempt: Callable[[str], bool]
    """Whether an admin has exempted the namespace."""
    now: Callable[[], datetime]
    claims_of: Callable[[Pod], Sequence[str]] = lambda pod: ()
    """The uids of the claims whose GPUs are the pod's."""
    claims_used_by: Callable[[Pod], Sequence[str]] = lambda pod: ()
    """Of all claims that it uses, also as a guest."""
