"""A copy of the pod in a review, with the changes that Carrel wants; and the decision that is made of it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from carrel.admission.pod_owner import PodOwner
from carrel.dialects import carrel, nvidia, visible_devices
from carrel.dialects.cpu_manifest import on_cpu, without_resources
from carrel.dialects.interface import Dialect
from carrel.dialects.notice import with_notice_file
from carrel.dialects.protected_keys import is_protected_annotation, is_protected_label
from carrel.dialects.seal import ADMITTED, Seal, SealedPod, asked_gpus, place_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing.time import seconds

Json = dict[str, Any]

DEFAULT_SCHEDULER = "default-scheduler"
GROUPS = ("initContainers", "containers")
GRACE = "terminationGracePeriodSeconds"


class AdmissionDecision(NamedTuple):
    """Yes, with the object as it should be; or no, with the reason."""

    outcome: str
    """For the metrics."""
    wanted: Json | None = None
    """None: unchanged."""
    refused: str = ""
    code: int = 403
    warnings: tuple[str, ...] = ()
    owner: PodOwner | None = None
    """Of a pod that asks for a GPU; None: it asks for none, or whose it is does not matter."""


@dataclass(frozen=True, slots=True)
class Sealing:
    """How the pod of a review is sealed."""

    seal: Seal
    review: str
    """Its uid."""
    now: datetime
    is_used: Callable[[str], bool]
    """Whether a pod that exists carries this seal: then it was copied from there."""


class ChangedPod:
    """A copy of the pod in the review, with the changes that Carrel wants."""

    def __init__(self, pod: Mapping[str, Any], namespace: str, sealing: Sealing | None = None) -> None:
        self._sealing = sealing
        self._pod = dict(pod)
        self._metadata = dict(pod.get("metadata") or {})
        self._spec = dict(pod.get("spec") or {})
        self._written: Mapping[str, str] = self._metadata.get("annotations") or {}  # as the pod came in
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

    def strip_gate(self) -> bool:
        """Removes the scheduling gate that only Carrel gives, and says whether it was there."""
        gates = self._spec.get("schedulingGates") or []
        kept = [gate for gate in gates if gate.get("name") != carrel.BOOKING]
        if len(kept) == len(gates):
            return False
        del self._spec["schedulingGates"]
        if kept:
            self._spec["schedulingGates"] = kept
        return True

    def hold_back(self, until: datetime) -> None:
        """By a scheduling gate, which the controller removes."""
        self._spec["schedulingGates"] = [*(self._spec.get("schedulingGates") or []), {"name": carrel.BOOKING}]
        self.annotate({carrel.WAITS_UNTIL: seconds(until)})

    def annotate(self, notes: Mapping[str, str]) -> None:
        if notes:
            self._metadata["annotations"] = {**(self._metadata.get("annotations") or {}), **notes}

    def record(self, dialect: Dialect, pod: Pod) -> None:
        """The request goes from the pod's resources, which no node advertises, into an annotation."""
        if dialect.record_of is not None:
            self.annotate({dialect.recorded: dialect.record_of(pod)})
            gone = {*dialect.resources, *dialect.other_resources, *dialect.takes_over}
            self.change_containers(lambda each: without_resources(each, gone))

    def seal(self) -> None:
        """If there is a key. A valid seal stays: a second review gets the same answer."""
        if (by := self._sealing) is None:
            return
        notes, written = self._metadata.get("annotations") or {}, self._written
        sealed = {ADMITTED: written[ADMITTED]} if ADMITTED in written else {}
        if not sealed or not self._is_sealed({**notes, **sealed}):
            sealed = by.seal.write(self._as_sealed(notes), by.review, by.now)
        self.annotate(sealed)

    def is_sealed(self) -> bool:
        """Whether the pod as it came in carries a valid seal."""
        return self._is_sealed(self._written)

    def _is_sealed(self, notes: Mapping[str, str]) -> bool:
        by = self._sealing
        return by is not None and by.seal.is_on(self._as_sealed(notes), by.now) and not by.is_used(notes[ADMITTED])

    def _as_sealed(self, notes: Mapping[str, str]) -> SealedPod:
        place = place_of(self.namespace, self._metadata.get("name", ""), self._metadata.get("generateName", ""))
        return SealedPod(place, notes, asked_gpus(self._amounts()))

    def _amounts(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        for group in GROUPS:
            for container in self._spec.get(group) or ():
                resources = container.get("resources") or {}
                yield container.get("name", ""), resources.get("limits") or {}, resources.get("requests") or {}

    def set_scheduler(self, scheduler: str) -> None:
        self._spec["schedulerName"] = scheduler

    def set_runtime_class(self, runtime_class: str) -> None:
        """Unless its author has named one."""
        if runtime_class and not self._spec.get("runtimeClassName"):
            self._spec["runtimeClassName"] = runtime_class

    def bound_grace(self, longest_s: int) -> None:
        """A pod holds its GPU until it has ended, and a kubelet does not shorten the time that it has begun to wait."""
        given = self._spec.get(GRACE)
        if isinstance(given, int) and given > longest_s:
            self._spec[GRACE] = longest_s
            self._warn_lowered(given, longest_s)
        self.change_containers(lambda each: self._with_bounded_probes(each, longest_s))

    def _with_bounded_probes(self, container: Mapping[str, Any], longest_s: int) -> Mapping[str, Any]:
        """A probe that fails ends its container with a grace period of its own."""
        for name in ("livenessProbe", "startupProbe"):
            probe = container.get(name)
            if probe and isinstance(given := probe.get(GRACE), int) and given > longest_s:
                container = {**container, name: {**probe, GRACE: longest_s}}
                self._warn_lowered(given, longest_s)
        return container

    def _warn_lowered(self, given: int, longest_s: int) -> None:
        self.warn(f"{GRACE} was lowered from {given} to {longest_s}: so long may a GPU pod take to end")

    def set_priority_class(self, priority_class: str) -> None:
        if self._spec.get("priorityClassName") != priority_class:
            self._clear_priority()
            self._spec["priorityClassName"] = priority_class

    def drop_our_priority(self) -> None:
        """Take Carrel's priority from a pod that has no tier."""
        if self._spec.get("priorityClassName") == carrel.PRIORITY_CLASS:
            self._clear_priority()

    def _clear_priority(self) -> None:
        # The API server computed the numbers from the class that the pod had before. It computes missing ones again,
        # and refuses a pod whose number does not match its class.
        for field in ("priorityClassName", "priority", "preemptionPolicy"):
            self._spec.pop(field, None)

    def change_containers(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        for group in GROUPS:
            if self._spec.get(group):
                self._spec[group] = [change(each) for each in self._spec[group]]

    def add_notice_file(self) -> None:
        self._spec = with_notice_file(self._spec)

    def remove_gpu(self, notes: Mapping[str, str], claims: Collection[str] = ()) -> None:
        """`claims`: its ResourceClaims for GPUs, as the pod calls them."""
        without = on_cpu({"metadata": self._metadata, "spec": self._spec}, notes, claims)
        self._metadata |= {group: without["metadata"][group] for group in ("annotations", "labels")}
        self._spec = without["spec"]
        if self._spec.get("schedulerName", "") != DEFAULT_SCHEDULER:
            self._spec.pop("schedulerName", None)  # it may be a peer's, which does not run here
        self.change_containers(lambda each: visible_devices.hidden(each, nvidia.NO_DEVICE))

    def warn(self, text: str) -> None:
        """kubectl shows it. An empty text is none."""
        if text:
            self._warnings.append(text)

    def answer(self, outcome: str, warning: str = "", owner: PodOwner | None = None) -> AdmissionDecision:
        wanted = {**self._pod, "metadata": self._metadata, "spec": self._spec}
        self.warn(warning)
        return AdmissionDecision(outcome, wanted, warnings=tuple(dict.fromkeys(self._warnings)), owner=owner)
