"""Admission: what becomes of a pod that asks for a GPU before it is made.

The API server asks about pods that concern GPUs only (`matchConditions` in `manifests/webhooks.yaml`), and refuses by
itself that others change later what Carrel wrote on a pod (`manifests/policies.yaml`). A rule that is added here must
be seen there too: tests compare the words, and try generated pods on a real API server.

Everything is decided from the review and from what was heard before; nothing anywhere is changed, so a dry run is as
good as any, and whoever asks again with the answer gets the same. In order:

1. What Carrel's own accounts make is left alone. What only they may write is taken off everybody else's pod.
2. A pod that asks for no GPU is none of our business. One that asks in a way that cannot be had, names its node, or
   wants a scheduler that knows no cards, is refused with the reason.
3. The next pod of an owner whose pod gave its card back runs without a GPU.
4. Who is it? Nobody: no tier (refused, if the cluster is strict). The booking desk says whether a booking is active.
5. An opportunistic pod runs without a GPU if no card is free, or waits, as the cluster is set. One with scheduling
   gates is not to run now, so whether a card is free now does not matter: it waits.
6. Tier, end, priority, model, scheduler, and the environment of every container.

A booking service that is down makes a pod opportunistic, never an error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from carrel.admission.pod_owner import Introduction
from carrel.admission.review import AdmissionRequest
from carrel.bookings.client.interface import BookingLookup, CachedAnswer
from carrel.dialects import carrel, hand_over_record, maia, nvidia, visible_devices
from carrel.dialects.cpu_manifest import on_cpu
from carrel.dialects.gpuclaim import CLAIM, SCHEDULER
from carrel.dialects.gpushare import GPU_MEM
from carrel.dialects.hand_over_record import HandedOver, HandOver
from carrel.dialects.maia import Revocable
from carrel.dialects.protected_keys import is_protected_annotation, is_protected_label
from carrel.dialects.registry import Dialect, PodRequest, claim_name, dialects_of, model_of, request_of
from carrel.dialects.seal import ADMITTED, Seal, place_of
from carrel.kubernetes.objects.pods import gates_of, resource_asked, subject
from carrel.kubernetes.objects.shapes import Pod
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, ContainerNeed
from carrel.ledger.tiers import Tier
from carrel.parsing.fields import Field

Json = dict[str, Any]

DEFAULT_SCHEDULER = "default-scheduler"
DEFAULT_SCHEDULERS = frozenset({"", DEFAULT_SCHEDULER, "kai-scheduler"})
"""What a pod says that did not choose, or was written for a peer whose place Carrel takes."""
GROUPS = ("initContainers", "containers")
PRIORITIES = {Tier.BOOKED: carrel.BOOKED_PRIORITY, Tier.OPPORTUNISTIC: carrel.OPPORTUNISTIC_PRIORITY}


@dataclass(frozen=True, slots=True)
class Policy:
    """What the cluster's admin decides about admission."""

    strict: bool = False
    """A GPU pod of nobody is refused."""
    waits_when_full: bool = False
    """An opportunistic pod waits for a card, instead of running without one."""
    coexist: bool = False
    """NVIDIA's device plugin hands out `nvidia.com/gpu`, and tells containers which."""
    hides_from_everybody: bool = False
    """Also pods that ask for no GPU are told that they have none."""
    scheduler: str = SCHEDULER


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about the cluster when a review comes in."""

    introduce: Introduction
    desk: BookingLookup | None
    """None: nobody books here, and pods have no tier."""
    handed_over: Callable[[str], HandOver | None]
    """The record of a pod that was taken its card, by the uid of its owner."""
    has_priority_class: Callable[[str], bool]
    now: Callable[[], datetime]
    seal: Seal | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes, with the object as it should be; or no, with the reason."""

    outcome: str
    """One word, for the metrics."""
    wanted: Json | None = None
    """None: as it is."""
    refused: str = ""
    code: int = 403
    warnings: tuple[str, ...] = ()


UNTOUCHED = Answer("untouched")


