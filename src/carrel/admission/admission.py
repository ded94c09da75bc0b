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
from dataclasses import replace
from typing import Any

import msgspec

from carrel.admission.new_pod import (
    OPPORTUNISTIC,
    AskedGpus,
    HandOverRecords,
    NewPod,
    PodOwner,
    PodOwnerLookup,
    asked_gpus,
    tier_of,
    wanted_booking,
)
from carrel.admission.options import AdmissionOptions
from carrel.admission.pod_changes import DEFAULT_SCHEDULER, AdmissionDecision, ChangedPod, Json
from carrel.admission.review import AdmissionRequest
from carrel.bookings.client import BookingLookup
from carrel.cluster.runtime_class import RuntimeClasses
from carrel.cluster.state import ClusterState
from carrel.cluster.waiting.free_again import free_again
from carrel.cluster.waiting.starts_soon import starts_soon
from carrel.dialects import carrel, gpushare, hand_over_record, memory_limits, nvidia, registry, visible_devices
from carrel.dialects.booking_objects import namespace_named, person_named
from carrel.dialects.hand_over_record import HandedOver, HandOver
from carrel.dialects.jupyter import is_of_a_hub
from carrel.dialects.memory_limits import limited
from carrel.dialects.notice import with_notice_file, without_gpu, write_without_gpu, written_by_us
from carrel.dialects.options import DeviceList, HideFrom, WhenFull
from carrel.dialects.protected_keys import Writer, account_of
from carrel.dialects.seal import ADMITTED, as_sealed
from carrel.dialects.tier import namespace_as_person, unreadable_when_full, when_full, write_tier
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import PRIORITY_CLASSES
from carrel.ledger.gpus import MiB
from carrel.ledger.never import Never
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE
from carrel.ledger.tiers import Tier
from carrel.parsing.fields import Field

log = logging.getLogger(__name__)

