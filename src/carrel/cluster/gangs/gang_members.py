"""Finds the members of a gang among the pods that name it."""

from collections.abc import Iterable

from carrel.cluster.pod_facts import PodFactsLookup
from carrel.cluster.pod_progress import holder_of, is_ending
from carrel.cluster.watches import Watches
from carrel.dialects.interface import PodRequest
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.ledger.gangs import GangMembers
from carrel.ledger.requests import Gang, Request
from carrel.ledger.shares import Holder


class GangMemberLookup:
    def __init__(self, watches: Watches, pod_facts: PodFactsLookup) -> None:
        self._watches = watches
        self._pod_facts = pod_facts

    def __call__(self, gang: Gang) -> GangMembers:
        waiting: list[tuple[Holder, Request]] = []
        bound = gated = 0
        for pod in sorted(
            self._pods_that_may_be_in(gang), key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name)
        ):
            if is_ending(pod):
                continue
            asked = self._pod_facts.asked(pod)
            if not isinstance(asked, PodRequest) or asked.request.gang is None or asked.request.gang.name != gang.name:
                continue
            if pod.spec.node_name:
                bound += 1
            elif gates_of(pod):
                gated += 1
            else:
                waiting.append((holder_of(pod), asked.request))
        return GangMembers(waiting, bound, gated)

    def _pods_that_may_be_in(self, gang: Gang) -> Iterable[Pod]:
        """To the name of one of several gangs `@` and a word are added (`dialects.gang_makers.part_of`); but a name may
        also have an `@` of its own."""
        namespace, _, name = gang.name.partition("/")
        names = dict.fromkeys((name, name.rpartition("@")[0] or name))
        return {
            pod.metadata.uid: pod for each in names for pod in self._watches.pods_that_may_name(namespace, each)
        }.values()
