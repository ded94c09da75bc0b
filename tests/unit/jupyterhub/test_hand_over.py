"""What the hub's module makes of a pod that Carrel hands over."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carrel.jupyterhub.hand_over import UNANNOUNCED, SeenPod, origin_of, seen_in, waits_for_booked_gpu

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
LIMIT = timedelta(minutes=3)
SECOND = timedelta(seconds=1)


def a_pod(
    uid: str = "1", *, ending: bool = False, over: bool = False, node: str = "n1", **notes: str
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"uid": uid, "annotations": {f"carrel.dev/{key}": text for key, text in notes.items()}}
    if ending:
        metadata["deletionTimestamp"] = "2026-11-16T12:00:00Z"
    state = {"terminated": {"exitCode": 0}} if over else {"running": {}}
    status = {"containerStatuses": [{"name": "notebook", "state": state}]}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


WITH_GPU: dict[str, Any] = {"tier": "opportunistic"}
TOLD: dict[str, Any] = {**WITH_GPU, "leave-by": "2026-11-16T12:00:00Z"}


@pytest.mark.parametrize(
    ("before", "now", "awaited"),
    [
        pytest.param(a_pod(**WITH_GPU), a_pod(**WITH_GPU), False, id="a pod that runs is not awaited"),
        pytest.param(a_pod(**TOLD), a_pod(ending=True, **TOLD), True, id="a pod that ends is awaited"),
        pytest.param(a_pod(**TOLD), a_pod(ending=True, over=True, **TOLD), True, id="also when its server is over"),
        pytest.param(a_pod(**TOLD), None, True, id="a pod that was told to leave is awaited when it is gone"),
        pytest.param(a_pod(**WITH_GPU), None, True, id="so is one that was not seen to be told"),
        pytest.param(a_pod(), None, False, id="a pod without a GPU is not"),
        pytest.param(None, None, False, id="nor one that was never there"),
    ],
)
def test_a_gpu_pod_that_ends_counts_as_running(before: Any, now: Any, awaited: bool) -> None:
    seen = SeenPod().look(before, NOON).look(now, NOON + SECOND)

    assert seen.is_awaited(now, NOON + SECOND, LIMIT) is awaited


@pytest.mark.parametrize(
    ("notes", "patience"), [(TOLD, LIMIT), (WITH_GPU, UNANNOUNCED)], ids=["told to leave", "not told"]
)
def test_a_successor_is_awaited_for_a_bounded_time(notes: dict[str, Any], patience: timedelta) -> None:
    seen = SeenPod().look(a_pod(**notes), NOON)
    for after in range(0, 100, 10):  # looking often does not make it longer
        seen = seen.look(None, NOON + after * SECOND)

    assert seen.is_awaited(None, NOON + patience - SECOND, LIMIT)
    assert not seen.is_awaited(None, NOON + patience, LIMIT)


def test_the_way_to_a_successor_has_to_be_changed() -> None:
    first = SeenPod().look(a_pod("1", **TOLD), NOON)
    second = first.look(None, NOON).look(a_pod("2"), NOON)

    assert first.moved
    assert (second.uid, second.moved, second.ended) == ("2", False, None)
    assert not second.look(a_pod("2"), NOON).moved, "until somebody has done it"


def test_what_was_seen_outlives_the_hub() -> None:
    seen = SeenPod().look(a_pod(**TOLD), NOON).look(None, NOON)

    assert seen_in(seen.state()) == seen
    assert seen_in({}) == SeenPod()


@pytest.mark.parametrize(
    ("note", "origin"),
    [
        ('{"at": "2026-11-16T12:00:00Z", "why": "revoked", "from": "1"}', "1"),
        ("{", ""),
        ("[]", ""),
        ("{}", ""),
    ],
)
def test_a_successor_names_the_pod_that_it_succeeds(note: str, origin: str) -> None:
    assert origin_of(a_pod("2", **dict[str, Any]({"handed-over": note}))) == origin


@pytest.mark.parametrize(
    ("pod", "waits"),
    [
        pytest.param(a_pod(node="", tier="booked"), True, id="a booked pod without a node"),
        pytest.param(a_pod(node="", tier="opportunistic"), False, id="an opportunistic one"),
        pytest.param(a_pod(node="n1", tier="booked"), False, id="one that has its GPU, and pulls its image"),
        pytest.param(a_pod(node="", ending=True, tier="booked"), False, id="one that ends"),
        pytest.param(None, False, id="no pod"),
    ],
)
def test_only_a_booked_pod_waits_for_a_gpu_that_is_given_back(pod: Any, waits: bool) -> None:
    assert waits_for_booked_gpu(pod) is waits
