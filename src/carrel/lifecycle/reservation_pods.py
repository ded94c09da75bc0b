"""Creates, repairs and deletes reservation pods: each holds one GPU for the pods of a slot.

There is at most one reservation pod for a slot, because its name is made from the slot alone. `ledger.slots` decides
the next step, which is written on the slot's Lease before it is done, by the version that was read; so after a crash
the next reconciliation continues. Whether a reservation pod exists, the API server is asked: a cache that is out of
date neither deletes one nor creates a second.

    the pod is gone, or was evicted        its GPU is *lost*: the node takes no new pods, another pod is created
    the new pod has another GPU            it is deleted and created again, until the kubelet gives the right GPU
    another pod has the right GPU          the slot is *doubled*: it is unusable until one of the two is gone
    it never reports its GPU               it is deleted after a while and created again
    no Lease wants it                      it is deleted: left by a crash, or created by somebody else
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from carrel.dialects import carrel, kai_reservation
from carrel.dialects.gpuclaim import lease_name
from carrel.dialects.kai_reservation import KAI_0_17, ReservationSpelling
from carrel.kubernetes.cluster import AlreadyExists, Cluster, Conflict, DeleteOptions, Json, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.leases.cluster_ledger import ClusterLedger, KnownLease
from carrel.leases.lease_writer import LeaseWriter
from carrel.leases.pod_progress import FINISHED, is_ending, slot_of
from carrel.ledger.slots import Act, Reservation, ReservationPod, ReservationState, SlotObservation, next_step
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

UUID_TIMEOUT_S = 180.0
"""How long a reservation pod may take to report its GPU: its image may have to be pulled first."""
KEEP_FOUND_S = 10.0
"""How long a GPU that was found stays reserved for the pod whose bind had stopped waiting for it."""
SOON_S = 1.0
LATER_S = 30.0


@dataclass(frozen=True, slots=True)
class ReservationOptions:
    """What the cluster's admin decides about reservation pods."""

    image: str = "carrel"
    spelling: ReservationSpelling = KAI_0_17


DEFAULT_RESERVATION_OPTIONS = ReservationOptions()


