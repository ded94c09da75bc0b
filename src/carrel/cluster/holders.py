"""Who holds GPUs, and what is known of them: pods, each by itself.

Where ResourceClaims are counted, `resource_claims.holders` takes the place of this class and adds them: a claim holds
GPUs that pods use. Everything else asks here, and never whether there are claims.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from carrel.cluster.pod_progress import FINISHED
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.interface import NOTHING_CLAIMED, ClaimedGpus, PodRequest
from carrel.dialects.options import DraDriver
from carrel.dialects.tier import counts_as
from carrel.ids import HolderId, NodeName, PersonId
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.reflector import Informers
from carrel.kubernetes.store import IndexFunction, Store
from carrel.ledger.ledger import Ledger
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder

HolderHandler = Callable[[HolderId, Collection[Pod]], None]
"""Called with the uid of a holder that is no pod and has changed, and with the pods that this may concern."""


@dataclass(frozen=True, slots=True)
class HolderEnd:
    why: str
    """Why the holder does not have the GPU; empty if it has."""
    final_after_s: float = 0.0
    """It may have the GPU in a moment: if that is so for so long, it is over."""


class HolderEnds(Protocol):
    """Whether holders that are no pods have given GPUs back."""

    def seems_over(self, holder: Holder, record: LeaseRecord) -> bool:
        """Whether the caches give a reason to ask."""
        ...

    async def end_of(self, holder: Holder, record: LeaseRecord) -> HolderEnd:
        """Ask the API server."""
        ...


class Holders:
    driver: ClassVar[DraDriver | None] = None
    """Whose ResourceClaims are counted; None: nobody's. Only what puts components together looks at it."""
    pod_indexes: ClassVar[Mapping[str, IndexFunction[Pod]]] = {}
    """Indexes of pods that are needed besides."""

    def __init__(self, pods: Store[Pod], informers: Informers, ledger: Ledger, namespace: str) -> None:
        """`namespace`: Carrel's own."""
        self._pods = pods

    # --- who holds GPUs ----------------------------------------------------------------------------------------------

    def pod_of(self, uid: HolderId) -> Pod | None:
        """Return the pod whose GPUs are those that this uid holds."""
        return self._pods.by_uid(uid)

    def pods_of(self, uid: HolderId) -> Sequence[Pod]:
        """Return all pods that use the GPUs that this uid holds."""
        pod = self._pods.by_uid(uid)
        return (pod,) if pod is not None else ()

    def held_by(self, pod: Pod) -> tuple[HolderId, ...]:
        """Return the uids that hold the GPUs of the pod: its own first."""
        return (pod.metadata.uid, *self.others_of(pod))

    def others_of(self, pod: Pod) -> Sequence[HolderId]:
        """Return the uids of the other holders whose GPUs are the pod's."""
        return ()

    def used_by(self, pod: Pod) -> Sequence[HolderId]:
        """Return the uids of the other holders that the pod uses, also those whose GPUs are another pod's."""
        return ()

    def described(self, holder: Holder) -> str:
        """Name for people who holds a GPU."""
        return str(holder)

    def name_of(self, uid: HolderId) -> str:
        """Name for people a holder that is no pod, and may be gone."""
        return f"ResourceClaim {uid}"

    def known_others(self) -> Collection[str] | None:
        """Return the uids of all that may hold GPUs and are no pods; None: they are not known."""
        return None

    def on_change(self, handler: HolderHandler) -> None:
        """Tell the handler of every holder that is no pod and has changed."""

    # --- what pods ask for by other objects --------------------------------------------------------------------------

    def asked_by(self, pod: Pod) -> PodRequest | None:
        """Return what the pod asks for by other objects, of any scheduler; if it waits: what it has not got yet.
        Raises `Malformed`."""
        return None

    def asked_later(self, pod: Pod) -> tuple[PodRequest, str] | None:
        """Return what a pod counts as asking for while objects that it names do not exist, and which these are."""
        return None

    async def why_twice(self, pod: Pod, cluster: Cluster) -> Refusal | None:
        """Say why a new pod may not ask by other objects and by its own words too: each would be promised its GPU."""
        return None

    def is_understood(self, pod: Pod) -> bool:
        """Whether it is known which GPUs would do for the pod."""
        return True

    def nodes_for(self, pod: Pod, nodes: tuple[NodeName, ...]) -> tuple[NodeName, ...]:
        """Return those of the nodes where the pod can get what it asks for by other objects, and use what it has."""
        return nodes

    def claimed_by(self, pod: Pod) -> ClaimedGpus:
        """Return what has to be taken off a pod that goes on without a GPU."""
        return NOTHING_CLAIMED

    def on_requests(self, handler: Callable[[], None]) -> None:
        """Tell the handler when pods may ask for something else than before."""


class GoneHolders:
    """Whose the GPUs are that pods still hold which are gone from the API server.

    A pod that was deleted by force holds its GPUs until its node confirms that it has ended
    (`lifecycle.freeing.collection`). Until then they count as its person's: otherwise who deletes by force could hold
    any number of GPUs. A pod that had finished does not count: its GPUs are free within seconds. What was deleted while
    this process did not run is not known to it, and counts for nobody.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pods: dict[HolderId, Pod] = {}  # by uid, as they were last seen

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self._pods.pop(new.metadata.uid, None)  # a watch that began again had missed it
        elif old is not None and self._ledger.shares_of(old.metadata.uid):
            self._pods = {uid: pod for uid, pod in self._pods.items() if self._ledger.shares_of(uid)}
            self._pods[old.metadata.uid] = old

    def counted_as(self, person: PersonId) -> Iterable[Pod]:
        """The pods of a person, or of a namespace that counts as one. Some may hold nothing any more."""
        living = [pod for pod in self._pods.values() if pod.status.phase not in FINISHED]
        return [pod for pod in living if counts_as(pod) == person]

    def get(self, uid: HolderId) -> Pod | None:
        return self._pods.get(uid)