class Admission:
    def __init__(self, known: Known, policy: Policy) -> None:
        self._known = known
        self._policy = policy

    # --- what is made ------------------------------------------------------------------------------------------------

    async def mutate(self, request: AdmissionRequest, pod: Pod) -> Answer:
        """Raises `Malformed` if the pod asks for a GPU in words that nobody understands."""
        if request.object is None or self._known.introduce.is_carrel(request.user):
            return UNTOUCHED
        if request.operation == "CREATE" and not request.subresource:
            return await self._created(request, pod, _Draft(request.object, request.namespace))
        if request.operation == "UPDATE" and request.subresource == "ephemeralcontainers":
            return self._debugged(request.object, request.old_object or {}, pod)
        return UNTOUCHED

    async def _created(self, request: AdmissionRequest, pod: Pod, draft: "_Draft") -> Answer:
        wish, record = _wish_of(pod), self._record_for(draft)
        mark = hand_over_record.write_handed_over(HandedOver(record.decided, record.why, record.uid)) if record else {}
        draft.strip(keep=mark if wish is None else {})
        if wish is None:
            draft.give_priority_back()
            if self._policy.hides_from_everybody:
                draft.each_container(visible_devices.hidden)
            return draft.answer("untouched")
        if isinstance(wish, Refusal):
            return _refused(wish)
        if (outside := self._stands_outside(pod)) is not None:
            return _refused(outside)
        if record is not None:
            draft.take_gpu(mark)
            return draft.answer("cpu", f"runs without a GPU: the card of {record.pod} is needed for a booking")
        return await self._tiered(request, pod, wish, draft)

    def _record_for(self, draft: "_Draft") -> HandOver | None:
        """Of a pod of the same owner that had to give its card back. Anybody may name an owner that is elsewhere."""
        found = filter(None, map(self._known.handed_over, draft.owners()))
        return next((record for record in found if record.place[0] == draft.namespace), None)

    async def _tiered(self, request: AdmissionRequest, pod: Pod, wish: "_Wish", draft: "_Draft") -> Answer:
        user = self._known.introduce(request, pod)
        if not user and self._policy.strict:
            return Answer(
                "refused", refused=f"{subject(pod.metadata)} asks for a GPU, and nobody knows whose pod it is"
            )
        standing = None
        if user and self._known.desk is not None:
            standing = await self._standing(self._known.desk, _Person(user, request.namespace), wish, draft)
            is_to_run_now = standing.tier is Tier.OPPORTUNISTIC and not gates_of(pod)
            if is_to_run_now and await self._must_do_without(self._known.desk, wish, draft):
                draft.take_gpu({})
                return draft.answer("cpu", "runs without a GPU: no card is free, and no booking is active")
            draft.annotate({carrel.USER: user, **standing.annotations(model_is_named=bool(wish.model))})
        if standing and self._known.has_priority_class(PRIORITIES[standing.tier]):
            draft.prioritize(PRIORITIES[standing.tier])
        else:
            draft.give_priority_back()
        draft.schedule_with(self._policy.scheduler)
        self._show_cards(pod, wish, draft)
        if self._known.seal is not None:
            draft.seal(self._known.seal, self._known.now())
        return draft.answer(standing.tier.value if standing else "no tier")

    def _stands_outside(self, pod: Pod) -> Refusal | None:
        """Where nobody looks after the cards it would take."""
        if pod.spec.node_name:
            why = f"names its node ({pod.spec.node_name})"
            return Refusal(f"{subject(pod.metadata)} asks for a GPU and {why}; leave that to the scheduler")
        if pod.spec.scheduler_name not in DEFAULT_SCHEDULERS | {self._policy.scheduler, SCHEDULER}:
            why = f"wants the scheduler {pod.spec.scheduler_name!r}, which does not know whose the cards are"
            return Refusal(f"{subject(pod.metadata)} asks for a GPU and {why}; leave schedulerName out")
        return None

    # --- bookings ----------------------------------------------------------------------------------------------------

    async def _standing(self, desk: BookingLookup, person: "_Person", wish: "_Wish", draft: "_Draft") -> "_Standing":
        heard = await desk.status(person.name, person.namespace)
        draft.warn_of(heard)
        booking = heard.value
        if booking is None or booking.ends is None or booking.ends <= self._known.now():
            return _Standing(Tier.OPPORTUNISTIC)
        if wish.model and booking.model and wish.model != booking.model:
            draft.warn(f"the booking is for {booking.model}, not for {wish.model}: the card may be taken away")
            return _Standing(Tier.OPPORTUNISTIC)
        return _Standing(Tier.BOOKED, booking.ends, booking.model)

    async def _must_do_without(self, desk: BookingLookup, wish: "_Wish", draft: "_Draft") -> bool:
        """Whether no card is free. A part of a card may be free where no whole one is; the scheduler knows."""
        if self._policy.waits_when_full or not wish.is_for_whole_cards:
            return False
        heard = await desk.free()
        draft.warn_of(heard)
        free = heard.value
        if not free or (wish.model and wish.model not in free):
            return False  # nobody knows, so it waits
        return (free[wish.model] if wish.model else sum(max(0, count) for count in free.values())) <= 0

    # --- environment -------------------------------------------------------------------------------------------------

    def _show_cards(self, pod: Pod, wish: "_Wish", draft: "_Draft") -> None:
        sight = visible_devices.sight_of(pod, wish.dialect, wish.containers)
        by_plugin = self._is_left_to_the_plugin(wish)
        units = {ask.container: ask.amount for ask in resource_asked(pod, GPU_MEM).containers}

        def dressed(container: Mapping[str, Any]) -> Json:
            if container.get("name") not in sight:
                return visible_devices.hidden(container)
            if by_plugin:
                return visible_devices.left_to_the_plugin(container)
            return visible_devices.shown(container, sight[container["name"]], units.get(container["name"], 0))

        draft.each_container(dressed)

    def _is_left_to_the_plugin(self, wish: "_Wish") -> bool:
        return self._policy.coexist and wish.dialect is Dialect.NVIDIA

    def _debugged(self, new: Mapping[str, Any], old: Mapping[str, Any], pod: Pod) -> Answer:
        """A container that joins a running pod sees what the container sees that it looks at; one that looks at none
        sees all of the pod's. What NVIDIA's plugin gave to whom nobody can say: then it sees none."""
        wish = _wish_of(pod)
        if not (isinstance(wish, _Wish) or self._policy.hides_from_everybody) or not new.get("spec"):
            return UNTOUCHED
        sight: dict[str, str] = {}
        if isinstance(wish, _Wish) and not self._is_left_to_the_plugin(wish):
            sight = {"": carrel.DEVICES, **visible_devices.sight_of(pod, wish.dialect, wish.containers)}

        def dressed(container: Mapping[str, Any]) -> Json:
            annotation = sight.get(container.get("targetContainerName") or "")
            return visible_devices.shown(container, annotation) if annotation else visible_devices.hidden(container)

        here = {each["name"].text() for each in Field(old, "the old pod")["spec"]["ephemeralContainers"].items()}
        joined = [
            each if each.get("name") in here else dressed(each)  # those that are here already must stay as they are
            for each in new["spec"].get("ephemeralContainers") or ()
        ]
        return Answer("debugged", {**new, "spec": {**new["spec"], "ephemeralContainers": joined}} if joined else None)


