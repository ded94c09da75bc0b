"""Finds the members of a gang among the pods of its namespace."""

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
        self, pods_of: Callable[[str], Iterable[Pod]], read_request: Callable[[Pod], PodRequest | Refusal | None]
    ) -> None:
        """`pods_of` gives the pods of a namespace."""
        self._pods_of = pods_of
        self._read_request = read_request

    def __call__(self, gang: Gang) -> GangMembers:
        waiting: list[tuple[Holder, Request]] = []
        bound = gated = 0
        pods = self._pods_of(gang.name.partition("/")[0])
        for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name)):
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
