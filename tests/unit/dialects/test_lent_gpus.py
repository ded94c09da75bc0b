"""How long the GPUs of a booked pod that is not placed are lent."""

from datetime import timedelta

import pytest

from carrel.dialects.lent_gpus import is_lent, lent_until
from carrel.kubernetes.objects.kinds import Condition, Pod, PodMetadata, PodStatus
from tests.kit.lab import NOON

CPU = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint."
MINUTE = timedelta(minutes=1)


def a_pod(said: str, notes: dict[str, str]) -> Pod:
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=said)
    return Pod(metadata=PodMetadata(name="urgent", annotations=notes), status=PodStatus(conditions=(condition,)))


@pytest.mark.parametrize(
    ("said", "minutes", "lent"),
    [
        pytest.param(CPU, 4, True, id="the time is not over"),
        pytest.param(CPU, 5000, True, id="the scheduler says the same"),
        pytest.param(CPU.replace("1", "7"), 5, False, id="it counts other nodes"),
        pytest.param("GPU 0 of n1 is in use", 4, True, id="it says something else, but the time is not over"),
        pytest.param("GPU 0 of n1 is in use", 5, False, id="it says something else"),
        pytest.param("", 5, False, id="it says nothing any more"),
    ],
)
def test_gpus_are_lent_until_the_scheduler_says_something_else(said: str, minutes: int, lent: bool) -> None:
    _, notes = lent_until(a_pod(CPU, {}), NOON)

    assert is_lent(a_pod(said, notes), NOON + minutes * MINUTE) is lent


def test_where_carrel_knows_why_only_the_time_counts() -> None:
    _, notes = lent_until(a_pod(CPU, {}), NOON, is_known_why=True)

    assert is_lent(a_pod(CPU, notes), NOON + 4 * MINUTE) is True
    assert is_lent(a_pod(CPU, notes), NOON + 5 * MINUTE) is False


def test_they_are_lent_twice_as_long_each_time() -> None:
    """A pod for which the scheduler always finds a new excuse takes GPUs eleven times in two weeks."""
    notes, now, times = dict[str, str](), NOON, 0
    while now < NOON + timedelta(days=14):
        pod = a_pod(f"excuse {'x' * times}", notes)
        until, notes = lent_until(pod, now)
        now, times = until, times + 1

    assert times == 12
    assert is_lent(pod, now) is False


def test_an_unreadable_mark_counts_as_the_longest_time() -> None:
    until, _ = lent_until(a_pod(CPU, {"carrel.dev/gpus-lent": "{"}), NOON)

    assert until == NOON + 5 * MINUTE * 2**11
