"""Which tier a pod has."""

from datetime import UTC, datetime

import pytest

from carrel.dialects.maia import Revocable, read_terminate_at
from carrel.dialects.tier import person_of, tier_of, write_tier
from carrel.ledger.tiers import Tier
from tests.kit.objects import pod

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
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


@pytest.mark.parametrize(("until", "tier"), [(NOON, Tier.BOOKED), (None, Tier.OPPORTUNISTIC)])
def test_a_pod_is_told_its_tier_in_words_that_mean_it(until: datetime | None, tier: Tier) -> None:
    told = pod(write_tier(until))
    assert tier_of(told) is tier
    assert read_terminate_at(told) == (until or Revocable.ANY_TIME)


def test_people_are_compared_as_bookings_spell_them() -> None:
    assert person_of(pod({"carrel.dev/user": "Ada@Lab.Example"})) == "ada@lab.example"
    for look_alike in (" ada@lab.example", "\uff41da@lab.example", "\u0430da@lab.example"):
        assert person_of(pod({"carrel.dev/user": look_alike})) != "ada@lab.example"
    assert person_of(pod({})) == ""
