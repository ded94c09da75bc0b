"""The keys that only Carrel's own identities may write, over all dialects.

A user who could write them would forge a placement, a tier or an end. The webhook strips them from what others create,
and the API server refuses updates of them (`manifests/policies.yaml`); decisions are taken from Leases all the same.
"""

from carrel.dialects import carrel, gpuclaim, gpushare, kai, kai_reservation, maia

ANNOTATIONS = frozenset(
    {
        gpuclaim.ALLOCATED,
        *gpushare.WRITTEN,
        *kai.WRITTEN,
        kai_reservation.RESERVED_GPU,
        maia.TERMINATE_AT,
    }
)
"""Besides these, everything under Carrel's own prefixes that is not a question."""

LABELS = frozenset({gpuclaim.MANAGED_LABEL, gpuclaim.POD_LABEL, kai.GPU_GROUP})


def is_protected_annotation(key: str) -> bool:
    return key in ANNOTATIONS or _is_ours(key)


def is_protected_label(key: str) -> bool:
    return key in LABELS or key.startswith(f"{kai.GPU_GROUP}/") or _is_ours(key)


def _is_ours(key: str) -> bool:
    # By prefix, so that a word that is added later is protected from its first day.
    return key.startswith(carrel.PREFIXES) and key not in carrel.ASKED
