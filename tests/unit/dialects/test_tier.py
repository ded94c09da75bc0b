"""Which tier a pod has."""

import pytest

from carrel.dialects.tier import is_opportunistic, tier_of
from carrel.ledger.tiers import Tier
from tests.kit.objects import pod

MARK = {"terminate-at": "1900-01-01T08:00:00Z"}
"""By which MAIA says that a pod may be revoked at any time."""


@pytest.mark.parametrize(
    ("annotations", "tier"),
    [
        pytest.param({}, None, id="nobody has decided"),
        pytest.param({"carrel.dev/tier": "booked"}, Tier.BOOKED, id="booked"),
        pytest.param({"carrel.dev/tier": "opportunistic"}, Tier.OPPORTUNISTIC, id="opportunistic"),
        pytest.param({"carrel.dev/tier": "gold"}, None, id="an unknown tier"),
        pytest.param({"carrel.dev/tier": "gold", **MARK}, None, id="an unknown tier with MAIA's mark"),
        pytest.param({"carrel.dev/tier": "", **MARK}, None, id="an empty tier with MAIA's mark"),
        pytest.param({"carrel.dev/tier": "booked", **MARK}, Tier.BOOKED, id="Carrel's word before MAIA's mark"),
        pytest.param(MARK, Tier.OPPORTUNISTIC, id="MAIA's mark alone"),
        pytest.param({"terminate-at": "2026-11-16T12:00:00Z"}, None, id="an end is no tier"),
        pytest.param({"terminate-at": "whenever"}, None, id="an end that cannot be read"),
    ],
)
def test_the_tier_of_a_pod(annotations: dict[str, str], tier: Tier | None) -> None:
    assert tier_of(pod(annotations)) is tier
    assert is_opportunistic(pod(annotations)) is (tier is Tier.OPPORTUNISTIC)
