"""Which tier a pod has."""

from datetime import UTC, datetime

import pytest

from carrel.dialects.tier import Revocable, person_of, read_terminate_at, tier_of, write_terminate_at, write_tier
from carrel.ledger.tiers import Tier
from carrel.parsing import Malformed
from tests.kit.objects import pod

END = datetime(2025, 6, 15, tzinfo=UTC)
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("2025-06-15T00:00:00Z", END, id="UTC"),
        pytest.param("2025-06-15T02:00:00+02:00", END, id="another offset ends at the same moment"),
        pytest.param("2025-06-15T00:00:00.000000+00:00", END, id="as Python writes it"),
        pytest.param("1900-01-01T08:00:00Z", Revocable.ANY_TIME, id="the mark of an opportunistic pod"),
        pytest.param("1900-01-01T00:00:00Z", Revocable.ANY_TIME, id="the mark, as the manual spells it"),
        pytest.param("1900-01-01T00:00:00+02:00", Revocable.ANY_TIME, id="the mark, of another zone"),
        pytest.param("1901-01-01T00:00:00Z", datetime(1901, 1, 1, tzinfo=UTC), id="an end long ago is an end"),
    ],
)
def test_the_mark_of_the_year_1900_is_not_an_instant(text: str, expected: object) -> None:
    assert read_terminate_at(pod({"terminate-at": text})) == expected


def test_an_end_is_written_in_whole_seconds_of_utc() -> None:
    assert write_terminate_at(END) == {"terminate-at": "2025-06-15T00:00:00Z"}
    assert write_terminate_at(Revocable.ANY_TIME) == {"terminate-at": "1900-01-01T08:00:00Z"}
    assert read_terminate_at(pod()) is None


def test_an_instant_that_would_read_as_the_mark_is_never_written() -> None:
    with pytest.raises(ValueError, match="mark of a revocable pod"):
        write_terminate_at(datetime(1900, 6, 1, tzinfo=UTC))


@pytest.mark.parametrize("text", ["", "never", "2025-06-15", "2025-06-15T00:00:00"])
def test_a_malformed_end_is_named(text: str) -> None:
    with pytest.raises(Malformed, match=r"pod lab/train: metadata\.annotations\['terminate-at'\]"):
        read_terminate_at(pod({"terminate-at": text}))