@dataclass(frozen=True, slots=True)
class ReservationContext:
    """What reservation pods need of their surroundings."""

    cluster: Cluster
    namespace: str
    """Of the Leases."""
    reservation_pods: Callable[[], Iterable[Pod]]
    """Those in the cache: only a reason to reconcile."""
    pods_for: Callable[[str], Iterable[Pod]]
    """Those for one slot, by the name of its Lease."""
    pod_by_uid: Callable[[str], Pod | None]
    clock: Callable[[], float]
    """Seconds; only differences mean something."""
    options: ReservationOptions = DEFAULT_RESERVATION_OPTIONS


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
    def __init__(self, cluster_ledger: ClusterLedger, lease_writer: LeaseWriter, context: ReservationContext) -> None:
        self._cluster_ledger = cluster_ledger
        self._lease_writer = lease_writer
        self._context = context
        self._first_seen: dict[str, float] = {}  # uid of a reservation pod → when
        self._found_at: dict[str, float] = {}  # Lease → when its GPU was found
        self._failures: dict[str, int] = {}  # Lease → pods that were deleted in a row

    def due(self) -> Sequence[str]:
        """The slots that are not healthy, by the names of their Leases."""
        pods = {pod.metadata.uid: pod for pod in self._context.reservation_pods()}
        self._first_seen = {uid: since for uid, since in self._first_seen.items() if uid in pods}
        made = Counter(filter(None, map(slot_of, pods.values())))
        leases = [lease for lease in self._cluster_ledger.leases() if lease.record.reservation is not None]
        healthy = {lease.name for lease in leases if made[lease.name] == 1 and _is_healthy(lease, pods)}
        return [name for name in dict.fromkeys([*(lease.name for lease in leases), *made]) if name not in healthy]

    async def reconcile_slot(self, name: str) -> ReservationStep:
        """Does one step for one slot."""
        lease = self._cluster_ledger.lease(name)
        if lease is None or lease.record.reservation is None:
            return await self._remove_unwanted(name)
        pod = await self._pod(lease, lease.record.reservation)
        await self._remove_duplicates(lease, pod)
        step = next_step(lease.record.reservation, self._observed(lease, lease.record.reservation, pod))
        if isinstance(step, Reservation):
            return await self._record(lease, step)
        if step is Act.CREATE:
            await self._create(lease)
        elif step is Act.DELETE:
            self._failures[name] = self._failures.get(name, 0) + 1
            await self._delete(pod)
        elif step is Act.DROP:
            is_gone = await self._lease_writer.set_reservation(lease, None)
            self._found_at.pop(name, None)
            self._failures.pop(name, None)
            return ReservationStep(None if is_gone else SOON_S, has_room=is_gone, is_news=is_gone)
        return ReservationStep(self._recheck_s(name, lease.record.reservation))

    # --- observations ------------------------------------------------------------------------------------------------

    def _observed(self, lease: KnownLease, reservation: Reservation, pod: Json) -> SlotObservation:
        seen, record = self._observed_pod(pod), lease.record
        node = self._cluster_ledger.reported(record.node)
        indices = [gpu.index for gpu in node.gpus if gpu.index != record.index] if node else []
        others = filter(None, (self._cluster_ledger.lease(lease_name(record.node, index)) for index in indices))
        neighbours = [each.record.reservation for each in others if each.record.reservation is not None]
        in_use = [each for each in neighbours if each.state is not ReservationState.CLOSING]
        return SlotObservation(
            is_needed=bool(record.shares) or self._may_be_needed(lease.name, reservation, seen),
            pod=seen,
            cards=frozenset(gpu.uuid for gpu in node.gpus) if node else frozenset(),
            cards_of_others=frozenset(each.card for each in in_use if each.card),
            has_other_user=self._is_used_by_another(record.node, reservation, seen),
            others_are_lost=any(each.state is ReservationState.LOST for each in neighbours),
        )

    async def _pod(self, lease: KnownLease, reservation: Reservation) -> Json:
        """The slot's reservation pod, as the API server has it now; empty if there is none.

        The one that has the GPU keeps the name with which it was created; a new one is named as the setting says.
        """
        for pod in self._known_pods(lease.name):
            if pod.metadata.uid == reservation.pod:
                found = await self._get(pod.metadata.namespace, pod.metadata.name)
                if found:
                    return found
        spelling = self._context.options.spelling
        return await self._get(spelling.namespace, self._own_name(lease))

    async def _get(self, namespace: str, name: str) -> Json:
        try:
            return await self._context.cluster.get(PODS, name, namespace)
        except NotFound:
            return {}

    def _own_name(self, lease: KnownLease) -> str:
        return self._context.options.spelling.pod_name(lease.record.node, kai_reservation.group_of(lease.name))

    def _known_pods(self, name: str) -> list[Pod]:
        return list(self._context.pods_for(name))

    def _observed_pod(self, pod: Json) -> ReservationPod | None:
        if not pod:
            return None
        metadata, phase, now = pod["metadata"], pod.get("status", {}).get("phase"), self._context.clock()
        try:
            card = kai_reservation.reserved_in(metadata.get("annotations", {}), f"pod {metadata['name']}")
        except Malformed as malformed:
            log.warning("reservation_unreadable: %s", malformed)
            card = ""
        is_stuck = now - self._first_seen.setdefault(metadata["uid"], now) > UUID_TIMEOUT_S
        is_deleted = bool(metadata.get("deletionTimestamp"))
        return ReservationPod(metadata["uid"], is_deleted, phase in FINISHED, is_stuck, card)

    def _may_be_needed(self, name: str, reservation: Reservation, pod: ReservationPod | None) -> bool:
        """No pod holds a part of the slot; but a bind may have stopped waiting only because this took so long."""
        if reservation.state is ReservationState.WANTED:
            return pod is not None and not (pod.is_going or pod.is_finished or pod.is_stuck)
        is_new = self._context.clock() - self._found_at.get(name, float("-inf")) < KEEP_FOUND_S
        return reservation.state is ReservationState.HELD and is_new

    def _is_used_by_another(self, node: str, reservation: Reservation, ours: ReservationPod | None) -> bool:
        """Whether the kubelet shows the slot's GPU with another pod that still exists."""
        reported = self._cluster_ledger.reported(node)
        card = next((gpu for gpu in reported.gpus if gpu.uuid == reservation.card), None) if reported else None
        users = (self._context.pod_by_uid(uid) for uid in (self._cluster_ledger.users_of(card) if card else ()))
        mine = {reservation.pod, ours.uid if ours else ""}
        return any(user is not None and not is_ending(user) and user.metadata.uid not in mine for user in users)

    # --- actions -----------------------------------------------------------------------------------------------------

    async def _record(self, lease: KnownLease, reservation: Reservation) -> ReservationStep:
        if not await self._lease_writer.set_reservation(lease, reservation):
            return ReservationStep(SOON_S)  # the Lease has changed: read it again
        is_trouble = reservation.state in (ReservationState.LOST, ReservationState.DOUBLED)
        words = "reservation_%s lease=%s gpu=%s", reservation.state.value, lease.name, reservation.card or "unknown"
        log.log(logging.WARNING if is_trouble else logging.INFO, *words)
        is_found = reservation.state is ReservationState.HELD
        if is_found:
            self._found_at[lease.name] = self._context.clock()
            self._failures.pop(lease.name, None)
        return ReservationStep(KEEP_FOUND_S if is_found else 0.0, has_room=is_found, is_news=True)

    async def _create(self, lease: KnownLease) -> None:
        """Only if the Lease has not changed: a superfluous pod would take a GPU from another pod."""
        if (await self._get_lease(lease.name)).get("metadata", {}).get("resourceVersion") != lease.version:
            return
        record, options = lease.record, self._context.options
        notes = {carrel.RESERVED_LEASE: lease.name}
        wanted = kai_reservation.ReservationRequest(
            record.node, kai_reservation.group_of(lease.name), options.image, notes
        )
        try:
            await self._context.cluster.create(
                PODS, kai_reservation.reservation_pod(wanted, options.spelling), options.spelling.namespace
            )
        except AlreadyExists:
            return
        log.info("reservation_created lease=%s node=%s", lease.name, record.node)

    async def _delete(self, pod: Json) -> None:
        """Only this one, not another of the same name. With its grace period: a container that still runs has its GPU,
        even if the API server shows no pod any more."""
        if not pod or pod["metadata"].get("deletionTimestamp"):
            return
        metadata = pod["metadata"]
        try:
            how = DeleteOptions(uid=metadata["uid"])
            await self._context.cluster.delete(PODS, metadata["name"], metadata["namespace"], how=how)
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
            return await self._context.cluster.get(LEASES, name, self._context.namespace)
        except NotFound:
            return {}

    def _recheck_s(self, name: str, reservation: Reservation) -> float | None:
        """A lost GPU is tried for every second; other failures are retried less and less often."""
        if reservation.state is ReservationState.HELD:
            return None
        if reservation.state in (ReservationState.LOST, ReservationState.CLOSING):
            return SOON_S
        return min(SOON_S * 2.0 ** min(self._failures.get(name, 0), 10), LATER_S)


def _is_healthy(lease: KnownLease, pods: Mapping[str, Pod]) -> bool:
    """The slot is used, and the cache shows its reservation pod alive, with the right GPU."""
    reservation = lease.record.reservation
    pod = pods.get(reservation.pod) if reservation else None
    if reservation is None or pod is None or not lease.record.shares or is_ending(pod):
        return False
    said = pod.metadata.annotations.get(kai_reservation.RESERVED_GPU)
    return reservation.state is ReservationState.HELD and said == reservation.card
