"""What the webhook works out about a new pod: whose it is, whether it succeeds a pod that lost its GPU, what it asks
for, for which booking it is made, and which tier it gets.

- Whose pod it is: the user of the hub, if a configured spawner creates the pod and says for whom, or, where the admin
  has chosen that, whoever creates it; else the user who creates it, unless that is a machine (a controller, a
  ServiceAccount, a kubelet); else the owner of the namespace, if an admin wrote one on it. The empty name means that
  the pod has no owner.
  A user of the hub is the person under whose address they book (`dialects.jupyter`), or whom the spawner names by
  `carrel.dev/hub-address`. A ServiceAccount that is no configured spawner, but creates pods for users of a hub, is most
  likely a hub that an admin has forgotten. Its pods have no owner, whoever owns the namespace: they are somebody
  else's, or forged. An admin is told which option is missing.
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

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from carrel.admission.options import AdmissionOptions
from carrel.admission.review import AdmissionRequest
from carrel.bookings.client import BookingLookup
from carrel.cluster.coverage.coverage_words import named
from carrel.cluster.pod_progress import holder_of
from carrel.cluster.state import ClusterState
from carrel.cluster.waiting.starts_soon import why_never_covers
from carrel.dialects.booking_objects import namespace_named, person_named
from carrel.dialects.carrel import BOOKING, HUB_ADDRESS, NEXT, UNLISTED_SPAWNER, USER
from carrel.dialects.hand_over_record import LABEL, OWNED, HandOver, HandOverPhase, read_record
from carrel.dialects.interface import Dialect, PodRequest, Reading
from carrel.dialects.jupyter import is_of_a_hub, username_of
from carrel.dialects.kai import POD_GROUP
from carrel.dialects.registry import dialects_of, missing_claim, model_of
from carrel.ids import BookingId
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.kinds import Namespace, Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.kubernetes.reflector import Informers
from carrel.kubernetes.store import Store
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_address, is_user_name, normal

log = logging.getLogger(__name__)

# --- whose it is -----------------------------------------------------------------------------------------------------

MACHINES = "system:"
"""How Kubernetes' own user names begin, also those of ServiceAccounts. No person's name may begin so."""
ACCOUNTS = "system:serviceaccount:"
CONTROLLERS = f"{ACCOUNTS}kube-system:"
"""Kubernetes' own controllers, which create the pods of Jobs and ReplicaSets as their templates say."""


class PodOwner(NamedTuple):
    name: str
    """Empty: nobody's."""
    unlisted_spawner: str = ""
    """The account that created it for a user of a hub, and is no configured spawner."""
    unmatched_user: str = ""
    """The user of the hub, if no address is known under which they book."""
    hub_address: str = ""
    """What a configured spawner wrote in `carrel.dev/hub-address`."""

    def notes(self) -> dict[str, str]:
        """What is written about it on the pod."""
        notes = {USER: self.name, UNLISTED_SPAWNER: self.unlisted_spawner, HUB_ADDRESS: self.hub_address}
        return {key: value for key, value in notes.items() if value}

    @property
    def warning(self) -> str:
        """For whoever sees the answer; empty if there is none."""
        if self.unlisted_spawner:
            return (
                f"{self.unlisted_spawner} created this pod for a user of a hub, but is not in hubs.accounts of"
                " the configuration, so Carrel does not believe for whom, and no booking covers the pod"
            )
        if self.unmatched_user:
            return (
                f"no address is known of the hub's user {self.unmatched_user}, so no booking under an address covers"
                " this pod; an admin can set hubs.usernameDomain or hubs.users"
            )
        return "" if self.name else "Carrel cannot tell who owns this pod, so no booking covers it"


