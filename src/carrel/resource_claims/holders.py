"""Which pods use which ResourceClaims, whose the GPUs of a claim are, and what pods ask for by claims: takes the place
of `cluster.holders` where claims are counted.

A claim holds its GPUs, and its pods use them. Bookings and tiers are about pods, so the GPUs of a claim count as those
of one pod: of the pods for which it is reserved, the first that is not ending. That order is in the claim itself, so
every process finds the same pod. Until a scheduler has reserved the claim, it is the pod for which it was made, else
the oldest pod that names it. When that pod ends, the next one takes its place.

The others are guests: they hold nothing, and lose the GPUs with the claim. A claim that no pod uses is nobody's.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import ClassVar

from carrel.cluster.holders import HolderHandler, Holders
from carrel.cluster.pod_progress import created_at, is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects.interface import NOTHING_CLAIMED, ClaimedGpus, PodRequest
from carrel.dialects.options import DraDriver
from carrel.dialects.registry import dialects_of
from carrel.ids import HolderId, NodeName, ResourceClaimUid
from carrel.kubernetes.cluster import Cluster, ClusterError
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.reflector import Informers
from carrel.kubernetes.store import Store
from carrel.ledger.ledger import Ledger
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.shares import Holder
from carrel.parsing import Malformed
from carrel.resource_claims.device_claims import USED_BY, DeviceClaims
from carrel.resource_claims.dra import DIALECT, holder_of_claim, is_for_extended_resource
from carrel.resource_claims.objects import ResourceClaim

log = logging.getLogger(__name__)

NAMES_CLAIM = "names a ResourceClaim"
"""The index of pods by the claims that they name."""
ASSUMED = PodRequest(DIALECT, Request(1, WHOLE))
"""What a pod asks for by claims that do not exist yet."""


def claims_named_by(pod: Pod) -> Iterable[str]:
    """Return the claims that a pod names, and those that were made for it: for the index."""
    named = [each.resource_claim_name for each in pod.spec.resource_claims]
    made = [each.resource_claim_name for each in pod.status.resource_claim_statuses]
    return [f"{pod.metadata.namespace}/{name}" for name in (*named, *made) if name]


class ClaimHolders(Holders):
    driver: ClassVar[DraDriver] = DraDriver.CARREL
    pod_indexes = {NAMES_CLAIM: claims_named_by}  # noqa: RUF012

    def __init__(self, pods: Store[Pod], informers: Informers, ledger: Ledger, namespace: str) -> None:
        super().__init__(pods, informers, ledger, namespace)
        self._ledger = ledger
        self.device_claims = DeviceClaims(informers, (self.driver.value,), namespace)
        self._claims = self.device_claims.claims.store

    # --- who holds GPUs ----------------------------------------------------------------------------------------------

    def pod_of(self, uid: HolderId) -> Pod | None:
        pods = self.pods_of(uid)
        return next((pod for pod in pods if not is_ending(pod)), pods[0] if pods else None)

    def pods_of(self, uid: HolderId) -> Sequence[Pod]:
        """In the order in which the claim was reserved for them."""
        if pods := super().pods_of(uid):
            return pods
        claim = self._claims.by_uid(uid)
        return self.users_of(claim) if claim is not None else ()

    def others_of(self, pod: Pod) -> Sequence[ResourceClaimUid]:
        return [uid for uid in self.used_by(pod) if self.pod_of(uid) is pod]

    def used_by(self, pod: Pod) -> Sequence[ResourceClaimUid]:
        reserved = [claim.metadata.uid for claim in self._claims.find(USED_BY, pod.metadata.uid)]
        if not pod.spec.resource_claims and not pod.status.extended_resource_claim_status:
            return reserved
        names = (named.partition("/") for named in claims_named_by(pod))
        named = [claim for space, _, name in names if (claim := self._claims.get(name, space)) is not None]
        expected = [claim.metadata.uid for claim in named if pod in self.users_of(claim)]
        return tuple(dict.fromkeys((*reserved, *expected)))

    def described(self, holder: Holder) -> str:
        pods = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in self.pods_of(holder.uid)]
        return f"{holder} of {', '.join(pods)}" if holder.is_claim and pods else str(holder)

    def name_of(self, uid: HolderId) -> str:
        claim = self._claims.by_uid(uid)
        return str(holder_of_claim(claim)) if claim is not None else super().name_of(uid)

    def known_others(self) -> Collection[str]:
        return self._claims.uids.keys()

    def users_of(self, claim: ResourceClaim) -> Sequence[Pod]:
        """Return the pods that the claim itself names."""
        uids = [each.uid for each in claim.status.reserved_for if each.is_pod]
        if not uids:
            return self._expected(claim)
        return tuple(pod for pod in map(self._pods.by_uid, uids) if pod is not None)

    def _expected(self, claim: ResourceClaim) -> Sequence[Pod]:
        """Return the pods of a claim that no scheduler has reserved yet: its GPUs are taken before that is written."""
        naming = self._naming(claim)
        # Whoever makes a claim may write any owner; only Kubernetes writes into a pod which claim was made for it.
        owners = {each.uid for each in claim.metadata.owner_references}
        made_for = [pod for pod in naming if pod.metadata.uid in owners] or self._made_by_scheduler(claim)
        waiting = [pod for pod in naming if not is_ending(pod)]
        return made_for or sorted(waiting, key=lambda pod: (created_at(pod), pod.metadata.name))

    def _naming(self, claim: ResourceClaim) -> Sequence[Pod]:
        return self._pods.find(NAMES_CLAIM, f"{claim.metadata.namespace}/{claim.metadata.name}")

    def _made_by_scheduler(self, claim: ResourceClaim) -> Sequence[Pod]:
        """For an extended resource: the pod's status names the claim a moment later, and before the pod is bound."""
        if not is_for_extended_resource(claim):
            return ()
        owners = [self._pods.by_uid(each.uid) for each in claim.metadata.owner_references]
        return [pod for pod in owners if pod is not None and not pod.spec.node_name]

    def on_change(self, handler: HolderHandler) -> None:
        def on_claim(old: ResourceClaim | None, new: ResourceClaim | None) -> None:
            found = [claim for claim in (old, new) if claim is not None]
            users = {pod.metadata.uid: pod for claim in found for pod in (*self.users_of(claim), *self._naming(claim))}
            handler(found[0].metadata.uid, users.values())

        self.device_claims.claims.on_change(on_claim)

    # --- what pods ask for by claims ---------------------------------------------------------------------------------

    def asked_by(self, pod: Pod) -> PodRequest | None:
        if not self.device_claims.may_be_asked_by(pod):
            return None
        waits = bool(pod.metadata.uid) and not pod.spec.node_name
        claims = self.device_claims
        request = claims.wanted_by(pod, self._holds_gpus) if waits else claims.request_of(pod)
        return PodRequest(DIALECT, request) if request is not None else None

    def _holds_gpus(self, uid: HolderId) -> bool:
        return bool(self._ledger.shares_of(uid))

    def asked_later(self, pod: Pod) -> tuple[PodRequest, str] | None:
        missing = self.device_claims.why_unknown(pod)
        return (ASSUMED, missing) if missing else None

    async def why_twice(self, pod: Pod, cluster: Cluster) -> Refusal | None:
        try:
            await self.device_claims.look_up(pod, cluster)
        except ClusterError as error:
            # What could not be read counts as not there yet.
            log.warning("claims_not_read pod=%s/%s why=%r", pod.metadata.namespace, pod.metadata.name, str(error))
        return self.device_claims.why_twice(pod)

    def is_understood(self, pod: Pod) -> bool:
        return self.device_claims.is_understood(pod)

    def nodes_for(self, pod: Pod, nodes: tuple[NodeName, ...]) -> tuple[NodeName, ...]:
        if not self.device_claims.may_be_asked_by(pod):
            return nodes
        if not dialects_of(pod) and self._waits_for_claims(pod):
            nodes = self.device_claims.with_slices(nodes)
        return self.device_claims.within_reach(pod, nodes, self._ledger.nodes_held_by)

    def _waits_for_claims(self, pod: Pod) -> bool:
        try:
            return self.asked_by(pod) is not None
        except Malformed:
            return True

    def claimed_by(self, pod: Pod) -> ClaimedGpus:
        """What cannot be read is not claimed."""
        try:
            return self.device_claims.claimed_by(pod)
        except Malformed:
            return NOTHING_CLAIMED

    def on_requests(self, handler: Callable[[], None]) -> None:
        self.device_claims.templates.on_change(lambda old, new: handler())
        self.device_claims.classes.on_change(lambda old, new: handler())


class ClaimsOfNvidia(ClaimHolders):
    driver = DraDriver.NVIDIA


def holders_with_claims(driver: DraDriver) -> type[ClaimHolders]:
    return ClaimHolders if driver is DraDriver.CARREL else ClaimsOfNvidia


def claims_in(state: ClusterState) -> DeviceClaims:
    """Return what a process that counts claims knows of them."""
    assert isinstance(state.holders, ClaimHolders), "claims are counted here"
    return state.holders.device_claims
