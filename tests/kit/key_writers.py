"""Which of Carrel's accounts writes which protected key on a pod.

Tests compare the policy that refuses all others (`manifests/policies.yaml`) with this table, and the table with what
the components really write.
"""

from collections.abc import Mapping

from carrel.dialects import (
    booking_objects,
    carrel,
    gpuclaim,
    gpushare,
    hami,
    hand_over_record,
    kai,
    kai_reservation,
    memory_limits,
    seal,
    visible_devices,
)
from carrel.dialects.protected_keys import Writer
from carrel.dialects.tier import TERMINATE_AT

_AT_BIND = frozenset({Writer.EXTENDER})
_LATER = frozenset({Writer.CONTROLLER})
_BOTH = _AT_BIND | _LATER
_NOBODY: frozenset[Writer] = frozenset()
"""Only the webhook writes it, before the pod exists; or it stands on other objects than pods."""

WRITERS: Mapping[str, frozenset[Writer]] = {
    # what a pod was given
    carrel.DEVICES: _AT_BIND,
    visible_devices.devices_key("*"): _AT_BIND,
    carrel.INDICES: _AT_BIND,
    visible_devices.indices_key("*"): _AT_BIND,
    memory_limits.limit_key("*"): _AT_BIND,
    carrel.SLOTS: _AT_BIND,
    carrel.CGPU_DISABLE: _AT_BIND,
    gpuclaim.ALLOCATED: _BOTH,  # later, where the kubelet chooses
    gpushare.INDEX: _AT_BIND,
    gpushare.GPU_ID: _AT_BIND,
    gpushare.GPU_UNITS: _AT_BIND,
    gpushare.POD_UNITS: _AT_BIND,
    gpushare.ASSIGNED: _AT_BIND | {Writer.AGENT},
    gpushare.ASSUME_TIME: _AT_BIND | {Writer.AGENT},
    gpushare.ASSIGN_TIME: _NOBODY,
    gpushare.ALLOCATION: _NOBODY,
    kai.RECEIVED_TYPE: _AT_BIND,
    kai.CONFIG_MAP_PREFIX: _AT_BIND,
    kai.GPU_GROUP: _LATER,
    f"{kai.GPU_GROUP}/*": _LATER,
    kai_reservation.RESERVED_GPU: frozenset({Writer.RESERVATION}),
    # its tier, and what follows from it
    carrel.TIER: _BOTH,
    TERMINATE_AT: _BOTH,
    carrel.WOKEN_AT: _BOTH,
    carrel.WAITS_UNTIL: _LATER,
    carrel.GPUS_LENT: _LATER,
    carrel.LEAVE_BY: _LATER,
    carrel.NOTICE: _LATER,
    carrel.WARNED: _LATER,
    carrel.HANDED_OVER: _LATER,
    # how it was admitted
    seal.ADMITTED: _NOBODY,
    hami.RECORD: _NOBODY,
    carrel.USER: _NOBODY,
    carrel.RUNS_WITHOUT_GPU: _NOBODY,
    carrel.ASKED_FOR: _NOBODY,
    carrel.UNLISTED_SPAWNER: _NOBODY,
    carrel.HUB_ADDRESS: _NOBODY,
    # on other objects: Leases, Namespaces, bookings, records of hand-overs; on a reservation pod from the start
    carrel.RESERVED_LEASE: _NOBODY,
    carrel.LEASE_GPU: _NOBODY,
    carrel.UNUSABLE: _NOBODY,  # on devices
    carrel.SHADOW: _NOBODY,  # on claims of ours
    carrel.SHADOW_HOLDER: _NOBODY,
    carrel.LEASE_SHARES: _NOBODY,
    carrel.LEASE_KEPT_FOR: _NOBODY,
    carrel.LEASE_RESERVATION: _NOBODY,
    carrel.RULES: _NOBODY,
    carrel.EXEMPT: _NOBODY,
    carrel.SEES_GPUS: _NOBODY,
    carrel.INSTALLED_IN: _NOBODY,
    carrel.CHANGED_BY: _NOBODY,
    carrel.CHANGE_REASON: _NOBODY,
    carrel.WHEN_FULL: _NOBODY,
    carrel.REVOCATION_GRACE: _NOBODY,
    hand_over_record.LABEL: _NOBODY,
    booking_objects.SOURCE: _NOBODY,
    gpuclaim.MANAGED_LABEL: _NOBODY,
    gpuclaim.POD_LABEL: _NOBODY,
}
"""Key, or with a star its beginning → who writes it on a pod that exists."""


WRITTEN_BY_PEERS: Mapping[str, frozenset[str]] = {
    gpushare.PLUGIN_ACCOUNT: frozenset({gpushare.ASSIGNED, gpushare.ASSUME_TIME})
}
"""Account of a peer's program that goes on beside Carrel → the keys that it writes on pods as Carrel does."""


def written_by(writer: Writer) -> frozenset[str]:
    """The keys that an account may write on pods; with a star, all that begin so."""
    return frozenset(key for key, writers in WRITERS.items() if writer in writers)
