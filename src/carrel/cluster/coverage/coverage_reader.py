"""Reads what there is to tell people about coverage: of a pod, of a booking, and of the GPUs that a pod waits for, or
runs without."""

from collections.abc import Iterable

from carrel.cluster.coverage.coverage_words import (
    Beyond,
    BeyondReason,
    BookingInUse,
    CoverageWords,
    GpuHolder,
    PodCoverage,
)
from carrel.cluster.gpu_activities import GpuActivities
from carrel.cluster.pod_progress import holder_of
from carrel.cluster.state import ClusterState
from carrel.cluster.waiting.free_again import free_again
from carrel.dialects.booking_objects import namespace_named
from carrel.dialects.carrel import BOOKING, NEXT, TIER
from carrel.dialects.hand_over_record import runs_without_gpu
from carrel.dialects.interface import PodRequest
from carrel.dialects.tier import is_nobodys, person_of
from carrel.ids import BookingId, HolderId
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.ledger.coverage import Entitlement
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.placement import allows
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.tiers import Tier


class CoverageReader:
    def __init__(self, carrel: ClusterState, activities: GpuActivities | None = None) -> None:
        """Without `activities`, it does not say what the GPUs are used for."""
        self._carrel = carrel
        self._activities = activities
        self._covered_pods = carrel.covered_pods

    def of(self, pod: Pod) -> PodCoverage:
        facts = self._carrel.pod_facts(pod)
        tier, covered = facts.tier, facts.covered
        waits = not pod.spec.node_name
        holds = bool(self._carrel.pod_facts.shares_of(pod))
        return PodCoverage(
            tier=tier,
            asks=holds or facts.asked is not None,
            waits=waits,
            covered=covered.entitlement if covered is not None else None,
            beyond=self._beyond(pod) if covered is None and tier is not None else None,
            held_for=self._held_for(pod) if waits else None,
            is_exempt=self._carrel.watches.is_exempt(pod.metadata.namespace),
            is_nobodys=self._carrel.options.tier_policy.nobodys_pods_keep and is_nobodys(pod),
            is_decided=TIER in pod.metadata.annotations,
        )

    def use_of(self, booking: BookingId) -> BookingInUse | None:
        """None: it does not run, or the cluster does not know it yet."""
        use = self._covered_pods.use_of(booking)
        if use is None:
            return None
        return BookingInUse(use.entitlement, len(use.gpus), _names(self._covered_pods.covered_by(booking)))

    def why_without_gpu(self, pod: Pod, words: CoverageWords) -> str:
        """Why the pod runs without the GPU that it asked for, and when such a GPU will be free; empty: it does not."""
        mark = runs_without_gpu(pod, self._carrel.options.zone)
        if mark is None or self._carrel.pod_facts.asked(pod) is not None:
            return ""
        free = free_again(self._carrel, pod, Request(mark.gpus, WHOLE, mark.model))
        return f"{mark.sentence}. Now: {words.free_again(free, can_start_again=True)}"

    def holders(self, pod: Pod) -> list[GpuHolder]:
        """Who holds the GPUs that would do for a pod that waits; those that are booked come first, by their end."""
        asked = self._carrel.pod_facts.asked(pod)
        if pod.spec.node_name or gates_of(pod) or not isinstance(asked, PodRequest):
            return []
        ledger, request = self._carrel.ledger, asked.request
        if self._carrel.waiting_reason.why_never(pod, request) is not None:
            return []  # it waits for nobody's
        is_silent = self._carrel.cluster_ledger.why_silent
        there = filter(None, map(ledger.node, self._carrel.eligible_nodes.nodes_for(pod)))
        nodes = [node for node in there if not node.unusable or is_silent(node.name)]
        entries = [
            entry
            for node in nodes
            if request.selects(node)
            for entry in ledger.entries(node.name)
            if not entry.gpu.unusable and allows(entry.gpu, request)
        ]
        own = self._carrel.holders.held_by(pod)
        found = [each for entry in entries for each in self.holders_of(entry) if each[0] not in own]
        return [holder for _, holder in sorted(found, key=lambda each: _order(each[1]))]

    def holders_of(self, entry: GpuEntry) -> Iterable[tuple[HolderId, GpuHolder]]:
        """Who holds what of a GPU."""
        silent = self._carrel.cluster_ledger.why_silent(entry.gpu.node)
        for uid, share in sorted(entry.shares.items()):
            pod = self._carrel.holders.pod_of(uid)
            is_there = pod is not None or share.holder.is_claim
            gone = "" if is_there else "it is gone, and its node has not confirmed its end"
            covered = self._covered_pods.of(uid)
            yield (
                uid,
                GpuHolder(
                    gpu=str(entry.gpu),
                    model=entry.gpu.model,
                    pod=self._carrel.holders.described(share.holder),
                    user=person_of(pod) if pod is not None else "",
                    tier=self._carrel.covered_pods.tier(pod) if pod is not None else None,
                    until=covered.entitlement.ends if covered is not None else None,
                    unsure=f"{entry.gpu.node} does not answer, {silent}" if silent else gone,
                    activity=self._activities.of_holder(entry, uid) if self._activities is not None else None,
                ),
            )

    # --- why a booking does not cover a pod --------------------------------------------------------------------------

    def _beyond(self, pod: Pod) -> Beyond | None:
        running = self._covered_pods.running_for(person_of(pod), namespace_named(pod.metadata.namespace))
        if not running:
            return None
        found = [self._beyond_booking(pod, each) for each in running]
        return next((each for each in found if each.why is BeyondReason.IN_USE), found[0])

    def _beyond_booking(self, pod: Pod, entitlement: Entitlement) -> Beyond:
        models, gpus = self._wanted(pod)
        if entitlement.model and any(model != entitlement.model for model in models):
            return Beyond(entitlement, BeyondReason.OTHER_MODEL)
        if gpus > entitlement.gpus:
            return Beyond(entitlement, BeyondReason.TOO_FEW)
        used_by = _names(self._covered_pods.users_of(entitlement.booking))
        return Beyond(entitlement, BeyondReason.IN_USE if used_by else BeyondReason.OTHER, used_by)

    def _wanted(self, pod: Pod) -> tuple[set[str], int]:
        """The models that the pod holds or asks for, and how many GPUs."""
        ledger = self._carrel.ledger
        if held := {share.gpu for share in self._carrel.pod_facts.shares_of(pod)}:
            return {entry.gpu.model for entry in map(ledger.entry, held) if entry is not None}, len(held)
        asked = self._carrel.pod_facts.asked(pod)
        if not isinstance(asked, PodRequest):
            return set(), 0
        return {asked.request.model} - {""}, asked.request.gpus

    def _held_for(self, pod: Pod) -> Entitlement | None:
        """A scheduling gate of the same name as the annotation holds it until the booking starts."""
        wanted = pod.metadata.annotations.get(BOOKING, "")
        if not wanted or BOOKING not in gates_of(pod):
            return None
        planned = self._covered_pods.planned_for(person_of(pod), namespace_named(pod.metadata.namespace))
        return next((each for each in planned if wanted in (NEXT, each.booking)), None)


def _names(pods: Iterable[Pod]) -> tuple[str, ...]:
    return tuple(holder_of(pod).full_name for pod in pods)


def _order(holder: GpuHolder) -> tuple[int, float, str]:
    group = 0 if holder.until is not None else 1 if holder.tier is Tier.OPPORTUNISTIC else 2
    return group, holder.until.timestamp() if holder.until is not None else 0.0, holder.gpu
