"""Whether GPUs that are kept for booked pods are still needed, and so whether their victims still have to go.

What was kept for a booking that is gone, or that covers the pod no more, goes back to who has it: the collector stops
keeping it (`collection`), and a victim that still runs stays (`hand_over`). Caches say it within moments. Before a pod
is ended, the API server is asked for the booking itself.
"""

from collections.abc import Iterator

from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.ids import BookingId, HolderId
from carrel.kubernetes.cluster import NotFound
from carrel.kubernetes.decoding import read_object


class KeptGpus:
    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def is_running(self, booking: BookingId) -> bool:
        return self._state.covered_pods.use_of(booking) is not None

    async def is_gone(self, booking: BookingId) -> bool:
        """Whether the booking was cancelled. The object of one that has come to its end stays for a while."""
        return self._state.bookings.store.get(booking) is None and await self._is_known_as_it_is(booking)

    def is_in_vain(self, record: LeaseRecord) -> bool:
        """Whether nobody waits any more for the GPU that the Lease keeps."""
        kept_for, booking = record.kept_for, record.kept_booking
        if kept_for is None:
            return False
        if is_kept_for_next(record):
            is_taken = any(share.coverage and share.coverage.booking == booking for share in record.shares)
            is_over = record.kept_until is None or self._state.options.now() >= record.kept_until
            return is_taken or is_over or not self.is_running(booking)
        pod, covered = self._state.pods.store.by_uid(kept_for.uid), self._state.covered_pods.of(kept_for.uid)
        if pod is None:
            return bool(booking) and not self.is_running(booking)
        is_covered = not booking or (covered is not None and covered.entitlement.booking == booking)
        return bool(pod.spec.node_name) or not is_covered

    async def is_needed(self, uid: HolderId, *, is_last_look: bool) -> bool | None:
        """Whether a GPU of the pod is kept for somebody who waits for it. With `is_last_look`, by the bookings that the
        API server has now; None: ask again, because a cache is old, or because it would not help the pod that waits
        now (`cluster.waiting.waiting_booked`). Raises `ClusterError`."""
        for booking in {record.kept_booking for record in self._taken_from(uid)} - {""} if is_last_look else ():
            if not await self._is_known_as_it_is(booking):
                return None
        records = list(self._taken_from(uid))
        is_needed = not all(map(self.is_in_vain, records))
        if not is_last_look or not is_needed:
            return is_needed
        # Could the pod that waits, or the next one of its booking, be placed with the GPUs of this pod?
        waiting = self._state.booked_waiting()
        could_run = {each.holder.uid for each in waiting} | {each.booking for each in waiting}
        for record in records:
            keeper = record.kept_for.uid if record.kept_for is not None else ""
            is_there = self._state.pods.store.by_uid(keeper) is not None
            if (keeper if is_there else record.kept_booking) in could_run:
                return True
        return None

    def _taken_from(self, uid: HolderId) -> Iterator[LeaseRecord]:
        """The Leases by which the pod has to give a GPU back, by itself or by a ResourceClaim that it uses."""
        for lease in self._state.cluster_ledger.kept_leases():
            for victim in (victim.uid for victim in lease.record.kept_from):
                users = self._state.holders.pods_of(victim)
                if uid == victim or any(uid == pod.metadata.uid for pod in users):
                    yield lease.record
                    break

    async def _is_known_as_it_is(self, booking: BookingId) -> bool:
        known = self._state.bookings.store.get(booking)
        try:
            found = read_object(BOOKINGS, await self._state.cluster.get(BOOKINGS, booking))
        except NotFound:
            return known is None
        return known is not None and known.spec == found.spec


def is_kept_for_next(record: LeaseRecord) -> bool:
    """Not for a pod, but for the next pod of a booking."""
    return record.kept_for is not None and record.kept_for.uid == record.kept_booking