DEFAULT_SCHEDULERS = frozenset({"", DEFAULT_SCHEDULER})
"""In a pod that did not choose a scheduler."""
LARGEST_POD = 1024 * 1024
"""Bytes, as JSON. The API server stores about 1.5 MiB. The rest is for what Carrel, kube-scheduler and the kubelet
write on it: a pod that is only just small enough could never be bound, nor could its person be warned."""
LARGEST_ANNOTATIONS = 128 * 1024
"""Bytes of keys and values: a half of what the API server stores."""

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
        # One who makes pods for Carrel. Another program in Carrel's namespace, such as MAIA's own terminator, does not:
        # a pod that it makes could keep the GPU of the pod that it was copied from.
        self._own_accounts = options.trusted | {account_of(Writer.CONTROLLER, state.options.namespace)}
        self._schedulers = DEFAULT_SCHEDULERS.union(registry.ALL.scheduler_names, options.schedulers)
        self._owners = PodOwnerLookup(state.namespaces.store, options)
        self._hand_overs = HandOverRecords(state.informers, state.options.namespace)
        self._priority_classes = state.informers.watch(PRIORITY_CLASSES).store
        self._runtime_classes = RuntimeClasses(state.informers, options.runtime_class)
        self._booking_lookup = booking_lookup

    # --- new pods ----------------------------------------------------------------------------------------------------

    async def mutate(self, request: AdmissionRequest, pod: Pod) -> AdmissionDecision:
        """Raises `Malformed` if the pod's request for a GPU cannot be read."""
        if request.object is None or request.user.name in self._own_accounts:
            return UNTOUCHED
        if request.operation == "CREATE" and not request.subresource:
            return await self._created(request, pod)
        if request.operation == "UPDATE" and request.subresource == "ephemeralcontainers":
            return self._add_debug_containers(request, pod)
        return UNTOUCHED

    async def _created(self, request: AdmissionRequest, pod: Pod) -> AdmissionDecision:
        notes, is_exempt = pod.metadata.annotations, self._state.watches.is_exempt(request.namespace)
        recorded = {key: notes[key] for key in registry.ALL.recorded if key in notes}
        if recorded and not self._is_proven(pod):
            # A request that we recorded, which we see when we are asked again, carries our seal. This one was written,
            # copied or changed by somebody else.
            why = f"has {', '.join(recorded)}, which only Carrel's webhook writes"
            return _refused(f"{subject(pod.metadata)} {why}; leave it out and ask for the GPU in the pod's resources")
        if (twice := await self._state.holders.why_twice(pod, self._state.cluster)) is not None:
            return _refused(twice)
        asked, owner = asked_gpus(pod, self._state), self._owners.owner_of(request, pod)
        if isinstance(asked, AskedGpus) and asked.is_by_claims and asked.why_unknown and self._was_moved_to_cpu(pod):
            asked = None  # a second review: the claims that are left are not for GPUs
        record, changed = self._hand_overs.succeeded_by(pod, owner), ChangedPod(request)
        kept = recorded if asked is not None else self._kept(pod, owner, record)
        changed.strip({**kept, carrel.HUB_ADDRESS: owner.hub_address} if owner.hub_address else kept)
        if any(gate.name == carrel.BOOKING for gate in pod.spec.scheduling_gates):
            pod = _without_our_gate(pod)
            changed.strip_gate()
            if carrel.BOOKING not in notes:
                changed.warnings.append(
                    f"the scheduling gate {carrel.BOOKING} was removed: only Carrel gives it to a pod"
                )
        if asked is None:
            changed.set_priority_class("")
            if self._hides_gpus_from(request):
                changed.change_containers(visible_devices.hidden)
            if carrel.BOOKING in notes:
                changed.warnings.append(f"{carrel.BOOKING} has no effect: this pod asks for no GPU")
            return changed.answer("untouched")
        if isinstance(asked, Refusal):
            return _refused(asked)
        new = NewPod(pod, owner, self._as_limited(pod, asked))
        if why_not := self._why_not_admitted(request, new):
            return _refused(f"{subject(pod.metadata)} asks for {why_not}")
        if record is not None and not (asked.is_by_claims and asked.why_unknown):  # else nobody knows which to remove
            without = hand_over_record.without_gpu_since(
                record.why, record.lost_at, asked.request, self._state.options.zone
            )
            return self._on_cpu(new, changed, {**_mark_of(record), **without})
        return await self._admitted(new, changed, is_exempt=is_exempt)

    def _as_limited(self, pod: Pod, asked: AskedGpus) -> AskedGpus:
        """What is asked for, with limits of memory if this pod gets them: if it asks for a part of a GPU, or for what a
        GpuClaim will say that does not exist yet."""
        request = replace(asked.request, is_limited=False)  # what a user wrote is not there any more
        is_part = request.amount != WHOLE or bool(asked.why_unknown)
        if self._options.limits_memory and is_part and not (asked.is_by_claims or request.by_kubelet):
            request = limited(pod, request)
        return asked._replace(request=request)

    def _is_proven(self, pod: Pod) -> bool:
        """Whether what Carrel writes on a pod was written by Carrel, in an earlier review of this pod. Without a key
        nothing can be proved, and it counts like the words that it stands for: who writes that a pod asks for a GPU
        gets a tier like everybody, and who writes that it runs without one misleads only themselves."""
        if self._seal is None:
            return True
        is_copied = self._state.watches.sealed_with(pod.metadata.annotations.get(ADMITTED, ""))
        return self._seal.is_on(as_sealed(pod), self._now()) and not is_copied

    def _was_moved_to_cpu(self, pod: Pod) -> bool:
        return bool(written_by_us(pod)) and self._is_proven(pod)

    def _kept(self, pod: Pod, owner: PodOwner, record: HandOver | None) -> Mapping[str, str]:
        """In a second review of a pod whose GPU was removed: what was written in the first one."""
        mark = _mark_of(record) if record else {}
        if not self._was_moved_to_cpu(pod):
            return mark
        sealed = {ADMITTED: pod.metadata.annotations[ADMITTED]} if self._seal is not None else {}
        return {**mark, **written_by_us(pod), **owner.notes(), **sealed}

    def _why_not_admitted(self, request: AdmissionRequest, new: NewPod) -> str:
        """Why a pod cannot have what it asks for, however many GPUs are free; the end of a sentence. Empty: it can."""
        pod, asked, way = new.pod, new.asked, self._options.device_list
        if pod.spec.node_name and not asked.is_by_claims:
            return f"a GPU and names its node ({pod.spec.node_name}); leave that to the scheduler"
        if pod.spec.scheduler_name not in self._schedulers and not asked.is_by_claims:
            why = f"wants the scheduler {pod.spec.scheduler_name!r}, which does not know who holds which GPU"
            return f"a GPU and {why}; leave schedulerName out"  # any scheduler allocates claims
        if asked.request.slices and asked.request.is_limited:
            why = "NVIDIA's driver limits no memory inside a slice, and limits are on here (memory.limits)"
            return f"a part of a MIG slice; {why}; ask for a whole slice"
        annotations = ((request.object or {}).get("metadata") or {}).get("annotations") or {}
        size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
        if size > LARGEST_ANNOTATIONS:
            return f"a GPU and has {size:,} bytes of annotations; at most {LARGEST_ANNOTATIONS:,}"
        if request.size > LARGEST_POD and (size := len(msgspec.json.encode(request.object))) > LARGEST_POD:
            return f"a GPU and has {size:,} bytes; at most {LARGEST_POD:,}, to leave room for its GPUs"
        # Where the runtime heeds only the kubelet, a GPU that no device plugin allocates is never seen.
        by_others = asked.request.by_kubelet or asked.dialect is gpushare.DIALECT or asked.is_by_claims
        if way is DeviceList.VARIABLE or by_others:
            return ""
        why = f"by {asked.dialect.words}, which only {nvidia.VISIBLE_DEVICES} would show it"
        ignored = f"this cluster's container runtime ignores that (nodes.deviceList: {way.value})"
        help_ = f"ask for whole GPUs by {nvidia.GPU}, or for memory by {gpushare.GPU_MEM}"
        return f"{asked.request} {why}; {ignored}; {help_}"

    async def _admitted(self, new: NewPod, changed: ChangedPod, *, is_exempt: bool) -> AdmissionDecision:
        pod, owner, asked = new
        if is_exempt:
            if carrel.BOOKING in pod.metadata.annotations:
                why = f"namespace {pod.metadata.namespace} is exempt from bookings; leave {carrel.BOOKING} out"
                return _refused(f"{subject(pod.metadata)}: {why}")
            changed.set_priority_class("")
            return self._with_gpu(new, changed, EXEMPT)
        if not owner.name and self._options.strict:
            asks = "may ask" if asked.is_by_claims and asked.why_unknown else "asks"
            why = f"{subject(pod.metadata)} {asks} for a GPU, and Carrel cannot tell who owns it"
            why += f": {owner.warning}" if owner.unlisted_spawner else ""
            return AdmissionDecision("refused", refused=why, owner=owner)
        # Whoever says whose pod it is without being believed could else keep a GPU for ever.
        is_nobodys = not owner.name and not owner.unlisted_spawner and carrel.BOOKING not in pod.metadata.annotations
        if is_nobodys and self._state.options.tier_policy.nobodys_pods_keep:
            changed.set_priority_class("")
            changed.warnings.append(owner.warning)
            return self._with_gpu(new, changed, EXEMPT, owner)
        tier = None
        if carrel.BOOKING in pod.metadata.annotations:
            wanted = wanted_booking(new, self._state)
            if isinstance(wanted, Refusal):
                return _refused(wanted)
            changed.annotations[carrel.BOOKING] = wanted.booking
            if wanted.start > self._now():
                changed.hold_back(wanted.start)
                changed.warnings.append(self._state.words.held_for(wanted))
                tier = OPPORTUNISTIC
        tier = tier or await tier_of(new, self._state, self._booking_lookup)
        changed.warnings.append(tier.silence)
        if tier.covered_until is None and (why_on_cpu := self._why_on_cpu(new, changed)) is not None:
            changed.warnings.append(tier.beyond)
            return self._on_cpu(new, changed, self._why_without(new, why_on_cpu))
        if tier.beyond:
            changed.warnings.append(f"{tier.beyond}; this pod runs on what is free")
        changed.annotations |= write_tier(tier.covered_until)
        has_class = self._priority_classes.get(carrel.PRIORITY_CLASS) is not None
        changed.set_priority_class(carrel.PRIORITY_CLASS if has_class else "")
        changed.warnings.append(owner.warning)
        if asked.why_unknown:
            changed.warnings.append(f"this pod waits: {asked.why_unknown}")
        told = Tier.BOOKED if tier.covered_until else Tier.OPPORTUNISTIC
        return self._with_gpu(new, changed, told.value, owner)

    def _with_gpu(
        self, new: NewPod, changed: ChangedPod, outcome: str, owner: PodOwner | None = None
    ) -> AdmissionDecision:
        """`owner`: None where whose it is does not matter."""
        pod, asked = new.pod, new.asked
        changed.annotations |= new.owner.notes()
        never = self._state.waiting_reason.why_never(pod, asked.request) if not asked.why_unknown else None
        if never is not None:
            changed.warnings.append(never.reason)  # no more: a node that can serve it may join
        is_chosen = pod.spec.scheduler_name in self._options.schedulers and pod.spec.scheduler_name != DEFAULT_SCHEDULER
        if not asked.is_by_claims and not is_chosen:  # any scheduler allocates claims
            changed.spec["schedulerName"] = self._options.schedulers[0]
        if not changed.spec.get("runtimeClassName") and (runtime_class := self._runtime_classes.chosen()):
            changed.spec["runtimeClassName"] = runtime_class
        if outcome != EXEMPT:
            changed.bound_grace(self._options.longest_grace_s)
        self._set_visible_devices(pod, asked, changed)
        if is_of_a_hub(pod):
            changed.spec = with_notice_file(changed.spec)
        if asked.dialect.record_of is not None:
            changed.record(pod, asked.dialect)
        if self._seal is not None:
            changed.seal(self._seal, self._now(), self._state.watches.sealed_with)
        return changed.answer(outcome, owner)

    def _on_cpu(self, new: NewPod, changed: ChangedPod, notes: Mapping[str, str]) -> AdmissionDecision:
        """`notes` say why it runs without a GPU."""
        changed.warnings.append(new.owner.warning)
        claimed = self._state.holders.claimed_by(new.pod).names if new.asked.is_by_claims else ()
        changed.remove_gpu({**notes, **new.owner.notes()}, claimed)
        if self._seal is not None:
            changed.seal(self._seal, self._now(), self._state.watches.sealed_with)
        changed.warnings.append(notes[carrel.RUNS_WITHOUT_GPU])
        return changed.answer("cpu", new.owner)

    def why_not_evicted(self, request: AdmissionRequest) -> Refusal | None:
        """A GPU pod is not given longer to end by an eviction than its manifest might say. Raises `Malformed`."""
        pod = self._state.pods.store.get(request.name, request.namespace)
        longest, said = self._options.longest_grace_s, Field(request.object, "Eviction")["deleteOptions"]
        grace = said["gracePeriodSeconds"].integer() if said.present else 0
        if pod is None or carrel.TIER not in pod.metadata.annotations or grace <= longest:
            return None
        why = f"is not given {grace:,} seconds to end, because it keeps its GPU until then; at most {longest:,}"
        return Refusal(f"{subject(pod.metadata)} {why}")

    # --- no GPU free -------------------------------------------------------------------------------------------------

    def _why_on_cpu(self, new: NewPod, changed: ChangedPod) -> Refusal | None:
        """Why an opportunistic pod runs without a GPU; None if it keeps its request, and waits if it must."""
        pod, owner, asked = new
        namespace = self._state.namespaces.store.get(pod.metadata.namespace)
        changed.warnings.append(unreadable_when_full(namespace))
        # Whether a GPU is free or not, a pod waits that does not run now, that is made for a booking, that waits for
        # others, or that asks for what is not known yet.
        if pod.spec.scheduling_gates or carrel.BOOKING in pod.metadata.annotations:
            return None
        if asked.is_in_gang or asked.why_unknown:
            return None
        if when_full(pod, namespace, self._options.when_full) is WhenFull.WAIT:
            return None
        if not self._state.ledger.rooms:
            return None  # the agents have not reported yet: nobody can say that all GPUs are taken
        person = person_named(owner.name)
        who = person or namespace_as_person(pod.metadata.namespace)
        why = self._state.person_limit.why_person_over(who, asked.request)
        why = why or self._state.waiting_reason.why_none_free(pod, asked.request)
        if why is None or not person:
            return why
        planned = self._state.covered_pods.planned_for(person, namespace_named(pod.metadata.namespace))
        soon = starts_soon(planned, asked.request, self._now())
        if soon is not None:
            changed.warnings.append(self._state.words.held_for(soon))
            return None
        return why

    def _why_without(self, new: NewPod, why: Refusal) -> dict[str, str]:
        """Also a person who may have no more runs without a GPU: then it does not help that one is free."""
        request = new.asked.request
        if isinstance(why, Never):
            return write_without_gpu(without_gpu(why.on_cpu, request))
        free = free_again(self._state, new.pod, request)
        then = "" if free.is_free else f"; {self._state.words.free_again(free)}"
        return write_without_gpu(without_gpu(f"on {self._state.words.when(self._now())}, {why.reason}{then}", request))

    # --- environment -------------------------------------------------------------------------------------------------

    def _set_visible_devices(self, pod: Pod, asked: AskedGpus, changed: ChangedPod) -> None:
        if asked.is_by_claims:  # the container runtime shows a container the GPUs of its claims, whatever this says
            changed.change_containers(visible_devices.hidden)
            return
        dialect, by_plugin = asked.dialect, self._options.coexist and asked.request.by_kubelet
        cuda_devices = self._state.options.dialect_options.cuda_devices
        sight, limits = visible_devices.sight_of(pod, asked.request.containers, cuda_devices), dict[str, list[Json]]()
        if asked.request.is_limited:
            # Until the pod is bound, and for one that somebody else binds.
            smallest = min((room.smallest for room in self._state.ledger.rooms.values() if room.pieces), default=1)
            changed.annotations |= memory_limits.write_limits(asked.request, [MiB(smallest)])
            limits = {each.container: memory_limits.variables(each.container) for each in asked.request.containers}

        def with_devices(container: Mapping[str, Any]) -> Json:
            if container.get("name") not in sight:
                return visible_devices.hidden(container)
            if by_plugin:
                return visible_devices.left_to_the_plugin(container)
            variables = [*dialect.variables(pod, container), *limits.get(container["name"], ())]
            return visible_devices.shown(container, sight[container["name"]], variables, dialect.variable_names)

        changed.change_containers(with_devices)

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
        asked, new, old = asked_gpus(pod, self._state), request.object or {}, request.old_object or {}
        if not (isinstance(asked, AskedGpus) or self._hides_gpus_from(request)) or not new.get("spec"):
            return UNTOUCHED
        sight: dict[str, visible_devices.Sight] = {}
        by_plugin = isinstance(asked, AskedGpus) and self._options.coexist and asked.request.by_kubelet
        if isinstance(asked, AskedGpus) and not asked.is_by_claims and not by_plugin:
            cuda_devices = self._state.options.dialect_options.cuda_devices
            sight = visible_devices.sight_of(pod, asked.request.containers, cuda_devices)

        def with_devices(container: Mapping[str, Any]) -> Json:
            target = container.get("targetContainerName") or ""
            sees, limit = sight.get(target), memory_limits.variables_beside(pod, target)
            return visible_devices.shown(container, sees, limit) if sees else visible_devices.hidden(container)

        here = {each["name"].text() for each in Field(old, "the old pod")["spec"]["ephemeralContainers"].items()}
        joined = [
            each if each.get("name") in here else with_devices(each)  # existing ones must stay as they are
            for each in new["spec"].get("ephemeralContainers") or ()
        ]
        return AdmissionDecision(
            "debugged", {**new, "spec": {**new["spec"], "ephemeralContainers": joined}} if joined else None
        )


def _without_our_gate(pod: Pod) -> Pod:
    gates = tuple(gate for gate in pod.spec.scheduling_gates if gate.name != carrel.BOOKING)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduling_gates=gates))


def _mark_of(record: HandOver) -> dict[str, str]:
    return hand_over_record.write_handed_over(HandedOver(record.lost_at, record.why, record.uid))


def _refused(why: Refusal | str) -> AdmissionDecision:
    return AdmissionDecision("refused", refused=str(why), code=422)
