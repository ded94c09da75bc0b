"""One round: pods that wait, a kube-scheduler that starts, and what the middle 80 % of the Bindings took.

The pods exist before kube-scheduler starts, so that it never waits for the next one. The first and the last tenth are
left out: there caches are filled, and the queue is nearly empty.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.end_to_end.real_cluster import LAB, RealCluster, cpu_s
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.reflector import Informers
from carrel.scheduling.scheduler_config import PROFILE
from testbed.processes import Process

FROM, TO = 0.1, 0.9
ENDLESS_S = 240.0
"""A round that takes longer has failed."""
SCHEDULER = "kube-scheduler"
LIMITS = {"aliyun.com/gpu-mem": "2048"}


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    extenders: int
    """How many replicas of Carrel run; kube-scheduler asks the first, the others follow, as in the chart."""


WITHOUT = Variant("without an extender", 0)
VARIANTS = {
    "without": WITHOUT,
    "carrel": Variant("Carrel", 1),
    "two": Variant("Carrel, two replicas", 2),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one round."""

    pods_per_s: float
    cpu_ms: Mapping[str, float] = field(default_factory=dict)
    """CPU time of each process for one pod."""


@dataclass(frozen=True, slots=True)
class _Moment:
    bound: int
    at: float
    cpu_s: Mapping[str, float]


class Bindings:
    """Counts pods that are bound, and looks at the clock and at all processes in the beginning and in the end."""

    def __init__(self, pods: int) -> None:
        self.processes: dict[str, Process] = {}
        self.first: _Moment | None = None
        self.last: _Moment | None = None
        self._pods = pods
        self._bound = 0
        self._all = asyncio.Event()

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None or new is None:
            return
        self._bound += 1
        # Bindings may begin before kube-scheduler has said that it is well.
        if self.first is None and self._bound >= FROM * self._pods and SCHEDULER in self.processes:
            self.first = self._moment()
        if self.last is None and self._bound >= TO * self._pods:
            self.last = self._moment()
        if self._bound >= self._pods:
            self._all.set()

    def _moment(self) -> _Moment:
        return _Moment(self._bound, time.monotonic(), {name: cpu_s(each) for name, each in self.processes.items()})

    async def wait_all(self) -> Outcome:
        await asyncio.wait_for(self._all.wait(), ENDLESS_S)
        first, last = self.first, self.last
        if first is None or last is None or first.bound >= last.bound:
            raise RuntimeError("nearly all pods were bound before kube-scheduler was found healthy: take more pods")
        bound = last.bound - first.bound
        cpu_ms = {name: (last.cpu_s[name] - first.cpu_s[name]) / bound * 1e3 for name in self.processes}
        return Outcome(bound / (last.at - first.at), cpu_ms)


async def a_round(cluster: RealCluster, variant: Variant, pods: int, options: Sequence[str] = ()) -> Outcome:
    await cluster.add_waiting(LIMITS, pods, PROFILE)
    bindings, informers = Bindings(pods), Informers(cluster.client)
    bindings.processes |= {"kube-apiserver": cluster.api.process, "etcd": cluster.api.etcd}
    informers.watch(PODS, Selection(LAB, fields="spec.nodeName!=")).on_change(bindings.on_pod)
    watching = asyncio.create_task(informers.run())
    started: list[Process] = []
    try:
        await informers.wait_synced()
        extenders = [cluster.start_extender(*options) for _ in range(variant.extenders)]
        started += [extender.process for extender in extenders]
        bindings.processes |= {f"extender {number}": each for number, each in enumerate(started, 1)}
        started.append(cluster.start_scheduler(PROFILE, extenders[0].url if extenders else ""))
        bindings.processes[SCHEDULER] = started[-1]
        return await bindings.wait_all()
    finally:
        watching.cancel()
        for process in reversed(started):
            process.stop()
        await cluster.clear()
