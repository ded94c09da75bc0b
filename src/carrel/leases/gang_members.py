"""Finds the members of a gang among the pods of its namespace."""

from collections.abc import Callable, Iterable

from carrel.dialects.interface import PodRequest
from carrel.kubernetes.objects.pods import gates_of
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.pods import holder_of, is_going
from carrel.ledger.gangs import GangMembers
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request
from carrel.ledger.shares import Holder
from carrel.parsing import Malformed


class GangMemberLookup:
    """Calls the roll of a gang from the pods that there are."""

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
            if is_going(pod):
                continue
            try:
                ask = self._read_request(pod)
            except Malformed:
                continue  # it is told so when it is its turn
            if not isinstance(ask, PodRequest) or ask.request.gang is None or ask.request.gang.name != gang.name:
                continue
            if pod.spec.node_name:
                bound += 1
            elif gates_of(pod):
                gated += 1
            else:
                waiting.append((holder_of(pod), ask.request))
        return GangMembers(waiting, bound, gated)
