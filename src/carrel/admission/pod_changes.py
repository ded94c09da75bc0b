"""A copy of the pod in a review, with the changes that Carrel wants; and the decision that is made of it."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from carrel.admission.new_pod import PodOwner
from carrel.admission.review import AdmissionRequest
from carrel.dialects import carrel, nvidia, visible_devices
from carrel.dialects.cpu_manifest import on_cpu, without_resources
from carrel.dialects.interface import Dialect
from carrel.dialects.protected_keys import is_protected_annotation, is_protected_label
from carrel.dialects.seal import ADMITTED, Seal, SealedPod, asked_amounts, place_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing.time import seconds

Json = dict[str, Any]

DEFAULT_SCHEDULER = "default-scheduler"
GROUPS = ("initContainers", "containers")
GRACE = "terminationGracePeriodSeconds"
PROBES = ("livenessProbe", "startupProbe")
"""Those that end a container, with a grace period of their own."""


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


class ChangedPod:
    """A copy of the pod in the review: its annotations and its spec are changed in place."""

    def __init__(self, request: AdmissionRequest) -> None:
        self._request = request
        self._pod = dict(request.object or {})
        self._metadata = dict(self._pod.get("metadata") or {})
        self._seal: str = (self._metadata.get("annotations") or {}).get(ADMITTED, "")  # with which the pod came in
        self.annotations: dict[str, str] = {}
        self.spec = dict(self._pod.get("spec") or {})
        self.warnings: list[str] = []
        """kubectl shows them. An empty text is none."""

    def strip(self, keep: Mapping[str, str]) -> None:
        """Remove what only Carrel may write. In a second review, `keep` is what Carrel wrote in the first."""
        for group, is_protected in (("annotations", is_protected_annotation), ("labels", is_protected_label)):
            written = self._metadata.get(group) or {}
            kept = {key: value for key, value in written.items() if not is_protected(key) or keep.get(key) == value}
            if kept != written:
                self._metadata[group] = kept
        self.annotations = dict(self._metadata.get("annotations") or {})

    def strip_gate(self) -> None:
        """Remove the scheduling gate that only Carrel gives."""
        kept = [gate for gate in self.spec.pop("schedulingGates") if gate.get("name") != carrel.BOOKING]
        if kept:
            self.spec["schedulingGates"] = kept

    def hold_back(self, until: datetime) -> None:
        """Give the pod a scheduling gate, which the controller removes."""
        self.spec["schedulingGates"] = [*(self.spec.get("schedulingGates") or []), {"name": carrel.BOOKING}]
        self.annotations[carrel.WAITS_UNTIL] = seconds(until)

    def seal(self, by: Seal, now: datetime, sealed_with: Callable[[str], Collection[object]]) -> None:
        """A valid seal stays, so that a second review gets the same answer. `sealed_with`: the pods that carry a seal;
        if there are any, it was copied from there."""
        meta, containers = self._metadata, [each for group in GROUPS for each in self.spec.get(group) or ()]
        resources = [(each.get("name", ""), each.get("resources") or {}) for each in containers]
        asked = asked_amounts((name, of.get("limits") or {}, of.get("requests") or {}) for name, of in resources)
        place = place_of(self._request.namespace, meta.get("name", ""), meta.get("generateName", ""))
        sealed = SealedPod(place, {**self.annotations, ADMITTED: self._seal}, asked)
        if by.is_on(sealed, now) and not sealed_with(self._seal):
            self.annotations[ADMITTED] = self._seal
        else:
            self.annotations |= by.write(sealed, self._request.uid, now)

    def bound_grace(self, longest_s: int) -> None:
        """A pod holds its GPU until it has ended, and a kubelet does not shorten the time that it has begun to wait. A
        probe that fails ends its container with a grace period of its own."""

        def bounded(part: Mapping[str, Any]) -> Json:
            given = part.get(GRACE)
            if not isinstance(given, int) or given <= longest_s:
                return dict(part)
            text = f"{GRACE} was lowered from {given} to {longest_s}: so long may a GPU pod take to end"
            self.warnings.append(text)
            return {**part, GRACE: longest_s}

        self.spec = bounded(self.spec)
        self.change_containers(
            lambda each: {**each, **{name: bounded(each[name]) for name in PROBES if each.get(name)}}
        )

    def set_priority_class(self, wanted: str) -> None:
        """Empty: the pod has no tier, and only Carrel's own class is taken from it."""
        has = self.spec.get("priorityClassName")
        if has == wanted or (not wanted and has != carrel.PRIORITY_CLASS):
            return
        # The API server computed the numbers from the class that the pod had before. It computes missing ones again,
        # and refuses a pod whose number does not match its class.
        for field in ("priorityClassName", "priority", "preemptionPolicy"):
            self.spec.pop(field, None)
        if wanted:
            self.spec["priorityClassName"] = wanted

    def record(self, pod: Pod, dialect: Dialect) -> None:
        """The request goes from the pod's resources, which no node advertises, into an annotation."""
        if dialect.record_of is not None:
            self.annotations[dialect.recorded] = dialect.record_of(pod)
            gone = {*dialect.resources, *dialect.takes_over}
            self.change_containers(lambda each: without_resources(each, gone.__contains__))

    def change_containers(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        for group in GROUPS:
            if self.spec.get(group):
                self.spec[group] = [change(each) for each in self.spec[group]]

    def remove_gpu(self, notes: Mapping[str, str], claims: Collection[str] = ()) -> None:
        """`claims`: its ResourceClaims for GPUs, as the pod calls them."""
        without = on_cpu(
            {"metadata": {**self._metadata, "annotations": self.annotations}, "spec": self.spec}, notes, claims
        )
        self.annotations = without["metadata"]["annotations"]
        self._metadata["labels"] = without["metadata"]["labels"]
        self.spec = without["spec"]
        if self.spec.get("schedulerName", "") != DEFAULT_SCHEDULER:
            self.spec.pop("schedulerName", None)  # it may be a peer's, which does not run here
        self.change_containers(lambda each: visible_devices.hidden(each, nvidia.NO_DEVICE))

    def answer(self, outcome: str, owner: PodOwner | None = None) -> AdmissionDecision:
        metadata = self._metadata
        if self.annotations or metadata.get("annotations"):
            metadata["annotations"] = self.annotations
        wanted = {**self._pod, "metadata": metadata, "spec": self.spec}
        warnings = tuple(filter(None, dict.fromkeys(self.warnings)))
        return AdmissionDecision(outcome, wanted, warnings=warnings, owner=owner)
