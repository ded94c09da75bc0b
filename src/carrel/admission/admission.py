"""Decides what is changed on a pod that asks for a GPU, before it is created.

The API server asks only about pods that concern GPUs (`matchConditions` in `manifests/webhooks.yaml`), and refuses by
itself that others change later what Carrel wrote on a pod (`manifests/policies.yaml`). A rule that is added here must
be added there too: tests compare the words, and try generated pods on a real API server.

The decision depends only on the review and on caches, and changes nothing, so a dry run gets the same answer, and so
does a second review of the changed pod. In order:

1. Pods that Carrel's own accounts create are left alone. Keys that only they may write are removed from other pods.
2. A pod that asks for no GPU is left alone. One whose request cannot be met, that names its node, or that wants a
   scheduler that does not know Carrel, is refused with the reason.
3. If a controller's pod lost its GPU, the controller's next pod runs without a GPU.
4. Whose pod is it? Without an owner it has no tier (or is refused, if the cluster is strict). The booking service says
   whether the owner has an active booking.
5. If no GPU is free, an opportunistic pod runs without one, or waits, depending on a setting. A pod with scheduling
   gates does not run now, so it waits whether a GPU is free or not.
6. Tier, end, priority, model, scheduler, and the environment of every container are set.

If the booking service does not answer, the pod is opportunistic; that is never an error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from carrel.admission.pod_owner import PodOwnerLookup
from carrel.admission.review import AdmissionRequest
from carrel.bookings.client.interface import BookingLookup, CachedAnswer
from carrel.dialects import carrel, hand_over_record, maia, nvidia, registry, visible_devices
from carrel.dialects.cpu_manifest import on_cpu, without_resources
from carrel.dialects.gpuclaim import SCHEDULER
from carrel.dialects.hand_over_record import HandedOver, HandOver
from carrel.dialects.interface import Dialect, PodRequest
from carrel.dialects.maia import Revocable
from carrel.dialects.protected_keys import is_protected_annotation, is_protected_label
from carrel.dialects.registry import dialects_of, model_of, request_of
from carrel.dialects.seal import ADMITTED, Seal, place_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of, subject
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ANY_GPU, WHOLE, ContainerNeed, GpuSelector
from carrel.ledger.tiers import Tier
from carrel.parsing.fields import Field

Json = dict[str, Any]

DEFAULT_SCHEDULER = "default-scheduler"
DEFAULT_SCHEDULERS = frozenset({"", DEFAULT_SCHEDULER})
"""In a pod that did not choose a scheduler."""
GROUPS = ("initContainers", "containers")
PRIORITIES = {Tier.BOOKED: carrel.BOOKED_PRIORITY, Tier.OPPORTUNISTIC: carrel.OPPORTUNISTIC_PRIORITY}


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """What the cluster's admin decides about admission."""

    strict: bool = False
    """A GPU pod without an owner is refused."""
    waits_when_full: bool = False
    """If no GPU is free, an opportunistic pod waits, instead of running without one."""
    coexist: bool = False
    """NVIDIA's device plugin hands out `nvidia.com/gpu`, and tells containers which GPU they have."""
    hides_from_everybody: bool = False
    """Also the containers of pods that ask for no GPU are told to see none."""
    scheduler: str = SCHEDULER


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """What is known about the cluster when a review arrives."""

    owners: PodOwnerLookup
    booking_lookup: BookingLookup | None
    """None: there are no bookings here, and pods have no tier."""
    handed_over: Callable[[str], HandOver | None]
    """The record of a pod that lost its GPU, by the uid of its controller."""
    has_priority_class: Callable[[str], bool]
    now: Callable[[], datetime]
    seal: Seal | None = None


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """Yes, with the object as it should be; or no, with the reason."""

    outcome: str
    """For the metrics."""
    wanted: Json | None = None
    """None: unchanged."""
    refused: str = ""
    code: int = 403
    warnings: tuple[str, ...] = ()


UNTOUCHED = AdmissionDecision("untouched")


