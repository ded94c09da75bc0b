"""What the webhook works out about a new pod: what it asks for, for which booking it is made, and which tier it gets.

- What it asks for may not be known yet: the GpuClaim, the ResourceClaim or the template that it names may be created
  after it. Then something is assumed.
- A pod may be made for one booking: `carrel.dev/booking: <id>`, or `next` for the person's booking that starts next. If
  that starts later, the webhook gives the pod the scheduling gate `carrel.dev/booking`, and the controller takes it off
  when the booking starts. Nobody learns here whether a booking of somebody else exists.
- A pod is booked if a booking of its person would cover it now; else it is opportunistic. The bookings are known from
  the cluster. Only if there is another booking service (`--api-url`), and the cluster knows no booking of the person
  that runs, that service is asked: its booking is mirrored into the cluster soon after. If it does not answer, the pod
  is opportunistic; that is never an error. What the pod is told is corrected when it is bound, and whenever its booking
  changes.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from carrel.admission.pod_owner import PodOwner
from carrel.bookings.client import BookingLookup
from carrel.cluster.coverage.coverage_words import WORDS, named
from carrel.cluster.pod_progress import holder_of
from carrel.cluster.state import ClusterState
from carrel.cluster.waiting.starts_soon import why_never_covers
from carrel.dialects.booking_objects import namespace_named, person_named
from carrel.dialects.carrel import BOOKING, NEXT
from carrel.dialects.interface import Dialect, PodRequest, Reading
from carrel.dialects.kai import POD_GROUP
from carrel.dialects.registry import dialects_of, missing_claim, model_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import subject
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.parsing import Malformed
from carrel.parsing.time import seconds

HINT = f"`carrel list` shows yours; without {BOOKING} the pod runs on what is free"


class AskedGpus(NamedTuple):
    dialect: Dialect
    request: Request
    why_unknown: str = ""
    """The pod's GpuClaim, ResourceClaim or template does not exist yet, or cannot be read. Then something is
    assumed."""
    is_in_gang: bool = False
    """Also if it is not known yet how large the gang is."""
    is_by_claims: bool = False
    """By ResourceClaims: a scheduler chooses the GPUs, and the container runtime shows them. If it is not known what
    they are for, they may turn out to be for other devices."""

    def why_never_covered(self, entitlement: Entitlement, sizes: Collection[MiB] = ()) -> str:
        """Why a booking can never cover a pod that asks for this; empty if it can."""
        return why_never_covers(entitlement, self.request, sizes, is_known=not self.why_unknown)


class NewPod(NamedTuple):
    pod: Pod
    owner: PodOwner
    asked: AskedGpus


def asked_gpus(pod: Pod, state: ClusterState) -> AskedGpus | Refusal | None:
    """None if the pod asks for no GPU. Raises `Malformed` if its request cannot be read."""
    spoken, why_unknown = dialects_of(pod), ""
    if len(spoken) == 1 and spoken[0].claim_name is not None:
        found = _asked_by_claim(pod, spoken[0], state)
        if isinstance(found, Refusal):
            return found
        dialect, (request, why_unknown) = spoken[0], found
    elif isinstance(asked := state.requests.as_written(pod, spoken), PodRequest):
        dialect, request = asked.dialect, asked.request
    elif asked is None and (later := state.holders.asked_later(pod)) is not None:
        assumed, why_unknown = later
        dialect, request = assumed.dialect, assumed.request
    else:
        return asked
    is_in_gang = request.gang is not None or bool(pod.metadata.annotations.get(POD_GROUP))
    return AskedGpus(dialect, request, why_unknown, is_in_gang, dialect.any_scheduler)


def _asked_by_claim(pod: Pod, dialect: Dialect, state: ClusterState) -> tuple[Request, str] | Refusal:
    """What a pod asks for by its GpuClaim; or what is assumed, and why that is not known."""
    assert dialect.claim_name is not None
    name = dialect.claim_name(pod)  # raises if it is no valid name
    model = model_of(pod)
    if isinstance(model, Refusal):
        return model
    try:
        found = state.requests.as_written(pod, (dialect,))
    except Malformed as malformed:
        found = Refusal(str(malformed))  # the claim is at fault, and may be corrected before the pod is placed
    else:
        if isinstance(found, Refusal) and found != missing_claim(pod, name):
            return found
    if isinstance(found, PodRequest):
        return found.request, ""
    assert found is not None, "a pod that names a claim asks for GPUs"
    return replace(dialect.assumed(pod, Reading()), model=model), found.reason


# --- a pod that is made for a booking --------------------------------------------------------------------------------


def wanted_booking(new: NewPod, state: ClusterState) -> Entitlement | Refusal:
    """The booking that the pod names, which runs or starts later."""
    pod, user = new.pod, new.owner.name
    wanted = pod.metadata.annotations[BOOKING]
    who = f"{subject(pod.metadata)} has {BOOKING}: {wanted!r}"
    if not user:
        return Refusal(f"{who}, and Carrel cannot tell whose pod it is; leave it out")
    person, namespace = person_named(user), namespace_named(pod.metadata.namespace)
    if wanted == NEXT:
        planned = state.covered_pods.planned_for(person, namespace)
        if not planned:
            return Refusal(f"{who}, and {user} has no booking that starts later; {HINT}")
        found = planned[0]
    else:
        known = state.covered_pods.booking(wanted)
        if known is None or person not in known.people:
            return Refusal(f"{who}, and {user} has no such booking; {HINT}")
        found = known
    if not found.is_for(person, namespace):
        why_not = f"is for namespace {found.namespace}"
    elif found.ends <= state.options.now():
        why_not = f"ended at {seconds(found.ends)}"
    else:
        ledger = state.ledger
        gpus = (entry.gpu for node in ledger.nodes for entry in ledger.entries(node))
        why_not = new.asked.why_never_covered(found, {gpu.memory for gpu in gpus if found.model in ("", gpu.model)})
    return Refusal(f"{who}; {WORDS.booking(found)} {why_not}; {HINT}") if why_not else found


# --- its tier --------------------------------------------------------------------------------------------------------


class AssignedTier(NamedTuple):
    covered_until: datetime | None = None
    """None: no booking covers the pod."""
    beyond: str = ""
    """Why the booking of the person does not cover it; empty if there is none."""
    silence: str = ""
    """What is to be said about a booking service that did not answer."""


OPPORTUNISTIC = AssignedTier()


async def tier_of(new: NewPod, state: ClusterState, booking_lookup: BookingLookup | None) -> AssignedTier:
    pod, user, asked = new
    if not user.name or pod.spec.scheduling_gates:
        return OPPORTUNISTIC  # a pod with gates does not run now: it is looked at when they are removed
    person, namespace = person_named(user.name), namespace_named(pod.metadata.namespace)
    covered = state.covered_pods.of_newcomer(pod, person, asked.request)
    if covered is not None:
        return AssignedTier(covered.entitlement.ends)
    if running := state.covered_pods.running_for(person, namespace):
        return AssignedTier(beyond=_why_beyond(running, asked, state))
    if booking_lookup is None:
        return OPPORTUNISTIC
    answer, silence = await booking_lookup.status(user.name, pod.metadata.namespace), ""
    if answer.failure:
        by = f"by its answer from {answer.age_s:.0f} s ago" if answer.value else "as if no booking were active"
        what = "answers in a form that Carrel cannot use" if answer.was_answered else "does not answer"
        silence = f"the booking service {what}; decided {by}"
    now, status = state.options.now(), answer.value
    if status is None or status.ends is None or status.ends <= now:
        return AssignedTier(silence=silence)
    booking = Entitlement("", frozenset({user.name}), status.model, max(1, status.gpus), now, status.ends)
    if why_not := asked.why_never_covered(booking):
        return AssignedTier(beyond=f"{WORDS.booking(booking)} {why_not}", silence=silence)
    return AssignedTier(status.ends, silence=silence)


def _why_beyond(running: Sequence[Entitlement], asked: AskedGpus, state: ClusterState) -> str:
    """Of several bookings, about the one that suits best."""
    refused = [(asked.why_never_covered(each), each) for each in running]
    why_not, booking = next((each for each in refused if not each[0]), refused[0])
    if not why_not:
        users = [holder_of(pod).full_name for pod in state.covered_pods.users_of(booking.booking)]
        why_not = f"is in use by {named(users)}" if users else "has no GPU now that this pod could have"
    return f"{WORDS.booking(booking)} {why_not}"
