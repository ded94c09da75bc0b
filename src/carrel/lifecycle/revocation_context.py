"""What revocation needs of its surroundings."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.cluster_ledger import PodByUid
from carrel.ledger.gangs import GangMembers
from carrel.ledger.placement import WaitingPod
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request
from carrel.lifecycle.end_limits import DEFAULT_END_LIMITS, EndLimits


@dataclass(frozen=True, slots=True)
class RevocationContext:
    """What revocation needs of its surroundings, and what the cluster's admin decides about it."""

    booked: Callable[[], Sequence[WaitingPod]]
    """The booked pods that wait, the oldest first."""
    pod_by_uid: PodByUid
    """Of the uid of a ResourceClaim, the pod whose GPUs its GPUs are."""
    pods: Mapping[str, Pod]
    """All pods by uid, as they are now."""
    pods_of: Callable[[str], Sequence[Pod]]
    """The pod of that uid; of a claim, all pods that use it."""
    holder_may_lose_gpus: Callable[[str], bool]
    """Whether the pod or the claim of that uid holds its GPUs without a booking."""
    may_lose_gpus: Callable[[Pod], bool]
    covered: Callable[[], AbstractSet[str]]
    """The uids of all pods and claims that hold GPUs, and that a booking covers."""
    is_exempt: Callable[[str], bool]
    """Whether an admin has exempted the namespace."""
    is_written_opportunistic: Callable[[Pod], bool]
    """Whether a pod that uses no claims may lose its GPUs by what is written on it, if no booking covers it and its
    namespace is not exempt."""
    gone_pod: PodByUid
    """A pod that is gone and still holds GPUs, as it was last seen; None: it was never seen."""
    reread: Callable[[], Awaitable[bool]]
    """Reads Leases and bookings again. False: what is known of the bookings is old."""
    now: Callable[[], datetime]
    schedulers: frozenset[str]
    """The schedulers that ask Carrel's extender, and so respect what is kept."""
    asks_by_claims: Callable[[Pod], bool] = lambda pod: False
    """Whether the pod waits for ResourceClaims: every scheduler has to respect what is kept, when it allocates them."""
    is_understood: Callable[[Pod], bool] = lambda pod: True
    """Whether it is known which GPUs would do for it. Otherwise nobody loses one for it."""
    why_never: Callable[[Pod, Request], Refusal | None] = lambda pod, request: None
    """Why no node could serve it, even if all GPUs were free; of a gang, all its members at once."""
    members_of: Callable[[Gang], GangMembers] = lambda gang: GangMembers((), 1)
    """By default gangs run already, and each of their pods is looked at by itself."""
    grace_of: Callable[[Pod], timedelta] = lambda _: timedelta()
    """How long a victim has to save its work after the announcement."""
    minimum_time: timedelta = timedelta()
    """A pod that has run for less is a victim only if nothing else will do."""
    limits: EndLimits = DEFAULT_END_LIMITS
    """How long a victim may take to end, before another one is chosen."""
    random_for: Callable[[str], Random] | None = None
    """Chooses victims at random instead of fairly, for the booked pod of that uid; always the same for one pod."""
    isolation: Isolation = field(default_factory=Isolation)
