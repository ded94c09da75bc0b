"""The controller's side of reservations: it makes, believes, repairs and removes the pods that hold cards for others.

There is at most one reservation pod for a slot, because its name comes from the slot alone. What is next is decided by
`ledger.slots`, and written on the slot's Lease before it is done, by the version that was read; so a crash after any
step leaves a state from which the next look goes on. Whether a reservation pod is there, the API server is asked: a
cache that lags neither removes one nor makes a second.

    a lost pod, or one that was evicted    its card is *lost*: nobody new comes to the node, another pod is made
    that has another card                  it is deleted and made again, until the kubelet gives the right one
    another pod has the right one          the slot is *doubled*: it is set aside until one of the two has gone
    one that never says which card         it is deleted after a while and made again
    one that no Lease wants                it is deleted: left by a crash, or made by somebody else
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from carrel.dialects import carrel, kai_reservation
from carrel.dialects.gpuclaim import lease_name
from carrel.dialects.kai_reservation import KAI_0_17, ReservationSpelling
from carrel.kubernetes.cluster import AlreadyExists, Cluster, Conflict, Deletion, Json, NotFound
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.cluster_ledger import ClusterLedger, KnownLease
from carrel.leases.lease_writer import LeaseWriter
from carrel.leases.pods import FINISHED, is_going, slot_of
from carrel.ledger.slots import Act, Reservation, ReservationPod, ReservationState, SlotObservation, next_step
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

STUCK_S = 180.0
"""How long a reservation pod may take to say which card it has: its image may have to be fetched first."""
LINGER_S = 10.0
"""How long a card that was found is kept for the pod that it was found for, whose bind had given up waiting."""
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
    """What reservations need of the world."""

    cluster: Cluster
    namespace: str
    """Of the Leases."""
    reservation_pods: Callable[[], Iterable[Pod]]
    """Those that our cache has: a reason to look, and no more."""
    pods_for: Callable[[str], Iterable[Pod]]
    """Those of them that are for one slot, by the name of its Lease."""
    pod_by_uid: Callable[[str], Pod | None]
    clock: Callable[[], float]
    """Seconds; only differences mean something."""
    terms: ReservationOptions = DEFAULT_RESERVATION_OPTIONS


@dataclass(frozen=True, slots=True)
class ReservationStep:
    """What came of looking at a slot."""

    again_s: float | None
    """When it wants to be looked at again, should nothing be heard of it; None: never."""
    has_room: bool = False
    """There is room now that was not there before."""
    is_news: bool = False
    """Its Lease says something else now."""


class Reservations:
    def __init__(self, cluster_ledger: ClusterLedger, lease_writer: LeaseWriter, context: ReservationContext) -> None:
        self._cluster_ledger = cluster_ledger
        self._lease_writer = lease_writer
        self._context = context
        self._first_seen: dict[str, float] = {}  # uid of a reservation pod → when
        self._found_at: dict[str, float] = {}  # Lease → when its card was found
        self._failures: dict[str, int] = {}  # Lease → pods that were deleted in a row

    def due(self) -> Sequence[str]:
        """The slots that there is a reason to look at, by the names of their Leases."""
        pods = {pod.metadata.uid: pod for pod in self._context.reservation_pods()}
        self._first_seen = {uid: since for uid, since in self._first_seen.items() if uid in pods}
        made = Counter(filter(None, map(slot_of, pods.values())))
        leases = [lease for lease in self._cluster_ledger.leases() if lease.record.reservation is not None]
        well = {lease.name for lease in leases if made[lease.name] == 1 and _is_well(lease, pods)}
        return [name for name in dict.fromkeys([*(lease.name for lease in leases), *made]) if name not in well]

    async def look_at(self, name: str) -> ReservationStep:
        """One step for one slot."""
        lease = self._cluster_ledger.lease(name)
        if lease is None or lease.record.reservation is None:
            return await self._remove_unwanted(name)
        pod = await self._pod(lease, lease.record.reservation)
        await self._remove_doubles(lease, pod)
        step = next_step(lease.record.reservation, self._sight(lease, lease.record.reservation, pod))
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
        return ReservationStep(self._pause(name, lease.record.reservation))

    # --- what there is -----------------------------------------------------------------------------------------------

    def _sight(self, lease: KnownLease, reservation: Reservation, pod: Json) -> SlotObservation:
        seen, record = self._seen(pod), lease.record
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
            has_other_user=self._has_other_user(record.node, reservation, seen),
            others_are_lost=any(each.state is ReservationState.LOST for each in neighbours),
        )

    async def _pod(self, lease: KnownLease, reservation: Reservation) -> Json:
        """The slot's reservation pod, as the API server has it now; empty if there is none.

        The one that has the card may be spelled as it was when it was made; a new one is spelled as the setting says.
        """
        for pod in self._known_pods(lease.name):
            if pod.metadata.uid == reservation.pod:
                found = await self._get(pod.metadata.namespace, pod.metadata.name)
                if found:
                    return found
        spelling = self._context.terms.spelling
        return await self._get(spelling.namespace, self._own_name(lease))

    async def _get(self, namespace: str, name: str) -> Json:
        try:
            return await self._context.cluster.get(PODS, name, namespace)
        except NotFound:
            return {}

    def _own_name(self, lease: KnownLease) -> str:
        return self._context.terms.spelling.pod_name(lease.record.node, kai_reservation.group_of(lease.name))

    def _known_pods(self, name: str) -> list[Pod]:
        return list(self._context.pods_for(name))

    def _seen(self, pod: Json) -> ReservationPod | None:
        if not pod:
            return None
        metadata, phase, now = pod["metadata"], pod.get("status", {}).get("phase"), self._context.clock()
        try:
            card = kai_reservation.reserved_in(metadata.get("annotations", {}), f"pod {metadata['name']}")
        except Malformed as malformed:
            log.warning("reservation_unreadable: %s", malformed)
            card = ""
        is_stuck = now - self._first_seen.setdefault(metadata["uid"], now) > STUCK_S
        is_going = bool(metadata.get("deletionTimestamp"))
        return ReservationPod(metadata["uid"], is_going, phase in FINISHED, is_stuck, card)

    def _may_be_needed(self, name: str, reservation: Reservation, pod: ReservationPod | None) -> bool:
        """Nobody holds a part of the slot; but a bind may have given up only because this took so long."""
        if reservation.state is ReservationState.WANTED:
            return pod is not None and not (pod.is_going or pod.is_finished or pod.is_stuck)
        is_new = self._context.clock() - self._found_at.get(name, float("-inf")) < LINGER_S
        return reservation.state is ReservationState.HELD and is_new

    def _has_other_user(self, node: str, reservation: Reservation, ours: ReservationPod | None) -> bool:
        """Whether the kubelet shows the slot's card with another pod, which is still there."""
        reported = self._cluster_ledger.reported(node)
        card = next((gpu for gpu in reported.gpus if gpu.uuid == reservation.card), None) if reported else None
        users = (self._context.pod_by_uid(uid) for uid in (self._cluster_ledger.users_of(card) if card else ()))
        mine = {reservation.pod, ours.uid if ours else ""}
        return any(user is not None and not is_going(user) and user.metadata.uid not in mine for user in users)

    # --- what is done ------------------------------------------------------------------------------------------------

    async def _record(self, lease: KnownLease, reservation: Reservation) -> ReservationStep:
        if not await self._lease_writer.set_reservation(lease, reservation):
            return ReservationStep(SOON_S)  # somebody changed the Lease: look again at what it says now
        is_trouble = reservation.state in (ReservationState.LOST, ReservationState.DOUBLED)
        words = "reservation_%s lease=%s gpu=%s", reservation.state.value, lease.name, reservation.card or "unknown"
        log.log(logging.WARNING if is_trouble else logging.INFO, *words)
        is_found = reservation.state is ReservationState.HELD
        if is_found:
            self._found_at[lease.name] = self._context.clock()
            self._failures.pop(lease.name, None)
        return ReservationStep(LINGER_S if is_found else 0.0, has_room=is_found, is_news=True)

    async def _create(self, lease: KnownLease) -> None:
        """Only if the Lease is as we know it: a pod too many takes a card from somebody else."""
        if (await self._lease_now(lease.name)).get("metadata", {}).get("resourceVersion") != lease.version:
            return
        record, terms = lease.record, self._context.terms
        notes = {carrel.RESERVED_LEASE: lease.name}
        wanted = kai_reservation.ReservationRequest(
            record.node, kai_reservation.group_of(lease.name), terms.image, notes
        )
        try:
            await self._context.cluster.create(
                PODS, kai_reservation.reservation_pod(wanted, terms.spelling), terms.spelling.namespace
            )
        except AlreadyExists:
            return
        log.info("reservation_created lease=%s node=%s", lease.name, record.node)

    async def _delete(self, pod: Json) -> None:
        """This one, and not another that has its name by now. It is given time: a container that still runs has its
        card, whatever the API server says."""
        if not pod or pod["metadata"].get("deletionTimestamp"):
            return
        metadata = pod["metadata"]
        try:
            how = Deletion(uid=metadata["uid"])
            await self._context.cluster.delete(PODS, metadata["name"], metadata["namespace"], how=how)
        except (NotFound, Conflict):
            return
        log.info("reservation_deleted pod=%s/%s", metadata["namespace"], metadata["name"])

    async def _remove_unwanted(self, name: str) -> ReservationStep:
        """Reservation pods of a slot that has no reservation; by the API server's word, not by our cache's."""
        pods = self._known_pods(name)
        notes = (await self._lease_now(name)).get("metadata", {}).get("annotations", {}) if pods else {}
        if carrel.LEASE_RESERVATION not in notes:
            for pod in pods:
                await self._delete(await self._get(pod.metadata.namespace, pod.metadata.name))
        return ReservationStep(SOON_S if pods else None)

    async def _remove_doubles(self, lease: KnownLease, believed: Json) -> None:
        """Pods for the slot besides the one that is believed: somebody made them, or the spelling was changed."""
        uid = believed["metadata"]["uid"] if believed else ""
        for pod in self._known_pods(lease.name):
            if pod.metadata.uid != uid and pod.metadata.name != self._own_name(lease):
                await self._delete(await self._get(pod.metadata.namespace, pod.metadata.name))

    async def _lease_now(self, name: str) -> Json:
        try:
            return await self._context.cluster.get(LEASES, name, self._context.namespace)
        except NotFound:
            return {}

    def _pause(self, name: str, reservation: Reservation) -> float | None:
        """A lost card is tried for without rest; whatever fails otherwise is tried less and less often."""
        if reservation.state is ReservationState.HELD:
            return None
        if reservation.state in (ReservationState.LOST, ReservationState.CLOSING):
            return SOON_S
        return min(SOON_S * 2.0 ** min(self._failures.get(name, 0), 10), LATER_S)


def _is_well(lease: KnownLease, pods: Mapping[str, Pod]) -> bool:
    """Somebody uses the slot, and our cache has its reservation pod alive, with the right word."""
    reservation = lease.record.reservation
    pod = pods.get(reservation.pod) if reservation else None
    if reservation is None or pod is None or not lease.record.shares or is_going(pod):
        return False
    said = pod.metadata.annotations.get(kai_reservation.RESERVED_GPU)
    return reservation.state is ReservationState.HELD and said == reservation.card