class PodOwnerLookup:
    def __init__(self, namespaces: Store[Namespace], options: AdmissionOptions) -> None:
        self._namespaces = namespaces
        self._options = options

    def owner_of(self, request: AdmissionRequest, pod: Pod) -> PodOwner:
        creator = request.user.name
        is_listed = creator in self._options.spawners
        owner = self._spawned_for(pod) if is_listed or (self._options.believes_all and is_of_a_hub(pod)) else None
        if is_listed or owner is not None:
            owner = owner or self._owner_of_namespace(request.namespace)
            return owner._replace(hub_address=pod.metadata.annotations.get(HUB_ADDRESS, ""))
        if creator and not creator.startswith(MACHINES):
            return PodOwner(creator.removeprefix(self._options.username_prefix))
        if is_of_a_hub(pod) and creator.startswith(ACCOUNTS) and not creator.startswith(CONTROLLERS):
            return PodOwner("", unlisted_spawner=creator)
        return self._owner_of_namespace(request.namespace)

    def _owner_of_namespace(self, namespace: str) -> PodOwner:
        found = self._namespaces.get(namespace)
        owner = found.metadata.annotations.get(self._options.owner_annotation, "").strip() if found else ""
        return PodOwner(owner if is_user_name(owner) else "")

    def _spawned_for(self, pod: Pod) -> PodOwner | None:
        """None: the spawner does not say for whom, or not in a way that can be read."""
        address = normal(pod.metadata.annotations.get(HUB_ADDRESS, ""))
        if is_address(address):
            return PodOwner(address)
        try:
            user = username_of(pod)
        except Malformed as malformed:
            log.warning("spawned_pod_without_user why=%r", str(malformed))
            return None
        if not user:
            return None
        people = self._options.hub_people
        return PodOwner(people.person_of(user), unmatched_user="" if people.matches(user) else user)


# --- whether its controller's last pod lost a GPU --------------------------------------------------------------------

CONTROLLER = "owner"
"""The index of the records, by the uid of the pod's controller."""


class HandOverRecords:
    """The records of pods that are losing their GPUs."""

    def __init__(self, informers: Informers, namespace: str) -> None:
        """To be made before the informers run. `namespace`: Carrel's own."""
        self._records = informers.watch(
            CONFIG_MAPS,
            Selection(namespace, labels=f"{LABEL}={OWNED}"),
            indexes={CONTROLLER: lambda record: [record.data.get("owner", "")]},
        )

    def succeeded_by(self, pod: Pod, owner: PodOwner) -> HandOver | None:
        """Return the record of a pod of the same controller, while Carrel ends that pod: before that, new pods of the
        controller do not succeed it. Only in its namespace and of the same person: anybody may name a controller, also
        somebody else's, whose next pod must not pay for it."""
        uids = [each.uid for each in pod.metadata.owner_references if each.controller]
        for found in (record for uid in uids for record in self._records.store.find(CONTROLLER, uid)):
            try:
                record = read_record(found)
            except Malformed as malformed:
                log.warning("record_unreadable name=%s why=%r", found.metadata.name, str(malformed))
                continue
            is_its = (record.place[0], record.user) == (pod.metadata.namespace, owner.name)
            if is_its and record.phase is HandOverPhase.ENDING:
                return record
        return None


# --- what it asks for ------------------------------------------------------------------------------------------------


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


HINT = f"`carrel list` shows yours; without {BOOKING} the pod runs on what is free"


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
        known = state.covered_pods.booking(BookingId(wanted))
        if known is None or person not in known.people:
            return Refusal(f"{who}, and {user} has no such booking; {HINT}")
        found = known
    if not found.is_for(person, namespace):
        why_not = f"is for namespace {found.namespace}"
    elif found.ends <= state.options.now():
        why_not = f"ended at {state.words.when(found.ends)}"
    else:
        ledger = state.ledger
        gpus = (entry.gpu for node in ledger.nodes for entry in ledger.entries(node))
        why_not = new.asked.why_never_covered(found, {gpu.memory for gpu in gpus if found.model in ("", gpu.model)})
    return Refusal(f"{who}; {state.words.booking(found)} {why_not}; {HINT}") if why_not else found


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
    if running := state.covered_pods.running_for(person, namespace):
        covered = state.covered_pods.of_newcomer(pod, person, asked.request)
        if covered is not None:
            return AssignedTier(covered.entitlement.ends)
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
    gpus, people = max(1, status.gpus), frozenset({person})
    booking = Entitlement(BookingId(status.id), people, status.model, gpus, now, status.ends)
    if why_not := asked.why_never_covered(booking):
        return AssignedTier(beyond=f"{state.words.booking(booking)} {why_not}", silence=silence)
    return AssignedTier(status.ends, silence=silence)


def _why_beyond(running: Sequence[Entitlement], asked: AskedGpus, state: ClusterState) -> str:
    """Say it of the booking that suits best."""
    refused = [(asked.why_never_covered(each), each) for each in running]
    why_not, booking = next((each for each in refused if not each[0]), refused[0])
    if not why_not:
        users = [holder_of(pod).full_name for pod in state.covered_pods.users_of(booking.booking)]
        why_not = f"is in use by {named(users)}" if users else "has no GPU now that this pod could have"
    return f"{state.words.booking(booking)} {why_not}"
