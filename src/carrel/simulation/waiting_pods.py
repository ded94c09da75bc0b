"""The pods that wait in a run, and why.

Why a pod waits hangs on which GPUs it asks for: so pods that ask for the same ones are one line, and thousands of them
cost as much as one. Within a line, those that ask for as much CPU and memory are alike: if one of them finds no room,
none does. Booked pods that wait are in lines of their own.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from carrel.ids import HolderId
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import Request
from carrel.simulation.workload import SimulatedPod

NO_GPU, NO_MACHINE, NO_SUCH_GPU = "no GPU free", "no CPU or memory free", "no such GPU"
"""Why pods wait."""

Alike = list[tuple[int, SimulatedPod]]
"""Pods of one kind, each with its place among all pods of the run; the first to come first."""


@dataclass(slots=True)
class Line:
    """Pods that wait for the same GPUs."""

    request: Request | None
    is_booked: bool
    by_machine: dict[MachineRoom, Alike] = field(default_factory=dict)
    count: int = 0
    why: str = ""
    looked_at: int = -1
    """The cluster's moment when that was found out."""


class WaitingPodsInRun:
    def __init__(self) -> None:
        self._lines: dict[tuple[Request | None, bool], Line] = {}
        self._places: dict[HolderId, tuple[int, SimulatedPod, bool]] = {}  # by name, as they were put here
        self.waited_s: dict[str, float] = {}
        """Reason → how long all pods together have waited because of it."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: HolderId) -> bool:
        return name in self._places

    @property
    def lines(self) -> Iterable[Line]:
        return self._lines.values()

    def put(self, pod: SimulatedPod, number: int, *, is_booked: bool = False) -> None:
        """From now on the pod waits for what it asks for now, whatever it waited for before."""
        if self._places.get(pod.name) == (number, pod, is_booked):
            return
        self.remove(pod.name)
        self._places[pod.name] = (number, pod, is_booked)
        line = self._lines.setdefault((pod.request, is_booked), Line(pod.request, is_booked))
        if pod.machine not in line.by_machine:
            line.by_machine[pod.machine] = []
            line.looked_at = -1  # it may ask for less of the machine than the others
        insort(line.by_machine[pod.machine], (number, pod), key=_number)
        line.count += 1

    def remove(self, name: HolderId) -> None:
        """It waits no more. May be told twice."""
        if name not in self._places:
            return
        number, pod, is_booked = self._places.pop(name)
        line = self._lines[pod.request, is_booked]
        alike = line.by_machine[pod.machine]
        alike.pop(bisect_left(alike, number, key=_number))
        line.count -= 1
        if not alike:
            del line.by_machine[pod.machine]
        if not line.count:
            del self._lines[pod.request, is_booked]

    def look_anew(self) -> None:
        """Somebody may find room now, although the cluster has not changed."""
        for line in self._lines.values():
            line.looked_at = -1

    def pass_time(self, seconds: float) -> None:
        for line in self._lines.values():
            self.waited_s[line.why] = self.waited_s.get(line.why, 0.0) + seconds * line.count


def _number(each: tuple[int, SimulatedPod]) -> int:
    return each[0]
