"""Which pods use which ResourceClaims, and whose the GPUs of a claim are.

A claim holds its GPUs, and its pods use them. Bookings and tiers are about pods, so the GPUs of a claim count as those
of one pod: of the pods for which it is reserved, the first that is not ending. That order is in the claim itself, so
every process finds the same pod. Until a scheduler has reserved the claim, it is the pod for which it was made, else
the oldest pod that names it. When that pod ends, the next one takes its place.

The others are guests: they hold nothing, and lose the GPUs with the claim. A claim that no pod uses is nobody's.
"""

from collections.abc import Iterable, Sequence

from carrel.cluster.device_claims import USED_BY, DeviceClaims
from carrel.cluster.pod_progress import created_at, is_ending
from carrel.dialects.dra import is_for_extended_resource
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resource_claims import ResourceClaim
from carrel.kubernetes.store import Store
from carrel.ledger.shares import Holder

NAMES_CLAIM = "names a ResourceClaim"
"""The index of pods by the claims that they name."""


def claims_named_by(pod: Pod) -> Iterable[str]:
    """For the index: the claims that a pod names, and those that were made for it."""
    named = [each.resource_claim_name for each in pod.spec.resource_claims]
    made = [each.resource_claim_name for each in pod.status.resource_claim_statuses]
    return [f"{pod.metadata.namespace}/{name}" for name in (*named, *made) if name]


class ClaimUsers:
    def __init__(self, pods: Store[Pod], device_claims: DeviceClaims | None) -> None:
        """`device_claims`: None where claims are not read; then there are only pods."""
        self._pods = pods
        self._device_claims = device_claims
        self._claims = device_claims.claims.store if device_claims is not None else None

    def pod_of(self, uid: str) -> Pod | None:
        """The pod of that uid; of a claim, the pod whose GPUs its GPUs are."""
        pod = self._pods.by_uid(uid)
        if pod is not None or self._claims is None:
            return pod
        return _first(self.pods_of(uid))

    def pods_of(self, uid: str) -> Sequence[Pod]:
        """The pod of that uid; of a claim, all pods that use it, in the order in which it was reserved for them."""
        pod = self._pods.by_uid(uid)
        if pod is not None:
            return (pod,)
        claim = self._claims.by_uid(uid) if self._claims is not None else None
        return self.users_of(claim) if claim is not None else ()

    def described(self, holder: Holder) -> str:
        """How messages name who holds a GPU: of a claim, also its pods."""
        pods = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in self.pods_of(holder.uid)]
        return f"{holder} of {', '.join(pods)}" if holder.is_claim and pods else str(holder)

    def name_of(self, uid: str) -> str:
        """How people are told of a claim, which may be gone."""
        return self._device_claims.name_of(uid) if self._device_claims is not None else f"ResourceClaim {uid}"

    def users_of(self, claim: ResourceClaim) -> Sequence[Pod]:
        """As the claim says."""
        uids = [each.uid for each in claim.status.reserved_for if each.is_pod]
        if not uids:
            return self._expected(claim)
        return tuple(pod for pod in map(self._pods.by_uid, uids) if pod is not None)

    def _expected(self, claim: ResourceClaim) -> Sequence[Pod]:
        """Of a claim that no scheduler has reserved yet: its GPUs are taken before that is written."""
        naming = self._pods.find(NAMES_CLAIM, f"{claim.metadata.namespace}/{claim.metadata.name}")
        # Whoever makes a claim may write any owner; only Kubernetes writes into a pod which claim was made for it.
        owners = {each.uid for each in claim.metadata.owner_references}
        made_for = [pod for pod in naming if pod.metadata.uid in owners] or self._made_by_scheduler(claim)
        waiting = [pod for pod in naming if not is_ending(pod)]
        return made_for or sorted(waiting, key=lambda pod: (created_at(pod), pod.metadata.name))

    def _made_by_scheduler(self, claim: ResourceClaim) -> Sequence[Pod]:
        """For an extended resource: the pod's status names the claim a moment later, and before the pod is bound."""
        if not is_for_extended_resource(claim):
            return ()
        owners = [self._pods.by_uid(each.uid) for each in claim.metadata.owner_references]
        return [pod for pod in owners if pod is not None and not pod.spec.node_name]

    def used_by(self, pod: Pod) -> Sequence[str]:
        """The uids of the claims that the pod uses."""
        if self._claims is None:
            return ()
        reserved = [claim.metadata.uid for claim in self._claims.find(USED_BY, pod.metadata.uid)]
        if not pod.spec.resource_claims and not pod.status.extended_resource_claim_status:
            return reserved
        names = (named.partition("/") for named in claims_named_by(pod))
        named = [claim for space, _, name in names if (claim := self._claims.get(name, space)) is not None]
        expected = [claim.metadata.uid for claim in named if pod in self.users_of(claim)]
        return tuple(dict.fromkeys((*reserved, *expected)))

    def holder_uids(self, pod: Pod) -> tuple[str, ...]:
        """By what the pod holds GPUs: by itself, and by its claims."""
        return (pod.metadata.uid, *self.claims_of(pod))

    def claims_of(self, pod: Pod) -> Sequence[str]:
        """The uids of the claims whose GPUs are the pod's."""
        return [uid for uid in self.used_by(pod) if self.pod_of(uid) is pod]


def _first(pods: Sequence[Pod]) -> Pod | None:
    return next((pod for pod in pods if not is_ending(pod)), pods[0] if pods else None)
