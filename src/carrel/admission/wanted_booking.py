"""A pod that is made for one booking: `carrel.dev/booking: <id>`, or `next` for the person's booking that starts next.

If that booking starts later, the webhook gives the pod the scheduling gate `carrel.dev/booking`, and the controller
takes it off when the booking starts. Nobody learns here whether a booking of somebody else exists.
"""

from carrel.admission.asked_gpus import AskedGpus, why_never_covered
from carrel.cluster.coverage.coverage_words import WORDS
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import namespace_named, person_named
from carrel.dialects.carrel import BOOKING, NEXT
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import subject
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.parsing.time import seconds

HINT = f"`carrel list` shows yours; without {BOOKING} the pod runs on what is free"


class WantedBookingLookup:
    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def find(self, pod: Pod, user: str, asked: AskedGpus) -> Entitlement | Refusal | None:
        """None if the pod names no booking; else the booking, which runs or starts later."""
        wanted = pod.metadata.annotations.get(BOOKING)
        if wanted is None:
            return None
        who = f"{subject(pod.metadata)} has {BOOKING}: {wanted!r}"
        if not user:
            return Refusal(f"{who}, and Carrel cannot tell whose pod it is; leave it out")
        person, namespace = person_named(user), namespace_named(pod.metadata.namespace)
        if wanted == NEXT:
            planned = self._state.covered_pods.planned_for(person, namespace)
            if not planned:
                return Refusal(f"{who}, and {user} has no booking that starts later; {HINT}")
            found = planned[0]
        else:
            known = self._state.covered_pods.booking(wanted)
            if known is None or person not in known.people:
                return Refusal(f"{who}, and {user} has no such booking; {HINT}")
            found = known
        why_not = self._why_not(found, person, namespace, asked)
        return Refusal(f"{who}; {WORDS.booking(found)} {why_not}; {HINT}") if why_not else found

    def _why_not(self, booking: Entitlement, person: str, namespace: str, asked: AskedGpus) -> str:
        if not booking.is_for(person, namespace):
            return f"is for namespace {booking.namespace}"
        if booking.ends <= self._state.options.now():
            return f"ended at {seconds(booking.ends)}"
        return why_never_covered(asked, booking, self._sizes_of(booking.model))

    def _sizes_of(self, model: str) -> set[MiB]:
        """The memory of the GPUs of a model, as far as they are known; of all GPUs, if it is empty."""
        ledger = self._state.ledger
        gpus = (entry.gpu for node in ledger.nodes for entry in ledger.entries(node))
        return {gpu.memory for gpu in gpus if model in ("", gpu.model)}
