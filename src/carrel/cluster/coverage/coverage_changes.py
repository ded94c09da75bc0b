"""Which changes matter to coverage: of a booking what it entitles to, of a pod what it asks for and how far it is."""

import logging

from carrel.cluster.pod_progress import bound_at, is_ending
from carrel.dialects.booking_objects import BookingObject, read_entitlement
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.coverage import Entitlement
from carrel.parsing import Malformed

log = logging.getLogger(__name__)


def entitlement_in(booking: BookingObject) -> Entitlement | None:
    """None: it cannot be read, and entitles to nothing."""
    try:
        return read_entitlement(booking)
    except Malformed as malformed:
        log.warning("booking_unreadable name=%s why=%r", booking.metadata.name, str(malformed))
        return None


def matters(old: Pod, new: Pod) -> bool:
    """Most changes of a pod are about its containers only."""
    before, now = old.metadata, new.metadata
    return (
        (before.uid, before.annotations, before.labels) != (now.uid, now.annotations, now.labels)
        or old.spec != new.spec
        or is_ending(old) != is_ending(new)
        or bound_at(old) != bound_at(new)
        or old.status.resource_claim_statuses != new.status.resource_claim_statuses
    )
