"""A pod to begin with, for who has booked: in the words that the person's other pods use.

Whole GPUs are asked for alike in all dialects. A part of a GPU's memory is not.
"""

import json
from dataclasses import dataclass

from carrel.dialects import carrel, gpushare, hami, kai, nvidia
from carrel.dialects.interface import Dialect
from carrel.dialects.options import Unit


@dataclass(frozen=True, slots=True)
class BookedGpus:
    """What the pod is to ask for."""

    model: str
    gpus: int = 1
    share_of: int = 1
    """More than 1: such a part of one GPU."""
    memory_mib: int = 0
    """Of one GPU, for a part of it."""
    booking: str = ""
    """The booking for whose start it waits; empty: it has started."""


def example_pod(booked: BookedGpus, namespace: str, dialect: Dialect | None, unit: Unit) -> str:
    """Return its manifest. `dialect`: that of other pods of the person, `unit`: of memory in gpushare's."""
    annotations, limits = _asked(booked, dialect, unit)
    annotations = {carrel.GPU_MODEL: booked.model, **annotations}
    if booked.booking:
        annotations[carrel.BOOKING] = booked.booking
    lines = ["apiVersion: v1", "kind: Pod", "metadata:", "  name: first-try"]
    lines += [f"  namespace: {namespace}"] if namespace else []
    lines += ["  annotations:", *(f"    {key}: {json.dumps(value)}" for key, value in annotations.items())]
    lines += ["spec:", "  containers:", "    - name: main", "      image: your-image"]
    if limits:
        wanted = ", ".join(f'{key}: "{amount}"' for key, amount in limits.items())
        lines.append(f"      resources: {{limits: {{{wanted}}}}}")
    return "\n".join(lines) + "\n"


def _asked(booked: BookedGpus, dialect: Dialect | None, unit: Unit) -> tuple[dict[str, str], dict[str, int]]:
    """Annotations and limits."""
    if booked.share_of <= 1:
        return {}, {nvidia.GPU: booked.gpus}
    mib = booked.memory_mib // booked.share_of
    if dialect is gpushare.DIALECT:
        return {}, {gpushare.GPU_MEM: mib // unit.mib}
    if dialect is kai.DIALECT:
        return {kai.FRACTION: f"{int(100 / booked.share_of) / 100:g}"}, {}
    if dialect is hami.DIALECT:
        return {}, {nvidia.GPU: 1, hami.MEMORY: mib}
    return {carrel.GPU_MEMORY: str(mib)}, {}