@dataclass(frozen=True, slots=True)
class _Person:
    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a pod asks for, as far as it can be known before a claim is made."""

    dialect: Dialect
    model: str
    is_for_whole_cards: bool
    containers: tuple[ContainerNeed, ...] = ()


def _wish_of(pod: Pod) -> _Wish | Refusal | None:
    if CLAIM in pod.metadata.annotations and dialects_of(pod) == (Dialect.GPUCLAIM,):  # it may be made after its pod
        claim_name(pod)  # which raises, if it is no name
        model = model_of(pod)
        return model if isinstance(model, Refusal) else _Wish(Dialect.GPUCLAIM, model, is_for_whole_cards=False)
    ask = request_of(pod, _no_claim)
    if not isinstance(ask, PodRequest):
        return ask
    return _Wish(ask.dialect, ask.request.model, ask.request.amount == WHOLE, ask.request.containers)


@dataclass(frozen=True, slots=True)
class _Standing:
    tier: Tier
    until: datetime | None = None
    model: str = ""

    def annotations(self, *, model_is_named: bool) -> dict[str, str]:
        """`model_is_named`: by the pod itself."""
        end = maia.write_terminate_at(self.until or Revocable.ANY_TIME)
        model = {carrel.GPU_MODEL: self.model} if self.model and not model_is_named else {}
        return {carrel.TIER: self.tier.value, **end, **model}


class _Draft:
    """The pod as it should be. The object of the review stays as it is."""

    def __init__(self, pod: Mapping[str, Any], namespace: str) -> None:
        self._pod = dict(pod)
        self._metadata = dict(pod.get("metadata") or {})
        self._spec = dict(pod.get("spec") or {})
        self.namespace = namespace
        self._warnings: list[str] = []

    def owners(self) -> list[str]:
        return [str(each.get("uid")) for each in self._metadata.get("ownerReferences") or () if each.get("controller")]

    def strip(self, keep: Mapping[str, str]) -> None:
        """Of what only Carrel may write. What we have written ourselves, when we are asked again, may be kept."""
        for group, is_protected in (("annotations", is_protected_annotation), ("labels", is_protected_label)):
            written = self._metadata.get(group) or {}
            kept = {key: value for key, value in written.items() if not is_protected(key) or keep.get(key) == value}
            if kept != written:
                self._metadata[group] = kept

    def annotate(self, notes: Mapping[str, str]) -> None:
        self._metadata["annotations"] = {**(self._metadata.get("annotations") or {}), **notes}

    def seal(self, seal: Seal, now: datetime) -> None:
        """A seal that is good stays: who asks again gets the same answer."""
        notes, written = self._metadata.get("annotations") or {}, _map(self._pod, "annotations")
        sealed = {ADMITTED: written[ADMITTED]} if ADMITTED in written else {}
        place = place_of(self.namespace, self._metadata.get("name", ""), self._metadata.get("generateName", ""))
        if not seal.is_on(place, {**notes, **sealed}, now):
            sealed = seal.write(place, notes, now)
        self.annotate(sealed)

    def schedule_with(self, scheduler: str) -> None:
        self._spec["schedulerName"] = scheduler

    def prioritize(self, priority_class: str) -> None:
        if self._spec.get("priorityClassName") != priority_class:
            self._lose_priority()
            self._spec["priorityClassName"] = priority_class

    def give_priority_back(self) -> None:
        """That of a tier, by a pod that has none."""
        if self._spec.get("priorityClassName") in PRIORITIES.values():
            self._lose_priority()

    def _lose_priority(self) -> None:
        # The numbers are made by the API server from the class that the pod had before; it does so again where they are
        # missing, and refuses a pod whose number does not go with its class.
        for field in ("priorityClassName", "priority", "preemptionPolicy"):
            self._spec.pop(field, None)

    def each_container(self, change: Callable[[Mapping[str, Any]], Json]) -> None:
        for group in GROUPS:
            if self._spec.get(group):
                self._spec[group] = [change(each) for each in self._spec[group]]

    def take_gpu(self, notes: Mapping[str, str]) -> None:
        without = on_cpu({"metadata": self._metadata, "spec": self._spec}, notes)
        self._metadata |= {group: without["metadata"][group] for group in ("annotations", "labels")}
        self._spec = without["spec"]
        if self._spec.get("schedulerName", "") != DEFAULT_SCHEDULER:
            self._spec.pop("schedulerName", None)  # it may be a peer's, which is not there
        self.each_container(lambda each: visible_devices.hidden(each, nvidia.NO_DEVICE))

    def warn(self, text: str) -> None:
        self._warnings.append(text)

    def warn_of(self, heard: CachedAnswer[Any]) -> None:
        if heard.failure and heard.value is not None:
            self.warn(f"the booking service is silent; decided by what it said {heard.age_s:.0f} s ago")
        elif heard.failure:
            self.warn("the booking service is silent; decided as if no booking were active")

    def answer(self, outcome: str, warning: str = "") -> Answer:
        wanted = {**self._pod, "metadata": self._metadata, "spec": self._spec}
        warnings = (*self._warnings, *([warning] if warning else []))
        return Answer(outcome, wanted, warnings=tuple(dict.fromkeys(warnings)))


def _no_claim(namespace: str, name: str) -> None:
    return None


def _refused(why: Refusal) -> Answer:
    return Answer("refused", refused=str(why), code=422)


def _map(thing: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    return Field(thing, "the object")["metadata"][group].object()
