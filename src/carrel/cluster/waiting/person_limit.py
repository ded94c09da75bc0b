"""How many GPUs one person may hold without a booking.

A part of a GPU counts as that part. Pods without a person are, together, those of their namespace
(`dialects.tier.counts_as`). Pods that are gone and still hold GPUs count too (`GoneHolders`).
"""

from fractions import Fraction

from carrel.cluster.coverage.covered_pods import CoveredPods
from carrel.cluster.gangs.gang_members import GangMemberLookup
from carrel.cluster.holders import GoneHolders
from carrel.cluster.pod_facts import PodFacts
from carrel.cluster.watches import COUNTS_AS, Watches
from carrel.dialects.tier import counts_as
from carrel.ids import PersonId
from carrel.ledger.ledger import Ledger
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.tiers import TierPolicy


class PersonLimit:
    def __init__(
        self,
        ledger: Ledger,
        watches: Watches,
        covered_pods: CoveredPods,
        gone_holders: GoneHolders,
        members_of: GangMemberLookup,
        policy: TierPolicy,
    ) -> None:
        self._ledger = ledger
        self._watches = watches
        self._covered_pods = covered_pods
        self._gone_holders = gone_holders
        self._members_of = members_of
        self._policy = policy

    def why_over(self, pod: PodFacts, request: Request) -> Refusal | None:
        """Why the pod's person may not have this besides; None if they may."""
        if not pod.leaves_room or self._ledger.shares_of(pod.holder.uid):
            return None  # what was promised to it, with its gang for example, counts as held already
        return self.why_person_over(counts_as(pod.pod), request)

    def why_person_over(self, person: PersonId, request: Request) -> Refusal | None:
        """Why the person as whom a pod counts may not have this besides; None if they may. A gang counts as a whole."""
        most = self._policy.opportunistic_gpus
        if not most:
            return None
        held = self.held_by(person)
        is_first = request.gang is not None and not self._members_of(request.gang).bound
        pods = request.gang.size if request.gang is not None and is_first else 1
        asked = request.gpus * pods if request.amount == WHOLE else 0
        if held + asked <= most and held < most:
            return None
        return Refusal(
            f"{person} holds {float(held):.4g} GPU{'s' * (held != 1)} without a booking;"
            f" more than {most} are not given to one person"
        )

    def held_by(self, person: PersonId) -> Fraction:
        """How many GPUs the person holds without a booking."""
        pods = (*self._watches.pods.store.find(COUNTS_AS, person), *self._gone_holders.counted_as(person))
        covered, held = self._covered_pods.holders(), Fraction(0)
        for pod in pods:
            uid = pod.metadata.uid
            is_counted = uid not in covered and not self._watches.is_exempt(pod.metadata.namespace)
            for holder in self._watches.holders.held_by(pod) if is_counted else ():
                for gpu, share in self._ledger.shares_of(holder).items():
                    memory = entry.gpu.memory if (entry := self._ledger.entry(gpu)) is not None else 0
                    held += Fraction(share.memory, memory) if share.memory is not None and memory else 1
        return held
