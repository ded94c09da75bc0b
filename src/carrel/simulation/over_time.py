"""One run with a clock: pods arrive, wait, run and end; bookings begin and end.

Whom a booking covers is decided by the product's own index, at every event (`covered_pods`). Covered pods go first.
Where there is no room for one, opportunistic pods lose their GPUs as the controller would choose them
(`ledger.victims`), and are counted; they do not come back. When a booking ends, the pods that it covered end, unless
another booking covers them then. Other pods are tried in the order of their arrival, and a smaller one may pass.

If idle GPUs are to come back, one of these others that finds no room gets those of opportunistic pods that have been
idle for long enough: chosen in the same way, and gone for good too. While nobody waits, nobody loses a GPU for it.

At one instant, pods end first, then bookings end, then bookings start, then pods arrive, then pods have been idle for
long enough; then pods are placed. Pods that hold GPUs when the run begins are placed then, and last from then on.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random

from carrel.configuration.schema import BookingRules
from carrel.ids import NO_BOOKING, BookingId, HolderId, PersonId
from carrel.ledger.coverage import Entitlement
from carrel.ledger.placement import Placement, WaitingPod
from carrel.ledger.requests import Request
from carrel.ledger.shares import Coverage, Holder
from carrel.ledger.victims import OpportunisticPod, Revocation
from carrel.simulation.booked_pods import NAMESPACE, CoveredPodsInRun, RunningPod, revoke_in_run
from carrel.simulation.cluster import ClusterInRun, gpus_of
from carrel.simulation.idle_pods import IdlePodsInRun
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
    waits_hours: Sequence[float] = ()
    """For each pod that was not there when the run began: how long it waited, at most until the end."""
    given_back: int = 0
    """Pods that lost their idle GPUs to pods that waited."""
    idle_gpu_hours: float = 0.0
    """For how long these would have held them longer, and been idle."""
    active_gpu_hours: float = 0.0
    """For how long they would have used them later."""


BEGINS, POD_ENDS, BOOKING_ENDS, BOOKING_STARTS, POD_ARRIVES, POD_IDLE = range(6)
"""What happens, in the order in which it counts at one instant."""


def run_over_time(
    cluster: SimulatedCluster,
    workload: Trace,
    policy: str,
    seed: int,
    rules: BookingRules,
    idle_after_s: float = math.inf,
) -> TimedResult:
    """`idle_after_s`: after how long idle GPUs come back if somebody waits."""
    idle = IdlePodsInRun(cluster, workload, idle_after_s)
    return _Run(cluster, workload, (policy, seed), rules, idle).run()


class _Run:
    def __init__(
        self,
        cluster: SimulatedCluster,
        workload: Trace,
        names: tuple[str, int],
        rules: BookingRules,
        idle: IdlePodsInRun,
    ) -> None:
        self._now = 0.0
        self._idle = idle
        self._names = policy, seed = names
        self._state = ClusterInRun(cluster)
        self._covered = CoveredPodsInRun(self._state, lambda: instant(self._now))
        chance = Random(seed)  # noqa: S311 # a run must be repeatable
        self._policy = POLICIES[policy](PolicyContext(self._state, workload.pods, chance))
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
        self._waits_s: dict[HolderId, float] = {}
        self._given_back: list[tuple[float, RunningPod]] = []

    def run(self) -> TimedResult:
        first = self._now = self._first = self._first_moment()
        self._plan_events(first)
        # A run that people book in has an end, or it would be longer the more they book, and pods wait longer.
        last = math.inf if self._ends_s is None else max(self._ends_s, first)
        while self._events and self._events[0][0] <= last:
            when, kind, _ = self._events[0]
            if kind == POD_IDLE and not self._suits_somebody(when):
                heapq.heappop(self._events)
                continue
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
        self._events += [(max(moment, first), POD_IDLE, 0) for moment in self._idle.moments]
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
        elif kind == POD_IDLE:
            self._waiting.look_anew()
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
                self._waits_no_more(name)
                self._covered.pod_leaves(self._pods[self._numbers[name]])
                self._ended += 1

    # --- placing -----------------------------------------------------------------------------------------------------

    def _place_waiting(self) -> None:
        self._place_booked()
        while self._place_others():
            pass
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
            choice = self._policy.choose(asked) or self._revoke(waiting, asked)
            if choice is not None:
                self._start(self._pods[self._numbers[asked.name]], choice, waiting.booking)
                return True
        return False

    def _as_booked(self, waiting: WaitingPod) -> SimulatedPod:
        """The pod as it asks for GPUs of its booking."""
        return replace(self._pods[self._numbers[waiting.holder.uid]], request=waiting.request)

    def _place_others(self) -> bool:
        """Of pods that are alike, some are placed until one finds no room. Return whether some got idle GPUs: there may
        be more of these than they need, so others have to be tried again."""
        moment, order = self._state.moment, list[tuple[int, Alike]]()
        before, may_come_back = len(self._given_back), bool(self._idle_pods(self._now))
        for line in self._waiting.lines:
            has_room = may_come_back or 1 in self._state.has_gpus(line.request)
            if not line.is_booked and line.looked_at != moment and has_room:
                order += [(alike[0][0], alike) for alike in line.by_machine.values()]
        heapq.heapify(order)
        while order:
            _, alike = heapq.heappop(order)
            pod = alike[0][1]
            choice = self._policy.choose(pod) if 1 in self._state.has_room(pod) else self._take_idle(pod)
            if choice is not None:
                self._start(pod, choice)
                if alike:
                    heapq.heappush(order, (alike[0][0], alike))
        return len(self._given_back) > before

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
        self._waits_no_more(pod.name)
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

    def _waits_no_more(self, name: HolderId) -> None:
        if name in self._waiting:
            self._waits_s[name] = self._now - self._waits_since(self._pods[self._numbers[name]])
            self._waiting.remove(name)

    def _waits_since(self, pod: SimulatedPod) -> float:
        return max(pod.arrives_s, self._first)

    # --- taking back -------------------------------------------------------------------------------------------------

    def _opportunistic(self) -> dict[HolderId, RunningPod]:
        covered, running = self._covered.holders(), self._running.items()
        return {name: each for name, each in running if each.choice.placement is not None and name not in covered}

    def _revoke(self, waiting: WaitingPod, asked: SimulatedPod) -> Choice | None:
        """GPUs of opportunistic pods, for a booked one."""
        answer = revoke_in_run(self._state, waiting, asked, self._opportunistic(), instant(self._now))
        if answer is None:
            return None
        self._revoked += len(answer.victims)
        return self._take(answer, waiting.request)

    def _idle_pods(self, when: float) -> dict[HolderId, RunningPod]:
        """The opportunistic pods that have been idle for long enough by then."""
        names = self._idle.at(when)
        return {name: each for name, each in self._opportunistic().items() if name in names} if names else {}

    def _suits_somebody(self, when: float) -> bool:
        """Whether idle GPUs would come back now. A moment at which none do leaves no trace, not even by rounding."""
        idle = self._idle_pods(when)
        others = (line for line in self._waiting.lines if not line.is_booked)
        return any(self._idle_gpus(alike[0][1], idle) for line in others for alike in line.by_machine.values())

    def _take_idle(self, pod: SimulatedPod) -> Choice | None:
        """GPUs of pods that do not use them, for one that waits."""
        answer = self._idle_gpus(pod, self._idle_pods(self._now))
        if answer is None or pod.request is None:
            return None
        self._given_back += [(self._now, self._running[victim.uid]) for victim in answer.victims]
        return self._take(answer, pod.request)

    def _idle_gpus(self, pod: SimulatedPod, idle: Mapping[HolderId, RunningPod]) -> Revocation | None:
        if not idle or pod.request is None:
            return None
        waiting = WaitingPod(Holder(pod.name, NAMESPACE, pod.name), pod.request, self._state.names)
        return revoke_in_run(self._state, waiting, pod, idle, instant(self._now))

    def _take(self, answer: Revocation, request: Request) -> Choice:
        for victim in answer.victims:
            self._end(victim.uid)
        return Choice(answer.node, Placement(answer.node, answer.gpus, request))

    # --- the result --------------------------------------------------------------------------------------------------

    def _result(self, first: float) -> TimedResult:
        length = self._now - first
        policy, seed = self._names
        pods = max(len(self._pods), 1)
        last = self._now if self._ends_s is not None else math.inf
        made = [each for each in self._bookings if each.seconds_in(first, last)]
        came = [pod for pod in self._pods if not pod.node and self._waits_since(pod) <= self._now]
        waits = [self._waits_s.get(pod.name, self._now - self._waits_since(pod)) for pod in came]
        idle, active = self._came_back()
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
            tuple(wait / HOUR_S for wait in waits),
            len(self._given_back),
            idle,
            active,
        )

    def _came_back(self) -> tuple[float, float]:
        """In GPU hours, how long the pods would have been idle and active that gave their idle GPUs back."""
        idle = active = 0.0
        for when, running in self._given_back:
            assert running.choice.placement is not None, "only pods with GPUs give some back"
            lasts = running.pod.lasts_s
            end = self._now if lasts is None else min(self._now, self._first + lasts)
            gpu_hours = gpus_of(running.choice.placement) / HOUR_S
            idle_s = self._idle.idle_s(running.pod.name, when, end)
            idle += idle_s * gpu_hours
            active += max(0.0, end - when - idle_s) * gpu_hours
        return idle, active


def _mean_delays(made: Sequence[BookingOutcome]) -> dict[str, float]:
    """In days, by rule."""
    total: dict[str, float] = {}
    for each in made:
        for rule, delay in each.delays.items():
            total[rule] = total.get(rule, 0.0) + delay
    return {rule: delay / (24 * HOUR_S) / len(made) for rule, delay in sorted(total.items()) if delay}
