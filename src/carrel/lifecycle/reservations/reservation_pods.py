"""Creates, repairs and deletes reservation pods: each holds one GPU for the pods of a slot.

There is at most one reservation pod for a slot, because its name is made from the slot alone. `ledger.slots` decides
the next step, which is written on the slot's Lease before it is done, by the version that was read; so after a crash
the next reconciliation continues. Whether a reservation pod exists, the API server is asked: a cache that is out of
date neither deletes one nor creates a second.

    the pod is gone, or was evicted        its GPU is *lost*: the node takes no new pods, another pod is created
    the new pod has another GPU            it is deleted and created again, until the kubelet gives the right GPU
    another pod has the right GPU          the slot is *doubled*: it is unusable until one of the two is gone
    the kubelet refuses it                 its words are recorded on the Lease for the pods that wait; it is deleted;
                                           the next one is created later: each time twice as late, up to five minutes
    it never reports its GPU               the same, after a while
    no Lease wants it                      it is deleted: left by a crash, or created by somebody else
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from carrel.cluster.pod_progress import FINISHED, is_ending, slot_of
from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.record.slot_gpus import gpu_used_by
from carrel.cluster.state import ClusterState
from carrel.cluster.watches import NAMESPACE_OF, SLOT_OF
from carrel.dialects import carrel, kai_reservation, mig, nvidia
from carrel.dialects.gpu_lease import lease_name
from carrel.dialects.kai_reservation import KAI_0_17, SPELLINGS, ReservationSpelling, is_reservation
from carrel.ids import NO_GPU, NodeName, PodUid
from carrel.kubernetes.cluster import AlreadyExists, Conflict, DeleteOptions, Json, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.ledger.gpus import place_name
from carrel.ledger.slots import Act, Reservation, ReservationPod, ReservationState, SlotObservation, next_step
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

UUID_TIMEOUT_S = 180.0
"""How long a reservation pod may take to report its GPU: its image may have to be pulled first."""
KEEP_FOUND_S = 10.0
"""How long a GPU that was found stays reserved for the pod whose bind had stopped waiting for it."""
SOON_S = 1.0
LATER_S = 30.0
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 300.0
"""How long nothing is tried on a node after the kubelet refused a reservation pod: at first, and at most."""
QUICK_TRIES = 4
"""Pods in a row that are created at once to get a lost GPU back; then each waits twice as long as the one before."""
LONGEST_WORDS = 300


@dataclass(frozen=True, slots=True)
class ReservationOptions:
    """What the cluster's admin decides about reservation pods."""

    image: str = "carrel"
    spelling: ReservationSpelling = KAI_0_17
    runtime_class: Callable[[], str] = lambda: ""
    """Empty: none."""


DEFAULT_RESERVATION_OPTIONS = ReservationOptions()


@dataclass(frozen=True, slots=True)
class ReservationStep:
    """The result of reconciling a slot once."""

    again_s: float | None
    """When to reconcile it again if nothing changes; None: never."""
    has_room: bool = False
    """There is more room than before."""
    is_news: bool = False
    """Its Lease has changed."""


