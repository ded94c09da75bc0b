"""What the progress page says while a server starts: Carrel's sentences, and for a booked notebook who gives its GPU
back, counting down.

The page shows the message that came last, and KubeSpawner passes each Event of the pod on as it comes: what helps would
be gone with the next word of kube-scheduler. So that one message is repeated until the pod has a node.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from carrel.dialects.carrel import LEAVE_BY

T = TypeVar("T")

OURS = "carrel"
"""How the names of Carrel's components begin, in Events."""
REPEAT_S = 5.0
"""The page keeps all messages in its log: so not each second."""


@dataclass(frozen=True)
class KeptGpu:
    """A GPU is given back for the notebook."""

    sentence: str
    due: datetime

    def words(self, now: datetime) -> str:
        minutes, seconds = divmod(max(0, int((self.due - now).total_seconds())), 60)
        left = f"{minutes} min {seconds} s left" if minutes else f"{seconds} s left"
        return f"{self.sentence}: {left}" if self.due > now else f"{self.sentence}: it is ending now"


def kept_gpu(step: Mapping[str, Any]) -> KeptGpu | None:
    """Return what an Event says of it; None: it speaks of something else."""
    metadata = (step.get("raw_event") or {}).get("metadata") or {}
    try:
        due = datetime.fromisoformat((metadata.get("annotations") or {}).get(LEAVE_BY, ""))
    except ValueError:
        return None
    return KeptGpu(progress_words(step), due) if due.tzinfo else None


def progress_words(step: Mapping[str, Any]) -> str:
    """Return the message alone of an Event of Carrel: it is a sentence. Of all others, KubeSpawner's words."""
    event = step.get("raw_event") or {}
    source = event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""
    said = str(event.get("message") or "")
    if not source.startswith(OURS) or not said:
        return str(step.get("message", ""))
    return said[:1].upper() + said[1:]


async def with_pauses(steps: AsyncIterator[T], seconds: float) -> AsyncIterator[T | None]:
    """Yield the steps, and None whenever none has come for so long."""
    coming = asyncio.ensure_future(anext(steps))
    try:
        while True:
            if not (await asyncio.wait({coming}, timeout=seconds))[0]:
                yield None
                continue
            try:
                step = coming.result()
            except StopAsyncIteration:
                return
            yield step
            coming = asyncio.ensure_future(anext(steps))
    finally:
        coming.cancel()
