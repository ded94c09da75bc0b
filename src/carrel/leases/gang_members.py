"""Finds the members of a gang among the pods that name it."""

from collections.abc import Callable, Iterable

from carrel.dialects.interface import PodRequest
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.leases.pod_progress import holder_of, is_ending
from carrel.ledger.gangs import GangMembers
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request
from carrel.ledger.shares import Holder
from carrel.parsing import Malformed


class GangMemberLookup:
    def __init__(
        self,
        pods_naming: Callable[[str, str], Iterable[Pod]],
        read_request: Callable[[Pod], PodRequest | Refusal | None],
    ) -> None:
        """`pods_naming` gives, among others, all pods of a namespace that name a gang, by themselves or by their claim.
        A namespace may have thousands of pods besides."""
        self._pods_naming = pods_naming
        self._read_request = read_request

    def __call__(self, gang: Gang) -> GangMembers:
        waiting: list[tuple[Holder, Request]] = []
        bound = gated = 0
        for pod in sorted(
            self._pods_that_may_be_in(gang), key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name)
        ):
            if is_ending(pod):
                continue
            try:
                asked = self._read_request(pod)
            except Malformed:
                continue  # its own filter call returns the error
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
        return {pod.metadata.uid: pod for each in names for pod in self._pods_naming(namespace, each)}.values()
