"""Decides what is changed on a pod that asks for a GPU, before it is created.

The API server asks only about pods that concern GPUs (`matchConditions` in `manifests/webhooks.yaml`), and refuses by
itself that others change later what Carrel wrote on a pod (`manifests/policies.yaml`). A rule that is added here must
be added there too: tests compare the words, and try generated pods on a real API server.

The decision depends only on the review and on what is watched, and changes nothing, so a dry run gets the same answer,
and so does a second review of the changed pod. In order:

1. Pods that Carrel's own accounts create are left alone. Keys that only they may write, and the scheduling gate that
   only they may give, are removed from other pods.
2. A pod that asks for no GPU is told to see none, if NVIDIA's runtime may show it one; else it is left alone. One whose
   request cannot be met, that names its node, or that wants a scheduler that does not know Carrel, is refused with the
   reason. So is one that asks for MIG slices, unless an admin has exempted its namespace; and one that is so large that
   what Carrel writes later would not fit.
3. If a controller's pod lost its GPU, the controller's next pod runs without a GPU.
4. Whose pod is it? Without a person it is opportunistic (or is refused, if the cluster is strict). In a namespace that
   an admin has exempted, pods have no tier and need no person.
5. A pod that is made for a booking that starts later is held back by a scheduling gate until then.
6. A pod that a booking would cover now is booked, all others are opportunistic.
7. If no GPU is free for an opportunistic pod, it runs without one, or waits, depending on a setting.
8. Tier, end, priority, scheduler, and the environment of every container are set. The containers of a hub's pod can
   read in a file what its person should know.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from carrel.admission.asked_gpus import AskedGpus, asked_gpus
from carrel.admission.hand_overs import HandOverRecords
from carrel.admission.options import AdmissionOptions
from carrel.admission.pod_changes import DEFAULT_SCHEDULER, AdmissionDecision, ChangedPod, Json, Sealing
from carrel.admission.pod_owner import PodOwner, PodOwnerLookup
from carrel.admission.pod_size import why_too_large
from carrel.admission.pod_tier import AssignedTier, TierLookup
from carrel.admission.review import AdmissionRequest
from carrel.admission.wanted_booking import WantedBookingLookup
from carrel.bookings.client import BookingLookup
from carrel.cluster.coverage.coverage_words import WORDS
from carrel.cluster.runtime_class import RuntimeClasses
from carrel.cluster.state import ClusterState
from carrel.cluster.waiting.free_again import FreeAgain
from carrel.cluster.waiting.starts_soon import starts_soon
from carrel.dialects import carrel, gpushare, hand_over_record, nvidia, registry, visible_devices
from carrel.dialects.booking_objects import namespace_named, person_named
from carrel.dialects.hand_over_record import HandedOver, HandOver
from carrel.dialects.jupyter import is_of_a_hub
from carrel.dialects.options import CudaDevices, DeviceList, HideFrom
from carrel.dialects.seal import ADMITTED
from carrel.dialects.tier import namespace_as_person, write_tier
from carrel.dialects.when_full import WhenFull, how_to_say_it, is_unreadable, said_by, when_full
from carrel.dialects.without_gpu import without_gpu, write_without_gpu, written_by_us
from carrel.kubernetes.cluster import ClusterError
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of, subject
from carrel.kubernetes.objects.resources import PRIORITY_CLASSES
from carrel.ledger.coverage import Entitlement
from carrel.ledger.never import Never
from carrel.ledger.refusals import Refusal
from carrel.ledger.tiers import Tier
from carrel.parsing.fields import Field
from carrel.parsing.time_words import in_utc

log = logging.getLogger(__name__)

DEFAULT_SCHEDULERS = frozenset({"", DEFAULT_SCHEDULER})
"""In a pod that did not choose a scheduler."""


UNTOUCHED = AdmissionDecision("untouched")
EXEMPT = "exempt"


class PodAdmission:
    def __init__(
        self, state: ClusterState, options: AdmissionOptions, booking_lookup: BookingLookup | None = None
    ) -> None:
        """To be made before the informers of the state run. `booking_lookup`: another booking service, asked about
        people of whom the cluster knows no booking; None: there is none."""
        self._state = state
        self._options = options
        self._now = state.options.now
        self._seal = state.options.seal
        self._schedulers = DEFAULT_SCHEDULERS | registry.ALL.scheduler_names | {options.scheduler}
        self._owners = PodOwnerLookup(state.options.namespace, state.namespaces.store, options)
        self._hand_overs = HandOverRecords(state.informers, state.options.namespace)
        self._priority_classes = state.informers.watch(PRIORITY_CLASSES).store
        self._runtime_classes = RuntimeClasses(state.informers, options.runtime_class)
        self._tiers = TierLookup(state, booking_lookup)
        self._free_again = FreeAgain(state)
        self._wanted = WantedBookingLookup(state)

    # --- new pods ----------------------------------------------------------------------------------------------------

    async def mutate(self, request: AdmissionRequest, pod: Pod) -> AdmissionDecision:
        """Raises `Malformed` if the pod's request for a GPU cannot be read."""
        if request.object is None or self._owners.is_carrel(request.user):
            return UNTOUCHED
        if request.operation == "CREATE" and not request.subresource:
            return await self._created(request, pod, self._changed(request))
        if request.operation == "UPDATE" and request.subresource == "ephemeralcontainers":
            return self._add_debug_containers(request, pod)
        return UNTOUCHED

    async def _created(self, request: AdmissionRequest, pod: Pod, changed: ChangedPod) -> AdmissionDecision:
        if (forged := self._unproven_request(pod, changed)) is not None:
            return _refused(forged)
        if (slices := nvidia.mig_refusal(pod)) is not None and not self._state.covered_pods.is_exempt(pod):
            return _refused(slices)
        if (twice := await self._why_twice(pod)) is not None:
            return _refused(twice)
        asked, owner = self._asked_gpus(pod), self._owners.owner_of(request, pod)
        if isinstance(asked, AskedGpus) and asked.may_be_none and self._was_moved_to_cpu(pod, changed):
            asked = None  # a second review: the claims that are left are not for GPUs
        record = self._record_for(changed, owner)
        changed.strip(keep=self._kept(request, pod, owner, record) if asked is None else _recorded(pod))
        changed.annotate(self._owners.said_by_spawner(request, pod))
        if changed.strip_gate():
            pod = _without_our_gate(pod)
            if carrel.BOOKING not in pod.metadata.annotations:
                changed.warn(f"the scheduling gate {carrel.BOOKING} was removed: only Carrel gives it to a pod")
        if asked is None:
            changed.drop_our_priority()
            if self._hides_gpus_from(request):
                changed.change_containers(visible_devices.hidden)
            if carrel.BOOKING in pod.metadata.annotations:
                changed.warn(f"{carrel.BOOKING} has no effect: this pod asks for no GPU")
            return changed.answer("untouched")
        if isinstance(asked, Refusal):
            return _refused(asked)
        if not asked.is_by_claims and (outside := self._why_not_by_carrel(pod)) is not None:
            return _refused(outside)
        if (too_large := why_too_large(request.object or {}, subject(pod.metadata), request.size)) is not None:
            return _refused(too_large)
        if (unseen := self._why_never_seen(pod, asked)) is not None:
            return _refused(unseen)
        new = _NewPod(pod, owner, asked, self._owners.said_by_spawner(request, pod))
        if record is not None and not asked.may_be_none:  # else nobody knows which claim to remove
            without = hand_over_record.without_gpu_since(record.why, record.lost_at, asked.request)
            return self._on_cpu(new, changed, {**_mark_of(record), **without})
        return await self._admitted(new, changed)

    async def _why_twice(self, pod: Pod) -> Refusal | None:
        claims = self._state.device_claims
        if claims is None:
            return None
        try:
            await claims.look_up(pod, self._state.cluster)
        except ClusterError as error:
            # What could not be read counts as not there yet.
            log.warning("claims_not_read pod=%s/%s why=%r", pod.metadata.namespace, pod.metadata.name, str(error))
        return claims.why_twice(pod)

    def _changed(self, request: AdmissionRequest) -> ChangedPod:
        sealing = None
        if self._seal is not None:
            sealing = Sealing(
                self._seal, request.uid, self._now(), lambda seal: bool(self._state.watches.sealed_with(seal))
            )
        return ChangedPod(request.object or {}, request.namespace, sealing)

    def _kept(self, request: AdmissionRequest, pod: Pod, owner: PodOwner, record: HandOver | None) -> Mapping[str, str]:
        """In a second review of a pod whose GPU was removed: what was written in the first one. Without a key nothing
        can be proved: who writes that their own pod runs without a GPU misleads only themselves."""
        mark, written = _mark_of(record) if record else {}, written_by_us(pod)
        sealed = {}
        if self._seal is not None and written:
            if not self._changed(request).is_sealed():
                return mark
            sealed = {ADMITTED: pod.metadata.annotations[ADMITTED]}
        return {**mark, **written, **_whose(owner), **sealed} if written else mark

    def _on_cpu(self, new: "_NewPod", changed: ChangedPod, notes: Mapping[str, str]) -> AdmissionDecision:
        """`notes` say why it runs without a GPU."""
        changed.warn(new.owner.warning)
        claims = self._state.device_claims
        claimed = claims.claimed_by(new.pod).names if claims is not None and new.asked.is_by_claims else ()
        changed.remove_gpu({**notes, **_whose(new.owner), **new.said_by_spawner}, claimed)
        changed.seal()
        return changed.answer("cpu", notes[carrel.RUNS_WITHOUT_GPU], new.owner)

    def _was_moved_to_cpu(self, pod: Pod, changed: ChangedPod) -> bool:
        return bool(written_by_us(pod)) and (self._seal is None or changed.is_sealed())

    def _asked_gpus(self, pod: Pod) -> AskedGpus | Refusal | None:
        claims = self._state.device_claims
        unknown_claims = claims.why_unknown if claims is not None else lambda pod: ""
        return asked_gpus(pod, self._state.requests.as_written, unknown_claims)

    def _unproven_request(self, pod: Pod, changed: ChangedPod) -> Refusal | None:
        """A request that was recorded by us, which we see when we are asked again, carries our seal. One that does not
        was written, copied or changed by somebody else. Without a key nothing can be proved, and it counts like the
        words that it stands for: who writes it asks for a GPU, no more, and gets a tier like everybody."""
        recorded = _recorded(pod)
        if not recorded or self._seal is None or changed.is_sealed():
            return None
        why = f"has {', '.join(recorded)}, which only Carrel's webhook writes"
        return Refusal(f"{subject(pod.metadata)} {why}; leave it out and ask for the GPU in the pod's resources")

    def _record_for(self, changed: ChangedPod, owner: PodOwner) -> HandOver | None:
        """Of a pod of the same controller that lost its GPU. Only in its namespace and of the same person: anybody may
        name a controller, also somebody else's, whose next pod must not pay for it."""
        found = (record for each in changed.owners() for record in self._hand_overs.of_controller(each))
        is_its = (changed.namespace, owner.name)
        return next((record for record in found if (record.place[0], record.user) == is_its), None)

    async def _admitted(self, new: "_NewPod", changed: ChangedPod) -> AdmissionDecision:
        is_exempt = self._state.covered_pods.is_exempt(new.pod)
        if not new.user and self._options.strict and not is_exempt:
            asks = "may ask" if new.asked.may_be_none else "asks"
            why = f"{subject(new.pod.metadata)} {asks} for a GPU, and Carrel cannot tell who owns it"
            why += f": {new.owner.warning}" if new.owner.unlisted_spawner else ""
            return AdmissionDecision("refused", refused=why, owner=new.owner)
        if is_exempt:
            if carrel.BOOKING in new.pod.metadata.annotations:
                why = f"namespace {new.pod.metadata.namespace} is exempt from bookings; leave {carrel.BOOKING} out"
                return _refused(Refusal(f"{subject(new.pod.metadata)}: {why}"))
            changed.drop_our_priority()
            return self._with_gpu(new, changed, EXEMPT)
        wanted = self._wanted.find(new.pod, new.user, new.asked)
        if isinstance(wanted, Refusal):
            return _refused(wanted)
        is_held_back = wanted is not None and wanted.start > self._now()
        if wanted is not None:
            changed.annotate({carrel.BOOKING: wanted.booking})
        if wanted is not None and is_held_back:
            changed.hold_back(wanted.start)
            changed.warn(WORDS.held_for(wanted))
        tier = AssignedTier() if is_held_back else await self._tiers.of(new.pod, new.user, new.asked)
        changed.warn(tier.silence)
        if tier.covered_until is None and (why_on_cpu := self._why_on_cpu(new, changed)) is not None:
            changed.warn(tier.beyond)
            return self._on_cpu(new, changed, self._why_without(new, why_on_cpu))
        if tier.beyond:
            changed.warn(f"{tier.beyond}; this pod runs on what is free")
        changed.annotate(write_tier(tier.covered_until))
        if self._priority_classes.get(carrel.PRIORITY_CLASS) is not None:
            changed.set_priority_class(carrel.PRIORITY_CLASS)
        else:
            changed.drop_our_priority()
        changed.warn(new.owner.warning)
        changed.warn(new.asked.why_unknown and f"this pod waits: {new.asked.why_unknown}")
        told = Tier.BOOKED if tier.covered_until else Tier.OPPORTUNISTIC
        return self._with_gpu(new, changed, told.value, new.owner)

    def _with_gpu(
        self, new: "_NewPod", changed: ChangedPod, outcome: str, owner: PodOwner | None = None
    ) -> AdmissionDecision:
        """`owner`: None where whose it is does not matter."""
        changed.annotate(_whose(new.owner))
        never = self._state.waiting_reason.why_never(new.pod, new.asked.request) if new.asked.is_known else None
        if never is not None:
            changed.warn(never.reason)  # no more: a node that can serve it may join
        if not new.asked.is_by_claims:  # any scheduler allocates claims
            changed.set_scheduler(self._options.scheduler)
        changed.set_runtime_class(self._runtime_classes.chosen())
        if outcome != EXEMPT:
            changed.bound_grace(self._options.longest_grace_s)
        self._set_visible_devices(new.pod, new.asked, changed)
        if is_of_a_hub(new.pod):
            changed.add_notice_file()
        changed.record(new.asked.dialect, new.pod)
        changed.seal()
        return changed.answer(outcome, owner=owner)

    def _why_not_by_carrel(self, pod: Pod) -> Refusal | None:
        """A pod that kube-scheduler does not place with Carrel's extender could take any GPU."""
        if pod.spec.node_name:
            why = f"names its node ({pod.spec.node_name})"
            return Refusal(f"{subject(pod.metadata)} asks for a GPU and {why}; leave that to the scheduler")
        if pod.spec.scheduler_name not in self._schedulers:
            why = f"wants the scheduler {pod.spec.scheduler_name!r}, which does not know who holds which GPU"
            return Refusal(f"{subject(pod.metadata)} asks for a GPU and {why}; leave schedulerName out")
        return None

    def why_not_evicted(self, request: AdmissionRequest) -> Refusal | None:
        """A GPU pod is not given longer to end by an eviction than its manifest might say. Raises `Malformed`."""
        pod = self._state.pods.store.get(request.name, request.namespace)
        longest, said = self._options.longest_grace_s, Field(request.object, "Eviction")["deleteOptions"]
        grace = said["gracePeriodSeconds"].integer() if said.present else 0
        if pod is None or carrel.TIER not in pod.metadata.annotations or grace <= longest:
            return None
        why = f"is not given {grace:,} seconds to end, because it keeps its GPU until then; at most {longest:,}"
        return Refusal(f"{subject(pod.metadata)} {why}")

    def _why_never_seen(self, pod: Pod, asked: AskedGpus) -> Refusal | None:
        """Where the runtime heeds only the kubelet, a GPU that no device plugin allocates is never seen."""
        way = self._options.device_list
        by_others = asked.request.by_kubelet or asked.dialect is gpushare.DIALECT or asked.is_by_claims
        if way is DeviceList.VARIABLE or by_others:
            return None
        why = f"by {asked.dialect.words}, which only {nvidia.VISIBLE_DEVICES} would show it"
        ignored = f"this cluster's container runtime ignores that (--device-list {way.value})"
        help_ = f"ask for whole GPUs by {nvidia.GPU}, or for memory by {gpushare.GPU_MEM}"
        return Refusal(f"{subject(pod.metadata)} asks for {asked.request} {why}; {ignored}; {help_}")

    # --- no GPU free -------------------------------------------------------------------------------------------------

    def _why_on_cpu(self, new: "_NewPod", changed: ChangedPod) -> Refusal | None:
        """Why an opportunistic pod runs without a GPU; None if it keeps its request, and waits if it must."""
        says = said_by(self._state.namespaces.store.get(new.pod.metadata.namespace))
        if is_unreadable(says):
            changed.warn(how_to_say_it(new.pod.metadata.namespace, says))
        if when_full(new.pod, says, self._options.when_full) is WhenFull.WAIT or new.always_waits:
            return None
        if not self._state.ledger.rooms:
            return None  # the agents have not reported yet: nobody can say that all GPUs are taken
        request = new.asked.request
        who = person_named(new.user) or namespace_as_person(new.pod.metadata.namespace)
        why = self._state.person_limit.why_person_over(who, request)
        why = why or self._state.waiting_reason.why_none_free(new.pod, request)
        if why is not None and (soon := self._covered_soon(new)) is not None:
            changed.warn(WORDS.held_for(soon))
            return None
        return why

    def _why_without(self, new: "_NewPod", why: Refusal) -> dict[str, str]:
        """Also a person who may have no more runs without a GPU: then it does not help that one is free."""
        request = new.asked.request
        if isinstance(why, Never):
            return write_without_gpu(without_gpu(why.on_cpu, request))
        free = self._free_again.of(new.pod, request)
        then = "" if free.is_free else f"; {WORDS.free_again(free)}"
        return write_without_gpu(without_gpu(f"on {in_utc(self._now())}, {why.reason}{then}", request))

    def _covered_soon(self, new: "_NewPod") -> Entitlement | None:
        person, namespace = person_named(new.user), namespace_named(new.pod.metadata.namespace)
        planned = self._state.covered_pods.planned_for(person, namespace) if person else []
        return starts_soon(planned, new.asked.request, self._now(), is_known=new.asked.is_known)

    # --- environment -------------------------------------------------------------------------------------------------

    def _set_visible_devices(self, pod: Pod, asked: AskedGpus, changed: ChangedPod) -> None:
        if asked.is_by_claims:  # the container runtime shows a container the GPUs of its claims, whatever this says
            changed.change_containers(visible_devices.hidden)
            return
        sight = visible_devices.sight_of(pod, asked.request.containers, self._cuda_devices)
        by_plugin = self._is_left_to_the_plugin(asked)

        def with_devices(container: Mapping[str, Any]) -> Json:
            if container.get("name") not in sight:
                return visible_devices.hidden(container)
            if by_plugin:
                return visible_devices.left_to_the_plugin(container)
            dialect = asked.dialect
            variables = dialect.variables(pod, container)
            return visible_devices.shown(container, sight[container["name"]], variables, dialect.variable_names)

        changed.change_containers(with_devices)

    @property
    def _cuda_devices(self) -> CudaDevices:
        return self._state.options.dialect_options.cuda_devices

    def _is_left_to_the_plugin(self, asked: AskedGpus) -> bool:
        return self._options.coexist and asked.request.by_kubelet

    def _hides_gpus_from(self, request: AdmissionRequest) -> bool:
        """Whether the containers of a pod that asks for no GPU are told to see none."""
        namespace, how = request.namespace, self._options.hide_from
        known, ours = self._state.namespaces.store.get(namespace), self._state.options.namespace
        if how is HideFrom.GPU_PODS or visible_devices.is_for_tools(namespace, known, ours):
            return False
        spec = (request.object or {}).get("spec") or {}
        return how is HideFrom.ALL_PODS or visible_devices.may_see_gpus(spec, self._runtime_classes.may_show_gpus)

    def _add_debug_containers(self, request: AdmissionRequest, pod: Pod) -> AdmissionDecision:
        """An ephemeral container sees the GPUs of its target container, or without a target all GPUs of the pod. Where
        NVIDIA's plugin hands them out, it sees none: Carrel does not know which container has which."""
        asked, new, old = self._asked_gpus(pod), request.object or {}, request.old_object or {}
        if not (isinstance(asked, AskedGpus) or self._hides_gpus_from(request)) or not new.get("spec"):
            return UNTOUCHED
        sight: dict[str, visible_devices.Sight] = {}
        if isinstance(asked, AskedGpus) and not asked.is_by_claims and not self._is_left_to_the_plugin(asked):
            by_container = visible_devices.sight_of(pod, asked.request.containers, self._cuda_devices)
            sight = {"": visible_devices.sight(self._cuda_devices), **by_container}

        def with_devices(container: Mapping[str, Any]) -> Json:
            sees = sight.get(container.get("targetContainerName") or "")
            return visible_devices.shown(container, sees) if sees else visible_devices.hidden(container)

        here = {each["name"].text() for each in Field(old, "the old pod")["spec"]["ephemeralContainers"].items()}
        joined = [
            each if each.get("name") in here else with_devices(each)  # existing ones must stay as they are
            for each in new["spec"].get("ephemeralContainers") or ()
        ]
        return AdmissionDecision(
            "debugged", {**new, "spec": {**new["spec"], "ephemeralContainers": joined}} if joined else None
        )