class PodAdmission:
    def __init__(self, context: AdmissionContext, options: AdmissionOptions) -> None:
        self._context = context
        self._options = options

    # --- new pods ----------------------------------------------------------------------------------------------------

    async def mutate(self, request: AdmissionRequest, pod: Pod) -> AdmissionDecision:
        """Raises `Malformed` if the pod's request for a GPU cannot be read."""
        if request.object is None or self._context.owners.is_carrel(request.user):
            return UNTOUCHED
        if request.operation == "CREATE" and not request.subresource:
            return await self._created(request, pod, _ChangedPod(request.object, request.namespace))
        if request.operation == "UPDATE" and request.subresource == "ephemeralcontainers":
            return self._add_debug_containers(request.object, request.old_object or {}, pod)
        return UNTOUCHED

    async def _created(self, request: AdmissionRequest, pod: Pod, changed: "_ChangedPod") -> AdmissionDecision:
        if (forged := self._unproven_request(pod, changed)) is not None:
            return _refused(forged)
        asked, record = _gpu_request_of(pod), self._record_for(changed)
        mark = hand_over_record.write_handed_over(HandedOver(record.decided, record.why, record.uid)) if record else {}
        changed.strip(keep=mark if asked is None else _recorded(pod))
        if asked is None:
            changed.drop_tier_priority()
            if self._options.hides_from_everybody:
                changed.change_containers(visible_devices.hidden)
            return changed.answer("untouched")
        if isinstance(asked, Refusal):
            return _refused(asked)
        if (outside := self._why_not_by_carrel(pod)) is not None:
            return _refused(outside)
        if record is not None:
            changed.remove_gpu(mark)
            return changed.answer("cpu", f"runs without a GPU: the GPU of {record.pod} is needed for a booking")
        return await self._with_tier(request, pod, asked, changed)

    def _unproven_request(self, pod: Pod, changed: "_ChangedPod") -> Refusal | None:
        """A request that was recorded by us, which we see when we are asked again, carries our seal. One that does not
        was written, copied or changed by somebody else. Without a key nothing can be proved, and it counts like the
        words that it stands for: who writes it asks for a GPU, no more, and gets a tier like everybody."""
        seal, recorded = self._context.seal, _recorded(pod)
        if not recorded or seal is None or changed.is_sealed(seal, self._context.now()):
            return None
        why = f"has {', '.join(recorded)}, which only Carrel's webhook writes"
        return Refusal(f"{subject(pod.metadata)} {why}; leave it out and ask for the GPU in the pod's resources")

    def _record_for(self, changed: "_ChangedPod") -> HandOver | None:
        """Of a pod of the same controller that lost its GPU. Only in its namespace: anybody may name a controller."""
        found = filter(None, map(self._context.handed_over, changed.owners()))
        return next((record for record in found if record.place[0] == changed.namespace), None)

    async def _with_tier(
        self, request: AdmissionRequest, pod: Pod, asked: "_GpuRequest", changed: "_ChangedPod"
    ) -> AdmissionDecision:
        user = self._context.owners.owner_of(request, pod)
        if not user and self._options.strict:
            return AdmissionDecision(
                "refused", refused=f"{subject(pod.metadata)} asks for a GPU, and Carrel cannot tell who owns it"
            )
        assigned = None
        if user and self._context.booking_lookup is not None:
            assigned = await self._tier_by_booking(
                self._context.booking_lookup, _Person(user, request.namespace), asked, changed
            )
            is_to_run_now = assigned.tier is Tier.OPPORTUNISTIC and not gates_of(pod)
            if is_to_run_now and await self._is_no_gpu_free(self._context.booking_lookup, asked, changed):
                changed.remove_gpu({})
                return changed.answer("cpu", "runs without a GPU: no GPU is free, and no booking is active")
            changed.annotate({carrel.USER: user, **assigned.annotations(model_is_named=bool(asked.model))})
        if assigned and self._context.has_priority_class(PRIORITIES[assigned.tier]):
            changed.set_priority_class(PRIORITIES[assigned.tier])
        else:
            changed.drop_tier_priority()
        changed.set_scheduler(self._options.scheduler)
        self._set_visible_devices(pod, asked, changed)
        changed.record(asked.dialect, pod)
        if self._context.seal is not None:
            changed.seal(self._context.seal, self._context.now())
        return changed.answer(assigned.tier.value if assigned else "no tier")

    def _why_not_by_carrel(self, pod: Pod) -> Refusal | None:
        """A pod that kube-scheduler does not place with Carrel's extender could take any GPU."""
        if pod.spec.node_name:
            why = f"names its node ({pod.spec.node_name})"
            return Refusal(f"{subject(pod.metadata)} asks for a GPU and {why}; leave that to the scheduler")
        if pod.spec.scheduler_name not in DEFAULT_SCHEDULERS | registry.ALL.scheduler_names | {self._options.scheduler}:
            why = f"wants the scheduler {pod.spec.scheduler_name!r}, which does not know who holds which GPU"
            return Refusal(f"{subject(pod.metadata)} asks for a GPU and {why}; leave schedulerName out")
        return None

    # --- bookings ----------------------------------------------------------------------------------------------------

    async def _tier_by_booking(
        self, booking_lookup: BookingLookup, person: "_Person", asked: "_GpuRequest", changed: "_ChangedPod"
    ) -> "_AssignedTier":
        answer = await booking_lookup.status(person.name, person.namespace)
        changed.warn_if_silent(answer)
        booking = answer.value
        if booking is None or booking.ends is None or booking.ends <= self._context.now():
            return _AssignedTier(Tier.OPPORTUNISTIC)
        if booking.model and not asked.allows(booking.model):
            wanted = asked.model or f"a GPU{asked.selector}"
            changed.warn(f"the booking is for {booking.model}, not for {wanted}: the GPU may be revoked")
            return _AssignedTier(Tier.OPPORTUNISTIC)
        return _AssignedTier(Tier.BOOKED, booking.ends, booking.model)

    async def _is_no_gpu_free(
        self, booking_lookup: BookingLookup, asked: "_GpuRequest", changed: "_ChangedPod"
    ) -> bool:
        """Only for whole GPUs: a part of a GPU may be free where no whole GPU is, which only the scheduler knows."""
        if self._options.waits_when_full or not asked.is_whole:
            return False
        answer = await booking_lookup.free()
        changed.warn_if_silent(answer)
        free = answer.value
        if not free or (asked.model and asked.model not in free):
            return False  # unknown, so the pod waits
        counts = [max(0, count) for model, count in free.items() if asked.allows(model)]
        return bool(counts) and sum(counts) <= 0

    # --- environment -------------------------------------------------------------------------------------------------

    def _set_visible_devices(self, pod: Pod, asked: "_GpuRequest", changed: "_ChangedPod") -> None:
        sight = visible_devices.sight_of(pod, asked.containers)
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

    def _is_left_to_the_plugin(self, asked: "_GpuRequest") -> bool:
        return self._options.coexist and asked.by_kubelet

    def _add_debug_containers(self, new: Mapping[str, Any], old: Mapping[str, Any], pod: Pod) -> AdmissionDecision:
        """An ephemeral container sees the GPUs of its target container, or without a target all GPUs of the pod. Where
        NVIDIA's plugin hands them out, it sees none: Carrel does not know which container has which."""
        asked = _gpu_request_of(pod)
        if not (isinstance(asked, _GpuRequest) or self._options.hides_from_everybody) or not new.get("spec"):
            return UNTOUCHED
        sight: dict[str, str] = {}
        if isinstance(asked, _GpuRequest) and not self._is_left_to_the_plugin(asked):
            sight = {"": carrel.DEVICES, **visible_devices.sight_of(pod, asked.containers)}

        def with_devices(container: Mapping[str, Any]) -> Json:
            annotation = sight.get(container.get("targetContainerName") or "")
            return visible_devices.shown(container, annotation) if annotation else visible_devices.hidden(container)

        here = {each["name"].text() for each in Field(old, "the old pod")["spec"]["ephemeralContainers"].items()}
        joined = [
            each if each.get("name") in here else with_devices(each)  # existing ones must stay as they are
            for each in new["spec"].get("ephemeralContainers") or ()
        ]
        return AdmissionDecision(
            "debugged", {**new, "spec": {**new["spec"], "ephemeralContainers": joined}} if joined else None
        )


