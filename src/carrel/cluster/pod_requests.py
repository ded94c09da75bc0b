"""What pods ask for, in two senses:

as_written     by the words on the pod and in the objects that it names: for a pod that is about to be created
as_admitted    the same, if the pod may have it by its seal and by what was recorded when it was created: for all
               others. Of a pod that waits, narrowed to what its booking covers
"""

from dataclasses import replace

from carrel.cluster.gangs.gang_sizes import GangSizes
from carrel.cluster.options import ClusterOptions
from carrel.cluster.watches import Watches
from carrel.dialects.interface import Dialect, PodRequest
from carrel.dialects.kai_reservation import is_reservation
from carrel.dialects.registry import request_of
from carrel.dialects.seal import ADMITTED
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import subject
from carrel.ledger.coverage import Covered
from carrel.ledger.ledger import Ledger
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.parsing import Malformed

Asked = PodRequest | Refusal | None
"""What a pod asks for, or why it cannot have that; None: it asks for no GPU."""


class PodRequests:
    def __init__(
        self, watches: Watches, ledger: Ledger, gang_sizes: GangSizes, options: ClusterOptions, isolation: Isolation
    ) -> None:
        self._watches = watches
        self._ledger = ledger
        self._gang_sizes = gang_sizes
        self._options = options
        self._isolation = isolation

    def as_written(self, pod: Pod, spoken: tuple[Dialect, ...] | None = None) -> Asked:
        """`spoken`: the dialects of the pod, if known. Raises only `Malformed`: one pod must not stop a question about
        others."""
        watches, options = self._watches, self._options.dialect_options
        try:
            in_pod = request_of(pod, watches.claim_named, self._gang_sizes.gang_of, options, spoken)
            return in_pod or watches.holders.asked_by(pod)
        except Malformed:
            raise
        except Exception as error:
            self._isolation.failed("request", subject(pod.metadata), error)
            return Refusal(f"what {subject(pod.metadata)} asks for cannot be understood; Carrel's log says why")

    def as_admitted(self, pod: Pod, covered: Covered | None = None) -> Asked:
        """`covered`: by which booking, for who wants the request narrowed to it.

        A request that cannot be read is refused. So is one that the webhook should have recorded and did not: the
        pod bypassed the webhook, or its words were changed later, and its resources would be counted a second time."""
        if is_reservation(pod):
            return None  # its GPU is for other pods, which are on the slot's Lease
        try:
            asked = self.as_written(pod)
        except Malformed as malformed:
            return Refusal(str(malformed))
        if not isinstance(asked, PodRequest) or pod.spec.node_name:
            return asked  # a pod that has its GPU keeps it
        if (unsealed := self.why_not_sealed(pod)) is not None:
            return unsealed
        if not asked.dialect.recorded or asked.dialect.recorded in pod.metadata.annotations:
            return asked if covered is None else replace(asked, request=covered.narrowed(asked.request))
        why = f"asks for GPUs by {asked.dialect.words}, and Carrel's webhook has not recorded that"
        return Refusal(f"{subject(pod.metadata)} {why}; delete the pod and create it again")

    def why_not_sealed(self, pod: Pod) -> Refusal | None:
        """Why a pod that was not admitted by Carrel's webhook gets no GPU; None if it was."""
        seal = self._options.seal
        if seal is None:
            return None
        return seal.missing_on(pod, self._watches.sealed_with(pod.metadata.annotations.get(ADMITTED, "")))

    # --- by other objects --------------------------------------------------------------------------------------------

    def asks_any_scheduler(self, pod: Pod) -> bool:
        """Whether it asks for GPUs by ResourceClaims, which any scheduler allocates, readably or not; a pod that waits:
        by those without GPUs yet."""

        def asks(pod: Pod) -> bool:
            try:
                return self._watches.holders.asked_by(pod) is not None
            except Malformed:
                return True  # it waits, and is told why

        return self._isolation.ask("request", pod, asks, False)

    def is_understood(self, pod: Pod) -> bool:
        """Whether Carrel knows which GPUs would do for a pod: the selectors of ResourceClaims may say more."""
        return self._isolation.ask("request", pod, self._watches.holders.is_understood, False)


def request_in(asked: Asked) -> Request | None:
    """None: it asks for no GPU, or may have none."""
    return asked.request if isinstance(asked, PodRequest) else None
