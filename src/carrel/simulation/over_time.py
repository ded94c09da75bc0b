"""One run with a clock: pods arrive, wait, run and end; bookings begin and end.

Whom a booking covers is decided by the product's own index, at every event (`covered_pods`). Covered pods go first.
Where there is no room for one, opportunistic pods lose their GPUs as the controller would choose them
(`ledger.victims`), and are counted; they do not come back. When a booking ends, the pods that it covered end, unless
another booking covers them then. Other pods are tried in the order of their arrival, and a smaller one may pass.

At one instant, pods end first, then bookings end, then bookings start, then pods arrive; then pods are placed. Pods
that hold GPUs when the run begins are placed then, and last from then on.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random

from carrel.configuration.schema import BookingRules
from carrel.ids import NO_BOOKING, BookingId, HolderId, PersonId
from carrel.ledger.coverage import Entitlement
from carrel.ledger.placement import Placement, WaitingPod
from carrel.ledger.requests import Request
from carrel.ledger.shares import Coverage
from carrel.ledger.victims import OpportunisticPod
from carrel.simulation.booked_pods import CoveredPodsInRun, RunningPod, revoke_in_run
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.policies import POLICIES, Choice, PolicyContext
from carrel.simulation.waiting_pods import NO_GPU, NO_MACHINE, NO_SUCH_GPU, Alike, WaitingPodsInRun
from carrel.simulation.wishes import BookingOutcome, BookingTimes, granted, instant
from carrel.simulation.workload import HOUR_S, SimulatedCluster, SimulatedPod, Trace

NOBODY = PersonId("(nobody)")
"""Whose pods without an owner are, all of them."""
MINIMUM_TIME = timedelta(minutes=10)
"""A pod that has its GPU for less than that keeps it if it can: the default of `tiers.minimumTime`."""


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
    ended: int = 0
    """Pods that ended with the booking that covered them."""
    waited_hours: dict[str, float] = field(default_factory=dict)
    """Reason → mean hours that a pod waited because of it."""
    bookings: int = 0
    booked_gpu_days: float = 0.0
    refused_bookings: int = 0
    booking_delay_days: dict[str, float] = field(default_factory=dict)
    """Rule → mean days that a booking began later because of it."""
    curve: Sequence[tuple[float, float]] = ()
    """Hours since the first event, and percent of the GPUs that are held then."""


BEGINS, POD_ENDS, BOOKING_ENDS, BOOKING_STARTS, POD_ARRIVES = range(5)
"""What happens, in the order in which it counts at one instant."""


def run_over_time(
    cluster: SimulatedCluster, workload: Trace, policy: str, seed: int, rules: BookingRules
) -> TimedResult:
    return _Run(cluster, workload, policy, seed, rules).run()


class _Run:
    def __init__(self, cluster: SimulatedCluster, workload: Trace, policy: str, seed: int, rules: BookingRules) -> None:
        self._now = 0.0
        self._state = ClusterInRun(cluster)
        self._covered = CoveredPodsInRun(self._state, lambda: instant(self._now))
        chance = Random(seed)  # noqa: S311 # a run must be repeatable
        self._policy = POLICIES[policy](PolicyContext(self._state, workload.pods, chance))
        self._names = (policy, seed)
        times = BookingTimes(workload.begins_s, workload.books_again_until_s)
        self._bookings = granted(cluster, workload.wishes, rules, times)
        # The oldest first, and those of one moment in the order of the trace: their numbers are their places here.
        self._pods = sorted(workload.pods, key=lambda pod: pod.arrives_s)
        self._numbers: dict[HolderId, int] = {pod.name: number for number, pod in enumerate(self._pods)}
        self._begins_s = workload.begins_s
        self._ends_s = workload.books_again_until_s
        self._events: list[tuple[float, int, int]] = []
        self._running: dict[HolderId, RunningPod] = {}
        self._waiting = WaitingPodsInRun()
        self._booked_waiting: set[HolderId] = set()
        self._placed = self._revoked = self._ended = 0
        self._used = 0.0  # GPU seconds
        self._curve: list[tuple[float, float]] = []

    def run(self) -> TimedResult:
        first = self._now = self._first_moment()
        self._plan_events(first)
        # A run that people book in has an end, or it would be longer the more they book, and pods wait longer.
        last = math.inf if self._ends_s is None else max(self._ends_s, first)
        while self._events and self._events[0][0] <= last:
            when = self._events[0][0]
            self._pass_time(when)
            covered_before: list[HolderId] = []
            while self._events and self._events[0][0] == when:
                _, kind, number = heapq.heappop(self._events)
                covered_before += self._happens(kind, number)
            self._end_with_booking(covered_before)
            self._place_waiting()
            self._curve.append(((when - first) / HOUR_S, self._state.allocated))
        if last < math.inf:
            self._pass_time(last)
            self._curve.append(((last - first) / HOUR_S, self._state.allocated))
        return self._result(first)

    def _first_moment(self) -> float:
        if self._begins_s is not None:
            return self._begins_s
        starts = [each.start_s for each in self._bookings if each.start_s is not None]
        return min([*starts, *(pod.arrives_s for pod in self._pods)], default=0.0)

    def _plan_events(self, first: float) -> None:
        """What came before the run begins is there when it begins; what was over by then is left out."""
        self._events = [(first, BEGINS, 0)] if self._begins_s is not None or any(pod.node for pod in self._pods) else []
        self._events += [
            (max(pod.arrives_s, first), POD_ARRIVES, number) for number, pod in enumerate(self._pods) if not pod.node
        ]
        for number, each in enumerate(self._bookings):
            if each.start_s is not None and each.seconds_in(first, math.inf):
                self._events.append((max(each.start_s, first), BOOKING_STARTS, number))
                self._events.append((each.end_s, BOOKING_ENDS, number))
        heapq.heapify(self._events)

    def _happens(self, kind: int, number: int) -> Iterable[HolderId]:
        """The pods that a booking has covered until now."""
        if kind == BOOKING_STARTS:
            self._covered.set_booking(BookingId(f"{number}"), self._entitlement(number))
        elif kind == BOOKING_ENDS:
            return self._covered.end_booking(self._entitlement(number))
        elif kind == BEGINS:
            for pod in self._pods:
                if pod.node:
                    self._policy.saw(pod)
                    self._start(pod, Choice(pod.node, self._held_placement(pod)))
        elif kind == POD_ARRIVES:
            pod = self._pods[number]
            self._policy.saw(pod)
            self._waiting.put(pod, number)
            self._covered.pod_waits(pod, number)
        elif self._pods[number].name in self._running:
            self._end(self._pods[number].name)
        return ()

    def _pass_time(self, when: float) -> None:
        passed = when - self._now
        if passed:
            self._used += passed * self._state.held_gpus
            self._waiting.pass_time(passed)
        self._now = when

    # --- bookings ----------------------------------------------------------------------------------------------------

    def _entitlement(self, number: int) -> Entitlement:
        each = self._bookings[number]
        assert each.start_s is not None, "only bookings that were made begin and end"
        people = frozenset((each.wish.user,))
        return Entitlement(
            BookingId(f"{number}"), people, each.wish.model, each.gpus, instant(each.start_s), instant(each.end_s)
        )

    def _end_with_booking(self, covered_before: Sequence[HolderId]) -> None:
        """Of the pods that a booking has covered until now, those that no other booking covers."""
        for name in covered_before:
            if name in self._running and name not in self._covered.holders():
                self._end(name)
                self._ended += 1
        still_covered = self._covered.covered_waiting()
        for name in covered_before:
            if name in self._waiting and name not in still_covered:
                self._waits_no_more(self._pods[self._numbers[name]])
                self._ended += 1

    # --- placing -----------------------------------------------------------------------------------------------------

    def _place_waiting(self) -> None:
        self._place_booked()
        self._place_others()
        self._covered.update()
        moment = self._state.moment
        for line in self._waiting.lines:
            if line.looked_at != moment:
                line.looked_at, line.why = moment, self._why(line.request)

    def _place_booked(self) -> None:
        """In the order of their arrival. Each that is placed may change what the others are covered for."""
        tried: set[WaitingPod] = set()
        while self._place_one_booked(tried):
            pass
        booked = {waiting.holder.uid: waiting for waiting in self._covered.booked_waiting()}
        for name in sorted(self._booked_waiting - booked.keys()):
            if name in self._waiting:
                self._waiting.put(self._pods[self._numbers[name]], self._numbers[name])
        for name, waiting in booked.items():
            self._waiting.put(self._as_booked(waiting), self._numbers[name], is_booked=True)
        self._booked_waiting = set(booked)

    def _place_one_booked(self, tried: set[WaitingPod]) -> bool:
        for waiting in self._covered.booked_waiting():
            if waiting in tried:
                continue
            tried.add(waiting)
            asked = self._as_booked(waiting)
            choice = self._policy.choose(asked) or self._take_back(waiting, asked)
            if choice is not None:
                self._start(self._pods[self._numbers[asked.name]], choice, waiting.booking)
                return True
        return False

    def _as_booked(self, waiting: WaitingPod) -> SimulatedPod:
        """The pod as it asks for GPUs of its booking."""
        return replace(self._pods[self._numbers[waiting.holder.uid]], request=waiting.request)

    def _place_others(self) -> None:
        """Of pods that are alike, some are placed until one finds no room."""
        moment, order = self._state.moment, list[tuple[int, Alike]]()
        for line in self._waiting.lines:
            if not line.is_booked and line.looked_at != moment and 1 in self._state.has_gpus(line.request):
                order += [(alike[0][0], alike) for alike in line.by_machine.values()]
        heapq.heapify(order)
        while order:
            _, alike = heapq.heappop(order)
            pod = alike[0][1]
            choice = self._policy.choose(pod) if 1 in self._state.has_room(pod) else None
            if choice is not None:
                self._start(pod, choice)
                if alike:
                    heapq.heappush(order, (alike[0][0], alike))

    def _why(self, request: Request | None) -> str:
        if request is not None and not self._state.has_such_gpus(request):
            return NO_SUCH_GPU
        # If the GPU would be there, the machine has no room.
        return NO_MACHINE if 1 in self._state.has_gpus(request) else NO_GPU

    def _held_placement(self, pod: SimulatedPod) -> Placement | None:
        """Of a pod that is there when the run begins."""
        if pod.request is None:
            return None
        entries = [self._state.ledger.entry(uuid) for uuid in pod.held]
        gpus = tuple(entry.gpu for entry in entries if entry is not None and entry.gpu.node == pod.node)
        assert len(gpus) == len(entries) == pod.request.gpus, (
            f"{pod.name} holds GPUs of {pod.node}, as many as it asks for"
        )
        return Placement(pod.node, gpus, pod.request)

    def _start(self, pod: SimulatedPod, choice: Choice, booking: BookingId = NO_BOOKING) -> None:
        now = instant(self._now)
        if booking and choice.placement is not None:
            coverage = Coverage(booking, now)
            choice = replace(choice, placement=replace(choice.placement, coverage=coverage))
        self._waiting.remove(pod.name)
        self._state.put(pod, choice.node, choice.placement)
        self._covered.pod_holds(pod, self._numbers[pod.name])
        as_victim = OpportunisticPod(pod.name, pod.owner or NOBODY, now, now + MINIMUM_TIME)
        self._running[pod.name] = RunningPod(pod, choice, as_victim)
        self._placed += 1
        if pod.lasts_s is not None:
            heapq.heappush(self._events, (self._now + pod.lasts_s, POD_ENDS, self._numbers[pod.name]))

    def _end(self, name: HolderId) -> None:
        running = self._running.pop(name)
        self._state.leave(running.pod, running.choice.node, running.choice.placement)
        self._covered.pod_leaves(running.pod)

    def _waits_no_more(self, pod: SimulatedPod) -> None:
        self._waiting.remove(pod.name)
        self._covered.pod_leaves(pod)

    def _take_back(self, waiting: WaitingPod, asked: SimulatedPod) -> Choice | None:
        """GPUs of opportunistic pods, for a booked one."""
        covered, running = self._covered.holders(), self._running.items()
        opportunistic = {
            name: each for name, each in running if each.choice.placement is not None and name not in covered
        }
        answer = revoke_in_run(self._state, waiting, asked, opportunistic, instant(self._now))
        if answer is None:
            return None
        for victim in answer.victims:
            self._end(victim.uid)
            self._revoked += 1
        return Choice(answer.node, Placement(answer.node, answer.gpus, waiting.request))

    # --- the result --------------------------------------------------------------------------------------------------

    def _result(self, first: float) -> TimedResult:
        length = self._now - first
        policy, seed = self._names
        pods = max(len(self._pods), 1)
        last = self._now if self._ends_s is not None else math.inf
        made = [each for each in self._bookings if each.seconds_in(first, last)]
        return TimedResult(
            policy,
            seed,
            100 * self._used / (length * self._state.total_gpus) if length else self._state.allocated,
            self._placed,
            len(self._waiting),
            self._revoked,
            self._ended,
            {reason: waited / HOUR_S / pods for reason, waited in sorted(self._waiting.waited_s.items())},
            len(made),
            sum(each.gpus * each.seconds_in(first, last) for each in made) / (24 * HOUR_S),
            sum(each.start_s is None for each in self._bookings),
            _mean_delays(made),
            tuple(self._curve),
        )


def _mean_delays(made: Sequence[BookingOutcome]) -> dict[str, float]:
    """In days, by rule."""
    total: dict[str, float] = {}
    for each in made:
        for rule, delay in each.delays.items():
            total[rule] = total.get(rule, 0.0) + delay
    return {rule: delay / (24 * HOUR_S) / len(made) for rule, delay in sorted(total.items()) if delay}
