"""The keys that only Carrel's own identities may write, over all dialects.

A user who could write them would forge a placement, a tier or an end. The webhook strips them from what others create,
and the API server refuses updates of them (`manifests/policies.yaml`). All decisions are taken from Leases anyway.
One account that is stolen must not be able to write everything: the API server lets each account write those keys that
it needs, and no others.
"""

from enum import Enum

from carrel.dialects import carrel, kai_reservation, registry
from carrel.dialects.tier import TERMINATE_AT

OTHER_ANNOTATIONS = frozenset({kai_reservation.RESERVED_GPU, TERMINATE_AT})
"""Protected too, though no dialect's request or answer. So is everything under Carrel's own prefixes, except for the
annotations by which users ask."""


class Writer(Enum):
    """A ServiceAccount that changes pods, as in `manifests/rbac.yaml`."""

    AGENT = "carrel-agent"
    CONTROLLER = "carrel-controller"
    EXTENDER = "carrel-extender"
    RESERVATION = "kai-resource-reservation"
    """Of the program in a reservation pod, in that pod's own namespace."""


def account_of(writer: Writer, namespace: str) -> str:
    """The name of the account, as the API server has it."""
    return f"system:serviceaccount:{namespace}:{writer.value}"


def is_protected_annotation(key: str) -> bool:
    return key in registry.ALL.written_annotations or key in OTHER_ANNOTATIONS or _is_ours(key)


def is_protected_label(key: str) -> bool:
    table = registry.ALL
    return key in table.written_labels or key.startswith(table.written_label_prefixes) or _is_ours(key)


def annotations() -> frozenset[str]:
    """All protected annotations except those under Carrel's prefixes: `manifests/policies.yaml` has the same words."""
    return registry.ALL.written_annotations | OTHER_ANNOTATIONS


def _is_ours(key: str) -> bool:
    # By prefix, so that a key that is added later is protected at once.
    return key.startswith(carrel.PREFIXES) and key not in carrel.ASKED
