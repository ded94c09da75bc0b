"""One run with a clock: pods arrive, wait, run and end; bookings begin and end.

A pod whose owner has a booking of its model at that time is booked, as long as the booked pods of the owner use no more
GPUs than that. Booked pods go first. Where there is no room for one, opportunistic pods lose their GPUs as the
controller would choose them (`lifecycle.victims`), and are counted; they do not come back. Other pods are tried in the
order of their arrival, and a smaller one may pass.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from carrel.bookings.rules import BookingRules
from carrel.ledger.placement import Placement, WaitingPod
from carrel.ledger.shares import Holder
from carrel.lifecycle.holdings import EPOCH, Holdings, OpportunisticPod
from carrel.lifecycle.victims import Revocation, revoke
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.policies import POLICIES, Choice, PolicyContext
from carrel.simulation.wishes import BookingOutcome, granted
from carrel.simulation.workload import HOUR_S, SimulatedCluster, SimulatedPod, Trace

NO_GPU, NO_MACHINE = "no GPU free", "no CPU or memory free"
"""Why pods wait."""
NOBODY = "(nobody)"
"""Whose pods without an owner are, all of them."""


@dataclass(frozen=True, slots=True)
class TimedResult:
    policy: str
    seed: int
    allocated: float
    """Which part of the GPUs' time was used, in percent, from the first event to the last."""
    placed: int
    waiting: int
    """Pods that still wait at the end."""
    revoked: int
    """Pods that lost their GPUs to booked pods."""
    waited_hours: dict[str, float] = field(default_factory=dict)
    """Reason → mean hours that a pod waited because of it."""
    bookings: int = 0
    booked_gpu_days: float = 0.0
    refused_bookings: int = 0
    booking_delay_days: dict[str, float] = field(default_factory=dict)
    """Rule → mean days that a booking began later because of it."""
    curve: Sequence[tuple[float, float]] = ()
    """Hours since the first event, and percent of the GPUs that are held then."""


@dataclass(slots=True)
class _Running:
    pod: SimulatedPod
    choice: Choice
    booked_by: int | None
    as_victim: OpportunisticPod


def run_over_time(
    cluster: SimulatedCluster, workload: Trace, policy: str, seed: int, rules: BookingRules
) -> TimedResult:
    return _Run(cluster, workload, policy, seed, rules).run()


