"""What the progress page says while a server starts."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carrel.jupyterhub.progress import KeptGpu, kept_gpu, progress_words, with_pauses

DUE = datetime(2026, 11, 16, 12, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        pytest.param(
            {"reportingComponent": "carrel-controller", "message": "got GPU 0 of lab-1, whole"},
            "Got GPU 0 of lab-1, whole",
            id="of Carrel",
        ),
        pytest.param(
            {"source": {"component": "kubelet"}, "message": "Pulling"}, "10:00 [Normal] Pulling", id="of others"
        ),
        pytest.param({}, "10:00 [Normal] Pulling", id="no Event"),
    ],
)
def test_progress_is_told_in_the_words_of_carrel(event: dict[str, Any], words: str) -> None:
    assert progress_words({"message": "10:00 [Normal] Pulling", "raw_event": event}) == words


def an_event(**annotations: str) -> dict[str, Any]:
    metadata = {"annotations": {f"carrel.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}}
    event = {"metadata": metadata, "reportingComponent": "carrel-controller", "message": "a GPU is kept for this pod"}
    return {"raw_event": event, "message": "10:00 [Normal] a GPU is kept for this pod"}


def test_an_event_says_until_when_a_gpu_is_given_back() -> None:
    assert kept_gpu(an_event(leave_by="2026-11-16T12:02:00Z")) == KeptGpu("A GPU is kept for this pod", DUE)


@pytest.mark.parametrize(
    "step",
    [an_event(), an_event(leave_by="soon"), an_event(leave_by="2026-11-16"), {"message": "starting"}],
    ids=["no instant", "not an instant", "a day", "no Event"],
)
def test_other_events_do_not(step: dict[str, Any]) -> None:
    assert kept_gpu(step) is None


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (125, "Kept: 2 min 5 s left"),
        (9, "Kept: 9 s left"),
        (0, "Kept: it is ending now"),
        (-5, "Kept: it is ending now"),
    ],
)
def test_the_time_is_counted_down(left: int, words: str) -> None:
    assert KeptGpu("Kept", DUE).words(DUE - timedelta(seconds=left)) == words


async def test_pauses_between_steps_are_seen_and_all_steps_come() -> None:
    may_go_on = asyncio.Event()

    async def steps() -> AsyncIterator[int]:
        yield 1
        await may_go_on.wait()
        yield 2

    seen: list[int | None] = []
    async for step in with_pauses(steps(), 0.001):
        seen.append(step)
        if step is None:
            may_go_on.set()

    assert [step for step in seen if step is not None] == [1, 2]
    assert None in seen
