"""How many GPUs one person may hold without a booking.

A part of a GPU counts as that part. Pods without a person are, together, those of their namespace
(`dialects.tier.counts_as`).

A pod that was deleted by force holds its GPUs until its node confirms that it has ended
(`lifecycle.freeing.collection`). Until then they count as its person's: otherwise who deletes by force could hold any
number of GPUs. A pod that had finished does not count: its GPUs are free within seconds. What was deleted while this
process did not run is not known to it, and counts for nobody.
"""

from collections.abc import Iterable
from fractions import Fraction

from carrel.cluster.coverage.covered_pods import CoveredPods
from carrel.cluster.gangs.gang_members import GangMemberLookup
from carrel.cluster.pod_facts import PodFacts
from carrel.cluster.pod_progress import FINISHED
from carrel.cluster.watches import COUNTS_AS, Watches
from carrel.dialects.tier import counts_as
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.ledger import Ledger
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Request


class GoneHolders:
    """Whose the GPUs are that pods still hold which are gone from the API server."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pods: dict[str, Pod] = {}  # by uid, as they were last seen

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self._pods.pop(new.metadata.uid, None)  # a watch that began again had missed it
        elif old is not None and self._ledger.shares_of(old.metadata.uid):
            self._pods = {uid: pod for uid, pod in self._pods.items() if self._ledger.shares_of(uid)}
            self._pods[old.metadata.uid] = old

    def counted_as(self, person: str) -> Iterable[Pod]:
        """The pods of a person, or of a namespace that counts as one. Some may hold nothing any more."""
        living = [pod for pod in self._pods.values() if pod.status.phase not in FINISHED]
        return [pod for pod in living if counts_as(pod) == person]

    def get(self, uid: str) -> Pod | None:
        return self._pods.get(uid)


class PersonLimit:
    def __init__(
        self,
        ledger: Ledger,
        watches: Watches,
        covered_pods: CoveredPods,
        gone_holders: GoneHolders,
        members_of: GangMemberLookup,
        gpus: int,
    ) -> None:
        """`gpus`: of one person; 0: any number."""
        self._ledger = ledger
        self._watches = watches
        self._covered_pods = covered_pods
        self._gone_holders = gone_holders
        self._members_of = members_of
        self._gpus = gpus

    def why_over(self, pod: PodFacts, request: Request) -> Refusal | None:
        """Why the pod's person may not have this besides; None if they may."""
        if not pod.leaves_room or self._ledger.shares_of(pod.holder.uid):
            return None  # what was promised to it, with its gang for example, counts as held already
        return self.why_person_over(counts_as(pod.pod), request)

    def why_person_over(self, person: str, request: Request) -> Refusal | None:
        """The same of the person as whom a pod counts. A gang counts as a whole."""
        if not self._gpus:
            return None
        held = self.held_by(person)
        is_first = request.gang is not None and not self._members_of(request.gang).bound
        pods = request.gang.size if request.gang is not None and is_first else 1
        asked = request.gpus * pods if request.amount == WHOLE else 0
        if held + asked <= self._gpus and held < self._gpus:
            return None
        return Refusal(
            f"{person} holds {float(held):.4g} GPU{'s' * (held != 1)} without a booking;"
            f" more than {self._gpus} are not given to one person"
        )

    def held_by(self, person: str) -> Fraction:
        """How many GPUs the person holds without a booking."""
        pods = (*self._watches.pods.store.find(COUNTS_AS, person), *self._gone_holders.counted_as(person))
        covered, held = self._covered_pods.holders(), Fraction(0)
        for pod in pods:
            uid = pod.metadata.uid
            is_counted = uid not in covered and not self._covered_pods.is_exempt(pod)
            for holder in self._watches.holders.held_by(pod) if is_counted else ():
                for gpu, share in self._ledger.shares_of(holder).items():
                    memory = entry.gpu.memory if (entry := self._ledger.entry(gpu)) is not None else 0
                    held += Fraction(share.memory, memory) if share.memory is not None and memory else 1
        return held