@dataclass(frozen=True, slots=True)
class _Person:
    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class _GpuRequest:
    """What a pod asks for, as far as it is known before its claim exists."""

    dialect: Dialect
    model: str
    is_whole: bool
    containers: tuple[ContainerNeed, ...] = ()
    by_kubelet: bool = False
    """It asks the kubelet for its GPUs itself."""
    selector: GpuSelector = ANY_GPU

    def allows(self, model: str) -> bool:
        return self.model in ("", model) and self.selector.allows_model(model)


def _gpu_request_of(pod: Pod) -> _GpuRequest | Refusal | None:
    spoken = dialects_of(pod)
    if len(spoken) == 1 and spoken[0].claim_name is not None:  # the claim may be created after its pod
        spoken[0].claim_name(pod)  # raises if it is no valid name
        model = model_of(pod)
        return model if isinstance(model, Refusal) else _GpuRequest(spoken[0], model, is_whole=False)
    found = request_of(pod, _no_claim, spoken=spoken) if spoken else None
    if not isinstance(found, PodRequest):
        return found
    request = found.request
    return _GpuRequest(
        found.dialect, request.model, request.amount == WHOLE, request.containers, request.by_kubelet, request.selector
    )


@dataclass(frozen=True, slots=True)
class _AssignedTier:
    tier: Tier
    until: datetime | None = None
    model: str = ""

    def annotations(self, *, model_is_named: bool) -> dict[str, str]:
        """`model_is_named`: the pod itself names a model."""
        end = maia.write_terminate_at(self.until or Revocable.ANY_TIME)
        model = {carrel.GPU_MODEL: self.model} if self.model and not model_is_named else {}
        return {carrel.TIER: self.tier.value, **end, **model}