class ReservationPods:
    def __init__(self, state: ClusterState, options: ReservationOptions = DEFAULT_RESERVATION_OPTIONS) -> None:
        self._state = state
        self._options = options
        self._cluster_ledger = state.cluster_ledger
        self._lease_writer = state.lease_writer
        self._clock = state.options.clock
        self._first_seen: dict[PodUid, float] = {}  # uid of a reservation pod → when
        self._found_at: dict[str, float] = {}  # Lease → when its GPU was found
        self._failures: dict[str, int] = {}  # Lease → pods that were deleted in a row
        self._not_before: dict[str, float] = {}  # Lease → when the next pod may be created
        self._refusals: dict[NodeName, int] = {}  # node → pods in a row that the kubelet refused

    def due(self) -> Sequence[str]:
        """The slots that are not healthy, by the names of their Leases."""
        pods = {pod.metadata.uid: pod for pod in self._reservation_pods()}
        self._first_seen = {uid: since for uid, since in self._first_seen.items() if uid in pods}
        made = Counter(filter(None, map(slot_of, pods.values())))
        leases = [lease for lease in self._cluster_ledger.leases() if lease.record.reservation is not None]
        healthy = {lease.name for lease in leases if made[lease.name] == 1 and _is_healthy(lease, pods)}
        return [name for name in dict.fromkeys([*(lease.name for lease in leases), *made]) if name not in healthy]

    def _reservation_pods(self) -> list[Pod]:
        """Those in the cache: only a reason to reconcile."""
        find, namespaces = self._state.pods.store.find, [spelling.namespace for spelling in SPELLINGS]
        return [pod for name in namespaces for pod in find(NAMESPACE_OF, name) if is_reservation(pod)]

    async def reconcile_slot(self, name: str) -> ReservationStep:
        """Does one step for one slot."""
        lease = self._cluster_ledger.lease(name)
        if lease is None or lease.record.reservation is None:
            return await self._remove_unwanted(name)
        if (named := self._by_uuid(lease.record.node, lease.record.reservation)) is not None:
            return await self._record(lease, named)
        pod = await self._pod(lease, lease.record.reservation)
        await self._remove_duplicates(lease, pod)
        step = next_step(lease.record.reservation, self._observed(lease, lease.record.reservation, pod))
        if isinstance(step, Reservation):
            return await self._record(lease, step)
        if step is Act.CREATE:
            early_s = self._not_before.get(name, float("-inf")) - self._clock()
            if early_s > 0:
                return ReservationStep(early_s)
            await self._create(lease)
        elif step is Act.DELETE:
            self._count_failure(name)
            await self._delete(pod)
        elif step is Act.DROP:
            is_gone = await self._lease_writer.set_reservation(lease, None)
            self._found_at.pop(name, None)
            self._forget_failures(name)
            return ReservationStep(None if is_gone else SOON_S, has_room=is_gone, is_news=is_gone)
        return ReservationStep(self._recheck_s(name, lease.record.reservation))

    def _count_failure(self, name: str) -> None:
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        more = min(max(failures - QUICK_TRIES, -1), 10)
        self._not_before[name] = self._clock() + (min(SOON_S * 2.0**more, LATER_S) if more >= 0 else 0.0)

    def _forget_failures(self, name: str) -> None:
        self._failures.pop(name, None)
        self._not_before.pop(name, None)

    # --- observations ------------------------------------------------------------------------------------------------

    def _observed(self, lease: KnownLease, reservation: Reservation, pod: Json) -> SlotObservation:
        seen, record = self._observed_pod(lease.record.node, pod), lease.record
        node = self._cluster_ledger.reported(record.node)
        indices = [gpu.index for gpu in node.gpus if gpu.index != record.index] if node else []
        others = filter(None, (self._cluster_ledger.lease(lease_name(record.node, index)) for index in indices))
        neighbours = [each.record.reservation for each in others if each.record.reservation is not None]
        in_use = [each for each in neighbours if each.state is not ReservationState.CLOSING]
        return SlotObservation(
            is_needed=bool(record.shares) or self._may_be_needed(lease.name, reservation, seen),
            pod=seen,
            gpus=frozenset(gpu.uuid for gpu in node.gpus) if node else frozenset(),
            gpus_of_others=frozenset(each.gpu for each in in_use if each.gpu),
            has_other_user=self._is_used_by_another(record.node, reservation, seen),
            others_are_lost=any(each.state is ReservationState.LOST for each in neighbours),
            others_are_refused=any(map(self._is_early, neighbours)),
            unusable_gpus=frozenset(gpu.uuid for gpu in node.gpus if gpu.unusable) if node else frozenset(),
            is_early=self._is_early(reservation),
            retry_at=self._retry_at(lease, reservation, seen),
        )

    def _by_uuid(self, node: NodeName, reservation: Reservation) -> Reservation | None:
        """The reservation with the UUID of its GPU, if it was recorded by its place and the node reports it now."""
        reported = self._cluster_ledger.reported(node)
        for gpu in reported.gpus if reported else ():
            if gpu.has_uuid and reservation.gpu == place_name(node, gpu.index):
                return replace(reservation, gpu=gpu.uuid)
        return None

    def _is_early(self, reservation: Reservation) -> bool:
        """Whether it is too early for another reservation pod. A time far ahead comes from a wrong clock."""
        latest = self._state.options.now() + timedelta(seconds=2 * LAST_RETRY_S)
        return reservation.retry_at is not None and self._state.options.now() < reservation.retry_at <= latest

    def _retry_at(self, lease: KnownLease, reservation: Reservation, pod: ReservationPod | None) -> datetime | None:
        """When to try again if this pod was refused; None: at once, because it had the GPU, or pods run on the GPU that
        it should take back."""
        had_gpu = pod is not None and pod.uid == reservation.pod
        is_urgent = reservation.state is not ReservationState.WANTED
        if had_gpu or (is_urgent and self._failures.get(lease.name, 0) < QUICK_TRIES):
            return None
        refusals = min(self._refusals.get(lease.record.node, 0), 10)
        return self._state.options.now() + timedelta(seconds=min(FIRST_RETRY_S * 2.0**refusals, LAST_RETRY_S))

    async def _pod(self, lease: KnownLease, reservation: Reservation) -> Json:
        """The slot's reservation pod, as the API server has it now; empty if there is none.

        The one that has the GPU keeps the name with which it was created; a new one is named as the setting says.
        """
        for pod in self._known_pods(lease.name):
            if pod.metadata.uid == reservation.pod:
                found = await self._get(pod.metadata.namespace, pod.metadata.name)
                if found:
                    return found
        spelling = self._options.spelling
        return await self._get(spelling.namespace, self._own_name(lease))

    async def _get(self, namespace: str, name: str) -> Json:
        try:
            return await self._state.cluster.get(PODS, name, namespace)
        except NotFound:
            return {}

    def _own_name(self, lease: KnownLease) -> str:
        return self._options.spelling.pod_name(lease.record.node, kai_reservation.group_of(lease.name))

    def _known_pods(self, name: str) -> list[Pod]:
        return list(self._state.pods.store.find(SLOT_OF, name))

    def _observed_pod(self, node: NodeName, pod: Json) -> ReservationPod | None:
        if not pod:
            return None
        metadata, phase, now = pod["metadata"], pod.get("status", {}).get("phase"), self._clock()
        try:
            gpu = kai_reservation.reserved_in(metadata.get("annotations", {}), f"pod {metadata['name']}")
        except Malformed as malformed:
            log.warning("reservation_unreadable: %s", malformed)
            gpu = NO_GPU
        is_stuck = now - self._first_seen.setdefault(metadata["uid"], now) > UUID_TIMEOUT_S
        is_deleted = bool(metadata.get("deletionTimestamp"))
        # The kubelet's own list is better than what the program in the pod has found: it may see no GPU at all, where
        # the container runtime is told by index, by mounts or by CDI.
        gpu = gpu_used_by(self._cluster_ledger, node, metadata["uid"]) or gpu
        is_finished = phase in FINISHED
        why = f"the kubelet of {node} gave no GPU: {_kubelet_words(pod)}" if is_finished or is_stuck else ""
        return ReservationPod(metadata["uid"], is_deleted, is_finished, is_stuck, gpu, why)

    def _may_be_needed(self, name: str, reservation: Reservation, pod: ReservationPod | None) -> bool:
        """No pod holds a part of the slot; but a bind may have stopped waiting only because this took so long."""
        if reservation.state is ReservationState.WANTED:
            return pod is not None and not (pod.is_going or pod.is_finished or pod.is_stuck)
        is_new = self._clock() - self._found_at.get(name, float("-inf")) < KEEP_FOUND_S
        return reservation.state is ReservationState.HELD and is_new

    def _is_used_by_another(self, node: NodeName, reservation: Reservation, ours: ReservationPod | None) -> bool:
        """Whether the kubelet shows the slot's GPU with another pod that still exists."""
        reported = self._cluster_ledger.reported(node)
        held = next((gpu for gpu in reported.gpus if gpu.uuid == reservation.gpu), None) if reported else None
        users = (self._state.pods.store.by_uid(uid) for uid in (self._cluster_ledger.users_of(held) if held else ()))
        mine = {reservation.pod, ours.uid if ours else ""}
        return any(user is not None and not is_ending(user) and user.metadata.uid not in mine for user in users)

    # --- actions -----------------------------------------------------------------------------------------------------

    async def _record(self, lease: KnownLease, reservation: Reservation) -> ReservationStep:
        if not await self._lease_writer.set_reservation(lease, reservation):
            return ReservationStep(SOON_S)  # the Lease has changed: read it again
        is_trouble = reservation.state in (ReservationState.LOST, ReservationState.DOUBLED)
        words = "reservation_%s lease=%s gpu=%s", reservation.state.value, lease.name, reservation.gpu or "unknown"
        log.log(logging.WARNING if is_trouble else logging.INFO, *words)
        is_found = reservation.state is ReservationState.HELD
        if is_found:
            self._found_at[lease.name] = self._clock()
            self._forget_failures(lease.name)
            self._refusals.pop(lease.record.node, None)
        elif reservation.refused:
            self._refusals[lease.record.node] = self._refusals.get(lease.record.node, 0) + 1
            log.warning("reservation_refused lease=%s: %s", lease.name, reservation.refused)
        return ReservationStep(KEEP_FOUND_S if is_found else 0.0, has_room=is_found, is_news=True)

    async def _create(self, lease: KnownLease) -> None:
        """Only if the Lease has not changed: a superfluous pod would take a GPU from another pod."""
        if (await self._get_lease(lease.name)).get("metadata", {}).get("resourceVersion") != lease.version:
            return
        record, options = lease.record, self._options
        notes = {carrel.RESERVED_LEASE: lease.name}
        wanted = kai_reservation.ReservationRequest(
            record.node,
            kai_reservation.group_of(lease.name),
            options.image,
            notes,
            options.runtime_class(),
            self._resource_of(lease),
        )
        try:
            await self._state.cluster.create(
                PODS, kai_reservation.reservation_pod(wanted, options.spelling), options.spelling.namespace
            )
        except AlreadyExists:
            return
        log.info("reservation_created lease=%s node=%s", lease.name, record.node)

    def _resource_of(self, lease: KnownLease) -> str:
        """The resource by which the kubelet gives what the slot stands for."""
        node = self._cluster_ledger.reported(lease.record.node)
        there = (gpu for gpu in node.gpus if gpu.index == lease.record.index) if node else iter(())
        return next(map(mig.resource_of, there), nvidia.GPU)

    async def _delete(self, pod: Json) -> None:
        """Only this one, not another of the same name. With its grace period: a container that still runs has its GPU,
        even if the API server shows no pod any more."""
        if not pod or pod["metadata"].get("deletionTimestamp"):
            return
        metadata = pod["metadata"]
        try:
            how = DeleteOptions(uid=metadata["uid"])
            await self._state.cluster.delete(PODS, metadata["name"], metadata["namespace"], how=how)
        except (NotFound, Conflict):
            return
        log.info("reservation_deleted pod=%s/%s", metadata["namespace"], metadata["name"])

    async def _remove_unwanted(self, name: str) -> ReservationStep:
        """Reservation pods of a slot that has no reservation, as the API server says, not the cache."""
        pods = self._known_pods(name)
        notes = (await self._get_lease(name)).get("metadata", {}).get("annotations", {}) if pods else {}
        if carrel.LEASE_RESERVATION not in notes:
            for pod in pods:
                await self._delete(await self._get(pod.metadata.namespace, pod.metadata.name))
        return ReservationStep(SOON_S if pods else None)

    async def _remove_duplicates(self, lease: KnownLease, accepted: Json) -> None:
        """Other pods for the slot: somebody created them, or the setting of the names was changed."""
        uid = accepted["metadata"]["uid"] if accepted else ""
        for pod in self._known_pods(lease.name):
            if pod.metadata.uid != uid and pod.metadata.name != self._own_name(lease):
                await self._delete(await self._get(pod.metadata.namespace, pod.metadata.name))

    async def _get_lease(self, name: str) -> Json:
        try:
            return await self._state.cluster.get(LEASES, name, self._state.options.namespace)
        except NotFound:
            return {}

    def _recheck_s(self, name: str, reservation: Reservation) -> float | None:
        """A lost GPU is tried for every second; other failures are retried less and less often."""
        if reservation.state is ReservationState.HELD:
            return None
        if reservation.retry_at is not None and self._is_early(reservation):
            return (reservation.retry_at - self._state.options.now()).total_seconds() + 0.01
        if reservation.state in (ReservationState.LOST, ReservationState.CLOSING):
            return SOON_S
        return min(SOON_S * 2.0 ** min(self._failures.get(name, 0), 10), LATER_S)


def _kubelet_words(pod: Json) -> str:
    """Why a pod failed or does not start: of the pod itself, else of its first container that says something."""
    status = pod.get("status", {})
    words = [": ".join(filter(None, (status.get("reason", ""), status.get("message", ""))))]
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}).values():
            words.append(": ".join(filter(None, (state.get("reason", ""), state.get("message", "")))))
    found = next(filter(None, words), "the reservation pod has not said which GPU it has, and why is not known")
    return found if len(found) <= LONGEST_WORDS else f"{found[:LONGEST_WORDS]}…"


def _is_healthy(lease: KnownLease, pods: Mapping[PodUid, Pod]) -> bool:
    """The slot is used, and the cache shows its reservation pod alive, with the right GPU."""
    reservation = lease.record.reservation
    pod = pods.get(reservation.pod) if reservation else None
    if reservation is None or pod is None or not lease.record.shares or is_ending(pod):
        return False
    said = pod.metadata.annotations.get(kai_reservation.RESERVED_GPU)
    return reservation.state is ReservationState.HELD and said == reservation.gpu