class _Run:
    def __init__(self, cluster: SimulatedCluster, workload: Trace, policy: str, seed: int, rules: BookingRules) -> None:
        self._state = ClusterInRun(cluster)
        self._holdings = Holdings(self._state.ledger)
        chance = Random(seed)  # noqa: S311 # a run must be repeatable
        self._policy = POLICIES[policy](PolicyContext(self._state, workload.pods, chance))
        self._names = (policy, seed)
        self._bookings = granted(cluster, workload.wishes, rules)
        self._events: list[tuple[float, int, str]] = []
        self._pods = {pod.name: pod for pod in workload.pods}
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, SimulatedPod] = {}
        self._waited: Counter[str] = Counter()
        self._why: dict[str, str] = {}
        self._now = 0.0
        self._placed = self._revoked = 0
        self._used = 0.0  # GPU seconds
        self._curve: list[tuple[float, float]] = []

    ENDS, BOOKING, ARRIVES = range(3)

    def run(self) -> TimedResult:
        for pod in self._pods.values():
            heapq.heappush(self._events, (pod.arrives_s, self.ARRIVES, pod.name))
        for each in self._bookings:
            if each.start_s is not None:
                heapq.heappush(self._events, (each.start_s, self.BOOKING, ""))
                heapq.heappush(self._events, (each.end_s, self.BOOKING, ""))
        first = self._events[0][0] if self._events else 0.0
        self._now = first
        while self._events:
            when = self._events[0][0]
            self._pass_time(when)
            while self._events and self._events[0][0] == when:
                _, kind, name = heapq.heappop(self._events)
                if kind == self.ARRIVES:
                    self._waiting[name] = self._pods[name]
                elif kind == self.ENDS and name in self._running:
                    self._end(name)
            self._place_waiting()
            self._curve.append(((when - first) / HOUR_S, self._state.allocated))
        return self._result(first)

    def _pass_time(self, when: float) -> None:
        passed = when - self._now
        self._used += passed * self._state.held_gpus
        for name in self._waiting:
            self._waited[self._why[name]] += int(passed)
        self._now = when

    # --- bookings ----------------------------------------------------------------------------------------------------

    def _booking_for(self, pod: SimulatedPod) -> int | None:
        if pod.request is None or not pod.owner:
            return None
        for number, each in enumerate(self._bookings):
            if each.start_s is None or each.wish.user != pod.owner or not each.start_s <= self._now < each.end_s:
                continue
            if pod.request.model not in ("", each.model):
                continue
            used = sum(
                running.pod.request.cards
                for running in self._running.values()
                if running.booked_by == number and running.pod.request is not None
            )
            if used + pod.request.cards <= each.gpus:
                return number
        return None

    # --- placing -----------------------------------------------------------------------------------------------------

    def _place_waiting(self) -> None:
        booked = {name: self._booking_for(pod) for name, pod in self._waiting.items()}
        hopeless: set[tuple[object, object]] = set()
        for name in sorted(self._waiting, key=lambda name: booked[name] is None):
            pod = self._waiting[name]
            number = self._booking_for(pod) if booked[name] is not None else None
            kind = (pod.request, pod.machine)
            choice = None if kind in hopeless else self._policy.choose(pod)
            if choice is None and number is not None:
                choice = self._take_back(pod)
            if choice is not None:
                self._start(pod, choice, number)
                continue
            hopeless.add(kind)
            # Which it is, the last look says: if the GPU would be there, the machine has no room.
            self._why[name] = NO_MACHINE if self._has_gpus(pod) else NO_GPU

    def _has_gpus(self, pod: SimulatedPod) -> bool:
        return bool(self._state.with_gpus(pod))

    def _start(self, pod: SimulatedPod, choice: Choice, number: int | None) -> None:
        self._waiting.pop(pod.name, None)
        self._state.put(pod, choice.node, choice.placement)
        as_victim = OpportunisticPod(_holder(pod).uid, pod.owner or NOBODY, _moment(self._now))
        self._running[pod.name] = _Running(pod, choice, number, as_victim)
        self._placed += 1
        if pod.lasts_s is not None:
            heapq.heappush(self._events, (self._now + pod.lasts_s, self.ENDS, pod.name))

    def _end(self, name: str) -> None:
        running = self._running.pop(name)
        self._state.leave(running.pod, running.choice.node, running.choice.placement)

    def _take_back(self, pod: SimulatedPod) -> Choice | None:
        """GPUs of opportunistic pods, for a booked one."""
        assert pod.request is not None, "only pods with GPUs are booked"
        nodes = tuple(self._state.machine_fits(pod))
        victims = {
            name: each.as_victim
            for name, each in self._running.items()
            if each.booked_by is None and each.choice.placement is not None
        }
        self._holdings.set_pods(victims, {})
        answer = revoke(self._holdings, WaitingPod(_holder(pod), pod.request, nodes), _moment(self._now))
        if isinstance(answer, Placement):
            return Choice(answer.node, answer)
        if not isinstance(answer, Revocation):
            return None
        for victim in answer.victims:
            self._end(victim.uid)
            self._revoked += 1
        return Choice(answer.node, Placement(answer.node, answer.gpus, pod.request))

    # --- the result --------------------------------------------------------------------------------------------------

    def _result(self, first: float) -> TimedResult:
        length = self._now - first
        policy, seed = self._names
        pods, made = max(len(self._pods), 1), [each for each in self._bookings if each.start_s is not None]
        allocated = 100 * self._used / (length * self._state.total_gpus) if length else self._state.allocated
        return TimedResult(
            policy,
            seed,
            allocated,
            self._placed,
            len(self._waiting),
            self._revoked,
            {reason: waited / HOUR_S / pods for reason, waited in sorted(self._waited.items())},
            len(made),
            sum(each.gpus * (each.end_s - each.start_s) for each in made if each.start_s is not None) / (24 * HOUR_S),
            len(self._bookings) - len(made),
            _mean_delays(made),
            tuple(self._curve),
        )


def _holder(pod: SimulatedPod) -> Holder:
    return Holder(pod.name, "trace", pod.name)


def _moment(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def _mean_delays(made: Sequence[BookingOutcome]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for each in made:
        total.update({rule: int(delay) for rule, delay in each.delays.items()})
    return {rule: delay / (24 * HOUR_S) / len(made) for rule, delay in sorted(total.items()) if delay}
