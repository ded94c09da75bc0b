"""When the pods of a snapshot are idle in the run that follows it.

Nobody knows what people will do. It is taken that they go on as in the last four weeks:

- In its first hour a pod goes on with what it does when the run begins.
- After that, of a person's GPUs of a model as large a part is active as in the same hour four weeks before, rounded up
  to a pod; those are active first that were active last when the run began.
- In an hour of which nothing is known, each goes on with what it did in the hour before.

Of a pod of which nobody knows whether it is active, nothing is ever known, nor of one that is placed in the run: these
are never idle.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from carrel.ids import GpuUuid, HolderId, PersonId
from carrel.ledger.gpus import Gpu
from carrel.simulation.workload import HOUR_S, PastUse, SimulatedCluster, SimulatedPod, Trace

FOUR_WEEKS_H = 28 * 24
LITTLE = 1e-9
"""Sums of hours are rounded."""

Span = tuple[float, float]
"""From when until when, in seconds of the run. What is before its beginning is negative."""


class IdlePodsInRun:
    """`after_s`: how long a pod has to be idle before its GPUs may go to others."""

    def __init__(self, cluster: SimulatedCluster, workload: Trace, after_s: float) -> None:
        is_asked = after_s < math.inf
        self._spans: Mapping[HolderId, Sequence[Span]] = idle_spans(cluster, workload) if is_asked else {}
        self._long = {
            name: [(start + after_s, end) for start, end in spans if start + after_s < end]
            for name, spans in self._spans.items()
        }

    @property
    def moments(self) -> Iterable[float]:
        """When a pod has been idle for so long."""
        return {moment for spans in self._long.values() for moment, _ in spans}

    def at(self, now: float) -> AbstractSet[HolderId]:
        """The pods that have been idle for so long, if they still run."""
        found = set()
        for name, spans in self._long.items():
            place = bisect_right(spans, (now, math.inf)) - 1
            if place >= 0 and now < spans[place][1]:
                found.add(name)
        return found

    def idle_s(self, name: HolderId, first: float, last: float) -> float:
        """Return for how much of a time the pod would be idle."""
        return sum(max(0.0, min(end, last) - max(start, first)) for start, end in self._spans.get(name, ()))


def idle_spans(cluster: SimulatedCluster, workload: Trace) -> dict[HolderId, list[Span]]:
    """Return when each pod is idle of which that is known, from before the run until its end."""
    gpus = {gpu.uuid: gpu for node in cluster.nodes for gpu in node.gpus}
    past = {(each.person, each.model): each for each in workload.past_use}
    hours = math.ceil((workload.books_again_until_s or 0.0) / HOUR_S)
    found: dict[HolderId, list[Span]] = {}
    for whose, pods in _together(workload.pods, gpus).items():
        sizes = [(pod.name, pod.gpus(gpus[pod.held[0]].memory)) for pod in pods]
        idle_from: dict[HolderId, float] = {pod.name: -pod.idle_s for pod in pods if pod.idle_s}
        found |= {pod.name: [] for pod in pods}
        for hour in range(1, hours) if whose in past else ():
            _pass_hour(hour, _active_part(past[whose], hour), sizes, idle_from, found)
        for name, start in idle_from.items():
            found[name].append((start, math.inf))
    return found


def _together(
    pods: Iterable[SimulatedPod], gpus: Mapping[GpuUuid, Gpu]
) -> dict[tuple[PersonId, str], list[SimulatedPod]]:
    """The pods of each person with GPUs of one model, active ones first."""
    found: dict[tuple[PersonId, str], list[SimulatedPod]] = {}
    known = ((pod.idle_s, pod) for pod in pods if pod.held and pod.idle_s is not None)
    for _, pod in sorted(known, key=lambda each: each[0]):
        found.setdefault((pod.owner, gpus[pod.held[0]].model), []).append(pod)
    return found


def _active_part(past: PastUse, hour: int) -> float | None:
    """Which part of the GPUs was active four weeks before, or eight, …; None: nobody knows."""
    place = hour % FOUR_WEEKS_H - FOUR_WEEKS_H - past.first_hour
    if not 0 <= place < len(past.held):
        return None
    known = past.active[place] + past.idle[place]
    return past.active[place] / known if known > LITTLE else None


def _pass_hour(
    hour: int,
    part: float | None,
    sizes: Sequence[tuple[HolderId, float]],
    idle_from: dict[HolderId, float],
    found: Mapping[HolderId, list[Span]],
) -> None:
    if part is None:
        return
    active = part * sum(size for _, size in sizes) - LITTLE
    for name, size in sizes:
        if active <= 0:
            idle_from.setdefault(name, hour * HOUR_S)
        elif name in idle_from:
            found[name].append((idle_from.pop(name), hour * HOUR_S))
        active -= size
