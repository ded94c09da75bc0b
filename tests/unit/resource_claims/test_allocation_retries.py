"""A claim whose allocation is approved again and again, and never stored, has to wait for a while."""

from carrel.ids import PodUid
from carrel.resource_claims.gate.allocation_retries import AllocationRetries


def is_approved(retries: AllocationRetries, uid: str, now: float) -> bool:
    if retries.why_not(PodUid(uid), now):
        return False
    retries.approved(PodUid(uid), now)
    return True


def answers(retries: AllocationRetries, *times: float) -> list[bool]:
    return [is_approved(retries, "a", now) for now in times]


def test_tries_within_three_minutes_pass() -> None:
    assert answers(AllocationRetries(), 0, 1, 10, 100, 180) == [True] * 5


def test_later_tries_have_to_wait_until_there_were_none_approved_for_three_minutes() -> None:
    assert answers(AllocationRetries(), 0, 175, 181, 300, 355, 356) == [True, True, False, False, False, True]


def test_a_claim_that_was_stored_begins_anew() -> None:
    retries = AllocationRetries()
    assert answers(retries, 0, 170) == [True, True]
    retries.forget(PodUid("a"))
    assert answers(retries, 200, 300) == [True, True]


def test_tries_that_were_not_approved_do_not_count() -> None:
    retries = AllocationRetries()
    assert [retries.why_not(PodUid("a"), now) for now in (0, 100, 181, 300)] == [""] * 4
    assert answers(retries, 301) == [True]


def test_claims_do_not_count_for_each_other() -> None:
    retries = AllocationRetries()
    assert answers(retries, 0, 100, 190) == [True, True, False]
    assert not retries.why_not(PodUid("b"), 190)


def test_only_so_many_claims_are_remembered() -> None:
    retries = AllocationRetries()
    for number in range(10_050):
        assert is_approved(retries, str(number), 0)
    assert len(retries._tries) == 10_000
