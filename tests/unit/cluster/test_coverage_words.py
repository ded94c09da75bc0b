"""Coverage is told in the same words everywhere."""

from datetime import UTC, datetime

import pytest

from carrel.cluster.coverage.coverage_words import (
    Beyond,
    BeyondReason,
    BookingInUse,
    CoverageWords,
    GpuHolder,
    PodCoverage,
)
from carrel.ids import BookingId, PersonId
from carrel.ledger.coverage import Entitlement
from carrel.ledger.tiers import Tier

START, END = datetime(2026, 11, 23, 14, tzinfo=UTC), datetime(2026, 11, 24, 14, tzinfo=UTC)
WORDS = CoverageWords(UTC)


def booking(gpus: int = 1, model: str = "A100", share_of: int = 1, group: str = "") -> Entitlement:
    return Entitlement(
        BookingId("b1"), frozenset({PersonId("ada@lab.org")}), model, gpus, START, END, share_of, group=group
    )


def beyond(why: BeyondReason, *used_by: str) -> Beyond:
    return Beyond(booking(), why, used_by)


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param(
            PodCoverage(Tier.BOOKED, covered=booking()),
            "covered by your booking of 1 A100 until Tue 24 Nov 14:00 UTC",
            id="covered",
        ),
        pytest.param(
            PodCoverage(Tier.BOOKED, covered=booking(2, group="vision")),
            "covered by the booking of 2 A100 for vision until Tue 24 Nov 14:00 UTC",
            id="covered by a group's booking",
        ),
        pytest.param(
            PodCoverage(Tier.BOOKED, covered=booking(share_of=4)),
            "covered by your booking of 1/4 A100 until Tue 24 Nov 14:00 UTC",
            id="covered by a share",
        ),
        pytest.param(
            PodCoverage(Tier.OPPORTUNISTIC, beyond=beyond(BeyondReason.IN_USE, "lab/train-7")),
            "your booking of 1 A100 is in use by lab/train-7; this pod runs on what is free",
            id="beyond a booking that is in use",
        ),
        pytest.param(
            PodCoverage(Tier.OPPORTUNISTIC, waits=True, beyond=beyond(BeyondReason.IN_USE, "lab/train-7")),
            "your booking of 1 A100 is in use by lab/train-7; this pod waits for what is free",
            id="beyond, and waiting",
        ),
        pytest.param(
            PodCoverage(Tier.OPPORTUNISTIC, beyond=beyond(BeyondReason.OTHER_MODEL)),
            "your booking of 1 A100 is for another model than this pod's; this pod runs on what is free",
            id="of another model",
        ),
        pytest.param(
            PodCoverage(Tier.OPPORTUNISTIC, beyond=beyond(BeyondReason.TOO_FEW)),
            "your booking of 1 A100 is for fewer GPUs than this pod's; this pod runs on what is free",
            id="of more GPUs than were booked",
        ),
        pytest.param(
            PodCoverage(Tier.OPPORTUNISTIC, beyond=beyond(BeyondReason.OTHER)),
            "your booking of 1 A100 does not cover this pod; this pod runs on what is free",
            id="for another reason",
        ),
        pytest.param(PodCoverage(Tier.OPPORTUNISTIC), "no booking; may lose its GPU to a booked pod", id="no booking"),
        pytest.param(
            PodCoverage(Tier.OPPORTUNISTIC, waits=True), "no booking; waits for a free GPU", id="no booking, waiting"
        ),
        pytest.param(PodCoverage(Tier.OPPORTUNISTIC, asks=False), "asks for no GPU", id="on CPU"),
        pytest.param(PodCoverage(None, is_exempt=True), "keeps its GPU: its namespace is exempt", id="exempt"),
        pytest.param(PodCoverage(None, is_nobodys=True), "keeps its GPU: it has no owner", id="nobody's"),
        pytest.param(PodCoverage(None, is_decided=False), "keeps its GPU: it is older than Carrel", id="older"),
        pytest.param(PodCoverage(None), "keeps its GPU: its tier is not known", id="a tier of a newer version"),
        pytest.param(
            PodCoverage(Tier.OPPORTUNISTIC, waits=True, held_for=booking()),
            "waits for your booking of 1 A100, which starts Mon 23 Nov 14:00 UTC",
            id="made for a booking that starts later",
        ),
    ],
)
def test_a_pods_person_is_told(pod: PodCoverage, words: str) -> None:
    assert WORDS.about(pod) == words


def test_others_are_not_told_that_a_booking_is_theirs() -> None:
    covered = PodCoverage(Tier.BOOKED, covered=booking(group="vision"))
    uncovered = PodCoverage(Tier.OPPORTUNISTIC, beyond=beyond(BeyondReason.IN_USE, "lab/a"))
    assert WORDS.for_others(covered) == "covered by a booking of 1 A100 for vision until Tue 24 Nov 14:00 UTC"
    assert WORDS.for_others(uncovered) == "beyond its person's booking; may lose its GPU to a booked pod"
    assert WORDS.for_others(PodCoverage(Tier.OPPORTUNISTIC)) == "no booking; may lose its GPU to a booked pod"


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (BookingInUse(booking(2), 0, ()), "0 of 2 held"),
        (BookingInUse(booking(2), 1, ("lab/train-7",)), "1 of 2 held: lab/train-7"),
        (
            BookingInUse(booking(8), 7, tuple(f"lab/p{number}" for number in range(7))),
            "7 of 8 held: lab/p0, lab/p1, lab/p2, lab/p3, lab/p4 and 2 more",
        ),
    ],
    ids=["nothing", "a pod", "many pods"],
)
def test_how_much_of_a_booking_is_used(use: BookingInUse, words: str) -> None:
    assert str(use) == words


@pytest.mark.parametrize(
    ("tier", "until", "words"),
    [
        (Tier.BOOKED, END, "GPU 0 of n1 (A100): lab/a of ada@lab.org, booked until Tue 24 Nov 14:00 UTC"),
        (Tier.OPPORTUNISTIC, None, "GPU 0 of n1 (A100): lab/a of ada@lab.org, opportunistic: may be asked back"),
        (None, None, "GPU 0 of n1 (A100): lab/a of ada@lab.org, keeps its GPU"),
    ],
    ids=["booked", "opportunistic", "no tier"],
)
def test_who_holds_what_until_when(tier: Tier | None, until: datetime | None, words: str) -> None:
    assert WORDS.holder(GpuHolder("GPU 0 of n1", "A100", "lab/a", "ada@lab.org", tier, until)) == words


def test_models_and_times_are_written_as_the_caller_writes_them() -> None:
    words = CoverageWords(UTC, lambda model: model.removeprefix("NVIDIA-"), lambda instant, zone: f"{instant:%H:%M}")
    assert words.covered(booking(model="NVIDIA-A100")) == "covered by your booking of 1 A100 until 14:00"
    assert words.amount(booking(2, model="")) == "2 GPUs"