class _ChangedPod:
    """A copy of the pod in the review, with the changes that Carrel wants."""

    def __init__(self, pod: Mapping[str, Any], namespace: str) -> None:
        self._pod = dict(pod)
        self._metadata = dict(pod.get("metadata") or {})
        self._spec = dict(pod.get("spec") or {})
        self.namespace = namespace
        self._warnings: list[str] = []

    def owners(self) -> list[str]:
        return [str(each.get("uid")) for each in self._metadata.get("ownerReferences") or () if each.get("controller")]

    def strip(self, keep: Mapping[str, str]) -> None:
        """Removes what only Carrel may write. In a second review, `keep` is what Carrel wrote in the first."""
        for group, is_protected in (("annotations", is_protected_annotation), ("labels", is_protected_label)):
            written = self._metadata.get(group) or {}
            kept = {key: value for key, value in written.items() if not is_protected(key) or keep.get(key) == value}
            if kept != written:
                self._metadata[group] = kept

    def annotate(self, notes: Mapping[str, str]) -> None:
        self._metadata["annotations"] = {**(self._metadata.get("annotations") or {}), **notes}

    def record(self, dialect: Dialect, pod: Pod) -> None:
        """The request goes from the pod's resources, which no node offers, into an annotation."""
        if dialect.record_of is not None:
            self.annotate({dialect.recorded: dialect.record_of(pod)})
            gone = {*dialect.resources, *dialect.other_resources, *dialect.takes_over}
            self.change_containers(lambda each: without_resources(each, gone))

    def seal(self, seal: Seal, now: datetime) -> None:
        """A valid seal stays: a second review gets the same answer."""
        notes, written = self._metadata.get("annotations") or {}, _map(self._pod, "annotations")
        sealed = {ADMITTED: written[ADMITTED]} if ADMITTED in written else {}
        if not seal.is_on(self._place(), {**notes, **sealed}, now):
            sealed = seal.write(self._place(), notes, now)
        self.annotate(sealed)

    def is_sealed(self, seal: Seal, now: datetime) -> bool:
        """Whether the pod as it came in carries a valid seal."""
        return seal.is_on(self._place(), _map(self._pod, "annotations"), now)

    def _place(self) -> str:
        return place_of(self.namespace, self._metadata.get("name", ""), self._metadata.get("generateName", ""))

    def set_scheduler(self, scheduler: str) -> None:
        self._spec["schedulerName"] = scheduler

    def set_priority_class(self, priority_class: str) -> None:
        if self._spec.get("priorityClassName") != priority_class:
            self._clear_priority()
            self._spec["priorityClassName"] = priority_class

    def drop_tier_priority(self) -> None:
        """A pod without a tier must not have the priority of one."""
        if self._spec.get("priorityClassName") in PRIORITIES.values():
            self._clear_priority()

    def _clear_priority(self) -> None:
        # The API server computed the numbers from the class that the pod had before. It computes missing ones again,
        # and refuses a pod whose number does not match its class.
        for field in ("priorityClassName", "priority", "preemptionPolicy"):
            self._spec.pop(field, None)

    def change_containers(self, change: Callable[[Mapping[str, Any]], Json]) -> None:
        for group in GROUPS:
            if self._spec.get(group):
                self._spec[group] = [change(each) for each in self._spec[group]]

    def remove_gpu(self, notes: Mapping[str, str]) -> None:
        without = on_cpu({"metadata": self._metadata, "spec": self._spec}, notes)
        self._metadata |= {group: without["metadata"][group] for group in ("annotations", "labels")}
        self._spec = without["spec"]
        if self._spec.get("schedulerName", "") != DEFAULT_SCHEDULER:
            self._spec.pop("schedulerName", None)  # it may be a peer's, which does not run here
        self.change_containers(lambda each: visible_devices.hidden(each, nvidia.NO_DEVICE))

    def warn(self, text: str) -> None:
        self._warnings.append(text)

    def warn_if_silent(self, answer: CachedAnswer[Any]) -> None:
        if answer.failure and answer.value is not None:
            self.warn(f"the booking service does not answer; decided by its answer from {answer.age_s:.0f} s ago")
        elif answer.failure:
            self.warn("the booking service does not answer; decided as if no booking were active")

    def answer(self, outcome: str, warning: str = "") -> AdmissionDecision:
        wanted = {**self._pod, "metadata": self._metadata, "spec": self._spec}
        warnings = (*self._warnings, *([warning] if warning else []))
        return AdmissionDecision(outcome, wanted, warnings=tuple(dict.fromkeys(warnings)))


def _recorded(pod: Pod) -> dict[str, str]:
    """The requests that are recorded on the pod, by annotation."""
    notes = pod.metadata.annotations
    return {key: notes[key] for key in registry.ALL.recorded if key in notes}


def _no_claim(namespace: str, name: str) -> None:
    return None


def _refused(why: Refusal) -> AdmissionDecision:
    return AdmissionDecision("refused", refused=str(why), code=422)


def _map(thing: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    return Field(thing, "the object")["metadata"][group].object()