class _NewPod(NamedTuple):
    pod: Pod
    owner: PodOwner
    asked: AskedGpus
    said_by_spawner: Mapping[str, str]

    @property
    def user(self) -> str:
        """Whose it is; empty: nobody's."""
        return self.owner.name

    @property
    def always_waits(self) -> bool:
        """It is not moved to CPU, whether a GPU is free or not: it does not run now, waits for others, is made for a
        booking, or asks for what is not known yet."""
        is_for_booking = carrel.BOOKING in self.pod.metadata.annotations
        return bool(gates_of(self.pod)) or is_for_booking or self.asked.is_in_gang or not self.asked.is_known


def _without_our_gate(pod: Pod) -> Pod:
    gates = tuple(gate for gate in pod.spec.scheduling_gates if gate.name != carrel.BOOKING)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduling_gates=gates))


def _recorded(pod: Pod) -> dict[str, str]:
    """The requests that are recorded on the pod, by annotation."""
    notes = pod.metadata.annotations
    return {key: notes[key] for key in registry.ALL.recorded if key in notes}


def _whose(owner: PodOwner) -> dict[str, str]:
    notes = {carrel.USER: owner.name, carrel.UNLISTED_SPAWNER: owner.unlisted_spawner}
    return {key: value for key, value in notes.items() if value}


def _mark_of(record: HandOver) -> dict[str, str]:
    return hand_over_record.write_handed_over(HandedOver(record.lost_at, record.why, record.uid))


def _refused(why: Refusal) -> AdmissionDecision:
    return AdmissionDecision("refused", refused=str(why), code=422)
